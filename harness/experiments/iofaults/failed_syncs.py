"""Failed syncs: a sync fails, its process is killed, another process continues, and then power is lost.

After a failed fsync Linux marks the pages clean. Data appended to them later is lost with them, even if its own fsync
succeeds. The disk is that of the persistence model; see ``harness.crash_states.model``.

A folder differs. In the variant ``names`` its sync fails because the journal of ext4 or xfs cannot be written, and the
file system refuses all operations of the next process. In ``strict`` there is no journal, and it accepts them. That is
only reported: a process that finds a name does not know that a sync of it has failed, and has nothing to write again.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from harness.checkers.prefix import Found, PrefixFinding, Promised, demand
from harness.crash_states.choices import Depth
from harness.crash_states.files import ROOT, Tree
from harness.crash_states.model import FolderModel, numbered
from harness.crash_states.states import State, states
from harness.experiments.iofaults.drawing import NEVER_READ, Group, by_role
from harness.experiments.iofaults.fault import NOTHING, STRICT, InjectedFault, Loss, Plan, Row
from harness.experiments.iofaults.power import check_maps, promised_between
from harness.experiments.iofaults.workshop import Workshop
from harness.io_trace.recorder import NOT_COUNTED, IoOperation, Kind, read_recording

_DEPTH = Depth(states_per_position=3, unread=NEVER_READ)
_OPENING_POSITIONS = 8
_FIRST_PROMISES, _LATER_PROMISES = 3, 2
"""With a bound on states, power is cut at so many acknowledgements: the first ones, and some that are drawn."""
_OPENING = Depth(states_per_position=2, unread=NEVER_READ)


def syncs(recording: Sequence[IoOperation]) -> list[int]:
    """Return the operations that ``points`` number: syncs of one file or folder, and writes that also sync."""
    return [
        operation.index
        for operation in recording
        if operation.synchronous or operation.kind in (Kind.SYNC, Kind.DATASYNC)
    ]


class FailedSync(InjectedFault):
    """The sync ``point`` fails. The power is cut at acknowledgements of the process that continues."""

    name = "failed_sync"
    words = "a sync fails, a kill, and power lost later"
    points_per_subset = 4
    variants = ("names", STRICT)
    loss = Loss.UNSYNCED
    promise = "power"
    several_at_a_point = True
    from_recording = True
    model_suffix = ", a sync failed earlier"

    def explore(self, shop: Workshop, points: Sequence[int], only: str) -> Iterator[Row]:
        planned = syncs(shop.recording())
        for point in (point for point in points if point < len(planned)):
            at = planned[point]
            first, second = shop.scratch("failed"), shop.scratch("went-on")
            lives = _Lives(shop, at, first, second)
            promises, verdict = shop.patiently(lives.trial)
            if not lives.reached or not verdict.expected:
                words = _words(at) if lives.reached else f"operation {at} was to fail, and was not reached"
                yield shop.row(point, "", words, promises, verdict)
                continue
            recording = joined(read_recording(first), lives.promises_of(read_recording(second)))
            check_maps(recording)
            for state in _states(recording, len(numbered(read_recording(first))), shop):
                if only in ("", state.description.to_json()):
                    yield _checked(shop, recording, point, at, state)

    def points(self, recording: Sequence[IoOperation], variant: str, seed: int) -> range:
        return range(len(syncs(recording)))

    def groups(self, recording: Sequence[IoOperation]) -> list[Group]:
        return by_role(recording, list(enumerate(syncs(recording))))


class _Lives:
    """The process whose sync fails, recorded in ``first``, and the process that continues, recorded in ``second``."""

    def __init__(self, shop: Workshop, at: int, first: Path, second: Path) -> None:
        self._shop, self._at, self._first, self._second = shop, at, first, second
        self.reached = True
        """False if the sync was not reached: with threads, a process may have fewer operations than its recording."""
        self._refused = False
        """True if the file system refuses all operations of the process that continues."""

    def trial(self) -> tuple[Promised, PrefixFinding]:
        """Run both processes. Return what was acknowledged, and "valid" if only a power loss can show an anomaly."""
        shop = self._shop
        for made in (self._first, self._second):
            made.unlink(missing_ok=True)
        before = shop.writer(["FailThenKill", self._at, errno.EIO], self._first)
        promises = shop.promises(before)
        self.reached = before.killed
        if not self.reached:
            # The process completed its work, so its store is checked as it is.
            error = demand(shop.case.level, "error", transactional=shop.demanded.transactional)
            return promises, shop.verdict(promises, error)
        self._refused = shop.case.variant == "names" and _failed_a_folder(read_recording(self._first))
        plan: Plan = ["Fail", 0, errno.EROFS, True] if self._refused else NOTHING
        after = shop.writer(plan, self._second, go_on_from=promises.acknowledged)
        notes = [note for note in after.notes if self._is_promise(note)]
        promises = shop.promises(after._replace(notes=(*before.notes, *notes)))
        if promises.broken or promises.trouble:
            return promises, shop.verdict(promises)
        return promises, PrefixFinding(Found.VALID, None, True)

    def promises_of(self, recording: Sequence[IoOperation]) -> list[IoOperation]:
        """Return ``recording``, of the process that continued, without the notes that acknowledge nothing."""
        return [
            operation for operation in recording if operation.kind is not Kind.NOTE or self._is_promise(operation.text)
        ]

    def _is_promise(self, note: str) -> bool:
        # On a read-only file system, data that can be read may be lost with the power, and no write depends on it.
        return not (self._refused and note.startswith("open"))


def _failed_a_folder(recording: Sequence[IoOperation]) -> bool:
    """Return True if the sync that failed was that of a folder."""
    folders = {ROOT, *(operation.file for operation in recording if operation.kind is Kind.MKDIR)}
    return any(operation.kind is Kind.SYNC_FAILED and operation.file in folders for operation in recording)


def joined(first: Sequence[IoOperation], second: Sequence[IoOperation]) -> list[IoOperation]:
    """Return the recordings of two processes that worked below the same folder, one after the other, as one."""
    count = sum(operation.kind not in NOT_COUNTED for operation in first)
    files = max((operation.file for operation in first), default=0)
    shifted = [
        replace(
            operation,
            index=operation.index + count,
            file=operation.file + files if operation.file > ROOT else operation.file,
        )
        for operation in second
    ]
    return [*first, *shifted]


def _states(recording: Sequence[IoOperation], begin: int, shop: Workshop) -> Iterator[State]:
    """Yield crash states at some positions of the second opening, at acknowledgements, and at the end: each once."""
    end, model, seed = len(numbered(recording)), FolderModel(shop.case.variant), shop.seed
    later = [operation for operation in recording if operation.kind is Kind.NOTE and operation.index >= begin]
    acknowledged = {operation.index for operation in later if operation.text.startswith("ack")}
    if shop.case.states_per_position is not None:
        first, others = sorted(acknowledged)[:_FIRST_PROMISES], sorted(acknowledged)[_FIRST_PROMISES:]
        acknowledged = {*first, *Random(f"told {seed} {begin}").sample(others, min(_LATER_PROMISES, len(others)))}
    opened = next((operation.index for operation in later if operation.text.startswith("attempt")), begin)
    met = set()
    opening = range(begin, opened + 1)
    drawn = Random(f"opening {seed} {begin}").sample(opening, min(_OPENING_POSITIONS, len(opening)))
    for position in sorted({*drawn, *acknowledged, end}):
        depth = _DEPTH if position in acknowledged else _OPENING
        for state in states(recording, Tree(), range(position, position + 1), model, seed, depth):
            digest = state.tree.digest(NEVER_READ)
            # After a later acknowledgement the same state is checked again: more must have survived.
            if state.description.position == position and (digest, position) not in met:
                met.add((digest, position))
                yield state


def _checked(shop: Workshop, recording: Sequence[IoOperation], point: int, at: int, state: State) -> Row:
    promises = promised_between(recording, state.said_by, state.said_before, shop.demanded)
    words = f"{_words(at)}; and the power lost before operation {state.description.position}: {state.description.kind}"
    return shop.of_crash_state(point, state.description.to_json(), words, promises, state.tree)


def _words(at: int) -> str:
    return f"the sync that is operation {at} failed, its process was killed, another one went on"
