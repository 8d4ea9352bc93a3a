"""Names of tasks and of partitions of stores."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, Self

from stores.errors import ConfigError
from stores.tasks.directory.names import check_number, check_stores, check_subtopology

_TASK = re.compile(r"(0|[1-9][0-9]{0,19})_(0|[1-9][0-9]{0,9})", re.ASCII)


class _Numbers(NamedTuple):
    subtopology: int
    partition: int


class TaskId(_Numbers):
    """A sub-topology and the input partition that the task works on; both 0 or more. As text: ``0_3``.

    Raises, when made: TypeError; ConfigError for a number that is negative or takes more than 31 bits,
    64 of a sub-topology.
    """

    __slots__ = ()

    def __new__(cls, subtopology: int, partition: int) -> Self:
        check_subtopology(subtopology)
        check_number("a partition", partition)
        return super().__new__(cls, subtopology, partition)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the ID whose text is ``text``. Raises: TypeError, ValueError for any other text; ConfigError."""
        if not isinstance(text, str):
            raise TypeError(f"the text of a task ID is a str such as 0_3, not {type(text).__name__}")
        match = _TASK.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a task ID: write it like 0_3")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"


@dataclass(frozen=True)
class StorePartition:
    """A store and its partition, independent of its task; as text, and as a path: ``counts/3``.

    Raises, when made: TypeError; ConfigError, also for a name that collides with a task's folder or a file there.
    """

    store: str
    partition: int

    def __post_init__(self) -> None:
        check_stores([self.store])
        check_number("a partition", self.partition)
        if _TASK.fullmatch(self.store) or self.store == "kafka-streams-process-metadata":
            raise ConfigError(
                f"a store in a state directory of the layout store-partition can't be named {self.store!r}: choose "
                "another name, or the layout task"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the value whose text is ``text``. Raises: ValueError, ConfigError for any other text."""
        match = re.fullmatch(r"([^/]+)/(0|[1-9][0-9]{0,9})", text, re.ASCII)
        if match is None:
            raise ValueError(f"{text!r} is not a partition of a store: write it like counts/3")
        return cls(match[1], int(match[2]))

    def __str__(self) -> str:
        return f"{self.store}/{self.partition}"


Home = TaskId | StorePartition
"""The owner of a store's folder, by the layout of the state directory; as text, its path there."""
