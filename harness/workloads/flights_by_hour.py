"""`flights_by_hour`: departures and their mean delay per origin and hour, in windows; some events come late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from harness.workloads.departures import Departures
from harness.workloads.workload import Context, keyed
from stores.changelog.interface import Record
from stores.records import INT64, JSON, STR, KeyValue, RecordKind, Window

HOUR_MS = 3_600_000
_DAY_MS = 24 * HOUR_MS
RECENT_MS = 3 * HOUR_MS
"""The retention of ``recent``: less than the largest lateness of events."""


@dataclass(frozen=True)
class FlightsByHour(Departures):
    """Counts departures in windows of one hour by their schedule, per origin. An event may come six hours late.

    The store ``hours`` keeps every window. Its value is ``[departures, known delays, their sum in minutes, their mean
    in thousandths of a minute]``. The mean is rounded down, and None without a known delay. The store ``recent`` keeps
    the same with timestamps, for three hours, so that some events come too late for it; ``late`` counts these by
    origin.
    """

    late_ms: ClassVar[int] = 6 * HOUR_MS

    name: str = "flights_by_hour"
    store_names: tuple[str, ...] = ("hours", "recent", "late")
    output_topic: str = "flights-by-hour-out"

    @property
    def records(self) -> Mapping[str, RecordKind]:
        """The kinds of the stores. Segments are short, so that late events fall into older ones."""
        return MappingProxyType(
            {
                "hours": Window(STR, JSON, size_ms=HOUR_MS, retention_ms=400 * _DAY_MS, segment_ms=7 * _DAY_MS),
                "recent": Window(
                    STR, JSON, size_ms=HOUR_MS, retention_ms=RECENT_MS, segment_ms=HOUR_MS, timestamped=True
                ),
                "late": KeyValue(STR, INT64),
            }
        )

    def process(self, record: Record, context: Context) -> None:
        """Count one departure in its window, and forward the new value."""
        _, value = keyed(record)
        _, _, origin, _, dep_time, dep_delay, *_ = value.decode().split(",")
        start_ms = record.timestamp_ms // HOUR_MS * HOUR_MS

        hours = context.store("hours")
        counted = _with(hours.fetch_one(origin, start_ms), dep_time, dep_delay)
        hours.put(origin, counted, start_ms)

        recent, late = context.store("recent"), context.store("late")
        kept, late_before = recent.fetch_one(origin, start_ms), recent.late_total
        recent.put(origin, _with(kept and kept.value, dep_time, dep_delay), start_ms)
        if recent.late_total > late_before:
            late.put(origin, (late.get(origin) or 0) + 1)

        key = f"{origin}@{start_ms}".encode()
        context.forward(self.output_topic, key, str(counted).encode(), record.timestamp_ms)


def _with(counted: list[Any] | None, dep_time: str, dep_delay: str) -> list[Any]:
    departures, delays, minutes, _ = counted or (0, 0, 0, None)
    delays, minutes = delays + (1 if dep_delay else 0), minutes + int(dep_delay or 0)
    return [departures + (1 if dep_time else 0), delays, minutes, minutes * 1_000 // delays if delays else None]
