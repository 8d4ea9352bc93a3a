"""Checks of the names and numbers of a task: they become folders, files, topics and consumer groups."""

from __future__ import annotations

import re
from collections.abc import Iterable

from stores.errors import ConfigError
from stores.interface import TopicPartition

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
    known: dict[str, str] = {}
    for name in names:
        checked = _check_name("a store", name)
        if checked.lower().endswith(_RESERVED_ENDS):
            raise ConfigError(
                f"{name!r} is not a valid name of a store: the endings {', '.join(_RESERVED_ENDS)} are reserved for "
                "files beside a store. Choose another name"
            )
        other = known.setdefault(_folded(checked), checked)
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
    seen = set()
    for topic, number in partitions:
        check_topic(topic)
        check_number("a partition", number)
        if (topic, number) in seen:
            raise ConfigError(f"partition {number} of {topic!r} is an input of the task twice: drop one")
        seen.add((topic, number))


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
