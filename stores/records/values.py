"""What typed stores keep beside or around a plain value. Both are tuples, since one is made for each pair of a scan."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")

SURROGATE_MS = -1
"""The timestamp of a value whose own was never kept: that of a store before it had timestamps. Source: KIP-258."""
TIME_BOUND_MS = 1 << 62
"""Above every time, in milliseconds since the Unix epoch."""


class ValueAndTimestamp(NamedTuple, Generic[V]):
    """A value and its time in milliseconds since the Unix epoch; -1 where that is unknown.

    Source: KIP-258, ``ValueAndTimestamp``.
    """

    value: V
    timestamp_ms: int


class Windowed(NamedTuple, Generic[K]):
    """A key within the window or session from ``start_ms`` to ``end_ms``. Source: Kafka Streams, ``Windowed``."""

    key: K
    start_ms: int
    end_ms: int


def check_time_ms(what: str, given: object) -> int:
    """``given``, if it is a time: an int from 0 to below 2**62, in milliseconds. Raises: TypeError, ValueError."""
    if type(given) is not int:
        raise TypeError(f"{what} is an int, in milliseconds, not {type(given).__name__}")
    if not 0 <= given < TIME_BOUND_MS:
        raise ValueError(f"{what} is 0 or more, and below 2**62 milliseconds, not {given}")
    return given
