"""A sync fails, its process is killed, another one goes on without a word of it, and then the power is cut.

What the system could not write it takes for written: whoever finds it in a file and builds on it, syncs or not, loses
all of that. The disk is the model's; see ``harness.disk.model``.

A folder is another matter. By the variant ``gate`` its sync fails as the journal of ext4 or xfs can't be written, and
the file system takes no effect of whoever goes on. By ``strict`` there is no journal and it does. That is reported: who
finds a name does not know that a sync of it has failed, and has nothing of it to write anew.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from harness.checkers.prefix import Found, Judgement, Promised
from harness.disk.choices import Depth
from harness.disk.files import ROOT, Tree
from harness.disk.model import FolderModel, numbered
from harness.disk.states import State, states
from harness.effects.recording import NOT_COUNTED, Effect, Kind, read_recording
from harness.sweeps.power import BOOT_AFTER_THAT, check_maps, told_between
from harness.sweeps.workshop import NEVER_READ, NOTHING, Plan, Row, Workshop

_DEPTH = Depth(states_per_position=3, unread=NEVER_READ)
_OPENING_POSITIONS = 8
_FIRST_PROMISES, _LATER_PROMISES = 3, 2
"""Where only some states are asked for, power is cut at so many acknowledgements: the next ones, and drawn ones."""
_OPENING = Depth(states_per_position=2, unread=NEVER_READ)


def syncs(recording: Sequence[Effect]) -> list[int]:
    """The effects that are syncs of one file or folder, or writes with a sync in them, which ``points`` number."""
    return [effect.index for effect in recording if effect.synchronous or effect.kind in (Kind.SYNC, Kind.DATASYNC)]


def failed_syncs(shop: Workshop, points: Sequence[int], only: str = "") -> Iterator[Row]:
    """Let the syncs fail that ``points`` number; cut the power wherever the one that goes on has made a promise."""
    planned = syncs(shop.recording())
    for point in (point for point in points if point < len(planned)):
        at = planned[point]
        first, second = shop.scratch("failed"), shop.scratch("went-on")
        lives = _Lives(shop, at, first, second)
        told, judgement = shop.patiently(lives.trial)
        if not lives.reached or not judgement.expected:
            words = _words(at) if lives.reached else f"effect {at} was to fail, and was not reached"
            yield shop.row(point, "", words, told, judgement)
            continue
        recording = joined(read_recording(first), lives.promises_of(read_recording(second)))
        check_maps(recording)
        for state in _states(recording, len(numbered(read_recording(first))), shop):
            if only in ("", state.description.to_json()):
                yield _judged(shop, recording, point, at, state)


class _Lives:
    """Of the process whose sync fails, recorded in ``first``, and of the one that goes on, in ``second``."""

    def __init__(self, shop: Workshop, at: int, first: Path, second: Path) -> None:
        self._shop, self._at, self._first, self._second = shop, at, first, second
        self.reached = True
        """Whether the sync was; with threads there may have been fewer effects this time."""
        self._refused = False
        """Whether the file system has taken nothing from the one that went on."""

    def trial(self) -> tuple[Promised, Judgement]:
        """What was promised; nothing is wrong yet where it is to be judged by what the power leaves of it."""
        shop = self._shop
        for made in (self._first, self._second):
            made.unlink(missing_ok=True)
        before = shop.victim(["FailThenKill", self._at, errno.EIO], self._first)
        demanded = shop.demanded("power")
        told = shop.told(before, demanded)
        self.reached = before.killed
        if not self.reached:
            # It came to its end, and is judged as it is.
            return told, shop.judge(told, shop.demanded("error"))
        self._refused = shop.case.variant == "gate" and _failed_a_folder(read_recording(self._first))
        plan: Plan = ["Fail", 0, errno.EROFS, True] if self._refused else NOTHING
        after = shop.victim(plan, self._second, go_on_from=told.acknowledged)
        notes = [note for note in after.notes if self._is_promise(note)]
        told = shop.told(after._replace(notes=(*before.notes, *notes)), demanded)
        if told.broken or told.trouble:
            return told, shop.judge(told, demanded)
        return told, Judgement(Found.VALID, None, True)

    def promises_of(self, recording: Sequence[Effect]) -> list[Effect]:
        """``recording``, of the one that went on, without notes that promise nothing."""
        return [effect for effect in recording if effect.kind is not Kind.NOTE or self._is_promise(effect.text)]

    def _is_promise(self, note: str) -> bool:
        # What can be read where nothing can be written any more is gone with the power, and nothing is built on it.
        return not (self._refused and note.startswith("open"))


def _failed_a_folder(recording: Sequence[Effect]) -> bool:
    """Whether the sync that failed was a folder's."""
    folders = {ROOT, *(effect.file for effect in recording if effect.kind is Kind.MKDIR)}
    return any(effect.kind is Kind.SYNC_FAILED and effect.file in folders for effect in recording)


def joined(first: Sequence[Effect], second: Sequence[Effect]) -> list[Effect]:
    """Two recordings, one after the other, of processes that worked below the same folder, as one."""
    count = sum(effect.kind not in NOT_COUNTED for effect in first)
    files = max((effect.file for effect in first), default=0)
    shifted = [
        replace(effect, index=effect.index + count, file=effect.file + files if effect.file > ROOT else effect.file)
        for effect in second
    ]
    return [*first, *shifted]


def _states(recording: Sequence[Effect], begin: int, shop: Workshop) -> Iterator[State]:
    """At some places while the one that goes on opens, where it acknowledged, and at the end: each once."""
    end, model, seed = len(numbered(recording)), FolderModel(shop.case.variant), shop.seed
    later = [effect for effect in recording if effect.kind is Kind.NOTE and effect.index >= begin]
    told = {effect.index for effect in later if effect.text.startswith("ack")}
    if shop.case.states_per_position is not None:
        first, others = sorted(told)[:_FIRST_PROMISES], sorted(told)[_FIRST_PROMISES:]
        told = {*first, *Random(f"told {seed} {begin}").sample(others, min(_LATER_PROMISES, len(others)))}
    opened = next((effect.index for effect in later if effect.text.startswith("attempt")), begin)
    met = set()
    opening = range(begin, opened + 1)
    drawn = Random(f"opening {seed} {begin}").sample(opening, min(_OPENING_POSITIONS, len(opening)))
    for position in sorted({*drawn, *told, end}):
        depth = _DEPTH if position in told else _OPENING
        for state in states(recording, Tree(), range(position, position + 1), model, seed, depth):
            digest = state.tree.digest(NEVER_READ)
            # Behind a later promise the same state is another question.
            if state.description.position == position and (digest, position) not in met:
                met.add((digest, position))
                yield state


def _judged(shop: Workshop, recording: Sequence[Effect], point: int, at: int, state: State) -> Row:
    demanded = shop.demanded("power")
    promised = told_between(recording, state.said_by, state.said_before, demanded)

    def trial() -> tuple[Promised, Judgement]:
        shop.place(state.tree)
        return promised, shop.judge(promised, demanded, boot=BOOT_AFTER_THAT)

    told, judgement = shop.patiently(trial)
    words = f"{_words(at)}; and the power lost before effect {state.description.position}: {state.description.kind}"
    row = shop.row(point, state.description.to_json(), words, told, judgement)
    return row | {"digest": state.tree.digest(NEVER_READ).hex()}


def _words(at: int) -> str:
    return f"the sync that is effect {at} failed, its process was killed, another one went on"
