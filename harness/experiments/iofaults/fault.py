"""The base of I/O faults: one class has a fault's act on processes, its points, its place in a plan, and its words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar

from harness.crash_states.model import numbered
from harness.crash_states.states import positions
from harness.experiments.iofaults.drawing import Group, by_role
from harness.io_trace.recorder import IoOperation

Row = dict[str, Any]
Plan = list[Any]
"""A plan of fault injection, as its name and its arguments."""
NOTHING: Plan = ["Nothing"]
STRICT, TORN_SECTORS = "strict", "torn-sectors"
"""The persistence model that promises less than file systems in use do, and that which goes beyond disks."""


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

    def groups(self, recording: Sequence[IoOperation]) -> list[Group]:
        """Return the points that are drawn before others. Each point is in at most one group."""
        return by_role(recording, [(each.index, each.index) for each in numbered(recording)])
