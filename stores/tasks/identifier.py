"""What a task is called."""

from __future__ import annotations

import re
from typing import NamedTuple, Self

from stores.tasks.names import check_number, check_subtopology


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
        """The id that ``str`` gave. Raises: ValueError for any other text."""
        match = re.fullmatch(r"(0|[1-9][0-9]{0,19})_(0|[1-9][0-9]{0,9})", text, re.ASCII)
        if match is None:
            raise ValueError(f"{text!r} is no task id: one looks like 0_3")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"
