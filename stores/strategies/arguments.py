"""Checks of a caller's arguments: TypeError for a wrong type, ValueError for a refused value."""

from __future__ import annotations

from stores.interface import TopicPartition

_TOPIC_BYTES_MAX = 249
"""Source: Kafka's own limit (``Topic.MAX_NAME_LENGTH``). A name of this length fits into a meta key of every engine."""
OFFSET_BOUND = 1 << 63
"""The exclusive upper bound of offsets: they are stored as eight signed bytes."""


def as_bytes(what: str, given: object) -> bytes:
    """Return ``given`` if it is bytes. Raises: TypeError."""
    if not isinstance(given, bytes):
        raise TypeError(f"a {what} is bytes, not {type(given).__name__}")
    return given


def check_bounds(start: object, end: object) -> None:
    """Check the bounds of a range: bytes or None. Raises: TypeError."""
    for bound in (start, end):
        if bound is not None:
            as_bytes("bound", bound)


def check_partition(partition: object) -> None:
    """Check that the offset of ``partition`` can be stored. Raises: TypeError, ValueError."""
    if not isinstance(partition, TopicPartition):
        raise TypeError(f"an offset belongs to a TopicPartition, not to {partition!r}")
    if not isinstance(partition[0], str):
        raise TypeError(f"a topic is a str, not {type(partition[0]).__name__}")
    if not isinstance(partition[1], int) or isinstance(partition[1], bool):
        raise TypeError(f"a partition is an int, not {type(partition[1]).__name__}")
    if not 0 <= partition[1] < 1 << 32:
        raise ValueError(f"a partition is 0 or more, and below 2**32, not {partition[1]}")
    if len(partition[0].encode()) > _TOPIC_BYTES_MAX:
        raise ValueError(f"a topic's name has up to {_TOPIC_BYTES_MAX} bytes, not {len(partition[0].encode())}")


def check_offset(offset: object) -> None:
    """Check an offset: 0 or more, and below ``OFFSET_BOUND``. Raises: TypeError, ValueError."""
    if not isinstance(offset, int) or isinstance(offset, bool):
        raise TypeError(f"an offset is an int, not {type(offset).__name__}")
    if not 0 <= offset < OFFSET_BOUND:
        raise ValueError(f"an offset is 0 or more, and below 2**63, not {offset}")
