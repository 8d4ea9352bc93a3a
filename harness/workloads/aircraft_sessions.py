"""`aircraft_sessions`: the flights of each aircraft in sessions that a gap of four hours ends; some come late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from harness.workloads.departures import Departures
from harness.workloads.workload import Context, keyed
from stores.changelog.interface import Record
from stores.records import JSON, STR, RecordKind, Session, ValueAndTimestamp, Windowed

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
GAP_MS = 4 * _HOUR_MS
"""Flights of an aircraft at most this far apart, by their schedule, belong to one session."""
RECENT_MS = 18 * _HOUR_MS
"""The retention of ``recent``. A late flight changes no session that ended longer ago."""


@dataclass(frozen=True)
class AircraftSessions(Departures):
    """Merges flights into sessions. An event may come nine hours late, and may then join two sessions.

    The store ``sessions`` keeps ``[departures, cancelled flights, distance in miles]`` of each session, with the time
    of the flight that came last. The store ``recent`` keeps the same without times, for 18 hours.
    """

    late_ms: ClassVar[int] = 9 * _HOUR_MS

    name: str = "aircraft_sessions"
    store_names: tuple[str, ...] = ("sessions", "recent")
    output_topic: str = "sessions-out"

    @property
    def records(self) -> Mapping[str, RecordKind]:
        """The kinds of the stores. Segments are short, so that late events fall into older ones."""
        return MappingProxyType(
            {
                "sessions": Session(STR, JSON, retention_ms=400 * _DAY_MS, segment_ms=7 * _DAY_MS, timestamped=True),
                "recent": Session(STR, JSON, retention_ms=RECENT_MS, segment_ms=6 * _HOUR_MS),
            }
        )

    def process(self, record: Record, context: Context) -> None:
        """Merge one flight with the sessions within its reach, and forward the resulting session."""
        key, value = keyed(record)
        *_, dep_time, _, _, _, distance = value.split(b",")
        left = 1 if dep_time else 0
        flown = [left, 1 - left, int(distance) if left else 0]
        session = Windowed(key.decode(), record.timestamp_ms, record.timestamp_ms)
        _merge(context.store("recent"), session, flown)
        (_, start_ms, end_ms), summed = _merge(context.store("sessions"), session, flown)
        context.forward(self.output_topic, key, f"{start_ms}-{end_ms}: {summed}".encode(), record.timestamp_ms)


def _merge(sessions: Any, session: Windowed[str], summed: list[int]) -> tuple[Windowed[str], list[int]]:
    """Merge ``session`` with those within its reach, with the sums of all. Return the result."""
    aircraft, start_ms, end_ms = session
    with sessions.find_sessions(aircraft, max(0, start_ms - GAP_MS), end_ms + GAP_MS) as found:
        within_reach = list(found)
    for other, kept in within_reach:
        start_ms, end_ms = min(start_ms, other.start_ms), max(end_ms, other.end_ms)
        more = kept.value if isinstance(kept, ValueAndTimestamp) else kept
        summed = [one + another for one, another in zip(summed, more, strict=True)]
        sessions.remove(other)
    merged = Windowed(aircraft, start_ms, end_ms)
    sessions.put(merged, summed)
    return merged, summed
