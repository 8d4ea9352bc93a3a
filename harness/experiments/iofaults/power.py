"""Power loss at every position of a recording: each distinct crash state is opened and checked.

Promises are checked against the persistence model ``names``, and at DISK against ``strict`` as well. ``journal`` is for
the report. Beyond the model only undetected wrong content counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

from harness.checkers.prefix import Demand, Promised
from harness.crash_states.choices import Depth
from harness.crash_states.files import Tree
from harness.crash_states.model import FolderModel
from harness.crash_states.states import Description, Distinct, distinct, positions, rebuild, said
from harness.experiments.iofaults.drawing import NEVER_READ, Group, unsynced
from harness.experiments.iofaults.fault import NOTHING, STRICT, TORN_SECTORS, InjectedFault, Loss, Row
from harness.experiments.iofaults.workshop import Workshop
from harness.experiments.iofaults.writer import folded
from harness.io_trace.recorder import IoOperation, Kind, read_recording
from harness.processes.fork_server import ForkServerError

NEXT_BOOT = "the next boot"
MAPS_THAT_DO_NOT_MATTER = ("-shm", "lock.mdb")
"""Files that engines map writable and shared, and rebuild after a crash: SQLite's WAL index, LMDB's reader table."""
_FIRST_STATES = Depth(states_per_position=2, unread=NEVER_READ)
_SECOND_STATES = Depth(states_per_position=4, unread=NEVER_READ)


class PowerLoss(InjectedFault):
    """The power is cut at positions of the recording; equal crash states are checked once."""

    name = "power"
    words = "power lost"
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

    def groups(self, recording: Sequence[IoOperation]) -> list[Group]:
        return unsynced(recording)


class PowerLossTwice(PowerLoss):
    """The power is cut at positions, and from some of the states again at every position of the recovery."""

    name = "power_twice"
    words = "power lost, and again in its recovery"
    points_per_subset = 4
    variants = ("names",)
    model_suffix = ", twice"

    def explore(self, shop: Workshop, points: Sequence[int], only: str) -> Iterator[Row]:
        recording = shop.recording()
        check_maps(recording)
        model = FolderModel(shop.case.variant)
        wanted = ""
        firsts: Iterator[tuple[_Cut, Tree]]
        if only:
            alone, wanted = _read(only)
            firsts = iter([(alone, rebuild(recording, Tree(), alone.description))])
        else:
            found = distinct(recording, Tree(), _within(recording, points), model, shop.seed, _FIRST_STATES)
            firsts = ((_Cut.of(state), state.tree) for state in found)
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
            for state in distinct(recovery, base, positions(recovery), model, shop.seed, _SECOND_STATES):
                if wanted in ("", state.description.to_json()):
                    yield _checked(shop, recording, first, state.tree, state.description) | {"states": state.states}


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


def check_maps(recording: Sequence[IoOperation]) -> None:
    """Raise UnseenWritesError if the recording misses writes through a shared map."""
    for operation in recording:
        if operation.kind is Kind.MAP_WRITABLE and not operation.path.endswith(MAPS_THAT_DO_NOT_MATTER):
            raise UnseenWritesError(
                f"{operation.path} is written through a shared map, which no recording shows: turn that option off"
            )


class UnseenWritesError(Exception):
    """A recording does not show all writes, so the crash states of a power loss cannot be generated."""
