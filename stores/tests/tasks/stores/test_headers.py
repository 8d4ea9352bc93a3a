"""Stores with headers in a task: what the changelog has of them, and stores that become one in a running application.

Source: KIP-1271, "Changelog topics", "Upgrade".
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import Changelog, MemoryChangelog, Record
from stores.errors import StoreIncompatibleError
from stores.records import (
    BYTES,
    INT64,
    KeyValue,
    TimestampedKeyValue,
    TimestampedKeyValueWithHeaders,
    ValueTimestampHeaders,
    Windowed,
)
from stores.settings import Upgrade
from stores.tasks import StreamTask, TaskContext
from stores.tests.tasks.setup import INDEXED, over_each_changelog
from stores.tests.tasks.typed import KINDS, SEGMENT_MS, STORE, feed_times, headers_of, kept, sent, typed_task, values

HEADED, TIMED, PLAIN = KINDS["headers"], KINDS["timestamped"], KeyValue(key=BYTES, value=INT64)
HEADERS = (("trace", b"\x00\xff"), ("trace", b""), ("none", None))


def logged(log: Changelog) -> list[tuple[Any, ...]]:
    """The records of the changelog: key, value, time and headers."""
    return [tuple(record)[1:] for record in log.read(STORE, log.start_offset(STORE))]


@over_each_changelog
@pytest.mark.parametrize("coalescing", [False, True])
def test_the_changelog_has_the_value_alone_and_time_and_headers_are_the_records(
    tmp_path: Path, log: Changelog, coalescing: bool
) -> None:
    feed_times(log, range(1))

    def put(record: Record, context: TaskContext) -> None:
        store = context.store("s")
        store.put(b"a", 7, 12, HEADERS)
        store.put_many([b"b", b"c"], [8, 9], [13, 0], [(), HEADERS[:1]])
        store.put(b"d", 1, 1, HEADERS)
        store.delete(b"d")
        store.put(b"a", 6, 11, HEADERS[1:])

    settings = {"process": put, "store_changelog_coalescing": coalescing}
    with closing(typed_task(tmp_path, log, "headers", INDEXED, **settings)) as task:
        task.open()
        task.run(commit=True)
        expected = dict(task.store("s").all())
    by_key = {record[0]: record for record in logged(log)}
    assert by_key == {
        b"a": (b"a", INT64.serialize(6), 11, HEADERS[1:]),
        b"b": (b"b", INT64.serialize(8), 13, ()),
        b"c": (b"c", INT64.serialize(9), 0, HEADERS[:1]),
        b"d": (b"d", None, sent(0)[1], ()),
    }
    assert len(logged(log)) == (4 if coalescing else 6)
    with closing(typed_task(tmp_path / "other", log, "headers", INDEXED)) as task:
        task.open()
        assert dict(task.store("s").all()) == expected
        assert expected[b"a"] == (6, 11, HEADERS[1:])
    assert kept(tmp_path / "other", INDEXED) == kept(tmp_path, INDEXED)


@over_each_changelog
@pytest.mark.parametrize("coalescing", [False, True])
@pytest.mark.parametrize("kind", ["window-headers", "duplicates", "session-headers"])
def test_the_changelog_of_windows_has_the_values_alone_and_headers_are_the_records(
    tmp_path: Path, log: Changelog, coalescing: bool, kind: str
) -> None:
    feed_times(log, range(1))
    described: Any = replace(KINDS[kind], headers=True)  # type: ignore[call-arg]

    def place(at: int) -> Any:
        return Windowed(b"k", at, at) if "session" in kind else (b"k", at)

    def put(record: Record, context: TaskContext) -> None:
        store = context.store("s")
        store.put_many([(place(at), at) for at in (10, 20)], [12, 0], [HEADERS, ()])
        store.put_many({place(300): 9}, headers=[HEADERS[:1]])
        store.put(*((place(310), 5) if "session" in kind else (b"k", 5, 310)), 13, HEADERS[1:])
        store.delete_many([place(20)])

    settings = {"process": put, "store_changelog_coalescing": coalescing, "store_records": described}
    with closing(typed_task(tmp_path, log, kind, INDEXED, **settings)) as task:
        task.open()
        task.run(commit=True)
        expected = task.store("s").get_many([place(at) for at in (10, 20, 300, 310)])
    keeps_deleted = kind == "duplicates"
    assert expected == [
        (10, 12, HEADERS),
        (20, 0, ()) if keeps_deleted else None,
        (9, sent(0)[1], HEADERS[:1]),
        (5, 13, HEADERS[1:]),
    ]
    last = {record[0]: record[1:] for record in logged(log)}
    assert list(last.values()) == [
        (INT64.serialize(10), 12, HEADERS),
        (INT64.serialize(20), 0, ()) if keeps_deleted else (None, sent(0)[1], ()),
        (INT64.serialize(9), sent(0)[1], HEADERS[:1]),
        (INT64.serialize(5), 13, HEADERS[1:]),
    ]
    with closing(typed_task(tmp_path / "other", log, kind, INDEXED, store_records=described)) as task:
        task.open()
        assert task.store("s").get_many([place(at) for at in (10, 20, 300, 310)]) == expected
    assert kept(tmp_path / "other", INDEXED) == kept(tmp_path, INDEXED)


@over_each_changelog
@pytest.mark.parametrize("coalescing", [False, True])
def test_the_changelog_of_versions_has_the_values_alone_and_headers_are_the_records(
    tmp_path: Path, log: Changelog, coalescing: bool
) -> None:
    """A version that comes late has the latest one logged behind it, again with its headers."""
    feed_times(log, range(1))
    # Brokers compact records of times that are long ago, and with them the history.
    now = time.time_ns() // 1_000_000

    def put(record: Record, context: TaskContext) -> None:
        store = context.store("s")
        store.put_many([b"k", b"d"], [30, 1], [now + 30, now + 1], [HEADERS, HEADERS])
        store.put(b"k", 20, now + 20, HEADERS[1:])
        store.delete(b"d", now + 2)

    def shown(task: StreamTask) -> Any:
        return [tuple(record) for key in (b"k", b"d") for record in task.store("s").get_versions(key)]

    settings = {"process": put, "store_changelog_coalescing": coalescing}
    with closing(typed_task(tmp_path, log, "versioned-headers", INDEXED, **settings)) as task:
        task.open()
        task.run(commit=True)
        expected = shown(task)
    assert expected == [
        (20, now + 20, now + 30, HEADERS[1:]),
        (30, now + 30, None, HEADERS),
        (1, now + 1, now + 2, HEADERS),
    ]
    latest = {record[0]: record[1:] for record in logged(log)}
    assert latest == {b"k": (INT64.serialize(30), now + 30, HEADERS), b"d": (None, now + 2, ())}
    assert {record[1:] for record in logged(log)} >= {(INT64.serialize(20), now + 20, HEADERS[1:])}
    with closing(typed_task(tmp_path / "other", log, "versioned-headers", INDEXED)) as task:
        task.open()
        assert shown(task) == expected
    with closing(typed_task(tmp_path / "back", log, "versioned", INDEXED)) as task:
        task.open()
        assert shown(task) == [record[:3] for record in expected]


@pytest.mark.parametrize("backend", [INDEXED, "lmdb-native", "sqlite-indexed-batch"])
def test_a_restart_is_the_upgrade_of_versions_and_the_way_back_is_refused(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    feed_times(log, range(12))
    with closing(typed_task(tmp_path, log, "versioned", backend)) as task:
        task.open()
        task.run(5, commit=True)
    for folder, wiped in (("", False), ("restored", None)):
        with closing(typed_task(tmp_path / folder, log, "versioned-headers", backend)) as task:
            [report] = task.open()
            assert wiped is None or (report.wiped, report.records) == (False, 0)
            task.run(commit=True)
            found = [record for key in (b"0", b"1", b"2", b"3") for record in task.store("s").get_versions(key)]
            assert sorted((record.value, record.headers) for record in found) == [
                (number, headers_of(number) if number > 4 else ()) for number in range(12)
            ]
    stored = kept(tmp_path, backend)
    with pytest.raises(StoreIncompatibleError, match="headers"):
        typed_task(tmp_path, log, "versioned", backend).open()
    assert kept(tmp_path, backend) == stored


@pytest.mark.parametrize("before", ["window", "timestamped-window", "session", "timestamped-session"])
@pytest.mark.parametrize("backend", [INDEXED, "lmdb-native", "sqlite-indexed-batch"])
def test_a_restart_is_the_upgrade_of_windows_and_the_way_back_is_refused(
    tmp_path: Path, log: MemoryChangelog, backend: str, before: str
) -> None:
    """Its changelog restores into a store with headers, and that of one with headers into one without."""
    after = f"{before.removeprefix('timestamped-')}-headers"
    segments = [(sent(number)[1] + 5 * ("session" in before)) // SEGMENT_MS for number in range(60)]
    feed_times(log, range(60))
    with closing(typed_task(tmp_path, log, before, backend)) as task:
        task.open()
        task.run(3, commit=True)
    with closing(typed_task(tmp_path, log, after, backend)) as task:
        [report] = task.open()
        assert (report.wiped, report.records) == (False, 0)
        found = all_of(task)
        assert [(value.value, value.headers) for value in found] == [(number, ()) for number in range(3)]
        if "timestamped" not in before:
            assert {value.timestamp_ms for value in found} == {-1}
        task.run(commit=True)
        found = all_of(task)
        plain = () if "timestamped" in before else segments[:3]
        assert [(value.value, value.timestamp_ms < 0, value.headers) for value in found[3:]] == [
            (number, True, ()) if segments[number] in plain else (number, False, headers_of(number))
            for number in range(3, 60)
        ]
    stored = kept(tmp_path, backend)
    with pytest.raises(StoreIncompatibleError, match="headers=True"):
        typed_task(tmp_path, log, before, backend).open()
    assert kept(tmp_path, backend) == stored
    with closing(typed_task(tmp_path / "restored", log, after, backend)) as task:
        task.open()
        assert [value.headers for value in all_of(task)] == [
            headers_of(number) if number > 2 else () for number in range(60)
        ]
    with closing(typed_task(tmp_path / "back", log, before, backend)) as task:
        task.open()
        assert values(task, before) == list(range(60))


def all_of(task: StreamTask) -> list[Any]:
    """The values of windows or sessions, in their order."""
    store = task.store("s")
    scan = store.all() if hasattr(store, "all") else store.fetch_range(None, None)
    return sorted((value for _, value in scan), key=lambda value: value.value)


@pytest.mark.parametrize("rewrite", [False, True])
def test_headers_of_a_format_are_none_of_the_values(tmp_path: Path, log: MemoryChangelog, rewrite: bool) -> None:
    """Records of the present format have its number in a header, before their own."""
    feed_times(log, range(6))
    with closing(typed_task(tmp_path, log, "headers", INDEXED)) as task:
        task.open()
        task.run(3, commit=True)
    upgrade = Upgrade(1, lambda record, version: [(record.key or b"", record.value)], rewrite_changelog=rewrite)
    settings = {"store_upgrade": upgrade, "store_upgrade_mode": "in_place"}
    for folder in (tmp_path, tmp_path / "other"):
        with closing(typed_task(folder, log, "headers", INDEXED, **settings)) as task:
            task.open()
            task.run(commit=True)
            assert values(task, "headers") == list(range(6))
    own = [(("stores.format", b"1"),) if rewrite or number > 2 else () for number in range(6)]
    assert [record[3] for record in logged(log)] == [own[number] + headers_of(number) for number in range(6)]


@pytest.mark.parametrize("before", [TIMED, PLAIN, None], ids=["timestamped", "key-value", "bytes"])
@pytest.mark.parametrize("backend", [INDEXED, "lmdb-native", "sqlite-indexed-batch"])
def test_a_restart_is_the_upgrade_of_a_store(tmp_path: Path, log: MemoryChangelog, backend: str, before: Any) -> None:
    def put(record: Record, context: TaskContext) -> None:
        number = record.offset
        time_ms = (record.timestamp_ms,) if before is TIMED else ()
        context.store("s").put(b"%d" % number, number if before else INT64.serialize(number), *time_ms)

    def put_headed(record: Record, context: TaskContext) -> None:
        assert context.store("s").get(b"%d" % (record.offset - 3)) is not None
        context.store("s").put(b"%d" % record.offset, record.offset, record.timestamp_ms, HEADERS)

    feed_times(log, range(3))
    with closing(typed_task(tmp_path, log, "headers", backend, store_records=before, process=put)) as task:
        task.open()
        task.run(commit=True)
    feed_times(log, range(3, 6))
    old = {b"%d" % number: (number, sent(number)[1] if before is TIMED else -1, ()) for number in range(3)}
    new = {b"%d" % number: (number, sent(number)[1], HEADERS) for number in range(3, 6)}
    with closing(typed_task(tmp_path, log, "headers", backend, process=put_headed)) as task:
        [report] = task.open()
        assert (report.wiped, report.records) == (False, 0)
        assert dict(task.store("s").all()) == old
        task.run(commit=True)
        assert dict(task.store("s").all()) == {**old, **new}
    # The last of the plain records was looked up. Timestamped ones do not move.
    for upgraded in (before is not TIMED, False):
        with closing(typed_task(tmp_path, log, "headers", backend)) as task:
            [report] = task.open()
            assert (report.wiped, report.upgraded) == (False, upgraded)
            assert dict(task.store("s").all()) == {**old, **new}
    # The changelog has the time of the record that wrote a plain value.
    times = {b"%d" % number: (number, sent(number)[1], ()) for number in range(3)}
    with closing(typed_task(tmp_path / "restored", log, "headers", backend)) as task:
        task.open()
        assert dict(task.store("s").all()) == {**times, **new}


@pytest.mark.parametrize("after", ["timestamped", "key-value"])
def test_the_way_back_is_refused_unchanged_and_a_restore_leaves_the_headers_out(
    tmp_path: Path, log: MemoryChangelog, after: str
) -> None:
    feed_times(log, range(6))
    with closing(typed_task(tmp_path, log, "headers", INDEXED)) as task:
        task.open()
        task.run(commit=True)
    before = kept(tmp_path, INDEXED)
    with pytest.raises(StoreIncompatibleError, match="headers"):
        typed_task(tmp_path, log, after, INDEXED).open()
    assert kept(tmp_path, INDEXED) == before
    with closing(typed_task(tmp_path / "wiped", log, after, INDEXED)) as task:
        task.open()
        assert values(task, after) == list(range(6))


def test_on_expiry_gets_the_headers_also_of_a_store_that_had_none(tmp_path: Path, log: MemoryChangelog) -> None:
    def report(key: bytes, value: Any, context: TaskContext) -> None:
        reported.append((key, tuple(value)))

    def put(record: Record, context: TaskContext) -> None:
        headers = (HEADERS,) if context.store("s").kind is headed else ()
        context.store("s").put(b"%d" % record.offset, record.offset, record.offset * 10, *headers)

    reported: list[Any] = []
    described: Mapping[str, Any] = {"key": BYTES, "value": INT64, "ttl_ms": 25, "on_expiry": report}
    timed, headed = TimestampedKeyValue(**described), TimestampedKeyValueWithHeaders(**described)
    for kind, numbers in ((timed, range(2)), (headed, range(2, 8))):
        feed_times(log, numbers)
        with closing(typed_task(tmp_path, log, "headers", INDEXED, store_records=kind, process=put)) as task:
            task.open()
            task.run(commit=True)
    assert reported == [
        *((b"%d" % number, (number, number * 10, ())) for number in range(2)),
        *((b"%d" % number, (number, number * 10, HEADERS)) for number in range(2, 5)),
    ]
    with closing(typed_task(tmp_path / "restored", log, "headers", INDEXED, store_records=headed)) as task:
        task.open()
        remaining = {b"%d" % number: ValueTimestampHeaders(number, number * 10, HEADERS) for number in range(5, 8)}
        assert dict(task.store("s").all()) == remaining
