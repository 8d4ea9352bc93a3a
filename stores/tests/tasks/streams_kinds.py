"""Window, session and versioned stores as Kafka Streams leaves them, with their changelogs, and what is in them.

Nothing of the library encodes them here. Source: Kafka Streams 4.1, ``WindowKeySchema``, ``SessionKeySchema``,
``AbstractSegments``, ``RocksDBVersionedStoreSegmentValueFormatter``.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stores.changelog import Changelog, Record
from stores.config import StoreConfig
from stores.interface import TopicPartition
from stores.records import BYTES, Session, Versioned, Window, Windowed
from stores.records.record_kind import RecordKind
from stores.tasks import StreamTask, TaskContext
from stores.tests.tasks.setup import INDEXED, INPUT, changelog_of, counting_task, feed
from stores.tests.tasks.streams_folder import leave_offsets, leave_store, streams_folder, task_folder

LOG = changelog_of("s")
SEGMENT_MS, RETENTION_MS, HISTORY_MS = 60_000, 120_000, 90_000
VERSIONS_MS = 20_000
"""The length of the segments of a versioned store."""
SESSION_MS = 5
_WINDOWS: Mapping[str, Any] = {"key": BYTES, "value": BYTES, "retention_ms": RETENTION_MS}
KINDS: Mapping[str, RecordKind] = {
    "window": Window(size_ms=10, **_WINDOWS),
    "timestamped-window": Window(size_ms=10, timestamped=True, **_WINDOWS),
    "duplicates": Window(size_ms=10, retain_duplicates=True, **_WINDOWS),
    "session": Session(**_WINDOWS),
    "versioned": Versioned(key=BYTES, value=BYTES, history_retention_ms=HISTORY_MS),
}
SEGMENTED = [kind for kind in KINDS if kind != "versioned"]
Put = tuple[bytes, bytes | None, int]
"""Key, value and time: a window's start, a session's end, or a version's time."""
PUTS: Sequence[Put] = [
    (b"old", b"0", 100_000),
    (b"a", b"1", 120_000),
    (b"a", b"2", 130_000),
    (b"a\0", b"3", 130_000),
    (b"x", b"13", 131_000),
    (b"x", b"14", 145_000),
    (b"a\0\xff", b"4", 150_000),
    (b"b", b"", 190_000),
    (b"a", b"5", 170_000),
    (b"b", b"6", 191_000),
    (b"b", b"7", 190_000),
    (b"gone", b"8", 185_000),
    (b"gone", None, 186_000),
    (b"gone", None, 185_000),
    (b"never", None, 200_000),
    (b"a", None, 210_000),
    (b"c", b"9", 240_000),
]
"""At the stream time 240,000 the window at 120,000 has expired, and the version that has ended at 145,000, but not the
segments in which they lie."""
MORE: Sequence[Put] = [(b"a", b"10", 155_000), (b"d", b"11", 250_000), (b"b", None, 191_000), (b"c", b"12", 251_000)]


def sequences(puts: Sequence[Put]) -> list[int]:
    """Return the number of each put among those with a value, from 1 on, as Kafka Streams counts duplicates."""
    numbers: list[int] = []
    for _, value, _ in puts:
        numbers.append((numbers[-1] if numbers else 0) + (value is not None))
    return numbers


def logged(kind: str, puts: Sequence[Put]) -> list[tuple[bytes, bytes | None, int]]:
    """Return the changelog records of ``puts``: key, value and time."""
    records = []
    for (key, value, time_ms), number in zip(puts, sequences(puts), strict=True):
        if kind == "versioned":
            records.append((key, value, time_ms))
        elif kind == "session":
            records.append((key + struct.pack(">qq", time_ms, time_ms - SESSION_MS), value, time_ms + 1))
        elif kind != "duplicates":
            records.append((key + struct.pack(">qi", time_ms, 0), value, time_ms + 1))
        elif value is not None:
            records.append((key + struct.pack(">qi", time_ms, number), value, time_ms + 1))
    return records


def time_of(kind: str, key: bytes) -> int:
    """Return the time in the key of a window or session in the changelog."""
    time_ms: int
    (time_ms,) = struct.unpack(">q", key[-16:-8] if kind == "session" else key[-12:-4])
    return time_ms


def leave(folder: Path, kind: str, puts: Sequence[Put]) -> None:
    """Leave the store ``s`` with what ``puts`` make of it, without the segments that they make too old."""
    if kind == "versioned":
        leave_store(streams_folder(folder, "s"), versioned_pairs(puts))
        return
    first = (max(time_ms for *_, time_ms in puts) - RETENTION_MS) // SEGMENT_MS
    segments: dict[int, dict[bytes, tuple[int, bytes]]] = defaultdict(dict)
    for key, value, at_ms in logged(kind, puts):
        segment = segments[time_of(kind, key) // SEGMENT_MS]
        segment.pop(key, None)
        if value is not None:
            segment[key] = at_ms, value
    for number, contents in segments.items():
        if number >= first:
            leave_segment(folder, number * SEGMENT_MS, contents, timestamped=kind == "timestamped-window")


def segments_folder(folder: Path) -> Path:
    return task_folder(folder) / "s"


def leave_segment(
    folder: Path, start_ms: int, contents: Mapping[bytes, tuple[int, bytes]], *, timestamped: bool = False
) -> None:
    """Leave a segment of the store ``s``: times and values by key."""
    path = segments_folder(folder) / f"s.{start_ms}"
    if timestamped:
        leave_store(path, {}, contents)
    else:
        leave_store(path, {key: value for key, (_, value) in contents.items()})


def versioned_pairs(puts: Sequence[Put]) -> dict[bytes, bytes]:
    """Return the pairs of a versioned store."""
    first = (max(time_ms for *_, time_ms in puts) - HISTORY_MS) // VERSIONS_MS
    pairs: dict[bytes, bytes] = {}
    for key in {key for key, *_ in puts}:
        versions = sorted({time_ms: value for name, value, time_ms in puts if name == key}.items())
        rows: dict[int, list[tuple[int, int, bytes | None]]] = defaultdict(list)
        for number, (time_ms, value) in enumerate(versions):
            end_ms = versions[number + 1][0] if number + 1 < len(versions) else None
            if end_ms is not None:
                if value is not None or not number:
                    rows[end_ms // VERSIONS_MS].append((time_ms, end_ms, value))
            elif value is not None:
                pairs[b"\xff" * 8 + key] = struct.pack(">q", time_ms) + value
            elif not number:
                rows[time_ms // VERSIONS_MS].append((time_ms, time_ms, None))
        pairs |= {struct.pack(">q", number) + key: row(parts) for number, parts in rows.items() if number >= first}
    return pairs


def row(parts: Sequence[tuple[int, int, bytes | None]]) -> bytes:
    """Return the row of a key in a segment, of versions with beginning and end. What is between them is deleted."""
    entries: list[tuple[int, bytes | None]] = []
    end_ms = parts[0][0]
    for time_ms, until_ms, value in parts:
        if time_ms > end_ms:
            entries.append((end_ms, None))
        entries.append((time_ms, value))
        end_ms = until_ms
    sizes = [struct.pack(">qi", time_ms, -1 if value is None else len(value)) for time_ms, value in reversed(entries)]
    return b"".join([struct.pack(">qq", end_ms, entries[0][0]), *sizes, *(value or b"" for _, value in entries)])


def model(kind: str, puts: Sequence[Put]) -> Any:
    """Return what ``contents`` returns after ``puts``."""
    stream_time_ms = max(time_ms for *_, time_ms in puts)
    if kind == "versioned":
        return {key: versions(puts, key, stream_time_ms - HISTORY_MS) for key, *_ in puts}
    found: dict[tuple[bytes, int, int], bytes] = {}
    for (key, value, time_ms), number in zip(puts, sequences(puts), strict=True):
        place = key, time_ms, number if kind == "duplicates" else 0
        if value is not None:
            found[place] = value
        elif kind != "duplicates":
            found.pop(place, None)
    return [(*place[:2], found[place]) for place in sorted(found) if place[1] > stream_time_ms - RETENTION_MS]


def versions(puts: Sequence[Put], key: bytes, first_ms: int) -> list[tuple[bytes, int, int | None]]:
    """Return value, beginning and end of the versions of ``key`` that are valid at ``first_ms`` or later."""
    times = sorted({time_ms: value for name, value, time_ms in puts if name == key}.items())
    ends: list[int | None] = [time_ms for time_ms, _ in times[1:]]
    return [
        (value, time_ms, end_ms)
        for (time_ms, value), end_ms in zip(times, [*ends, None], strict=True)
        if value is not None and (end_ms is None or end_ms > first_ms)
    ]


def contents(kind: str, task: StreamTask, puts: Sequence[Put] = PUTS) -> Any:
    """Return the store's contents: key, time and value in order, or the versions of each key."""
    store = task.store("s")
    if kind == "versioned":
        return {key: [tuple(version) for version in store.get_versions(key)] for key, *_ in puts}
    of_end = kind == "session"
    with store.fetch_range(None, None) if of_end else store.all() as records:
        found = [(window.key, window.end_ms if of_end else window.start_ms, value) for window, value in records]
    if kind == "timestamped-window":
        assert all(value.timestamp_ms == time_ms + 1 for _, time_ms, value in found)
        found = [(key, time_ms, value.value) for key, time_ms, value in found]
    # Those of one key and start stay in the order of their writes.
    return sorted(found, key=lambda record: record[:2])


def writing(kind: str) -> Any:
    """Return the function of a task that puts each input record."""

    def write(record: Record, context: TaskContext) -> None:
        store, key, time_ms = context.store("s"), record.key, record.timestamp_ms
        if kind == "versioned":
            store.put(key, record.value, time_ms)
        elif kind == "session":
            store.put(Windowed(key, time_ms - SESSION_MS, time_ms), record.value, time_ms + 1)
        else:
            store.put(key, record.value, time_ms, time_ms + 1)

    return write


def kind_task(
    folder: Path, log: Changelog, kind: str, backend: str = INDEXED, records: RecordKind | None = None, **given: Any
) -> StreamTask:
    """Return a task with the store ``s`` of the kind, or of ``records``."""
    config = StoreConfig(backend, records=records or KINDS[kind], changelog_coalescing=False, **given)
    return counting_task(folder, log, stores={"s": config}, process=writing(kind))


def send_all(log: Changelog, partition: TopicPartition, records: Sequence[tuple[bytes, bytes | None, int]]) -> None:
    with log.producer() as producer:
        producer.send_all(partition, records)
        producer.flush()


def left_by_streams(folder: Path, log: Changelog, kind: str, end: int | None = None) -> int:
    """Leave a store with the first ``end`` of ``PUTS``, its changelog with all, and the offset; return their number."""
    feed(log, [])
    log.create_topic(LOG.topic)
    send_all(log, LOG, logged(kind, PUTS))
    leave(folder, kind, PUTS[:end])
    leave_offsets(task_folder(folder) / ".checkpoint", {LOG: len(logged(kind, PUTS[:end])) - 1})
    return len(logged(kind, PUTS))


def put_more(log: Changelog, task: StreamTask) -> None:
    """Let the task put ``MORE``."""
    send_all(log, INPUT, MORE)
    task.run(commit=True)
