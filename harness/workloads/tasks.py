"""The workloads of tasks, by name: counts of generated events, departures from New York in 2013, and Nexmark.

A user's own events are in ``event_log``, the queries of Nexmark in ``nexmark_queries``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

from harness.workloads.batches import SUFFIX, BatchContext, keyed_columns, merged_many, updated
from harness.workloads.event_log import EventLogWorkload
from harness.workloads.nexmark_queries import QUERIES
from harness.workloads.workload import Event, Workload, WorkloadContext, keyed
from harness.workloads.ycsb import (
    KEY_BYTES,
    VALUE_BYTES,
    VALUE_BYTES_MIN,
    Source,
    Values,
    keys_of,
    uniform,
)
from stores.changelog.interface import Record
from stores.errors import ConfigError, nearest
from stores.records import INT64, JSON, STR, KeyValue, RecordKind, Session, ValueAndTimestamp, Window, Windowed
from stores.tasks import Batch


class UnknownWorkloadError(ConfigError):
    """No workload has that name. Choose one that the message lists."""


def workloads() -> Mapping[str, Workload]:
    """Return every workload in its default shape, by name."""
    count, flights = Count(), (Flights(), FlightsByHour(), AircraftSessions())
    in_batches: tuple[Any, ...] = (count, *flights, *QUERIES)
    all_workloads: tuple[Workload, ...] = (
        count,
        EventLogWorkload(),
        *flights,
        *QUERIES,
        *(replace(form, name=form.name + SUFFIX) for form in in_batches),
    )
    return MappingProxyType({workload.name: workload for workload in all_workloads})


def workload(name: str) -> Workload:
    """Return the workload of that name, in its default shape. Raises: UnknownWorkloadError."""
    by_name = workloads()
    if name not in by_name:
        raise UnknownWorkloadError(f"no workload {name!r}: there are {', '.join(by_name)}{nearest(name, by_name)}")
    return by_name[name]


COUNT_BYTES = 8
START_MS = 1_700_000_000_000
_CHUNK_EVENTS = 10_000


@dataclass(frozen=True)
class Count:
    """Counts the events of each key, as an aggregation does: read, add one, write.

    State: the count, eight bytes, big-endian; then the latest event's value.
    """

    keys: int = 100_000
    key_bytes: int = KEY_BYTES
    value_bytes: int = VALUE_BYTES
    """The length of a value in the store; an event's value is eight bytes shorter."""
    name: str = "count"
    store_names: tuple[str, ...] = ("counts",)
    output_topic: str = "counts-out"

    def __post_init__(self) -> None:
        if self.keys < 1:
            raise ConfigError(f"{self.keys} keys: ask for 1 or more")
        if self.value_bytes < COUNT_BYTES + VALUE_BYTES_MIN:
            raise ConfigError(
                f"a stored value of {self.value_bytes} bytes has no room for a count and an event: "
                f"ask for {COUNT_BYTES + VALUE_BYTES_MIN} or more"
            )

    def process(self, record: Record, context: WorkloadContext) -> None:
        """Add one to the count of the record's key, and forward the new value."""
        key, value = keyed(record)
        store = context.store("counts")
        new = _one_more(store.get(key), value)
        store.put(key, new)
        context.forward(self.output_topic, key, new, record.timestamp_ms)

    def process_batch(self, batch: Batch[bytes, bytes], context: BatchContext) -> None:
        """Do the same for many records."""
        keys, values = keyed_columns(batch)
        counts = updated(context.store("counts"), keys, values, _one_more)
        context.forward_many(self.output_topic, keys, counts, batch.timestamps_ms)

    def events(self, seed: int, count: int, first: int = 0) -> Iterator[Event]:
        """Yield events one millisecond apart, each with a different value."""
        values = Values(seed, self.value_bytes - COUNT_BYTES)
        number, end = first, first + count
        while number < end:
            chunk, skipped = divmod(number, _CHUNK_EVENTS)
            for key in self._chunk_keys(seed, chunk)[skipped : skipped + end - number]:
                yield Event(key, values.value(key, number), START_MS + number)
                number += 1

    def _chunk_keys(self, seed: int, chunk: int) -> list[bytes]:
        # Each chunk has its own random source, so that events from the middle on need no earlier ones.
        return keys_of(uniform(Source(seed, chunk), self.keys, _CHUNK_EVENTS), self.key_bytes)


def _one_more(before: bytes | None, value: bytes) -> bytes:
    count = 1 if before is None else int.from_bytes(before[:COUNT_BYTES], "big") + 1
    return count.to_bytes(COUNT_BYTES, "big") + value


class Departures:
    """An ``EventSource`` of real events. The value of an event is described at the data set's ``FIELDS``."""

    late_ms: ClassVar[int] = 0
    """Each event comes less than this late. Its timestamp is that of its schedule, so events are out of order."""

    def events(self, seed: int, count: int, first: int = 0) -> Iterator[Event]:
        """Yield departures from number ``first`` on, in their order of arrival.

        That is the order of the schedule, or, for a workload with late events, one that the seed chooses. There may be
        fewer than ``count``, at the end of the year. Raises: DatasetMissingError.
        """
        # Imported here, because a task does not need pyarrow, which is slow to import.
        from harness.workloads.new_york_flights import arrivals

        for batch in arrivals(self.late_ms, seed).slice(first, count).to_batches(max_chunksize=10_000):
            columns = (batch.column(name).to_pylist() for name in Event._fields)
            yield from map(Event, *columns)


@dataclass(frozen=True)
class Flights(Departures):
    """Sums up departures, by aircraft and by route. The value of an event is described at the data set's ``FIELDS``.

    The store ``aircraft`` has, for each tail number, separated by commas: departures, cancelled flights, distance
    (miles), air time, departure delay (minutes), last destination (empty before the first departure). An example is
    ``111,0,171713,23641,1585,DEN``.

    The store ``routes`` has, for each route (``JFK-LAX``): departures, cancelled flights, distance, arrivals with a
    known delay, the sum of these delays (negative if early), and the longest one (empty before the first). Sums are
    over the flights that have the figure; a cancelled flight has none.
    """

    name: str = "flights"
    store_names: tuple[str, ...] = ("aircraft", "routes")
    output_topic: str = "flights-out"

    def process(self, record: Record, context: WorkloadContext) -> None:
        """Add one departure to its aircraft and its route, and forward the aircraft."""
        key, value = keyed(record)
        fields = value.split(b",")
        aircraft, routes = context.store("aircraft"), context.store("routes")
        plane = _plane(aircraft.get(key), fields)
        aircraft.put(key, plane)
        route = _route_of(fields)
        routes.put(route, _route(routes.get(route), fields))
        context.forward(self.output_topic, key, plane, record.timestamp_ms)

    def process_batch(self, batch: Batch[bytes, bytes], context: BatchContext) -> None:
        """Do the same for many records."""
        keys, values = keyed_columns(batch)
        rows = [value.split(b",") for value in values]
        planes = updated(context.store("aircraft"), keys, rows, _plane)
        updated(context.store("routes"), list(map(_route_of, rows)), rows, _route)
        context.forward_many(self.output_topic, keys, planes, batch.timestamps_ms)


def _plane(before: bytes | None, fields: Sequence[bytes]) -> bytes:
    """Return the sums of an aircraft with one more departure."""
    _, _, _, dest, dep_time, dep_delay, _, air_time, distance = fields
    left = 1 if dep_time else 0
    departures, cancelled, flown, minutes, late, last = (before or b"0,0,0,0,0,").split(b",")
    return b"%d,%d,%d,%d,%d,%b" % (
        int(departures) + left,
        int(cancelled) + 1 - left,
        int(flown) + (int(distance) if left else 0),
        int(minutes) + int(air_time or 0),
        int(late) + int(dep_delay or 0),
        dest if left else last,
    )


def _route_of(fields: Sequence[bytes]) -> bytes:
    return b"%b-%b" % (fields[2], fields[3])


def _route(before: bytes | None, fields: Sequence[bytes]) -> bytes:
    """Return the sums of a route with one more departure."""
    _, _, _, _, dep_time, _, arr_delay, _, distance = fields
    left = 1 if dep_time else 0
    departures, cancelled, flown, arrivals, late, latest = (before or b"0,0,0,0,0,").split(b",")
    if arr_delay and (not latest or int(arr_delay) > int(latest)):
        latest = arr_delay
    return b"%d,%d,%d,%d,%d,%b" % (
        int(departures) + left,
        int(cancelled) + 1 - left,
        int(flown) + (int(distance) if left else 0),
        int(arrivals) + (1 if arr_delay else 0),
        int(late) + int(arr_delay or 0),
        latest,
    )


HOUR_MS = 3_600_000
_DAY_MS = 24 * HOUR_MS
RECENT_HOURS_MS = 3 * HOUR_MS
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
                    STR, JSON, size_ms=HOUR_MS, retention_ms=RECENT_HOURS_MS, segment_ms=HOUR_MS, timestamped=True
                ),
                "late": KeyValue(STR, INT64),
            }
        )

    def process(self, record: Record, context: WorkloadContext) -> None:
        """Count one departure in its window, and forward the new value."""
        _, value = keyed(record)
        _, _, origin, _, dep_time, dep_delay, *_ = value.decode().split(",")
        start_ms = record.timestamp_ms // HOUR_MS * HOUR_MS

        hours = context.store("hours")
        counts = _with(hours.fetch_one(origin, start_ms), dep_time, dep_delay)
        hours.put(origin, counts, start_ms)

        recent, late = context.store("recent"), context.store("late")
        before, late_before = recent.fetch_one(origin, start_ms), recent.late_total
        recent.put(origin, _with(before and before.value, dep_time, dep_delay), start_ms)
        if recent.late_total > late_before:
            late.put(origin, (late.get(origin) or 0) + 1)

        key = f"{origin}@{start_ms}".encode()
        context.forward(self.output_topic, key, str(counts).encode(), record.timestamp_ms)

    def process_batch(self, batch: Batch[bytes, bytes], context: BatchContext) -> None:
        """Do the same for many records."""
        _, values = keyed_columns(batch)
        rows = [value.decode().split(",") for value in values]
        windows = [(row[2], at_ms // HOUR_MS * HOUR_MS) for row, at_ms in zip(rows, batch.timestamps_ms, strict=True)]
        counts = updated(context.store("hours"), windows, rows, _with_row)
        late = self._count_recent(context.store("recent"), windows, rows, batch.timestamps_ms)
        updated(context.store("late"), list(late), list(late.values()), lambda before, more: (before or 0) + more)
        keys = [f"{origin}@{start_ms}".encode() for origin, start_ms in windows]
        context.forward_many(self.output_topic, keys, [str(each).encode() for each in counts], batch.timestamps_ms)

    def _count_recent(
        self, recent: Any, windows: Sequence[tuple[str, int]], rows: Sequence[list[str]], times_ms: Sequence[int]
    ) -> Counter[str]:
        """Count the departures in their windows of ``recent``. Return how many came too late, by origin."""
        with recent.backward_all() as newest:
            latest_ms = next((window.start_ms for window, _ in newest), -1)
        distinct = list(dict.fromkeys(windows))
        counts = {
            window: found and found.value for window, found in zip(distinct, recent.get_many(distinct), strict=True)
        }
        counted_ms: dict[tuple[str, int], int] = {}
        late = Counter[str]()
        for window, row, time_ms in zip(windows, rows, times_ms, strict=True):
            origin, start_ms = window
            if start_ms <= latest_ms - RECENT_HOURS_MS:
                late[origin] += 1
                continue
            latest_ms = max(latest_ms, start_ms)
            counts[window], counted_ms[window] = _with_row(counts[window], row), time_ms
        # In the order of time, so that none of them is too late for those before it.
        counted = sorted(counted_ms, key=lambda window: window[1])
        recent.put_many([(window, counts[window]) for window in counted], [counted_ms[window] for window in counted])
        return late


def _with_row(counted: list[Any] | None, row: Sequence[str]) -> list[Any]:
    return _with(counted, row[4], row[5])


def _with(counted: list[Any] | None, dep_time: str, dep_delay: str) -> list[Any]:
    departures, delays, minutes, _ = counted or (0, 0, 0, None)
    delays, minutes = delays + (1 if dep_delay else 0), minutes + int(dep_delay or 0)
    return [departures + (1 if dep_time else 0), delays, minutes, minutes * 1_000 // delays if delays else None]


GAP_MS = 4 * HOUR_MS
"""Flights of an aircraft at most this far apart, by their schedule, belong to one session."""
RECENT_SESSIONS_MS = 18 * HOUR_MS
"""The retention of ``recent``. A late flight changes no session that ended longer ago."""


@dataclass(frozen=True)
class AircraftSessions(Departures):
    """Merges flights into sessions. An event may come nine hours late, and may then join two sessions.

    The store ``sessions`` keeps ``[departures, cancelled flights, distance in miles]`` of each session, with the time
    of the flight that came last. The store ``recent`` keeps the same without times, for 18 hours.
    """

    late_ms: ClassVar[int] = 9 * HOUR_MS

    name: str = "aircraft_sessions"
    store_names: tuple[str, ...] = ("sessions", "recent")
    output_topic: str = "sessions-out"

    @property
    def records(self) -> Mapping[str, RecordKind]:
        """The kinds of the stores. Segments are short, so that late events fall into older ones."""
        return MappingProxyType(
            {
                "sessions": Session(STR, JSON, retention_ms=400 * _DAY_MS, segment_ms=7 * _DAY_MS, timestamped=True),
                "recent": Session(STR, JSON, retention_ms=RECENT_SESSIONS_MS, segment_ms=6 * HOUR_MS),
            }
        )

    def process(self, record: Record, context: WorkloadContext) -> None:
        """Merge one flight with the sessions within its reach, and forward the resulting session."""
        key, value = keyed(record)
        flown = _flown(value)
        session = Windowed(key.decode(), record.timestamp_ms, record.timestamp_ms)
        _merge(context.store("recent"), session, flown)
        (_, start_ms, end_ms), summed = _merge(context.store("sessions"), session, flown)
        context.forward(self.output_topic, key, f"{start_ms}-{end_ms}: {summed}".encode(), record.timestamp_ms)

    def process_batch(self, batch: Batch[bytes, bytes], context: BatchContext) -> None:
        """Do the same for many records."""
        keys, values = keyed_columns(batch)
        aircraft, flown = [key.decode() for key in keys], list(map(_flown, values))
        times_ms = batch.timestamps_ms
        merged_many(context.store("recent"), aircraft, times_ms, flown, GAP_MS, _added)
        merged = merged_many(context.store("sessions"), aircraft, times_ms, flown, GAP_MS, _added, timed=True)
        outputs = [f"{start_ms}-{end_ms}: {summed}".encode() for (_, start_ms, end_ms), summed in merged]
        context.forward_many(self.output_topic, keys, outputs, batch.timestamps_ms)


def _flown(value: bytes) -> list[int]:
    *_, dep_time, _, _, _, distance = value.split(b",")
    left = 1 if dep_time else 0
    return [left, 1 - left, int(distance) if left else 0]


def _added(one: Sequence[int], another: Sequence[int]) -> list[int]:
    return [mine + other for mine, other in zip(one, another, strict=True)]


def _merge(sessions: Any, session: Windowed[str], summed: list[int]) -> tuple[Windowed[str], list[int]]:
    """Merge ``session`` with those within its reach, with the sums of all. Return the result."""
    aircraft, start_ms, end_ms = session
    with sessions.find_sessions(aircraft, max(0, start_ms - GAP_MS), end_ms + GAP_MS) as pairs:
        within_reach = list(pairs)
    for other, value in within_reach:
        start_ms, end_ms = min(start_ms, other.start_ms), max(end_ms, other.end_ms)
        more = value.value if isinstance(value, ValueAndTimestamp) else value
        summed = _added(summed, more)
        sessions.remove(other)
    merged = Windowed(aircraft, start_ms, end_ms)
    sessions.put(merged, summed)
    return merged, summed
