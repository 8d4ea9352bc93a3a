"""The retention of a window or session store, and the segments in which it drops records."""

from __future__ import annotations

from dataclasses import dataclass

from stores.records.values import TIME_BOUND_MS, check_bound_ms, check_time_ms

SEGMENT_MS_MIN = 60_000
"""The shortest segment that is chosen by default. Source: Kafka Streams, ``Stores.persistentWindowStore``."""


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
