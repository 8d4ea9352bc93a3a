"""`aircraft_sessions`: the flights of each aircraft in sessions that a gap of four hours ends; some come late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from harness.workloads.departures import Departures
from harness.workloads.workload import Context, keyed
from stores.changelog.interface import Record
from stores.records import JSON, STR, RecordKind, Session, Windowed

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
GAP_MS = 4 * _HOUR_MS
"""Flights at most so far apart, by their schedule, are of one session."""


@dataclass(frozen=True)
class AircraftSessions(Departures):
    """Merges flights into sessions; an event may come nine hours late, between two sessions that it makes one.

    The store ``sessions`` keeps ``[departures, cancelled flights, distance in miles]`` of each, with the time of the
    flight that came last.
    """

    late_ms: ClassVar[int] = 9 * _HOUR_MS

    name: str = "aircraft_sessions"
    store_names: tuple[str, ...] = ("sessions",)
    output_topic: str = "sessions-out"

    @property
    def records(self) -> Mapping[str, RecordKind]:
        """What the store holds. Segments are short, so that late events fall into older ones."""
        kind = Session(STR, JSON, retention_ms=400 * _DAY_MS, segment_ms=7 * _DAY_MS, timestamped=True)
        return MappingProxyType({"sessions": kind})

    def process(self, record: Record, context: Context) -> None:
        """Make one flight and the sessions within its reach one session, and forward that."""
        key, value = keyed(record)
        *_, dep_time, _, _, _, distance = value.split(b",")
        left = 1 if dep_time else 0
        summed = [left, 1 - left, int(distance) if left else 0]
        aircraft, start_ms, end_ms = key.decode(), record.timestamp_ms, record.timestamp_ms

        sessions = context.store("sessions")
        with sessions.find_sessions(aircraft, max(0, start_ms - GAP_MS), end_ms + GAP_MS) as found:
            within_reach = list(found)
        for session, kept in within_reach:
            start_ms, end_ms = min(start_ms, session.start_ms), max(end_ms, session.end_ms)
            summed = [one + other for one, other in zip(summed, kept.value, strict=True)]
            sessions.remove(session)
        sessions.put(Windowed(aircraft, start_ms, end_ms), summed)

        context.forward(self.output_topic, key, f"{start_ms}-{end_ms}: {summed}".encode(), record.timestamp_ms)
