"""Values with timestamps, and keys with windows. One is created for each lookup and each pair of a scan."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")

SURROGATE_MS = -1
"""The timestamp of a value whose own was never kept: that of a store before it had timestamps. Source: KIP-258."""
TIME_BOUND_MS = 1 << 62
"""Above every time, in milliseconds since the Unix epoch."""


class ValueAndTimestamp(Generic[V]):
    """A value and its time in milliseconds since the Unix epoch, -1 if the time is unknown. Immutable.

    It can be unpacked, ``value, timestamp_ms = found``, and equals the tuple of the two.
    Source: KIP-258, ``ValueAndTimestamp``.
    """

    # A named tuple takes three times as long to make, and a lookup makes one each time.
    __slots__ = ("_timestamp_ms", "_value")

    def __init__(self, value: V, timestamp_ms: int) -> None:
        self._value = value
        self._timestamp_ms = timestamp_ms

    if TYPE_CHECKING:

        @property
        def value(self) -> V: ...

        @property
        def timestamp_ms(self) -> int: ...

    else:
        value = property(attrgetter("_value"))
        timestamp_ms = property(attrgetter("_timestamp_ms"))

    def __iter__(self) -> Iterator[V | int]:
        return iter((self.value, self.timestamp_ms))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ValueAndTimestamp):
            return bool(self.timestamp_ms == other.timestamp_ms and self.value == other.value)
        return (self.value, self.timestamp_ms) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.value, self.timestamp_ms))

    def __repr__(self) -> str:
        return f"ValueAndTimestamp(value={self.value!r}, timestamp_ms={self.timestamp_ms!r})"

    def __reduce__(self) -> tuple[type[ValueAndTimestamp[V]], tuple[V, int]]:
        return ValueAndTimestamp, (self.value, self.timestamp_ms)


class Windowed(NamedTuple, Generic[K]):
    """A key within the window or session from ``start_ms`` to ``end_ms``. Source: Kafka Streams, ``Windowed``."""

    key: K
    start_ms: int
    end_ms: int


def check_time_ms(what: str, given: object) -> int:
    """Return ``given`` if it is a time: an int from 0 to below 2**62, in ms. Raises: TypeError, ValueError."""
    if type(given) is not int:
        raise TypeError(f"{what} is an int, in milliseconds, not {type(given).__name__}")
    if not 0 <= given < TIME_BOUND_MS:
        raise ValueError(f"{what} is 0 or more, and below 2**62 milliseconds, not {given}")
    return given


def check_bound_ms(what: str, given: object) -> None:
    """Check a bound of a query: an int below 2**62, in ms, which may be negative. Raises: TypeError, ValueError."""
    check_time_ms(what, max(0, given) if type(given) is int else given)


def check_span_ms(what: str, given: object) -> None:
    """Check the length of a time, in milliseconds. Raises: TypeError, ValueError."""
    if type(given) is not int:
        raise TypeError(f"{what} is an int, in milliseconds, not {type(given).__name__}")
    if not 0 < given < TIME_BOUND_MS:
        raise ValueError(f"{what} is 1 or more, and below 2**62 milliseconds, not {given}")
