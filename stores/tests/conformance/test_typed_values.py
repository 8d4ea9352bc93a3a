"""A key-value store with serdes over every backend: what is put comes back, in order, in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stores import IsolationLevel, KeyValueStore, SerdeMismatchError, StoreClosedError, StoreIncompatibleError
from stores.errors import ConfigError
from stores.records import BYTES, FLOAT64, INT64, JSON, STR, KeyValue, TypedKeyValueStore

pytestmark = pytest.mark.typed

Reopen = Callable[[], KeyValueStore]


@pytest.fixture
def counts(store: KeyValueStore) -> TypedKeyValueStore[str, int]:
    """Text to numbers, over a new store."""
    return KeyValue(STR, INT64).over(store)


def test_what_is_put_is_read_back_by_lookups_and_scans(counts: TypedKeyValueStore[str, int]) -> None:
    counts.put("b", 2)
    counts.put_all([("a", -1), ("c", 3), ("bé", 4)])
    assert counts.get("a") == -1
    assert counts.get("missing") is None
    assert counts.get_many(["c", "missing", "a"]) == [3, None, -1]
    assert list(counts.all()) == [("a", -1), ("b", 2), ("bé", 4), ("c", 3)]
    assert list(counts.reverse_all()) == list(reversed(list(counts.all())))
    assert list(counts.range("b", "c")) == [("b", 2), ("bé", 4), ("c", 3)]
    assert list(counts.reverse_range(None, "b")) == [("b", 2), ("a", -1)]
    assert list(counts.range("c", "b")) == []
    assert list(counts.prefix_scan("b")) == [("b", 2), ("bé", 4)]
    assert list(counts.reverse_prefix_scan("b")) == [("bé", 4), ("b", 2)]
    assert list(counts.prefix_scan("")) == list(counts.all())
    counts.commit()
    assert list(counts.all()) == [("a", -1), ("b", 2), ("bé", 4), ("c", 3)]
    assert counts.approximate_num_entries() >= 0


def test_writes_return_what_was_there(counts: TypedKeyValueStore[str, int]) -> None:
    assert counts.put_if_absent("a", 1) is None
    assert counts.put_if_absent("a", 2) == 1
    assert counts.delete("a") == 1
    assert counts.delete("a") is None
    counts.put("b", 0)
    assert counts.put_if_absent("b", 1) == 0
    counts.put("b", None)
    assert list(counts.all()) == []


def test_a_range_delete_takes_both_of_its_ends(counts: TypedKeyValueStore[str, int]) -> None:
    counts.put_all([(key, 1) for key in "abcde"])
    counts.delete_range("b", "d")
    assert [key for key, _ in counts.all()] == ["a", "e"]
    counts.delete_range(None, None)
    assert list(counts.all()) == []


def test_negative_and_positive_keys_are_in_one_order(store: KeyValueStore) -> None:
    numbers = KeyValue(INT64, STR).over(store)
    for number in (5, -(2**63), 0, -1, 2**63 - 1):
        numbers.put(number, str(number))
    assert [key for key, _ in numbers.range(-1, None)] == [-1, 0, 5, 2**63 - 1]
    assert [key for key, _ in numbers.reverse_range(None, 0)] == [0, -1, -(2**63)]


@pytest.mark.parametrize("refused", [1, None, b"bytes", "\ud800", ""])
def test_a_refused_key_changes_nothing(counts: TypedKeyValueStore[str, int], refused: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        counts.put(refused, 1)
    with pytest.raises((TypeError, ValueError)):
        counts.put_all([("a", 1), (refused, 1)])
    with pytest.raises((TypeError, ValueError)):
        counts.put_if_absent(refused, 1)
    with pytest.raises((TypeError, ValueError)):
        counts.delete(refused)
    if refused != "":
        with pytest.raises((TypeError, ValueError)):
            counts.get(refused)
        with pytest.raises((TypeError, ValueError)):
            counts.get_many([refused])
    assert list(counts.all()) == []
    assert counts.store.approximate_num_uncommitted_bytes() == 0


@pytest.mark.parametrize("refused", ["text", 1.5, True, 2**63])
def test_a_refused_value_changes_nothing_and_the_error_names_store_key_and_type(
    counts: TypedKeyValueStore[str, int], refused: Any
) -> None:
    writes: list[Callable[[], object]] = [
        lambda: counts.put("the key", refused),
        lambda: counts.put_all([("a", 1), ("the key", refused)]),
        lambda: counts.put_if_absent("the key", refused),
    ]
    for write in writes:
        with pytest.raises((TypeError, ValueError)) as error:
            write()
        for told in (counts.name, "the key", type(refused).__name__):
            assert told in str(error.value)
    assert list(counts.all()) == []
    assert counts.store.approximate_num_uncommitted_bytes() == 0


def test_bytes_that_the_serde_never_writes_name_their_key(counts: TypedKeyValueStore[str, int]) -> None:
    counts.store.put(b"key", b"short")
    for read in (
        lambda: counts.get("key"),
        lambda: counts.get_many(["key"]),
        lambda: list(counts.all()),
        lambda: counts.delete("key"),
    ):
        with pytest.raises(SerdeMismatchError) as error:
            read()
        assert "b'key'" in str(error.value)
    assert counts.store.get(b"key") == b"short"


def test_prefixes_are_only_scanned_where_the_bytes_of_keys_keep_them(store: KeyValueStore) -> None:
    numbers = KeyValue(INT64, STR).over(store)
    with pytest.raises(ConfigError):
        numbers.prefix_scan(1)
    with pytest.raises(ConfigError):
        numbers.reverse_prefix_scan(1)
    with pytest.raises(ConfigError):
        numbers.read_only().prefix_scan(1)


def test_a_scan_is_a_snapshot_and_ends_when_it_is_closed(counts: TypedKeyValueStore[str, int]) -> None:
    counts.put_all([("a", 1), ("b", 2)])
    with counts.all() as scan:
        counts.put("aa", 3)
        counts.delete("b")
        counts.commit()
        assert next(scan) == ("a", 1)
        assert next(scan) == ("b", 2)
    with pytest.raises(StoreClosedError):
        next(scan)
    with pytest.raises(StoreClosedError):
        list(scan)
    with counts.all() as scan:
        assert len(list(scan)) == 2
    with pytest.raises(StoreClosedError):
        next(scan)
    left_open = counts.all()
    counts.close()
    for _ in range(2):
        with pytest.raises(StoreClosedError):
            next(left_open)


def test_closing_either_closes_both(counts: TypedKeyValueStore[str, int]) -> None:
    with counts:
        assert counts.is_open
    assert not counts.store.is_open
    assert not counts.is_open
    with pytest.raises(StoreClosedError):
        counts.put("a", 1)
    with pytest.raises(StoreClosedError):
        counts.get("a")


def test_a_commit_and_a_rollback_are_those_of_the_store_below(counts: TypedKeyValueStore[str, int]) -> None:
    counts.put("a", 1)
    counts.commit()
    counts.put("a", 2)
    counts.rollback()
    assert counts.get("a") == (1 if counts.store.transactional else 2)


def test_views_show_their_level_and_have_no_way_to_write(counts: TypedKeyValueStore[str, int]) -> None:
    committed = counts.read_only(IsolationLevel.READ_COMMITTED)
    uncommitted = counts.read_only(IsolationLevel.READ_UNCOMMITTED)
    counts.put("a", 1)
    assert uncommitted.get("a") == 1
    assert committed.get("a") == (None if counts.store.transactional else 1)
    counts.commit()
    assert list(committed.prefix_scan("a")) == [("a", 1)]
    assert committed.isolation_level is IsolationLevel.READ_COMMITTED
    assert not {"put", "delete", "commit", "delete_range", "put_all", "put_if_absent"} & set(dir(committed))


def test_with_bytes_the_store_is_the_plain_one(store: KeyValueStore) -> None:
    plain = KeyValue(BYTES, BYTES).over(store)
    plain.put(b"key", b"value")
    assert store.get(b"key") == b"value"
    store.put(b"other", b"")
    assert list(plain.all()) == list(store.all()) == [(b"key", b"value"), (b"other", b"")]
    wrong_pairs: list[Any] = [("text", b"v"), (b"k", "text"), (b"k", bytearray(b"v"))]
    for key, value in wrong_pairs:
        with pytest.raises(TypeError):
            plain.put(key, value)


def test_a_plain_store_with_data_is_taken_as_it_is(store: KeyValueStore, reopen: Reopen) -> None:
    store.put(b"key", b'{"a":1}')
    store.commit()
    again = reopen() if store.persistent else store
    documents = KeyValue(STR, JSON).over(again)
    assert list(documents.all()) == [("key", {"a": 1})]
    assert list(again.all()) == [(b"key", b'{"a":1}')]


def test_a_store_is_not_opened_with_another_description(store: KeyValueStore, reopen: Reopen) -> None:
    KeyValue(STR, FLOAT64).over(store)
    assert list(store.all()) == []
    again = reopen() if store.persistent else store
    if not again.keeps_marks:
        KeyValue(STR, INT64).over(again)
        return
    with pytest.raises(StoreIncompatibleError) as error:
        KeyValue(STR, INT64).over(again)
    assert "float64" in str(error.value)
    assert "int64" in str(error.value)
    KeyValue(STR, FLOAT64).over(again).put("a", 1.5)
