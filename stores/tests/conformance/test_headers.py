"""A timestamped key-value store with headers over every backend, and stores that become one by being opened as one.

Source: KIP-1271, ``TimestampedKeyValueStoreWithHeaders``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stores import IsolationLevel, KeyValueStore, SerdeMismatchError, StoreIncompatibleError
from stores.changelog.interface import Record
from stores.records import (
    BYTES,
    INT64,
    STR,
    KeyValue,
    TimestampedKeyValue,
    TimestampedKeyValueStoreWithHeaders,
    TimestampedKeyValueWithHeaders,
    ValueTimestampHeaders,
)
from stores.tests.conformance.cases import Case
from stores.tests.conformance.gaps import ROLLED_BACK, TWO_FORMATS, carries

pytestmark = pytest.mark.typed

Reopen = Callable[[], KeyValueStore]
Headed = TimestampedKeyValueStoreWithHeaders[str, str]
HEADERS = (("trace", b"\x00\xff"), ("trace", b""), ("none", None), ("\u00fc" * 80, b"x" * 300))
KIND = TimestampedKeyValueWithHeaders(STR, STR)
OF_BYTES = TimestampedKeyValueWithHeaders(BYTES, BYTES)
TIMED, PLAIN = TimestampedKeyValue(BYTES, BYTES), KeyValue(BYTES, BYTES)


@pytest.fixture
def headed(store: KeyValueStore) -> Headed:
    """Text to text with times and headers, over a new store."""
    return KIND.over(store)


def shown(store: Any, value: Any, timestamp_ms: int, headers: Any = ()) -> Any:
    """Return the value that ``store`` shows after such a put: one of plain values keeps nothing else."""
    keeps = store.store.timestamps.are_kept
    return ValueTimestampHeaders(value, timestamp_ms if keeps else -1, headers if keeps else ())


def raw(store: Any) -> dict[bytes, bytes]:
    """The stored pairs."""
    with store.store.all() as pairs:
        return dict(pairs)


def test_a_value_comes_back_with_its_time_and_headers(headed: Headed) -> None:
    headed.put("b", "two", 20, HEADERS)
    headed.put("a", "one", 10)
    headed.put("c", "", 0, HEADERS[:1])
    pairs = [
        ("a", shown(headed, "one", 10)),
        ("b", shown(headed, "two", 20, HEADERS)),
        ("c", shown(headed, "", 0, HEADERS[:1])),
    ]
    for _ in range(2):
        readers: list[Any] = [headed, headed.read_only(IsolationLevel.READ_UNCOMMITTED)]
        for reader in readers:
            assert [reader.get(key) for key in ("a", "b", "c", "d")] == [*(value for _, value in pairs), None]
            assert reader.get_many(["b", "missing"]) == [pairs[1][1], None]
            assert list(reader.all()) == pairs
            assert list(reader.reverse_all()) == pairs[::-1]
            assert list(reader.range("b", None)) == pairs[1:]
            assert list(reader.reverse_range("a", "b")) == [pairs[1], pairs[0]]
            assert list(reader.prefix_scan("b")) == [pairs[1]]
            assert list(reader.reverse_prefix_scan("")) == pairs[::-1]
        plain = readers[1].plain()
        assert (plain.get("b"), list(plain.all())) == ("two", [("a", "one"), ("b", "two"), ("c", "")])
        headed.commit()
    assert headed.read_only().get("b") == pairs[1][1]


def test_every_write_of_a_value_takes_headers_and_one_without_leaves_none(headed: Headed) -> None:
    assert headed.put_if_absent("a", "one", 1, HEADERS) is None
    assert headed.put_if_absent("a", "two", 2) == shown(headed, "one", 1, HEADERS) == headed.get("a")
    assert headed.update("a", lambda value: value + "!", "", 0, HEADERS[1:]) == "one!"
    assert headed.get("a") == shown(headed, "one!", 1, HEADERS[1:])
    headed.update("a", lambda value: value + "!", "", 5)
    assert headed.get("a") == shown(headed, "one!!", 5)
    headed.put_all([("b", "1", 1, HEADERS), ("c", "2", 2), ("b", "3", 3, HEADERS[:2]), ("a", None, 4, HEADERS)])
    assert headed.get_many(["a", "b", "c"]) == [None, shown(headed, "3", 3, HEADERS[:2]), shown(headed, "2", 2)]
    headed.put_many(["a", "b"], ["4", None], [7, 8], [HEADERS, ()])
    headed.put_many(["c"], ["5"], [9])
    assert headed.get_many(["a", "b", "c"]) == [shown(headed, "4", 7, HEADERS), None, shown(headed, "5", 9)]
    assert headed.delete("a") == shown(headed, "4", 7, HEADERS)
    headed.put("c", None, 9, HEADERS)
    assert list(headed.all()) == []


REFUSED: list[Any] = [
    {"a": b"x"},
    [("a",)],
    [(1, b"x")],
    [("a", "text")],
    [("a", bytearray(b"x"))],
    [("\ud800", b"x")],
    [("a", b"x"), ("stores.format", b"1")],
    [("stores.replaced", b"")],
    [("txstores-timestamp-ms", b"0")],
    5,
    None,
]
"""Values that are no headers, and headers with a name that the library uses in changelogs."""


@pytest.mark.parametrize("refused", REFUSED, ids=repr)
def test_headers_that_are_refused_stage_nothing(headed: Headed, refused: Any) -> None:
    writes: list[Callable[[], object]] = [
        lambda: headed.put("a", "one", 1, refused),
        lambda: headed.put_if_absent("a", "one", 1, refused),
        lambda: headed.update("a", str.upper, "one", 1, refused),
        lambda: headed.put_all([("b", "two", 1, ()), ("a", "one", 1, refused)]),
        lambda: headed.put_many(["b", "a"], ["two", "one"], [1, 1], [(), refused]),
    ]
    for write in writes:
        with pytest.raises((TypeError, ValueError)):
            write()
    assert list(headed.all()) == []
    assert headed.store.approximate_num_uncommitted_bytes() == 0


@pytest.mark.parametrize(
    "records", [5, {"k": 1}, [("k", 1)], [("k", "v", 1, (), ())], ["k"], [{"a": 1, "b": 2, "c": 3}]]
)
def test_what_are_no_records_is_refused(headed: Headed, records: Any) -> None:
    with pytest.raises(TypeError):
        headed.put_all(records)
    with pytest.raises((TypeError, ValueError)):
        headed.put_many(["a", "b"], ["1", "2"], [1, 2], [()])
    assert list(headed.all()) == []


def test_a_value_is_stored_as_in_a_timestamped_store_and_headers_lie_before_it(store: KeyValueStore) -> None:
    """The numbers of the headers are twice as large, or -1 as 1: Kafka's varints. Source: KIP-1271."""
    headed = OF_BYTES.over(store)
    headers = (("a", b"xy"), ("bc", None), ("", b""))
    headed.put(b"some", b"v", 7, headers)
    headed.put_all([(b"none", b"w", 256)])
    headed.put(b"long", b"x", 0, (("n", b"y" * 200),))
    if not store.timestamps.are_kept:
        assert raw(headed) == {b"some": b"v", b"none": b"w", b"long": b"x"}
        return
    assert raw(headed) == {
        b"some": b"\x40" + bytes(6) + b"\x07" + b"\x18" + b"\x06\x02a\x04xy\x04bc\x01\x00\x00" + b"v",
        b"none": bytes(6) + b"\x01\x00" + b"w",
        b"long": b"\x40" + bytes(7) + b"\x9a\x03" + b"\x02\x02n\x90\x03" + b"y" * 200 + b"x",
    }
    timed = {key: value for key, value in raw(headed).items() if key == b"none"}
    assert timed == {b"none": (256).to_bytes(8, "big") + b"w"}


@pytest.mark.parametrize(
    "damaged",
    [
        b"\x40" + bytes(7),
        b"\x40" + bytes(7) + b"\x02",
        b"\x40" + bytes(7) + b"\x01value",
        b"\x40" + bytes(7) + b"\x04\x02\x02value",
        b"\x40" + bytes(7) + b"\xff\xff\xff",
        b"\xbf" + bytes(7) + b"\x06\x02\x01\x00v",
        b"\x40" + bytes(6) + b"\x08\x06\x02\x02\xff\x01value",
    ],
    ids=bytes.hex,
)
def test_bytes_whose_headers_cannot_be_read_name_their_key(store: KeyValueStore, damaged: bytes) -> None:
    if not store.timestamps.are_kept:
        return  # Any bytes are a plain value there.
    headed = KIND.over(store)
    store.put(b"key", damaged)
    reads: list[Callable[[Any], object]] = [
        lambda reader: reader.get("key"),
        lambda reader: reader.get_many(["key"]),
        lambda reader: list(reader.all()),
    ]
    for reader in (headed, headed.read_only(IsolationLevel.READ_UNCOMMITTED)):
        for read in reads:
            with pytest.raises(SerdeMismatchError) as error:
                read(reader)
            assert "b'key'" in str(error.value)


def test_headers_are_there_after_closing_and_opening_and_a_rollback_takes_them_back(
    store: KeyValueStore, reopen: Reopen
) -> None:
    headed = KIND.over(store)
    headed.put("a", "one", 1, HEADERS)
    headed.commit()
    headed.put("a", "one", 1, HEADERS[:1])
    if carries(store, ROLLED_BACK):
        headed.rollback()
        assert headed.get("a") == shown(headed, "one", 1, HEADERS)
    if store.persistent:
        headed.commit()
        before = headed.get("a")
        assert KIND.over(reopen()).get("a") == before


def test_records_with_headers_expire(store: KeyValueStore) -> None:
    if not (store.keeps_marks and store.timestamps.are_kept):
        return
    headed = TimestampedKeyValueWithHeaders(STR, STR, ttl_ms=100).over(store)
    headed.put_all([(f"old-{number}", "", number, HEADERS) for number in range(9)])
    headed.put("b", "", 50, HEADERS)
    headed.commit()
    headed.put("now", "", 108, HEADERS)
    assert [key for key, _ in headed.all()] == ["b", "now"]
    assert headed.get_many(["old-8", "b"]) == [None, ("", 50, HEADERS)]
    for _ in range(9):
        headed.put("now", "", 108, HEADERS)
        headed.commit()
    assert sorted(raw(headed)) == [b"b", b"now"]


def test_what_is_restored_is_what_was_put(store: KeyValueStore) -> None:
    headed = OF_BYTES.over(store)
    headed.put(b"a", b"one", 1, HEADERS)
    headed.put(b"b", b"two", 2)
    converter = OF_BYTES.converter(store)
    records = [Record(0, b"a", b"one", 1, HEADERS), Record(1, b"b", b"two", 2), Record(2, None, b"no key", 3, HEADERS)]
    assert dict(pair for record in records for pair in converter.convert(record)) == raw(headed)
    assert [*converter.convert(Record(3, b"a", None, 4, HEADERS))] == [(b"a", None)]
    if store.timestamps.are_kept:
        store.put_all(converter.convert(Record(4, b"c", b"unknown", -1, HEADERS)))
        assert headed.get(b"c") == (b"unknown", -1, HEADERS)
        with pytest.raises(StoreIncompatibleError):
            converter.convert(Record(5, b"d", b"v", 1 << 62, HEADERS))


def test_a_timestamped_store_becomes_one_with_headers_and_no_record_changes(
    store: KeyValueStore, reopen: Reopen
) -> None:
    timed = TIMED.over(store)
    timed.put_all([(b"a", b"one", 1), (b"b", b"two", 2)])
    timed.commit()
    before = raw(timed)
    again = reopen() if store.persistent else store
    headed = OF_BYTES.over(again)
    assert raw(headed) == before
    assert not again.timestamps.is_split
    assert headed.get(b"a") == shown(headed, b"one", 1)
    headed.put(b"b", b"new", 3, HEADERS)
    headed.commit()
    expected = [(b"a", shown(headed, b"one", 1)), (b"b", shown(headed, b"new", 3, HEADERS))]
    assert list(headed.all()) == list(headed.read_only().all()) == expected
    if not again.keeps_marks:
        return
    before = raw(headed)
    for kind in (TIMED, PLAIN, replace(TIMED, ttl_ms=5), TimestampedKeyValueWithHeaders(BYTES, INT64)):
        with pytest.raises(StoreIncompatibleError):
            kind.over(again)
        assert raw(headed) == before
    again = reopen() if again.persistent else again
    assert list(OF_BYTES.over(again).all()) == expected


def test_a_time_to_live_may_come_and_go_with_headers(store: KeyValueStore) -> None:
    if not (store.keeps_marks and store.timestamps.are_kept):
        return
    replace(TIMED, ttl_ms=100).over(store).put_all([(b"a", b"one", 1), (b"b", b"two", 50)])
    store.commit()
    headed = replace(OF_BYTES, ttl_ms=100).over(store)
    headed.put(b"c", b"new", 101, HEADERS)
    assert [key for key, _ in headed.all()] == [b"b", b"c"]
    headed.commit()
    assert OF_BYTES.over(store).get(b"c") == (b"new", 101, HEADERS)


@pytest.mark.parametrize("stages", [[OF_BYTES], [TIMED, OF_BYTES]], ids=["at once", "with times before"])
def test_a_plain_store_is_upgraded_lazily(case: Case, path: Path, stages: list[Any]) -> None:
    """Also one whose upgrade to a timestamped store is not done. Kafka Streams refuses such a store."""
    with case.open(path) as plain:
        PLAIN.over(plain).put_all([(key, b"old " + key) for key in (b"a", b"b", b"c", b"d")])
        plain.commit()
        if not carries(plain, TWO_FORMATS):
            with pytest.raises(StoreIncompatibleError):
                OF_BYTES.over(plain)
            return
        expected: dict[bytes, Any] = {key: (b"old " + key, -1, ()) for key in (b"a", b"b", b"c", b"d")}
        if len(stages) > 1:
            timed = TIMED.over(plain)
            timed.put(b"b", b"timed", 5)
            timed.commit()
            expected[b"b"] = (b"timed", 5, ())
        headed = OF_BYTES.over(plain)
        assert plain.timestamps.is_split
        views = [headed.read_only(level) for level in IsolationLevel]
        assert dict(headed.all()) == dict(views[0].all()) == expected
        assert headed.get(b"a") == (b"old a", -1, ())
        headed.put(b"c", b"new", 7, HEADERS)
        expected[b"c"] = (b"new", 7, HEADERS)
        assert headed.get_many([*expected]) == [*expected.values()]
        headed.commit()
        for view in views:
            assert dict(view.all()) == expected
        if not plain.persistent:
            return
    for is_split, has_ended in ((False, True), (False, False)):
        with OF_BYTES.over(case.open(path)) as again:
            timestamps = again.store.timestamps
            assert (timestamps.is_split, timestamps.split_has_ended) == (is_split, has_ended)
            assert dict(again.all()) == expected
            again.store.verify()
