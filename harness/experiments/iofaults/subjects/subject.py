"""The interface of a subject of fault injection: it makes the workload's commits, and can be read back.

It is used only in children of the fork server. ``expected`` returns the states that it must show, without any code of
the library.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from harness.experiments.iofaults.workload import Change, State
from stores.errors import CommitFailedError, StoreError
from stores.interface import Durability, TopicPartition

COMMITS = TopicPartition("commits", 0)
"""The partition whose offset and position are the number of the last commit."""
NAME = "store"


class Subject(ABC):
    """One thing under test, below the folder ``root``. The first opening creates it."""

    def __init__(self, root: Path, level: Durability) -> None:
        self.path = root / NAME
        self.level = level

    @abstractmethod
    def open(self) -> int | None:
        """Open or create it. Return the number of its last commit, or None if it cannot report that."""

    @abstractmethod
    def stage(self, made: Sequence[Change], after: State) -> None:
        """Begin a commit with the changes ``made``, after which the state is ``after``."""

    @abstractmethod
    def commit(self, number: int) -> None:
        """Commit the staged changes as commit ``number``."""

    @abstractmethod
    def add(self, pairs: State, number: int) -> None:
        """Make commit ``number``, which adds ``pairs`` to the state."""

    @abstractmethod
    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        """Return the committed state, and the commit's number from the offset and from the position."""

    def verify(self) -> None:
        """Check for corruption that reading need not detect."""

    @abstractmethod
    def close(self) -> None:
        """Close it. This may be called more than once, and after an opening that failed."""

    @abstractmethod
    def wipe(self) -> None:
        """Remove it, as an error that reports corruption asks for."""

    @abstractmethod
    def restore(self, state: State, number: int) -> None:
        """Fill the new, open subject with ``state``, as from its changelog."""

    def must_reopen(self, error: StoreError) -> bool:
        """Return True if ``error`` of a commit asks to close and open the subject before the next commit."""
        return not isinstance(error, CommitFailedError) or error.reopen

    @staticmethod
    def expected(state: State) -> State:
        """Return the state that ``read`` must show for the workload's ``state``."""
        return state
