"""A store with headers in a task: what the changelog has of them, and stores that become one in a running application.

Source: KIP-1271, "Changelog topics", "Upgrade".
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
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
)
from stores.settings import Upgrade
from stores.tasks import TaskContext
from stores.tests.tasks.setup import INDEXED, over_each_changelog
from stores.tests.tasks.typed import KINDS, STORE, feed_times, headers_of, kept, sent, typed_task, values

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
