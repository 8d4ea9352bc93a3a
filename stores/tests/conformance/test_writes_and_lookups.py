"""Puts, deletes and lookups: the writer reads what it wrote; what is refused leaves nothing behind.

Arguments of a wrong type are refused with what to pass instead, before anything is staged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from stores import IsolationLevel, KeyValueStore, StoreError
from stores.contract.arguments import WRITES
from stores.records import BYTES, STR, KeyValue, TimestampedKeyValue

NOT_BYTES: list[Any] = ["text", bytearray(b"key"), memoryview(b"key"), 7, None, b"key".hex]


def test_a_new_store_is_empty(store: KeyValueStore) -> None:
    assert list(store.all()) == []
    assert store.get(b"key") is None
    assert store.approximate_num_entries() == 0


def test_the_writer_reads_its_own_uncommitted_write(store: KeyValueStore) -> None:
    store.put(b"key", b"value")
    assert store.get(b"key") == b"value"
    assert store.get(b"kez") is None
    assert store.get(b"ke") is None


def test_a_value_may_be_empty_and_is_not_absent(store: KeyValueStore) -> None:
    store.put(b"key", b"")
    assert store.get(b"key") == b""
    store.commit()
    assert store.get(b"key") == b""
    assert list(store.all()) == [(b"key", b"")]


def test_a_put_of_none_deletes(store: KeyValueStore) -> None:
    store.put(b"committed", b"1")
    store.commit()
    store.put(b"staged", b"1")
    store.put(b"staged", None)
    store.put(b"committed", None)
    assert store.get_many([b"staged", b"committed"]) == [None, None]
    store.commit()
    assert list(store.all()) == []


def test_put_all_stages_every_pair_and_the_last_of_a_key_wins(store: KeyValueStore) -> None:
    store.put_all([(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", None)])
    assert store.get_many([b"a", b"b"]) == [b"3", None]
    store.put_all([])
    assert list(store.all()) == [(b"a", b"3")]


def test_put_all_stages_nothing_where_one_pair_is_refused(store: KeyValueStore) -> None:
    wrong_pairs: list[Any] = [("text", b"v"), (b"", b"v"), (b"k", "text"), (b"k", 5)]
    for bad in wrong_pairs:
        with pytest.raises((TypeError, ValueError)):
            store.put_all([(b"a", b"1"), bad, (b"b", b"2")])
    assert list(store.all()) == []
    assert store.approximate_num_uncommitted_bytes() == 0


def test_put_all_stages_nothing_where_the_pairs_end_in_an_error(store: KeyValueStore) -> None:
    def pairs() -> Iterator[tuple[bytes, bytes]]:
        yield b"a", b"1"
        raise LookupError

    with pytest.raises(LookupError):
        store.put_all(pairs())
    assert list(store.all()) == []


def test_put_all_reads_the_store_that_it_writes(store: KeyValueStore) -> None:
    store.put_all((b"%03d" % number, b"1") for number in range(100))
    store.put_all((key, value + b"2") for key, value in store.all())
    assert [value for _, value in store.all()] == [b"12"] * 100


def test_put_if_absent_writes_only_where_nothing_is(store: KeyValueStore) -> None:
    assert store.put_if_absent(b"key", b"1") is None
    assert store.put_if_absent(b"key", b"2") == b"1"
    store.commit()
    assert store.put_if_absent(b"key", b"3") == b"1"
    store.delete(b"key")
    assert store.put_if_absent(b"key", b"4") is None
    assert store.put_if_absent(b"other", None) is None
    assert list(store.all()) == [(b"key", b"4")]


def test_delete_returns_what_was_there(store: KeyValueStore) -> None:
    store.put(b"key", b"1")
    assert store.delete(b"key") == b"1"
    assert store.delete(b"key") is None
    store.put(b"key", b"")
    store.commit()
    assert store.delete(b"key") == b""
    assert store.delete(b"key") is None
    assert store.get(b"key") is None


def test_delete_range_includes_both_ends(store: KeyValueStore) -> None:
    for committed in (b"a", b"c", b"e"):
        store.put(committed, b"1")
    store.commit()
    for staged in (b"b", b"d", b"f"):
        store.put(staged, b"2")
    store.delete_range(b"b", b"e")
    assert [key for key, _ in store.all()] == [b"a", b"f"]
    store.commit()
    assert [key for key, _ in store.all()] == [b"a", b"f"]


def test_delete_range_with_open_crossed_empty_and_long_ends(store: KeyValueStore) -> None:
    keys = [b"a", b"b", b"c", b"d"]
    left = {
        (None, b"b"): b"cd", (b"c", None): b"ab", (None, None): b"", (b"c", b"b"): b"abcd", (b"", b""): b"abcd",
        (b"x", None): b"abcd", (b"b", b"b"): b"acd", (b"z" * 600, b"z" * 700): b"abcd", (b"b" * 600, b"z" * 600): b"ab",
    }  # fmt: skip
    for (start, end), expected in left.items():
        store.put_all([(key, b"1") for key in keys[:2]])
        store.commit()
        store.put_all([(key, b"1") for key in keys[2:]])
        store.delete_range(start, end)
        assert b"".join(key for key, _ in store.all()) == expected, (start, end)
        store.commit()
        assert b"".join(key for key, _ in store.all()) == expected, (start, end)


def test_a_write_after_delete_range_stays(store: KeyValueStore) -> None:
    store.put_all([(b"%d" % number, b"old") for number in range(9)])
    store.commit()
    store.delete_range(b"2", b"6")
    store.put(b"4", b"new")
    scan = store.all()
    store.delete_range(b"7", b"8")
    store.put(b"8", b"new")
    assert [key for key, _ in store.all()] == [b"0", b"1", b"4", b"8"]
    store.commit()
    assert list(store.all()) == [(b"0", b"old"), (b"1", b"old"), (b"4", b"new"), (b"8", b"new")]
    assert [key for key, _ in scan] == [b"0", b"1", b"4", b"7", b"8"]


def test_get_many_keeps_the_order_and_repeats(store: KeyValueStore) -> None:
    store.put(b"a", b"1")
    store.commit()
    assert store.get_many([b"b", b"a", b"a"]) == [None, b"1", b"1"]
    store.put(b"b", b"2")
    assert store.get_many([b"b", b"a", b"c"]) == [b"2", b"1", None]
    assert store.get_many([]) == []


def test_a_key_or_bound_that_is_not_bytes_is_a_type_error_and_changes_nothing(store: KeyValueStore) -> None:
    reader = store.read_only()
    for bad in NOT_BYTES:
        # None is a bound like any other, but no key.
        bound: Any = 1 if bad is None else bad
        attempts: list[Callable[[], object]] = [
            partial(store.put, bad, b"value"), partial(store.put_if_absent, bad, b"value"), partial(store.delete, bad),
            partial(store.get, bad), partial(store.get_many, [b"a", bad]), partial(store.prefix_scan, bad),
            partial(store.reverse_prefix_scan, bad), partial(store.range, bound, None),
            partial(store.reverse_range, None, bound), partial(store.delete_range, None, bound),
            partial(reader.get, bad), partial(reader.get_many, [bad]), partial(reader.range, None, bound),
            partial(reader.prefix_scan, bad),
        ]  # fmt: skip
        for attempt in attempts:
            with pytest.raises(TypeError):
                attempt()
    assert list(store.all()) == []
    assert store.approximate_num_uncommitted_bytes() == 0


def test_a_value_that_is_not_bytes_is_a_type_error_and_stages_nothing(store: KeyValueStore) -> None:
    for bad in NOT_BYTES:
        if bad is not None:
            for write in (store.put, store.put_if_absent):
                with pytest.raises(TypeError):
                    write(b"key", bad)
    assert store.get(b"key") is None
    assert store.approximate_num_uncommitted_bytes() == 0


def test_an_empty_key_is_refused_at_once(store: KeyValueStore) -> None:
    attempts: list[Callable[[], object]] = [
        partial(store.put, b"", b"v"),
        partial(store.put_if_absent, b"", b"v"),
        partial(store.delete, b""),
    ]
    for write in attempts:
        with pytest.raises(ValueError):
            write()
    assert store.get(b"") is None
    assert list(store.all()) == []


def test_the_longest_key_is_kept_and_a_longer_one_refused_by_put(store: KeyValueStore) -> None:
    """Beyond 8 MiB only the refusal is tried."""
    longest = store.max_key_bytes
    if longest <= 8 << 20:
        store.put(b"k" * longest, b"value")
        store.commit()
        assert store.get(b"k" * longest) == b"value"
        assert [len(key) for key, _ in store.prefix_scan(b"kk")] == [longest]
        with pytest.raises(ValueError):
            store.put(b"k" * (longest + 1), b"value")
        assert store.approximate_num_uncommitted_bytes() == 0
        assert store.get(b"k" * (longest + 1)) is None
    else:
        store.put(b"k" * (8 << 20), b"value")
        assert store.get(b"k" * (8 << 20)) == b"value"


def test_a_large_value_comes_back_whole(store: KeyValueStore) -> None:
    value = bytes(range(256)) * (5 << 12)
    store.put(b"key", value)
    store.commit()
    assert store.get(b"key") == value


def test_subclasses_of_bytes_are_bytes(store: KeyValueStore) -> None:
    class Name(bytes):
        pass

    store.put(Name(b"key"), Name(b"value"))
    store.commit()
    assert store.get(Name(b"key")) == b"value"
    assert list(store.prefix_scan(Name(b"k"))) == [(b"key", b"value")]


def test_the_number_of_entries_is_about_right(store: KeyValueStore) -> None:
    store.put_all([(b"%05d" % number, b"value") for number in range(2000)])
    store.commit()
    assert 500 <= store.approximate_num_entries() <= 8000


def test_offsets_that_are_no_mapping_are_refused_and_change_nothing(store: KeyValueStore) -> None:
    store.put(b"k", b"v")
    wrong: list[Any] = [41, "topic", [("topic", 0, 41)]]
    for offsets in wrong:
        with pytest.raises(TypeError, match="TopicPartition"):
            store.commit(offsets)
    assert store.get(b"k") == b"v"
    store.rollback()


def test_put_all_refuses_a_mapping_and_what_is_no_pair(store: KeyValueStore) -> None:
    wrong: list[Any] = [{b"ab": b"v"}, {b"k": b"v"}, b"ab", "ab", 5, [b"ab"], [(b"k", b"v", 1)], [5]]
    for pairs in wrong:
        with pytest.raises(TypeError, match=r"items\(\)|writes are pairs"):
            store.put_all(pairs)
    assert list(store.all()) == []


def test_get_many_refuses_a_single_key(store: KeyValueStore) -> None:
    store.put(b"ab", b"v")
    wrong: list[Any] = [b"ab", "ab", 5]
    for keys in wrong:
        for reader in (store, store.read_only(IsolationLevel.READ_UNCOMMITTED)):
            with pytest.raises(TypeError, match=r"get_many\(\[key\]\)"):
                reader.get_many(keys)
    assert store.get_many(iter([b"ab"])) == [b"v"]  # type: ignore[arg-type]


def test_a_view_says_that_it_only_reads(store: KeyValueStore) -> None:
    views: list[Any] = [
        store.read_only(),
        KeyValue(key=BYTES, value=BYTES).view(store.read_only()),
        TimestampedKeyValue(key=STR, value=STR).view(store.read_only()),
    ]
    for view in views:
        for name in WRITES:
            with pytest.raises(StoreError):
                getattr(view, name)
            assert not hasattr(view, name)
        with pytest.raises(AttributeError) as error:
            view.pit()
        assert not isinstance(error.value, StoreError)


@pytest.mark.parametrize(
    "call",
    [
        lambda typed: typed.put_all({"ab": "v"}),
        lambda typed: typed.get_many("ab"),
        lambda typed: typed.commit(41),
    ],
)
def test_a_typed_store_refuses_the_same(store: KeyValueStore, call: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError):
        call(KeyValue(key=STR, value=STR).over(store))
