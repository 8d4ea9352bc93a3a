"""The base of I/O faults: one class has a fault's act on processes, its points, its place in a plan, and its words.

Below it is the order in which points are drawn: first those where a broken promise of durability shows most. Power is
cut just before a sync, when most is unsynced, and first where a commit was acknowledged before that sync. Other faults
strike what a commit does between its attempt and its acknowledgement, and first what every commit does. Each fourth
point is one of a class that was tried longest ago, to find defects of unforeseen kinds.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain, pairwise
from pathlib import PurePosixPath
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from harness.crash_states.changes import matches
from harness.crash_states.model import numbered
from harness.crash_states.states import positions
from harness.experiments.iofaults.classes import END, PointClasses, Resolution
from harness.io_trace.recorder import IoOperation, Kind

Row = dict[str, Any]
"""As in ``harness.report.rows``, which is not for the processes of a trial: it imports pyarrow."""
Plan = list[Any]
"""A plan of fault injection, as its name and its arguments."""
NOTHING: Plan = ["Nothing"]
STRICT, TORN_SECTORS = "strict", "torn-sectors"
"""The persistence model that promises less than file systems in use do, and that which goes beyond disks."""
ALIKE_EVERY = 4
"""One of this many points is drawn from all points with equal probability."""

NEVER_READ = ("*/LOG",)
"""Files that engines write for people and never read. States that differ only in these files are equal."""
_SYNCS = (Kind.SYNC, Kind.DATASYNC, Kind.SYNC_ALL)
_NAMES = (Kind.RENAME, Kind.LINK, Kind.UNLINK, Kind.RMDIR)
_NUMBER = re.compile(r"[0-9a-f]*\d[0-9a-f]*")


class Guide(NamedTuple):
    """Points at which the same thing happens. Twice the ``weight`` gives twice the share until they are used up."""

    weight: float
    points: Sequence[int]


class Loss(Enum):
    """The bytes that a fault takes from the files: none, those not synced, or some at rest."""

    NOTHING = "process"
    UNSYNCED = "power"
    AT_REST = "damage"


_DECLARED: dict[str, InjectedFault] = {}
IO_FAULTS: Mapping[str, InjectedFault] = MappingProxyType(_DECLARED)
"""Every fault by its name, in the order of the tables, once the package is imported."""


class InjectedFault(ABC):
    """A kind of fault. A new one is a subclass, in a module that the package imports."""

    name: ClassVar[str]
    words: ClassVar[str]
    points_per_subset: ClassVar[int]
    """So many points make a task of some seconds."""
    variants: ClassVar[tuple[str, ...]] = ("",)
    """The first one is the default."""
    loss: ClassVar[Loss] = Loss.NOTHING
    promise: ClassVar[str] = "kill"
    """The fault whose promise at each level it must keep; see ``harness.checkers.prefix.demand``."""
    several_at_a_point: ClassVar[bool] = False
    from_recording: ClassVar[bool] = False
    """True if the trials are derived from a recording."""
    model_suffix: ClassVar[str] = ""
    """Follows the name of the persistence model in tables."""
    kills: ClassVar[int] = 0
    losses: ClassVar[int] = 0
    """The processes that are killed in a trial, and the power losses in it."""

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            _DECLARED[cls.name] = cls()

    @abstractmethod
    def explore(self, shop: Any, points: Sequence[int], only: str) -> Iterator[Row]:
        """Yield a row for each trial at the ascending ``points``, or for the trial ``only`` at each of them.

        ``shop`` is the workshop of the case, which runs them.
        """

    def points(self, recording: Sequence[IoOperation], variant: str, seed: int) -> range:
        """Return every point of a recorded writer process: one before each operation, one after the last."""
        return positions(recording)

    def guides(self, recording: Sequence[IoOperation]) -> list[Guide]:
        """Return the points that are drawn before others. Each point is in at most one group."""
        return by_role(recording, [(each.index, each.index) for each in numbered(recording)])

    def classes(self, points: PointClasses, variant: str, seed: int, resolution: Resolution) -> Mapping[int, str]:
        """Return the class of each point. A point without one has no trial of its own."""
        return dict(enumerate([*points.of_operations(resolution), END]))


def drawn(
    points: Sequence[int], groups: Iterable[Guide], rng: Random, others: Sequence[int] | None = None
) -> list[int]:
    """Return all of ``points`` in the order in which they are drawn, which depends on ``rng`` alone.

    Each fourth is the next of the ``others``, which have all points too: by default they are drawn alike.
    """
    there = set(points)
    ranked = []
    for weight, members in groups:
        present = [point for point in members if point in there]
        for rank, point in enumerate(rng.sample(present, len(present)), 1):
            ranked.append((rank / weight, rng.random(), point))
    first = [point for _, _, point in sorted(ranked)]
    alike = rng.sample(list(points), len(points)) if others is None else others
    order: dict[int, None] = {}
    guided, fourths = iter(first), iter(alike)
    while len(order) < len(there):
        source = fourths if len(order) % ALIKE_EVERY == ALIKE_EVERY - 1 else guided
        untaken = (each for each in chain(source, fourths) if each not in order)
        order[next(untaken)] = None
    return list(order)


def commits(recording: Sequence[IoOperation]) -> list[range]:
    """Return the operations of each commit: from its note "attempt" to its note "ack"."""
    notes = [
        operation
        for operation in recording
        if operation.kind is Kind.NOTE and operation.text.startswith(("attempt", "ack"))
    ]
    return [
        range(begin.index, end.index)
        for begin, end in pairwise(notes)
        if begin.text.startswith("attempt") and end.text.startswith("ack")
    ]


def unsynced(recording: Sequence[IoOperation]) -> list[Guide]:
    """Return the positions just before a sync or a change of names, and those after a change of names.

    The largest weights go to positions before the first sync after an acknowledgement, and to those within a commit.
    """
    operations = numbered(recording)
    before_syncs = [each.index for each in operations if _is_sync(each)] + [len(operations)]
    urgent = {before_syncs[bisect_left(before_syncs, commit.stop)] for commit in commits(recording)} | {len(operations)}
    inside = {point for commit in commits(recording) for point in commit}
    after_names = {each.index + 1 for each in operations if each.kind in _NAMES}
    others = [each for each in operations if each.index not in urgent and (each.kind in _NAMES or _is_sync(each))]
    return [
        Guide(4, sorted(urgent)),
        *_shared_out(4, [operation for operation in others if operation.index in inside]),
        *_shared_out(1, [operation for operation in others if operation.index not in inside]),
        Guide(1 / 2, sorted(after_names - urgent - {each.index for each in others})),
    ]


def _is_sync(operation: IoOperation) -> bool:
    return operation.kind in _SYNCS or operation.synchronous


def _shared_out(weight: float, operations: Sequence[IoOperation]) -> list[Guide]:
    """Return the positions before ``operations``. Each role gets the same share of ``weight``, even a rare one."""
    roles: dict[tuple[str, ...], list[int]] = {}
    for operation in operations:
        roles.setdefault(_role(operation), []).append(operation.index)
    return [Guide(weight / len(roles), points) for points in roles.values()]


def by_role(recording: Sequence[IoOperation], struck: Sequence[tuple[int, int]]) -> list[Guide]:
    """Return the points of ``struck``, grouped by the role of the operation that each one strikes.

    An operation of every commit has weight 1, one of every fifth commit weight 1/5. All before the first commit
    share weight 1/2, all other operations outside commits 1/5.
    """
    operations = numbered(recording)
    first = next((operation.index for operation in recording if operation.text.startswith("attempt")), 0)
    within = {at: number for number, commit in enumerate(commits(recording)) for at in commit}
    roles: dict[tuple[str, ...], list[int]] = {}
    found_in: dict[tuple[str, ...], set[int]] = {}
    opening: list[int] = []
    elsewhere: list[int] = []
    for point, at in struck:
        operation = operations[at]
        if matches(operation.path, NEVER_READ):
            continue
        role = _role(operation)
        if at in within:
            roles.setdefault(role, []).append(point)
            found_in.setdefault(role, set()).add(within[at])
        else:
            (opening if at < first else elsewhere).append(point)
    number = max(1, len(set(within.values())))
    inside = [Guide(len(found_in[role]) / number, points) for role, points in roles.items()]
    return [*inside, Guide(1 / 2, opening), Guide(1 / 5, elsewhere)]


def _role(operation: IoOperation) -> tuple[str, ...]:
    """Return the role of an operation: the same for those of one kind on files whose names differ in a number only."""
    path = PurePosixPath(operation.path)
    return (
        str(operation.kind),
        str(operation.synchronous),
        _NUMBER.sub("#", f"{path.parent}/{path.suffix or path.name}"),
    )
