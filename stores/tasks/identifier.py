"""Names of tasks, and of partitions of stores; checks of names and numbers, which become folders, files and topics."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

from stores.errors import ConfigError
from stores.interface import TopicPartition

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


_NAME = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,99}")
"""Names that may be part of a topic's name and of a path."""
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Source: Kafka, ``Topic.validate``."""
_RESERVED_ENDS = (".former", ".new", ".position", ".prepare", ".removed", ".swap", ".wiped")
"""Endings of files beside a store's folder."""
NUMBER_BOUND = 1 << 31
"""The exclusive upper bound of a partition's number. Source: Kafka, whose protocol has 32 signed bits for it."""
SUBTOPOLOGY_BOUND = 1 << 64
"""The exclusive upper bound of a sub-topology's number, which may be a hash. Source: KIP-816, "Alternative 2"."""


def check_application(name: object) -> None:
    """Check the ID of an application. Raises: TypeError, ConfigError."""
    _check_name("an application", name)


def check_stores(names: Iterable[object]) -> None:
    """Check the names of one task's stores, each and together. Raises: TypeError, ConfigError."""
    originals: dict[str, str] = {}
    for name in names:
        checked = _check_name("a store", name)
        if checked.lower().endswith(_RESERVED_ENDS):
            raise ConfigError(
                f"{name!r} is not a valid name of a store: the endings {', '.join(_RESERVED_ENDS)} are reserved for "
                "files beside a store. Choose another name"
            )
        other = originals.setdefault(_folded(checked), checked)
        if other != checked:
            raise ConfigError(
                f"the stores {other!r} and {checked!r} of one task collide: some file systems ignore the case of "
                "letters, and Kafka's metrics treat '.' as '_'. Rename one"
            )


def check_engine(name: object) -> str:
    """Return the name of an engine, which becomes a folder, if it can be one. Raises: TypeError, ConfigError."""
    return _check_name("an engine", name)


def check_inputs(partitions: Iterable[TopicPartition]) -> None:
    """Check the input partitions of one task. Raises: TypeError, ConfigError."""
    distinct = set()
    for topic, number in partitions:
        check_topic(topic)
        check_number("a partition", number)
        if (topic, number) in distinct:
            raise ConfigError(f"partition {number} of {topic!r} is an input of the task twice: drop one")
        distinct.add((topic, number))


def check_topic(topic: object) -> None:
    """Check the name of a topic. Raises: TypeError, ConfigError."""
    if not isinstance(topic, str):
        raise TypeError(f"a topic is a str, not {type(topic).__name__}")
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise ConfigError(
            f"{topic!r} is not a valid name of a topic: use up to 249 letters, digits, '.', '_', '-', but not '.' or "
            "'..'"
        )


def check_subtopology(number: object) -> None:
    """Check the number of a sub-topology. Raises: TypeError, ConfigError."""
    check_number("a sub-topology", number, SUBTOPOLOGY_BOUND)


def check_number(what: str, number: object, bound: int = NUMBER_BOUND) -> None:
    """Check the number of a partition, or another one below ``bound``, a power of 2. Raises: TypeError, ConfigError."""
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"{what} is an int, not {type(number).__name__}")
    if not 0 <= number < bound:
        raise ConfigError(f"{what} is 0 or more, and below 2**{bound.bit_length() - 1}, not {number}")


def _check_name(what: str, name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of {what} is a str, not {type(name).__name__}")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a valid name of {what}: use up to 100 letters, digits, '-', '_', '.', but not '.' first"
        )
    return name


def _folded(name: str) -> str:
    return name.lower().replace(".", "_")
