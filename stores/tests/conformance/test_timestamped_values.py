"""A timestamped key-value store over every backend: each value with its time, in one write and one commit (KIP-258)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stores import IsolationLevel, KeyValueStore, SerdeMismatchError, StoreClosedError, StoreIncompatibleError
from stores.records import BYTES, JSON, STR, KeyValue, TimestampedKeyValue, TimestampedKeyValueStore, ValueAndTimestamp
from stores.records.values import StoreStaging

pytestmark = pytest.mark.typed

Reopen = Callable[[], KeyValueStore]
Times = TimestampedKeyValueStore[str, str]


@pytest.fixture
def times(store: KeyValueStore) -> Times:
    """Text to text with times, over a new store."""
    return TimestampedKeyValue(STR, STR).over(store)


def shown(store: TimestampedKeyValueStore[Any, Any], timestamp_ms: int) -> int:
    """The time that ``store`` shows of a value put at ``timestamp_ms``: one of plain values keeps none."""
    return timestamp_ms if store.store.timestamps.are_kept else -1


def test_a_value_comes_back_with_its_time(times: Times) -> None:
    times.put("b", "two", 20)
    times.put_all([("a", "one", 10), ("c", "three", 0)])
    expected = [("a", "one", 10), ("b", "two", 20), ("c", "three", 0)]
    pairs = [(key, ValueAndTimestamp(value, shown(times, time))) for key, value, time in expected]
    for _ in range(2):
        got = times.get("a")
        assert got is not None
        assert (got.value, got.timestamp_ms) == ("one", shown(times, 10))
        assert times.get_many(["b", "missing"]) == [pairs[1][1], None]
        assert list(times.all()) == pairs
        assert list(times.reverse_all()) == pairs[::-1]
        assert list(times.range("b", None)) == pairs[1:]
        assert list(times.reverse_range("a", "b")) == [pairs[1], pairs[0]]
        assert list(times.range("b", "a")) == []
        assert list(times.prefix_scan("b")) == [pairs[1]]
        assert list(times.reverse_prefix_scan("")) == pairs[::-1]
        times.commit()


def test_value_and_time_change_in_one_write(times: Times) -> None:
    times.put("a", "new", 20)
    times.put("a", "late", 10)
    assert times.get("a") == ("late", shown(times, 10))
    times.commit()
    assert times.get("a") == ("late", shown(times, 10))


def test_put_if_absent_returns_the_value_that_was_there(times: Times) -> None:
    assert times.put_if_absent("a", "first", 5) is None
    assert times.put_if_absent("a", "second", 6) == ("first", shown(times, 5))
    assert times.get("a") == ("first", shown(times, 5))
    assert times.put_if_absent("b", None, 5) is None
    assert times.get("b") is None


def test_none_deletes_and_delete_returns_what_was_there(times: Times) -> None:
    times.put("a", "one", 10)
    times.put("b", "two", 10)
    times.commit()
    times.put("a", None, 11)
    assert times.get("a") is None
    assert times.delete("b") == ("two", shown(times, 10))
    assert times.delete("b") is None
    assert list(times.all()) == []
    times.put_all([("c", "three", 1), ("c", None, 2)])
    assert times.get("c") is None
    times.put_all([(key, key, 1) for key in "defg"])
    times.delete_range("e", "f")
    assert [key for key, _ in times.all()] == ["d", "g"]


def test_the_store_keeps_eight_bytes_of_time_before_the_value(store: KeyValueStore) -> None:
    times = TimestampedKeyValue(BYTES, BYTES).over(store)
    times.put(b"key", b"v", 0x0102030405060708)
    times.put(b"empty", b"", 1)
    times.put_all([(b"all", b"w", 2)])
    assert times.put_if_absent(b"absent", b"x", 3) is None
    time = bytes if store.timestamps.are_kept else lambda _: b""
    assert dict(store.all()) == {
        b"key": time([1, 2, 3, 4, 5, 6, 7, 8]) + b"v",
        b"empty": time([0, 0, 0, 0, 0, 0, 0, 1]),
        b"all": time([0, 0, 0, 0, 0, 0, 0, 2]) + b"w",
        b"absent": time([0, 0, 0, 0, 0, 0, 0, 3]) + b"x",
    }
    assert times.get(b"empty") == (b"", 1 if store.timestamps.are_kept else -1)


@pytest.mark.parametrize("refused", [-1, -(2**63), 1.0, "1", True, None, 2**62, 2**64])
def test_what_is_no_time_is_refused_and_nothing_is_staged(times: Times, refused: Any) -> None:
    writes: list[Callable[[], object]] = [
        lambda: times.put("a", "one", refused),
        lambda: times.put("a", None, refused),
        lambda: times.put_if_absent("a", "one", refused),
        lambda: times.put_all([("b", "two", 1), ("a", "one", refused)]),
    ]
    for write in writes:
        with pytest.raises((TypeError, ValueError)):
            write()
    assert list(times.all()) == []
    assert times.store.approximate_num_uncommitted_bytes() == 0


REFUSED: list[tuple[Any, Any]] = [(1, "one"), (None, "one"), ("", "one"), ("a", 1), ("a", b"one"), ("a", "\ud800")]


@pytest.mark.parametrize(("key", "value"), REFUSED)
def test_what_a_serde_or_the_store_refuses_is_not_staged(times: Times, key: Any, value: Any) -> None:
    writes: list[Callable[[], object]] = [
        lambda: times.put(key, value, 1),
        lambda: times.put_if_absent(key, value, 1),
        lambda: times.put_all([("b", "two", 1), (key, value, 1)]),
    ]
    for write in writes:
        with pytest.raises((TypeError, ValueError)):
            write()
    assert list(times.all()) == []
    assert times.store.approximate_num_uncommitted_bytes() == 0


@pytest.mark.parametrize("refused", [bytearray(b"v"), memoryview(b"v"), "text"])
def test_a_value_that_is_not_bytes_is_refused_where_bytes_are_kept(store: KeyValueStore, refused: Any) -> None:
    with pytest.raises(TypeError):
        TimestampedKeyValue(BYTES, BYTES).over(store).put(b"a", refused, 1)
    assert list(store.all()) == []


def test_bytes_without_a_time_name_their_key(store: KeyValueStore) -> None:
    if not store.timestamps.are_kept:
        return  # Any bytes are a plain value there.
    times = TimestampedKeyValue(STR, STR).over(store)
    store.put(b"key", b"short")
    view = times.read_only(IsolationLevel.READ_UNCOMMITTED).plain()
    reads: list[Callable[[], object]] = [lambda: times.get("key"), lambda: list(times.all()), lambda: view.get("key")]
    for read in reads:
        with pytest.raises(SerdeMismatchError) as error:
            read()
        assert "b'key'" in str(error.value)
    raw = TimestampedKeyValueStore(TimestampedKeyValue(BYTES, BYTES), StoreStaging(store))
    for found in (lambda: raw.get(b"key"), lambda: raw.get_many([b"key"]), lambda: list(raw.all())):
        with pytest.raises(SerdeMismatchError):
            found()


def test_views_show_values_with_their_times_or_without(times: Times) -> None:
    times.put("a", "one", 10)
    times.commit()
    view = times.read_only()
    assert view.get("a") == ("one", shown(times, 10))
    assert list(view.all()) == [("a", ValueAndTimestamp("one", shown(times, 10)))]
    plain = view.plain()
    assert plain.get("a") == "one"
    assert plain.get_many(["a", "b"]) == ["one", None]
    assert list(plain.prefix_scan("a")) == [("a", "one")]
    assert not {"put", "delete", "commit", "delete_range"} & (set(dir(view)) | set(dir(plain)))


def test_values_and_times_are_there_after_closing_and_opening(store: KeyValueStore, reopen: Reopen) -> None:
    times = TimestampedKeyValue(STR, JSON).over(store)
    times.put("a", {"n": 1}, 7)
    times.commit()
    if not store.persistent:
        return
    again = TimestampedKeyValue(STR, JSON).over(reopen())
    assert again.get("a") == ({"n": 1}, 7 if again.store.timestamps.are_kept else -1)


def test_a_rollback_takes_back_values_with_their_times(times: Times) -> None:
    times.put("a", "one", 10)
    times.commit()
    times.put("a", "two", 20)
    times.put("b", "two", 20)
    times.rollback()
    if times.store.transactional:
        assert list(times.all()) == [("a", ValueAndTimestamp("one", shown(times, 10)))]


def test_a_timestamped_store_is_not_opened_as_a_plain_one(store: KeyValueStore, reopen: Reopen) -> None:
    times = TimestampedKeyValue(STR, STR).over(store)
    times.put("a", "one", 10)
    times.commit()
    again = reopen() if store.persistent else store
    if again.keeps_marks:
        with pytest.raises(StoreIncompatibleError):
            KeyValue(STR, STR).over(again)
        assert TimestampedKeyValue(STR, STR).over(again).get("a") == ("one", 10)


def test_a_put_with_a_time_is_a_put_of_eight_bytes_and_the_value(store: KeyValueStore) -> None:
    for _ in range(2):
        store.timestamps.put(b"a", b"one", 256)
        store.timestamps.put(b"b", b"", 0)
        store.timestamps.put(b"c", b"three", 2**62 - 1)
        store.timestamps.put(b"c", None, 1)
        assert list(store.all()) == [(b"a", b"\0\0\0\0\0\0\1\0one"), (b"b", b"\0" * 8)]
    size_bytes = store.approximate_num_uncommitted_bytes()
    if store.transactional:
        store.rollback()
    store.put_all([(b"a", b"\0\0\0\0\0\0\1\0one"), (b"b", b"\0" * 8), (b"c", None)])
    assert store.approximate_num_uncommitted_bytes() == size_bytes
    store.commit()
    wrong_writes: list[tuple[Any, Any, Any]] = [
        ("a", b"v", 1),
        (b"", b"v", 1),
        (b"a", "v", 1),
        (b"a", bytearray(b"v"), 1),
        (b"a", b"v", -1),
        (b"a", b"v", 2**62),
        (b"a", b"v", True),
        (b"a", b"v", 1.0),
        (b"a", None, -1),
    ]
    for arguments in wrong_writes:
        with pytest.raises((TypeError, ValueError)):
            store.timestamps.put(*arguments)
    assert store.approximate_num_uncommitted_bytes() == 0


def test_a_lookup_of_bytes_with_times_answers_as_the_lookup_of_a_plain_store(store: KeyValueStore) -> None:
    times = TimestampedKeyValue(BYTES, BYTES).over(store)
    for number in range(6):
        times.put(b"key-%d" % number, b"%d" % number, number)
    times.commit()
    times.put(b"other", b"", 0)
    times.commit()
    times.put(b"key-0", b"new", 9)
    times.delete(b"key-1")
    times.delete_range(b"key-4", b"key-5")
    times.put(b"key-5", b"again", 7)

    def check() -> None:
        found = [times.get(b"key-%d" % number) for number in range(7)]
        held = [None if one is None else tuple(one) for one in found]
        expected = [(b"new", 9), None, (b"2", 2), (b"3", 3), None, (b"again", 7), None]
        assert held == [None if one is None else (one[0], shown(times, one[1])) for one in expected]
        assert times.get(b"other") == (b"", shown(times, 0))

    check()
    with times.all() as scan:
        times.put(b"other-2", b"", 0)
        check()
        assert len(list(scan)) == 5
    times.commit()
    check()
    for refused in ("key-0", None, 5):
        with pytest.raises(TypeError) as error:
            times.get(refused)  # type: ignore[arg-type]
        assert store.name in str(error.value)
    times.close()
    with pytest.raises(StoreClosedError):
        times.get(b"key-2")
    with pytest.raises(TypeError):
        times.get("key-2")  # type: ignore[arg-type]
