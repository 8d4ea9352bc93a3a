"""What a subject of the sweeps is: something that makes the commits of the workload and can be read back.

It lives in a child of the nursery only. Which states it must show is told by ``expected``, which no code of the library
has a part in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from harness.sweeps.workload import Change, State
from stores.errors import CommitFailedError, StoreError
from stores.interface import Durability, TopicPartition

COMMITS = TopicPartition("commits", 0)
"""Its offset is the number of the last commit; so is the position."""
NAME = "store"


class Subject(ABC):
    """One thing under test, below the folder ``root``, where it is made when it is first opened."""

    def __init__(self, root: Path, level: Durability) -> None:
        self.path = root / NAME
        self.level = level

    @abstractmethod
    def open(self) -> int | None:
        """Open it, making it where there is none; the number of the commit it is at, None where it can't tell."""

    @abstractmethod
    def stage(self, made: Sequence[Change], after: State) -> None:
        """Begin a commit whose changes are ``made`` and lead to ``after``."""

    @abstractmethod
    def commit(self, number: int) -> None:
        """Make what is staged commit ``number``."""

    @abstractmethod
    def add(self, pairs: State, number: int) -> None:
        """Make commit ``number``, which adds ``pairs`` to what is there."""

    @abstractmethod
    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        """Everything committed, and the commit's number as its offset and as its position tell it."""

    def verify(self) -> None:
        """Look for damage that reading need not show."""

    @abstractmethod
    def close(self) -> None:
        """Close it; may be called more than once, and after it could not be opened."""

    @abstractmethod
    def wipe(self) -> None:
        """Remove it, as an error that called it corrupt asks for."""

    @abstractmethod
    def restore(self, state: State, number: int) -> None:
        """Fill the new, open one with ``state`` from its changelog."""

    def must_reopen(self, error: StoreError) -> bool:
        """Whether ``error`` of a commit asks to close and open again before going on."""
        return not isinstance(error, CommitFailedError) or error.reopen

    @staticmethod
    def expected(state: State) -> State:
        """What ``read`` must show where the workload's model says ``state``."""
        return state
