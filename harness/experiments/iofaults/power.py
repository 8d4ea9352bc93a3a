"""Power loss at every position of a recording, in its recovery and after a failed sync: each crash state is checked.

Promises are checked against the persistence model ``names``, and at DISK against ``strict`` as well. ``journal`` is for
the report. Beyond the model only undetected wrong content counts.

A sync fails, its process is killed, another process continues, and then power is lost. After a failed fsync Linux marks
the pages clean. Data appended to them later is lost with them, even if its own fsync succeeds. The disk is that of the
persistence model; see ``harness.crash_states.model``. A folder differs. In the variant ``names`` its sync fails because
the journal of ext4 or xfs cannot be written, and the file system refuses all operations of the next process. In
``strict`` there is no journal, and it accepts them. That is only reported: a process that finds a name does not know
that a sync of it has failed, and has nothing to write again.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import ClassVar, NamedTuple

from harness.checkers.prefix import Demand, Found, PrefixFinding, Promised, demand
from harness.crash_states.files import ROOT, Tree
from harness.crash_states.model import FolderModel, numbered
from harness.crash_states.states import Depth, Description, Distinct, State, distinct, positions, rebuild, said, states
from harness.experiments.iofaults.classes import PointClasses, Resolution
from harness.experiments.iofaults.fault import (
    NEVER_READ,
    NOTHING,
    STRICT,
    TORN_SECTORS,
    Guide,
    InjectedFault,
    Loss,
    Plan,
    Row,
    by_role,
    unsynced,
)
from harness.experiments.iofaults.processes import folded
from harness.experiments.iofaults.workshop import Workshop
from harness.io_trace.recorder import NOT_COUNTED, IoOperation, Kind, read_recording
from harness.processes.fork_server import ForkServerError

NEXT_BOOT = "the next boot"
MAPS_THAT_DO_NOT_MATTER = ("-shm", "lock.mdb")
"""Files that engines map writable and shared, and rebuild after a crash: SQLite's WAL index, LMDB's reader table."""
_FIRST_STATES = _OPENING = Depth(states_per_position=2, unread=NEVER_READ)
_SECOND_STATES = Depth(states_per_position=4, unread=NEVER_READ)
_ACKNOWLEDGED = Depth(states_per_position=3, unread=NEVER_READ)
_OPENING_POSITIONS = 8
_FIRST_PROMISES, _LATER_PROMISES = 3, 2
"""With a bound on states, power is cut at so many acknowledgements: the first ones, and some that are drawn."""


class PowerLoss(InjectedFault):
    """The power is cut at positions of the recording; equal crash states are checked once."""

    name = "power"
    words = "power lost"
    losses = 1
    points_per_subset = 96
    variants: ClassVar[tuple[str, ...]] = ("names", "journal", STRICT, TORN_SECTORS)
    loss = Loss.UNSYNCED
    promise = "power"
    several_at_a_point = True
    from_recording = True

    def explore(self, shop: Workshop, points: Sequence[int], only: str) -> Iterator[Row]:
        recording = shop.recording()
        check_maps(recording)
        torn_sectors = shop.case.variant == TORN_SECTORS
        model = FolderModel.NAMES if torn_sectors else FolderModel(shop.case.variant)
        if only:
            alone, _ = _read(only)
            yield _checked(shop, recording, alone, rebuild(recording, Tree(), alone.description))
            return
        depth = Depth(beyond_model=torn_sectors, states_per_position=shop.case.states_per_position, unread=NEVER_READ)
        for state in distinct(recording, Tree(), _within(recording, points), model, shop.seed, depth):
            yield _checked(shop, recording, _Cut.of(state), state.tree) | {"states": state.states}

    def guides(self, recording: Sequence[IoOperation]) -> list[Guide]:
        return unsynced(recording)

    def classes(self, points: PointClasses, variant: str, seed: int, resolution: Resolution) -> Mapping[int, str]:
        """Return the class of each position, by what is pending there."""
        return dict(enumerate(points.of_positions(resolution)))


class PowerLossTwice(PowerLoss):
    """The power is cut at positions, and from some of the states again at every position of the recovery."""

    name = "power_twice"
    words = "power lost, and again in its recovery"
    losses = 2
    points_per_subset = 4
    variants = ("names",)
    model_suffix = ", twice"

    def explore(self, shop: Workshop, points: Sequence[int], only: str) -> Iterator[Row]:
        recording = shop.recording()
        check_maps(recording)
        model = FolderModel(shop.case.variant)
        second_loss = ""
        firsts: Iterator[tuple[_Cut, Tree]]
        if only:
            alone, second_loss = _read(only)
            firsts = iter([(alone, rebuild(recording, Tree(), alone.description))])
        else:
            states = distinct(recording, Tree(), _within(recording, points), model, shop.seed, _FIRST_STATES)
            firsts = ((_Cut.of(state), state.tree) for state in states)
        for first, tree in firsts:
            shop.place(tree)
            # Read the tree again, with file numbers that the recovery's recording does not use.
            base = Tree.read(shop.root)
            again = shop.scratch("recovery")
            again.unlink(missing_ok=True)
            try:
                recovered = shop.recover(NOTHING, boot=NEXT_BOOT, recording=again)
            except ForkServerError:
                recovered = None
                shop.renew()
            if recovered is None or recovered.status != 0:
                # The verifier opens the same state, and reports a hang, a crash or an error.
                yield _checked(shop, recording, first, base)
                continue
            recovery = read_recording(again)
            check_maps(recovery)
            for state in distinct(
                recovery, base, _second_losses(shop, recovery, first), model, shop.seed, _SECOND_STATES
            ):
                if second_loss in ("", state.description.to_json()):
                    yield _checked(shop, recording, first, state.tree, state.description) | {"states": state.states}


def _second_losses(shop: Workshop, recovery: Sequence[IoOperation], first: _Cut) -> Sequence[int]:
    """Return the positions of a recovery at which power is lost again: all, or as many as the case bounds."""
    there = positions(recovery)
    most = shop.case.states_per_position
    if most is None or most >= len(there):
        return there
    return sorted(Random(f"second loss {shop.seed} {first.to_json(None)}").sample(there, most))


def _within(recording: Sequence[IoOperation], points: Sequence[int]) -> list[int]:
    """Return those of ``points`` that this recording has: another recording of the same case may be longer."""
    there = positions(recording)
    return [point for point in points if point in there]


class _Cut(NamedTuple):
    """A crash state, with lower and upper bounds of what the process had acknowledged; see Distinct."""

    description: Description
    said_before: int
    said_by: int

    @classmethod
    def of(cls, state: Distinct) -> _Cut:
        return cls(state.description, state.said_before, state.said_by)

    def to_json(self, second: Description | None) -> str:
        """Return the text that ``_read`` parses. It keeps the bounds, so that a repeated trial has the same demands."""
        numbers = [self.description.to_json(), self.said_before, self.said_by]
        return json.dumps(numbers if second is None else [*numbers, second.to_json()])


def _read(only: str) -> tuple[_Cut, str]:
    """Parse the first power loss, and the description of the second one, or "". Raises: ValueError."""
    try:
        description, said_before, said_by, *second = json.loads(only)
        return _Cut(Description.from_json(description), int(said_before), int(said_by)), "".join(second)
    except TypeError as error:
        raise ValueError(f"{only!r} describes no state: {error}") from error


def promised_between(recording: Sequence[IoOperation], said_by: int, said_before: int, demanded: Demand) -> Promised:
    """Return the fewest acknowledged and attempted commits of all moments at which the state is legal."""
    most, least = folded(said(recording, said_by), demanded), folded(said(recording, said_before), demanded)
    return Promised(most.acknowledged, max(least.attempted, most.acknowledged), most.broken, most.trouble)


def _checked(
    shop: Workshop, recording: Sequence[IoOperation], cut: _Cut, tree: Tree, second: Description | None = None
) -> Row:
    promises = promised_between(recording, cut.said_by, cut.said_before, shop.demanded)
    description = cut.description
    return shop.of_crash_state(description.position, cut.to_json(second), _words(description, second), promises, tree)


def _words(description: Description, second: Description | None) -> str:
    words = f"power lost before operation {description.position}, kept beside what is sure: {description.kind}"
    if description.tears:
        words += ", torn"
    return words if second is None else f"{words}; and again before operation {second.position} of the recovery"


class FailedSync(InjectedFault):
    """The sync ``point`` fails. The power is cut at acknowledgements of the process that continues."""

    name = "failed_sync"
    words = "a sync fails, a kill, and power lost later"
    kills = 1
    losses = 1
    points_per_subset = 4
    variants = ("names", STRICT)
    loss = Loss.UNSYNCED
    promise = "power"
    several_at_a_point = True
    from_recording = True
    model_suffix = ", a sync failed earlier"

    def explore(self, shop: Workshop, points: Sequence[int], only: str) -> Iterator[Row]:
        operations = syncs(shop.recording())
        for point in (point for point in points if point < len(operations)):
            at = operations[point]
            first, second = shop.scratch("failed"), shop.scratch("went-on")
            lives = _Lives(shop, at, first, second)
            promises, verdict = shop.patiently(lives.trial)
            if not lives.reached or not verdict.expected:
                words = _failure(at) if lives.reached else f"operation {at} was to fail, and was not reached"
                yield shop.row(point, "", words, promises, verdict)
                continue
            recording = joined(read_recording(first), lives.promises_of(read_recording(second)))
            check_maps(recording)
            for state in states_after(recording, len(numbered(read_recording(first))), shop):
                if only in ("", state.description.to_json()):
                    yield _checked_after_sync(shop, recording, point, at, state)

    def points(self, recording: Sequence[IoOperation], variant: str, seed: int) -> range:
        return range(len(syncs(recording)))

    def guides(self, recording: Sequence[IoOperation]) -> list[Guide]:
        return by_role(recording, list(enumerate(syncs(recording))))

    def classes(self, points: PointClasses, variant: str, seed: int, resolution: Resolution) -> Mapping[int, str]:
        """Return the class of each sync."""
        of = points.of_operations(resolution)
        return {point: of[at] for point, at in enumerate(syncs(points.recording))}


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
        for recording in (self._first, self._second):
            recording.unlink(missing_ok=True)
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


def syncs(recording: Sequence[IoOperation]) -> list[int]:
    """Return the operations that ``points`` number: syncs of one file or folder, and writes that also sync."""
    return [
        operation.index
        for operation in recording
        if operation.synchronous or operation.kind in (Kind.SYNC, Kind.DATASYNC)
    ]


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


def states_after(recording: Sequence[IoOperation], begin: int, shop: Workshop) -> Iterator[State]:
    """Yield crash states from operation ``begin`` on: in the second opening, at acknowledgements, and at the end.

    A state is yielded again only where other promises hold, such as after a later acknowledgement.
    """
    end, model, seed = len(numbered(recording)), FolderModel(shop.case.variant), shop.seed
    later = [operation for operation in recording if operation.kind is Kind.NOTE and operation.index >= begin]
    acknowledged = {operation.index for operation in later if operation.text.startswith("ack")}
    if shop.case.states_per_position is not None:
        first, others = sorted(acknowledged)[:_FIRST_PROMISES], sorted(acknowledged)[_FIRST_PROMISES:]
        acknowledged = {*first, *Random(f"told {seed} {begin}").sample(others, min(_LATER_PROMISES, len(others)))}
    first_attempt = next((operation.index for operation in later if operation.text.startswith("attempt")), begin)
    opening = range(begin, first_attempt + 1)
    sample = set(Random(f"opening {seed} {begin}").sample(opening, min(_OPENING_POSITIONS, len(opening))))
    met = set()
    # Each part replays the recording once.
    for places, depth in (
        (sample - acknowledged, _OPENING),
        (acknowledged, _ACKNOWLEDGED),
        ({end} - sample - acknowledged, _OPENING),
    ):
        for state in states(recording, Tree(), sorted(places), model, seed, depth):
            checked = (
                state.tree.digest(NEVER_READ),
                promised_between(recording, state.said_by, state.said_before, shop.demanded),
            )
            if checked not in met:
                met.add(checked)
                yield state


def _checked_after_sync(shop: Workshop, recording: Sequence[IoOperation], point: int, at: int, state: State) -> Row:
    promises = promised_between(recording, state.said_by, state.said_before, shop.demanded)
    description = state.description
    words = f"{_failure(at)}; and the power lost before operation {description.position}: {description.kind}"
    return shop.of_crash_state(point, description.to_json(), words, promises, state.tree)


def _failure(at: int) -> str:
    return f"the sync that is operation {at} failed, its process was killed, another one went on"


def check_maps(recording: Sequence[IoOperation]) -> None:
    """Raise UnseenWritesError if the recording misses writes through a shared map."""
    for operation in recording:
        if operation.kind is Kind.MAP_WRITABLE and not operation.path.endswith(MAPS_THAT_DO_NOT_MATTER):
            raise UnseenWritesError(
                f"{operation.path} is written through a shared map, which no recording shows: turn that option off"
            )


class UnseenWritesError(Exception):
    """A recording does not show all writes, so the crash states of a power loss cannot be generated."""
