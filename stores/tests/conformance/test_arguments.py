"""Arguments of a wrong type: refused with what to pass instead, before anything is staged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stores import IsolationLevel, KeyValueStore, StoreError
from stores.contract.arguments import WRITES
from stores.records import BYTES, STR, KeyValue, TimestampedKeyValue


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
        with pytest.raises(TypeError, match=r"items\(\)|put_all takes pairs"):
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
        with pytest.raises(AttributeError) as caught:
            view.pit()
        assert not isinstance(caught.value, StoreError)


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
