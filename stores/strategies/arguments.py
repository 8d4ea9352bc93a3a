"""Whether what a caller gives is what the contract takes: TypeError for a wrong type, ValueError for a bad value."""

from __future__ import annotations

from stores.interface import TopicPartition

_TOPIC_BYTES_MAX = 249
"""Source: Kafka's own limit (``Topic.MAX_NAME_LENGTH``); every engine has room for it in a meta key."""
OFFSET_BOUND = 1 << 63
"""Above every offset: one takes eight bytes, signed."""


def as_bytes(what: str, given: object) -> bytes:
    """``given``, which is bytes."""
    if not isinstance(given, bytes):
        raise TypeError(f"a {what} is bytes, not {type(given).__name__}")
    return given


def check_bounds(start: object, end: object) -> None:
    """Bounds of a range: bytes or None."""
    for bound in (start, end):
        if bound is not None:
            as_bytes("bound", bound)


def check_partition(partition: object) -> None:
    """A partition whose offset can be kept."""
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
    """An offset: 0 or more, in eight bytes."""
    if not isinstance(offset, int) or isinstance(offset, bool):
        raise TypeError(f"an offset is an int, not {type(offset).__name__}")
    if not 0 <= offset < OFFSET_BOUND:
        raise ValueError(f"an offset is 0 or more, and below 2**63, not {offset}")
