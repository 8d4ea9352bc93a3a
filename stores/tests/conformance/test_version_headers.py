"""Versions with headers over every backend, and versioned stores that become such by being opened as one.

Source: KIP-1271, ``VersionedKeyValueStoreWithHeaders``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stores import IsolationLevel, KeyValueStore, SerdeMismatchError, StoreIncompatibleError
from stores.changelog.interface import Record
from stores.errors import StoreCorruptedError
from stores.records import BYTES, STR, ValueTimestampHeaders, Versioned, VersionedWithHeaders
from stores.records.versions import HISTORY, LATEST
from stores.tests.conformance.gaps import ROLLED_BACK, carries
from stores.tests.conformance.test_headers import HEADERS, REFUSED, Reopen, raw

pytestmark = pytest.mark.typed

KIND, OF_BYTES = VersionedWithHeaders(STR, STR, 100), VersionedWithHeaders(BYTES, BYTES, 100)
PLAIN = Versioned(STR, STR, 100)


def readers(store: Any) -> list[Any]:
    return [store, store.read_only(IsolationLevel.READ_UNCOMMITTED)]


def history(reader: Any, key: str, **bounds: Any) -> list[Any]:
    with reader.get_versions(key, **bounds) as records:
        return [tuple(record) for record in records]


def test_each_version_comes_back_with_its_headers(store: KeyValueStore, reopen: Reopen) -> None:
    headed = KIND.over(store)
    assert headed.put("k", "two", 20, HEADERS)
    assert headed.put("k", "three", 30)
    assert not headed.put("k", "one", 10, HEADERS[1:])
    headed.put("other", "", 0, HEADERS[:1])
    latest = ValueTimestampHeaders("three", 30, ())
    records = [("one", 10, 20, HEADERS[1:]), ("two", 20, 30, HEADERS), ("three", 30, None, ())]
    for _ in range(2):
        for reader in readers(headed):
            assert (reader.get("k"), reader.get("k", 29)) == (latest, ("two", 20, HEADERS))
            assert (reader.get("k", 10), reader.get("k", 9)) == (("one", 10, HEADERS[1:]), None)
            assert reader.get_many(["k", "missing", "other"]) == [latest, None, ("", 0, HEADERS[:1])]
            assert list(reader.all()) == [("k", latest), ("other", ("", 0, HEADERS[:1]))]
            assert list(reader.prefix_scan("o")) == [("other", ("", 0, HEADERS[:1]))]
            assert history(reader, "k") == records
            assert history(reader, "k", from_ms=15, to_ms=20, reverse=True) == records[1::-1]
        headed.commit()
    if carries(store, ROLLED_BACK):
        headed.put("k", "four", 40, HEADERS)
        headed.rollback()
        assert history(headed, "k") == records
    if store.persistent:
        assert history(KIND.over(reopen()), "k") == records


def test_every_write_of_a_version_takes_headers_and_a_deletion_has_none(store: KeyValueStore) -> None:
    headed = KIND.over(store)
    headed.put_many(["a", "b"], ["1", "2"], [10, 20], [HEADERS, ()])
    headed.put_many(["a"], ["3"], [20])
    headed.put_all([("a", "4", 30, HEADERS[1:]), ("b", None, 30, HEADERS), ("b", "5", 40)])
    assert history(headed, "a") == [("1", 10, 20, HEADERS), ("3", 20, 30, ()), ("4", 30, None, HEADERS[1:])]
    assert history(headed, "b") == [("2", 20, 30, ()), ("5", 40, None, ())]
    assert headed.delete("a", 50) == ("4", 30, HEADERS[1:])
    # A put of the same time replaces the headers, too.
    headed.put("b", "6", 40, list(HEADERS))  # type: ignore[arg-type]
    assert headed.get("b") == ("6", 40, HEADERS)
    headed.put("b", "7", 40)
    assert headed.get("b") == ("7", 40, ())
    headed.put("b", None, 60, HEADERS)
    assert headed.get_many(["a", "b"]) == [None, None]


@pytest.mark.parametrize("refused", REFUSED, ids=repr)
def test_headers_that_are_refused_stage_nothing(store: KeyValueStore, refused: Any) -> None:
    headed = KIND.over(store)
    writes: list[Callable[[], object]] = [
        lambda: headed.put("a", "one", 1, refused),
        lambda: headed.put("a", None, 1, refused),
        lambda: headed.put_all([("b", "two", 1, ()), ("a", "one", 1, refused)]),
        lambda: headed.put_many(["b", "a"], ["two", "one"], [1, 1], [(), refused]),
        lambda: headed.put_many(["b", "a"], ["two", "one"], [1, 1], [()]),
    ]
    for write in writes:
        with pytest.raises((TypeError, ValueError)):
            write()
    assert list(headed.all()) == []
    assert headed.store.approximate_num_uncommitted_bytes() == 0


def test_a_version_is_stored_as_without_headers_and_headers_lie_before_the_value(store: KeyValueStore) -> None:
    headed = OF_BYTES.over(store)
    headed.put(b"k", b"v", 7, (("a", b"xy"), ("bc", None)))
    headed.put(b"k", b"w", 8)
    headed.put(b"d", None, 9, HEADERS)
    versions = {key: value for key, value in raw(headed).items() if key[:1] in (LATEST, HISTORY)}
    assert versions == {
        b"\x02k\x00" + bytes(7) + b"\x07": b"\x40" + bytes(6) + b"\x07\x14\x04\x02a\x04xy\x04bc\x01v",
        b"\x01k": bytes(7) + b"\x08w",
        b"\x01d": b"\xff" * 7 + b"\xf6",
    }


@pytest.mark.parametrize("damaged", [b"\x40" + bytes(7) + b"\x02", b"\x40" + bytes(7) + b"\x04\x02\x02value", b"\x40"])
def test_bytes_whose_headers_cannot_be_read_name_their_key(store: KeyValueStore, damaged: bytes) -> None:
    headed = KIND.over(store)
    headed.put("key", "one", 1)
    store.put(LATEST + b"key", damaged)
    for reader in readers(headed):
        for read in (lambda reader: reader.get("key"), lambda reader: history(reader, "key")):
            with pytest.raises((SerdeMismatchError, StoreCorruptedError)) as error:
                read(reader)
            assert "key" in str(error.value)


def test_a_versioned_store_becomes_one_with_headers_and_no_version_changes(
    store: KeyValueStore, reopen: Reopen
) -> None:
    before = PLAIN.over(store)
    before.put_many(["k", "k", "d"], ["one", "two", None], [10, 20, 20])
    before.commit()
    stored = raw(before)
    again = reopen() if store.persistent else store
    headed = KIND.over(again)
    if again.keeps_marks:
        assert raw(headed) == stored
    headed.put("k", "three", 30, HEADERS)
    headed.put("k", "late", 15, HEADERS[1:])
    headed.commit()
    expected = [("one", 10, 15, ()), ("late", 15, 20, HEADERS[1:]), ("two", 20, 30, ()), ("three", 30, None, HEADERS)]
    for reader in (*readers(headed), headed.read_only()):
        assert history(reader, "k") == expected
        assert reader.get("d") is None
    stored = raw(headed)
    for kind in (PLAIN, replace(PLAIN, history_retention_ms=5), VersionedWithHeaders(STR, BYTES, 100)):
        with pytest.raises(StoreIncompatibleError):
            kind.over(again)
        assert raw(headed) == stored
    again = reopen() if again.persistent else again
    assert history(replace(KIND, history_retention_ms=200).over(again), "k") == expected


@pytest.mark.parametrize("kind", [OF_BYTES, Versioned(BYTES, BYTES, 100)], ids=["headers", "plain"])
def test_what_is_restored_is_what_was_put(kind: Any, store: KeyValueStore) -> None:
    """A store without headers leaves those of the records out."""
    headed = kind.over(store)
    converter = kind.converter(store)
    puts: list[Any] = [(b"one", 10, HEADERS), (None, 40, ()), (b"late", 20, HEADERS[1:]), (b"two", 30, ())]
    records = [Record(at, b"k", value, time_ms, headers) for at, (value, time_ms, headers) in enumerate(puts)]
    restored = {key: value for record in records for key, value in converter.convert(record)}
    for value, time_ms, headers in puts:
        headed.put(b"k", value, time_ms, *((headers,) if kind is OF_BYTES else ()))
    assert {key: restored.get(key) for key in raw(headed)} == raw(headed)
    assert any(value[:1] == b"\x40" for value in raw(headed).values()) is (kind is OF_BYTES)
