"""One call of a typed store is seen whole or not at all, by readers of every level. Source: KAFKA-20933.

One table: every kind of store, by itself and in a task, whose changelog and ``on_error`` add steps of their own, and
with an upgrade under way. A reader looks between any two steps of the call: before and after each write that reaches
the store of bytes or its staging. Before the table, ``put_all`` staged key by key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from stores import Durability, IsolationLevel, KeyValueStore, TopicPartition
from stores.changelog import Changelog, MemoryChangelog, Record, SqliteChangelog
from stores.config import StoreConfig
from stores.records import (
    BYTES,
    KeyValue,
    Session,
    TimestampedKeyValue,
    TimestampedKeyValueWithHeaders,
    Versioned,
    Window,
    Windowed,
)
from stores.records.record_kind import RecordKind
from stores.records.timestamped import TimestampedKind
from stores.registry import backend_named
from stores.settings import Upgrade, UpgradeMode
from stores.strategies.store import Store
from stores.strategies.store.timestamps import StoreTimestamps
from stores.tasks import NO_INTERVAL, OnError, ProcessingGuarantee, StreamTask, TaskContext, TaskId, TaskSettings
from stores.tasks.context import ProcessFunction
from stores.tests.conformance.cases import Case
from stores.tests.conformance.gaps import ISOLATED, TWO_FORMATS, carries

DIRTY, COMMITTED = IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED
READER_GETS_S = 0.01
"""The seconds to wait for a reader between two steps; one that is blocked answers afterwards."""
KEYS = [b"a", b"b", b"c", b"d", b"e"]
TIMED = TimestampedKeyValue(BYTES, BYTES)
INPUT = TopicPartition("input", 0)

Look = Callable[[Any], Mapping[str, Any]]


def pairs_seen(view: Any) -> dict[str, Any]:
    return {
        "get_many": [plain(value) for value in view.get_many(KEYS)],
        "all": shown(view.all()),
        "reverse_range": shown(view.reverse_range(b"a", b"e"))[::-1],
        "prefix_scan": shown(view.prefix_scan(b"")),
    }


def windows_seen(view: Any) -> dict[str, Any]:
    return {
        "fetch": list(view.fetch(b"k", 0, 1_000)),
        "fetch_range": [(window.start_ms, value) for window, value in view.backward_fetch_range(None, None, 0, 1_000)],
        "all": [(window.start_ms, value) for window, value in view.all()],
    }


def sessions_seen(view: Any) -> dict[str, Any]:
    return {
        "fetch": [session.end_ms for session, _ in view.fetch(b"k")],
        "find": [session.end_ms for session, _ in view.backward_find_sessions(b"k", 0, 1_000)],
    }


def versions_seen(view: Any) -> dict[str, Any]:
    return {
        "get_many": [plain(value) for value in view.get_many(KEYS)],
        "all": shown(view.all()),
        "versions": [tuple(record) for record in view.get_versions(b"c")],
        "backward": [tuple(record) for record in view.get_versions(b"c", 5, 110, reverse=True)],
        "at": [view.get(b"c", at) and plain(view.get(b"c", at)) for at in (9, 15, 105)],
    }


def plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bytes) else tuple(value)


def shown(pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
    return [(key, plain(value)) for key, value in pairs]


@dataclass(frozen=True)
class Change:
    """One call of a store that changes several of the records that a reader sees, and what readers ask."""

    name: str
    kind: RecordKind | None
    prepare: Callable[[Any], None]
    call: Callable[[Any], None]
    look: Look = pairs_seen

    def __str__(self) -> str:
        return self.name


def put_all(value: bytes, *times: int) -> Callable[[Any], None]:
    """The same value for all keys, at the given times, if there are times."""

    def put(store: Any) -> None:
        store.put_all([(key, value, time_ms) for key, time_ms in zip(KEYS, times, strict=False)] if times else pairs)

    pairs = [(key, value) for key in KEYS]
    return put


def put_all_with_headers(*times: int) -> Callable[[Any], None]:
    """A value for all keys, with other headers for each."""

    def put(store: Any) -> None:
        store.put_all([(key, NEW, at, (("key", key), ("none", None))) for key, at in zip(KEYS, times, strict=True)])

    return put


def delete(store: Any) -> None:
    store.delete_range(b"b", b"d")


def put_windows(*starts: int) -> Callable[[Any], None]:
    def put(store: Any) -> None:
        for start in starts:
            store.put(b"k", b"v", start)

    return put


def put_sessions(*ends: int) -> Callable[[Any], None]:
    def put(store: Any) -> None:
        for end in ends:
            store.put(Windowed(b"k", end - 5, end), b"v")

    return put


def put_versions(*times: int) -> Callable[[Any], None]:
    def put(store: Any) -> None:
        for time_ms in times:
            store.put(b"c", b"v%d" % time_ms, time_ms)

    return put


EXPIRING = replace(TIMED, ttl_ms=100)
HEADED = TimestampedKeyValueWithHeaders(BYTES, BYTES)
VERSIONED = Versioned(BYTES, BYTES, history_retention_ms=100)
OLD, NEW, EQUAL = b"old", b"new", (10,) * 5
SEGMENTS: Mapping[str, Any] = {"retention_ms": 100, "segment_ms": 20}
CHANGES = [
    Change("bytes put_all", None, put_all(OLD), put_all(NEW)),
    Change("bytes delete_range", None, put_all(OLD), delete),
    Change("key-value put_all", KeyValue(BYTES, BYTES), put_all(OLD), put_all(NEW)),
    Change("key-value delete_range", KeyValue(BYTES, BYTES), put_all(OLD), delete),
    Change("timestamped put_all", TIMED, put_all(OLD, *EQUAL), put_all(NEW, 20, 21, 22, 23, 24)),
    Change("timestamped delete_range", TIMED, put_all(OLD, *EQUAL), delete),
    Change("ttl put_all", EXPIRING, put_all(OLD, *EQUAL), put_all(NEW, 50, 120, 9, 121, 20)),
    Change("ttl put", EXPIRING, put_all(OLD, *EQUAL), lambda store: store.put(b"c", NEW, 110)),
    Change("ttl delete_range", EXPIRING, put_all(OLD, *EQUAL), delete),
    Change("headers put_all", HEADED, put_all(OLD, *EQUAL), put_all_with_headers(20, 21, 22, 23, 24)),
    Change(
        "headers ttl put_all",
        replace(HEADED, ttl_ms=100),
        put_all_with_headers(*EQUAL),
        put_all_with_headers(50, 120, 9, 121, 20),
    ),
    Change("versioned put", VERSIONED, put_versions(10, 60), lambda store: store.put(b"c", NEW, 110), versions_seen),
    Change("versioned late put", VERSIONED, put_versions(10, 60), put_versions(20), versions_seen),
    Change(
        "versioned put_many",
        VERSIONED,
        put_versions(10, 60),
        lambda store: store.put_many([b"a", b"c", b"c"], [NEW, NEW, None], [50, 120, 130]),
        versions_seen,
    ),
    Change("versioned delete", VERSIONED, put_versions(10, 60), lambda store: store.delete(b"c", 70), versions_seen),
    Change(
        "window put", Window(BYTES, BYTES, size_ms=5, **SEGMENTS), put_windows(10, 50), put_windows(130), windows_seen
    ),
    Change(
        "window put_many",
        Window(BYTES, BYTES, size_ms=5, **SEGMENTS),
        put_windows(10, 50),
        lambda store: store.put_many({(b"k", start): b"v" for start in (60, 130, 20, 90)}),
        windows_seen,
    ),
    Change("session put", Session(BYTES, BYTES, **SEGMENTS), put_sessions(10, 50), put_sessions(130), sessions_seen),
]
"""A time that moves lets older records expire: that is part of the change."""


class Watcher:
    """Lets a reader look whenever the store takes a step, and holds what it saw to the states before and after."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self.views: dict[IsolationLevel, Any] = {}
        self.seen: list[tuple[IsolationLevel, Future[Mapping[str, Any]]]] = []
        self._pool = ThreadPoolExecutor(4)

    def step(self) -> None:
        """Look at all views, unless they are blocked."""
        asked = [(level, self._pool.submit(self._look, view)) for level, view in self.views.items()]
        self.seen += asked
        wait([future for _, future in asked], READER_GETS_S)

    def watch(self, views: Mapping[IsolationLevel, Any], call: Callable[[], None]) -> None:
        """Make the call, with a look between any two of its steps. Each answer must be that of before or of after."""
        before = {level: self._look(view) for level, view in views.items()}
        self.views = dict(views)
        with stepping(self.step):
            call()
        self.views = {}
        after = {level: self._look(view) for level, view in views.items()}
        self._pool.shutdown()
        assert len(self.seen) > 2
        assert after[DIRTY] != before[DIRTY]
        for level, future in self.seen:
            for query, answer in future.result(60).items():
                assert answer in (before[level][query], after[level][query]), (query, level)


@contextmanager
def stepping(look: Callable[[], None]) -> Iterator[None]:
    """Call ``look`` before and after every step of every store by which it is changed."""
    patch = pytest.MonkeyPatch()

    def stepped(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            look()
            try:
                return method(*given, **named)
            finally:
                look()

        return call

    patch.setattr(StoreTimestamps, "put", stepped(StoreTimestamps.put))
    for name in ("put", "put_all", "put_many", "set_mark", "delete_range"):
        patch.setattr(Store, name, stepped(getattr(Store, name)))
    try:
        yield
    finally:
        patch.undo()


@pytest.mark.as_is
@pytest.mark.spread_over(change=CHANGES)
def test_one_call_of_a_store_is_seen_whole_or_not_at_all(store: KeyValueStore, change: Change) -> None:
    typed: Any = store if change.kind is None else change.kind.over(store)
    change.prepare(typed)
    typed.commit()
    Watcher(change.look).watch({level: typed.read_only(level) for level in IsolationLevel}, lambda: change.call(typed))
    if carries(store, ISOLATED):
        typed.rollback()


@pytest.mark.as_is
@pytest.mark.spread_over(change=[change for change in CHANGES if isinstance(change.kind, TimestampedKind)])
def test_one_call_during_a_lazy_upgrade_is_seen_whole_or_not_at_all(store: KeyValueStore, change: Change) -> None:
    """Some of the records were moved already, and others were not."""
    KeyValue(BYTES, BYTES).over(store).put_all([(key, OLD) for key in KEYS])
    store.commit()
    assert change.kind is not None
    if not carries(store, TWO_FORMATS):
        return
    typed: Any = change.kind.over(store)
    assert store.timestamps.is_split
    typed.put(b"b", OLD, 10)
    typed.put(b"d", OLD, 10)
    typed.commit()
    Watcher(change.look).watch({level: typed.read_only(level) for level in IsolationLevel}, lambda: change.call(typed))


def feed(log: Changelog, keys: Iterable[int]) -> None:
    """Put a record per key into the input topic; makes the topic."""
    log.create_topic(INPUT.topic)
    with log.producer() as producer:
        for key in keys:
            producer.send(INPUT, b"%d" % key, b"x", key)
        producer.flush()


def single(
    folder: Path,
    log: Changelog,
    process: ProcessFunction,
    stores: Mapping[str, StoreConfig],
    on_error: OnError = OnError.RAISE,
) -> StreamTask:
    """A task that commits only where ``run`` is asked to."""
    return StreamTask(
        "app",
        TaskId(0, 0),
        state_dir=folder / "state",
        changelog=log,
        process=process,
        inputs=[INPUT],
        stores=stores,
        settings=TaskSettings(
            guarantee=ProcessingGuarantee.EXACTLY_ONCE, commit_interval_ms=NO_INTERVAL, on_error=on_error
        ),
    )


class SamePairs:
    """The proxy of an online upgrade: it writes and reads the old store in one call each."""

    def __init__(self, old: Any) -> None:
        self._old = old

    def __getattr__(self, name: str) -> Any:
        return getattr(self._old, name)


def unchanged(record: Record, version: int) -> Iterable[tuple[bytes, bytes | None]]:
    return [(record.key or b"", record.value)]


@pytest.mark.as_is
@pytest.mark.spread_over(change=CHANGES, place=["task", "task that skips", "lazy upgrade", "online upgrade"])
def test_one_call_in_a_task_is_seen_whole_or_not_at_all(tmp_path: Path, case: Case, change: Change, place: str) -> None:
    if is_possible(case, change, place):
        with MemoryChangelog() as log:
            change_in_task(tmp_path, log, case, change, place)


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_one_call_is_seen_whole_or_not_at_all_beside_a_changelog_in_a_file(tmp_path: Path, change: Change) -> None:
    case = Case(backend_named("memory-indexed-batch"), Durability.CHANGELOG)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        change_in_task(tmp_path, log, case, change, "task that skips")


def is_possible(case: Case, change: Change, place: str) -> bool:
    """Return whether there is such an upgrade: only values get times, and only stores on disk are built beside."""
    if place == "lazy upgrade":
        return isinstance(change.kind, TimestampedKind) and case.backend.persistent
    return place != "online upgrade" or (change.kind is not None and case.backend.persistent)


def change_in_task(tmp_path: Path, log: Changelog, case: Case, change: Change, place: str) -> None:
    kept = change.kind
    config = StoreConfig(case.backend.name, records=kept, changelog_coalescing=place == "task")
    stores = {"s": config}
    if place == "online upgrade":
        upgrade = Upgrade(1, unchanged, online=True, records=kept, proxy=SamePairs)
        stores = {"s": replace(config, upgrade=upgrade, upgrade_mode=UpgradeMode.IN_PLACE)}

    def process(record: Record, context: TaskContext) -> None:
        typed = context.store("s")
        if record.offset:
            views = {level: task.store("s", level) for level in IsolationLevel}
            Watcher(change.look).watch(views, lambda: change.call(typed))
            watched.append(record.offset)
        elif place != "lazy upgrade":
            change.prepare(typed)

    def process_plain(record: Record, context: TaskContext) -> None:
        context.store("s").put_all([(key, OLD) for key in KEYS])

    watched: list[int] = []
    on_error = OnError.SKIP if place == "task that skips" else OnError.RAISE
    feed(log, [1])
    if place == "lazy upgrade":
        plain_stores = {"s": replace(config, records=KeyValue(BYTES, BYTES))}
        with closing(single(tmp_path, log, process_plain, stores=plain_stores)) as task:
            task.open()
            task.run(commit=True)
        feed(log, [2])
    with closing(single(tmp_path, log, process, stores, on_error)) as task:
        task.open()
        task.run(commit=True)
        if place != "lazy upgrade":
            feed(log, [2])
            task.run(commit=True)
        assert task.metrics.skipped_total == 0, "what a reader saw wrong was skipped: the log has it"
    assert watched == [1]


@pytest.mark.parametrize("kind", [KeyValue(BYTES, BYTES), TIMED, EXPIRING], ids=["plain", "timestamped", "ttl"])
def test_readers_that_race_a_task_see_lists_whole(tmp_path: Path, kind: RecordKind) -> None:
    ended, log = Event(), MemoryChangelog()
    halves: list[Any] = []

    def read(view: Any) -> int:
        looks = 0
        while not ended.is_set():
            looks += 1
            for values in ([value for _, value in view.all()], view.get_many(KEYS)):
                if len({value if value is None or isinstance(value, bytes) else value.value for value in values}) > 1:
                    halves.append(values)
        return looks

    def process(record: Record, context: TaskContext) -> None:
        value, times = b"%d" % record.offset, () if isinstance(kind, KeyValue) else (record.offset * 50,) * 5
        put_all(value, *times)(context.store("s"))

    config = StoreConfig("memory-indexed-batch", records=kind, changelog_coalescing=False)
    with closing(single(tmp_path, log, process, stores={"s": config})) as task, ThreadPoolExecutor(2) as pool:
        feed(log, range(300))
        task.open()
        task.run(1, commit=True)
        readers = [pool.submit(read, task.store("s", DIRTY)) for _ in range(2)]
        try:
            task.run(commit=True)
        finally:
            ended.set()
        assert min(reader.result(60) for reader in readers) > 0
    assert not halves
