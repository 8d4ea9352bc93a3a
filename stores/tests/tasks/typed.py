"""Tasks over one typed store of each kind, and a process that runs one until it dies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from stores import failpoints
from stores.changelog import Changelog, Record
from stores.config import StoreConfig
from stores.interface import Durability, IsolationLevel, TopicPartition
from stores.records import (
    BYTES,
    INT64,
    KeyValue,
    Session,
    TimestampedKeyValue,
    TimestampedKeyValueWithHeaders,
    Versioned,
    VersionedWithHeaders,
    Window,
    Windowed,
)
from stores.records.record_kind import RecordKind
from stores.registry import open_store
from stores.strategies.store import Store
from stores.tasks import NO_INTERVAL, ProcessingGuarantee, StreamTask, TaskContext
from stores.tests.tasks.setup import EXACTLY_ONCE, INPUT, MEMORY, changelog_of, run_until_killed, stream_task

SIZE_MS, RETENTION_MS, SEGMENT_MS = 10, 1_000, 100
_WINDOWS: Mapping[str, Any] = {"key": BYTES, "value": INT64, "retention_ms": RETENTION_MS, "segment_ms": SEGMENT_MS}
KINDS: Mapping[str, RecordKind] = {
    "key-value": KeyValue(key=BYTES, value=INT64),
    "timestamped": TimestampedKeyValue(key=BYTES, value=INT64),
    "headers": TimestampedKeyValueWithHeaders(key=BYTES, value=INT64),
    "versioned": Versioned(key=BYTES, value=INT64, history_retention_ms=RETENTION_MS),
    "versioned-headers": VersionedWithHeaders(key=BYTES, value=INT64, history_retention_ms=RETENTION_MS),
    "window": Window(size_ms=SIZE_MS, **_WINDOWS),
    "timestamped-window": Window(size_ms=SIZE_MS, timestamped=True, **_WINDOWS),
    "window-headers": Window(size_ms=SIZE_MS, headers=True, **_WINDOWS),
    "duplicates": Window(size_ms=SIZE_MS, retain_duplicates=True, **_WINDOWS),
    "session": Session(**_WINDOWS),
    "timestamped-session": Session(timestamped=True, **_WINDOWS),
    "session-headers": Session(headers=True, **_WINDOWS),
}
STORE = changelog_of("s")


def sent(number: int) -> tuple[bytes, int]:
    """Key and time of input record ``number``: times go up and down by more than a segment."""
    return b"%d" % (number % 4), 5_000 + number * 7 + (number % 3) * 150


def headers_of(number: int) -> tuple[tuple[str, bytes | None], ...]:
    """The headers with which record ``number`` is written, if the kind has some; none for each third one."""
    return (("number", b"%d" % number), ("none", None)) if number % 3 else ()


def expected_values(numbers: Iterable[int]) -> list[int]:
    return sorted(numbers)


def write(kind: str, record: Record, context: TaskContext, name: str = "s") -> None:
    """Put the record's offset under its key and time, in the way of the kind."""
    store, key, time_ms = context.store(name), record.key or b"", record.timestamp_ms
    if kind == "key-value":
        store.put(b"%b-%d" % (key, record.offset), record.offset)
    elif kind == "timestamped":
        store.put(b"%b-%d" % (key, record.offset), record.offset, time_ms)
    elif kind == "headers":
        store.put(b"%b-%d" % (key, record.offset), record.offset, time_ms, headers_of(record.offset))
    elif kind in ("versioned", "window", "duplicates"):
        store.put(key, record.offset, time_ms)
    elif kind == "versioned-headers":
        store.put(key, record.offset, time_ms, headers_of(record.offset))
    elif kind == "timestamped-window":
        store.put(key, record.offset, time_ms, time_ms + 1)
    elif kind == "window-headers":
        store.put(key, record.offset, time_ms, time_ms + 1, headers_of(record.offset))
    elif kind == "session":
        store.put(Windowed(key, time_ms, time_ms + 5), record.offset)
    elif kind == "session-headers":
        store.put(Windowed(key, time_ms, time_ms + 5), record.offset, time_ms + 1, headers_of(record.offset))
    else:
        store.put(Windowed(key, time_ms, time_ms + 5), record.offset, time_ms + 1)
    context.forward("output", key, b"%d" % record.offset)


def feed_times(log: Changelog, numbers: Iterable[int]) -> None:
    log.create_topic("input")
    log.create_topic("output")
    with log.producer() as producer:
        for number in numbers:
            key, time_ms = sent(number)
            producer.send(INPUT, key, b"x", time_ms)
        producer.flush()


def typed_task(folder: Path, log: Changelog, kind: str, backend: str = MEMORY, **settings: Any) -> StreamTask:
    """A task with a store, ``s``, of the kind, or, for ``KIND+KIND``, another one, ``t``; ``store_`` is for both."""
    own = {name.removeprefix("store_"): settings.pop(name) for name in list(settings) if name.startswith("store_")}
    kinds = dict(zip("st", kind.split("+"), strict=False))
    stores = {
        name: StoreConfig(backend, **{"records": KINDS[each], "changelog_coalescing": False, **own})
        for name, each in kinds.items()
    }

    def write_all(record: Record, context: TaskContext) -> None:
        for name, each in kinds.items():
            write(each, record, context, name)

    return stream_task(
        **{
            "state_dir": folder / "state",
            "changelog": log,
            "stores": stores,
            "process": write_all,
            "inputs": [INPUT],
            "guarantee": EXACTLY_ONCE,
            "commit_interval_ms": NO_INTERVAL,
            **settings,
        },
    )


def values(
    task: StreamTask, kind: str, level: IsolationLevel = IsolationLevel.READ_COMMITTED, name: str = "s"
) -> list[int]:
    """The values that the typed store shows, in order. Their headers are those of ``headers_of``."""
    view = task.store(name, level)
    if kind in ("key-value", "timestamped", "headers"):
        with view.all() as pairs:
            contents = [value for _, value in pairs]
    elif "session" in kind:
        contents = []
        for key in (b"0", b"1", b"2", b"3"):
            with view.fetch(key) as found:
                contents.extend(value for _, value in found)
    elif "versioned" in kind:
        contents = []
        for key in (b"0", b"1", b"2", b"3"):
            with view.get_versions(key) as found:
                contents.extend(found)
    else:
        with view.all() as found:
            contents = [value for _, value in found]
    for value in contents:
        assert not hasattr(value, "headers") or value.headers == headers_of(value.value)
    return sorted(value if isinstance(value, int) else value.value for value in contents)


def changelog_pairs(log: Changelog, partition: TopicPartition = STORE) -> list[tuple[bytes | None, bytes | None, int]]:
    return [(record.key, record.value, record.timestamp_ms) for record in log.read(partition)]


def store_folder(folder: Path, name: str = "s") -> Path:
    """Return the path of the task's store."""
    [found] = [file.parent for file in (folder / "state").rglob("store.json") if file.parent.name == name]
    return found


def kept(folder: Path, backend: str) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
    """The bytes that the closed store keeps, and its stream time."""
    with open_store(backend, store_folder(folder), name="s") as store, store.all() as pairs:
        return list(pairs), store.mark("stream_time")


def kept_in(task: StreamTask) -> dict[bytes, bytes]:
    """The committed bytes of the open task's store."""
    with task._stores._stores[0].store.read_only(IsolationLevel.READ_COMMITTED).all() as pairs:
        return dict(pairs)


BETWEEN_SEGMENTS = failpoints.declare("test.between_segments", "some segments of a store are committed, others not")


def broken_task(*arguments: Any, **settings: Any) -> StreamTask:
    """``typed_task`` in a process whose stores are broken from now on.

    The newest segment commits first, with the offset, and each older one after it.
    """
    commit = Store.commit

    def broken(store: Store, offsets: Any = None) -> None:
        with store.all() as pairs, store.read_only(IsolationLevel.READ_COMMITTED).all() as committed:
            changes = dict(pairs).items() - dict(committed).items()
        stream_time, position = store.mark("stream_time"), store.position(IsolationLevel.READ_UNCOMMITTED)
        store.rollback()
        for number, segment in enumerate(sorted({key[:8] for key, _ in changes}, reverse=True)):
            if number:
                failpoints.reach(BETWEEN_SEGMENTS)
            store.put_all(pair for pair in changes if pair[0].startswith(segment))
            store.set_mark("stream_time", stream_time)
            for partition, offset in position.items():
                store.advance_position(partition, offset)
            commit(store, offsets)

    Store.commit = broken  # type: ignore[assignment, method-assign]
    return typed_task(*arguments, **settings)


def run_typed_until_killed(
    folder: Path,
    failpoint: str,
    hit: int,
    kind: str,
    backend: str,
    guarantee: ProcessingGuarantee = EXACTLY_ONCE,
    make: Callable[..., StreamTask] = typed_task,
) -> bool:
    """As ``run_until_killed``, with three records per commit."""
    settings = {"guarantee": guarantee, "store_durability": Durability.PROCESS, "commit_every_records": 3}
    return run_until_killed(make, folder, failpoint, hit, kind, backend, **settings)
