"""The keys of window and session stores, and the segments of time in which they drop records after a retention.

A key is that of the caller, escaped, and then numbers.

An escaped key keeps the order of keys, and none is a prefix of another, so that numbers can follow. A zero byte becomes
``00 ff`` and the key ends with ``00``. The byte that follows must not be ``ff``: it is the first of a time or a number
below 2**62 (``TIME_BOUND_MS``). Numbers are 8 bytes, big-endian.

Kept in a window store: ``<segment><escaped key><window start>``, with ``<sequence>`` behind it where duplicates are
retained. Kept in a session store: ``<segment><escaped key><session end><session start>``. Logged: the same without the
segment, which follows from the first time.

A store whose changelog Kafka Streams has begun logs keys in its form. That is the key as it is, then the window start
and the number of a duplicate (4 bytes), or the session's end and start. So compaction finds the same keys, and Kafka
Streams can read the changelog again.

Source: Kafka, ``WindowKeySchema`` and ``SessionKeySchema``, whose keys have no escape: there a key that is a prefix of
another may be between the windows of that one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from stores.contract.arguments import TIME_BOUND_MS, check_time_ms
from stores.records.values import TIME_BYTES, check_bound_ms

SEGMENT_BYTES = 8
SEQUENCE_BOUND: Final = (1 << 64) - 1
"""Above every number of a duplicate: the next one has to fit into 8 bytes."""
SEGMENT_MS_MIN = 60_000
"""The shortest segment that is chosen by default. Source: Kafka Streams, ``Stores.persistentWindowStore``."""
STREAMS_SEQUENCE_BYTES: Final = 4
_STREAMS_SEQUENCES: Final = (1 << 31) - 1
"""The number of a duplicate has 31 bits in Kafka Streams, and then begins again. Source: ``RocksDBWindowStore``."""

packed = Struct(">Q").pack
"""Return the bytes of a number, 0 or more, whose order is that of the numbers."""


def escaped(key: bytes) -> bytes:
    """Return ``key``, encoded as the first part of a longer key."""
    return key.replace(b"\0", b"\0\xff") + b"\0"


def unescaped(part: bytes) -> bytes:
    """Return the key of which ``part`` is the encoding."""
    return part[:-1].replace(b"\0\xff", b"\0")


def is_part(part: bytes) -> bool:
    """Return True if ``part`` may be what ``escaped`` returns."""
    return escaped(unescaped(part)) == part


def unpacked(part: bytes) -> int:
    """Return the number that was packed."""
    return int.from_bytes(part, "big")


class SegmentKeys(ABC):
    """The codec of the keys of one store, in which ``numbers`` follow the caller's key.

    ``sequenced`` is True if the last of them is that of a duplicate.
    """

    def __init__(self, numbers: int, *, sequenced: bool = False) -> None:
        self.sequenced = sequenced
        self._num_bytes = numbers * TIME_BYTES
        self.time_part = slice(-self._num_bytes, TIME_BYTES - self._num_bytes or None)
        """The place of the time that determines the segment, in a key with or without its segment."""

    def time(self, logged: bytes) -> int:
        """Return the window start or the session's end from a key with or without its segment."""
        return unpacked(logged[self.time_part])

    def key(self, logged: bytes) -> bytes:
        """Return the caller's key from a key without its segment."""
        return unescaped(logged[: -self._num_bytes])

    def sequence(self, logged: bytes) -> int:
        """Return the number of a duplicate from a key; 0 unless ``sequenced``."""
        return unpacked(logged[-TIME_BYTES:]) if self.sequenced else 0

    @abstractmethod
    def is_logged(self, key: bytes) -> bool:
        """Return True if ``key`` may be one that the store logs."""

    @abstractmethod
    def of_streams(self, key: bytes) -> bytes | None:
        """Return the key that the store logs for ``key``, which is in the form of Kafka Streams; None if it is not."""

    @abstractmethod
    def for_streams(self, logged: bytes) -> bytes:
        """Return a key that the store logs, in the form of Kafka Streams."""

    @abstractmethod
    def times(self, key: bytes) -> dict[str, int]:
        """Return the times of a key with or without its segment, by name; the start is the first of them."""


class WindowKeys(SegmentKeys):
    """The codec of a window store's keys. ``sequenced`` is True if duplicates of a key and start are retained."""

    def __init__(self, sequenced: bool = False) -> None:
        super().__init__(2 if sequenced else 1, sequenced=sequenced)

    def logged(self, key: bytes, start_ms: int, sequence: int = 0) -> bytes:
        """Return a record's key in the changelog."""
        logged = escaped(key) + packed(start_ms)
        return logged + packed(sequence) if self.sequenced else logged

    def is_logged(self, key: bytes) -> bool:
        is_key = is_part(key[: -self._num_bytes])
        return is_key and self.time(key) < TIME_BOUND_MS and self.sequence(key) < SEQUENCE_BOUND

    def of_streams(self, key: bytes) -> bytes | None:
        part, number = key[:-STREAMS_SEQUENCE_BYTES], unpacked(key[-STREAMS_SEQUENCE_BYTES:])
        start_ms, most = unpacked(part[-TIME_BYTES:]), _STREAMS_SEQUENCES if self.sequenced else 0
        if len(part) < TIME_BYTES or start_ms >= TIME_BOUND_MS or number > most:
            return None
        return self.logged(part[:-TIME_BYTES], start_ms, number)

    def for_streams(self, logged: bytes) -> bytes:
        number = self.sequence(logged) & _STREAMS_SEQUENCES
        return self.key(logged) + packed(self.time(logged)) + number.to_bytes(STREAMS_SEQUENCE_BYTES, "big")

    def times(self, key: bytes) -> dict[str, int]:
        return {"window_start_ms": self.time(key)}


class SessionKeys(SegmentKeys):
    """The codec of a session store's keys."""

    def __init__(self) -> None:
        super().__init__(2)

    def logged(self, key: bytes, start_ms: int, end_ms: int) -> bytes:
        """Return a record's key in the changelog."""
        return escaped(key) + packed(end_ms) + packed(start_ms)

    def is_logged(self, key: bytes) -> bool:
        return is_part(key[: -self._num_bytes]) and self.start(key) <= self.time(key) < TIME_BOUND_MS

    def of_streams(self, key: bytes) -> bytes | None:
        if len(key) < self._num_bytes or not self.start(key) <= self.time(key) < TIME_BOUND_MS:
            return None
        return escaped(key[: -self._num_bytes]) + key[-self._num_bytes :]

    def for_streams(self, logged: bytes) -> bytes:
        return self.key(logged) + logged[-self._num_bytes :]

    def start(self, logged: bytes) -> int:
        """Return the session's start from a key with or without its segment."""
        return unpacked(logged[-TIME_BYTES:])

    def times(self, key: bytes) -> dict[str, int]:
        return {"session_start_ms": self.start(key), "session_end_ms": self.time(key)}


def has_timestamps(description: Mapping[str, Any]) -> bool:
    """Return True if the values of a store with that description begin with a timestamp."""
    return str(description.get("kind", "")).startswith("timestamped") or bool(description.get("timestamped"))


def has_headers(description: Mapping[str, Any]) -> bool:
    """Return True if the values of a store with that description may have headers: see ``stores.records.headers``."""
    return str(description.get("kind", "")).endswith("with-headers") or bool(description.get("headers"))


def keys_described(description: Mapping[str, Any]) -> SegmentKeys | None:
    """Return the codec of the keys of a window or session store by its description; None for another kind's."""
    if description.get("kind") == "session":
        return SessionKeys()
    is_window = description.get("kind") == "window"
    return WindowKeys(bool(description.get("retain_duplicates"))) if is_window else None


@dataclass(frozen=True, slots=True)
class RecordRetention:
    """A retention: records live while their time is above the stream time minus ``retention_ms``.

    Records of the same ``segment_ms`` lie together, and are dropped together once none of them lives.

    The time of a record is its window's start or its session's end; the stream time is the highest ever put, -1 before
    the first.
    """

    retention_ms: int
    segment_ms: int

    def segment(self, time_ms: int) -> int:
        """Return the number of the segment of a record with that time."""
        return time_ms // self.segment_ms

    def first_live_ms(self, stream_time_ms: int) -> int:
        """Return the lowest time that lives."""
        return max(0, stream_time_ms - self.retention_ms + 1)

    def first_live_segment(self, stream_time_ms: int) -> int:
        """Return the first segment that may have living records. All before it are to be dropped."""
        return self.first_live_ms(stream_time_ms) // self.segment_ms


def default_segment_ms(retention_ms: int) -> int:
    """Return half of the retention, so that three segments have all living records. Source: as ``SEGMENT_MS_MIN``."""
    return max(retention_ms // 2, SEGMENT_MS_MIN)


def check_interval(what: str, first_ms: object, last_ms: object) -> None:
    """Check the ends of a query. An end below 0 is as far as 0, and the interval may be empty. Raises: TypeError,
    ValueError. Source: Kafka Streams, whose fetches cut a negative end, and answer an empty interval with nothing.
    """
    if type(first_ms) is type(last_ms) is int and first_ms < TIME_BOUND_MS > last_ms:
        # Before the texts below are made: each fetch passes here.
        return
    check_bound_ms(f"the start of {what}", first_ms)
    check_bound_ms(f"the end of {what}", last_ms)


def check_span(what: str, start_ms: object, end_ms: object) -> None:
    """Check two times, of which the first is the earlier or the same. Raises: TypeError, ValueError."""
    if type(start_ms) is type(end_ms) is int and 0 <= start_ms <= end_ms < TIME_BOUND_MS:
        # Before the texts below are made: each fetch passes here.
        return
    start = check_time_ms(f"the start of {what}", start_ms)
    end = check_time_ms(f"the end of {what}", end_ms)
    if end < start:
        raise ValueError(f"{what} starts at {start}, after its end {end}")
