"""Restore writes past the open transaction; recover returns what opening did. Source: KIP-844, KIP-892."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from stores import IsolationLevel, KeyValueStore, RecoveryOutcome, StoreCorruptedError, StoreError, TopicPartition

LOG = TopicPartition("changelog", 0)


def test_restored_records_are_committed_and_count_no_uncommitted_bytes(
    store: KeyValueStore, reopen: Callable[[], KeyValueStore]
) -> None:
    store.put_all([(b"a", b"old"), (b"b", b"old"), (b"d", b"old")])
    store.commit()
    store.restore(iter([(b"a", b"1"), (b"b", None), (b"c", b"2"), (b"c", b"3"), (b"e", None)]), {LOG: 17})
    assert store.approximate_num_uncommitted_bytes() == 0
    expected = [(b"a", b"1"), (b"c", b"3"), (b"d", b"old")]
    assert list(store.all()) == list(store.read_only().all()) == expected
    store.rollback()
    assert list(store.all()) == expected
    assert store.committed_offset(LOG) == (17 if store.manages_offsets else None)
    if store.persistent:
        again = reopen()
        assert list(again.all()) == expected
        assert again.committed_offset(LOG) == (17 if again.manages_offsets else None)


def test_a_restore_into_staged_writes_is_refused(store: KeyValueStore) -> None:
    """Without isolation there are no staged writes that could be in the way."""
    stages: list[Callable[[], None]] = [
        partial(store.put, b"a", b"1"),
        partial(store.put, b"never there", None),
        partial(store.delete_range, b"x", b"y"),
    ]
    for stage in stages:
        stage()
        if store.transactional:
            with pytest.raises(StoreError):
                store.restore([(b"b", b"2")], {LOG: 1})
            assert store.get(b"b") is None
            store.rollback()
        store.restore([(b"b", b"2")], {LOG: 1})
        assert store.get(b"b") == b"2"
        store.delete(b"b")
        store.commit()


def test_a_restore_is_refused_whole(store: KeyValueStore) -> None:
    store.commit({LOG: 5})
    refused: list[tuple[Any, Any]] = [
        ([(b"a", b"1"), (b"", b"2")], {LOG: 6}), ([(b"a", b"1"), ("b", b"2")], {LOG: 6}), ([(b"a", 1)], {LOG: 6}),
        ([(b"a", b"1")], {LOG: -1}), ([(b"a", b"1")], {"log": 6}),
    ]  # fmt: skip
    for pairs, offsets in refused:
        with pytest.raises((TypeError, ValueError)):
            store.restore(pairs, offsets)
    if store.manages_offsets:
        with pytest.raises(ValueError):
            store.restore([(b"a", b"1")], {LOG: 4})
        assert store.committed_offset(LOG) == 5
    assert list(store.all()) == []


def test_an_iterator_made_before_a_restore_does_not_show_it(store: KeyValueStore) -> None:
    store.put(b"a", b"1")
    store.commit()
    held = store.all()
    store.restore([(b"a", b"2"), (b"b", b"2")], {})
    assert list(held) == [(b"a", b"1")]


def test_a_restore_leaves_the_position_alone(store: KeyValueStore) -> None:
    store.advance_position(LOG, 3)
    store.commit()
    store.restore([(b"a", b"1")], {LOG: 1})
    assert store.position(IsolationLevel.READ_COMMITTED) == {LOG: 3}


def test_a_new_store_and_one_that_was_closed_have_nothing_to_recover(
    store: KeyValueStore, reopen: Callable[[], KeyValueStore]
) -> None:
    assert store.recover().outcome is RecoveryOutcome.NOTHING_TO_DO
    store.put(b"key", b"value")
    store.commit({LOG: 3})
    again = reopen()
    recovered = again.recover()
    assert recovered.outcome is RecoveryOutcome.NOTHING_TO_DO
    assert recovered.offsets == ({LOG: 3} if again.persistent and again.manages_offsets else {})


def test_recover_refuses_a_store_behind_its_checkpoint(store: KeyValueStore) -> None:
    """Source: KIP-844, ``recover``."""
    store.commit({LOG: 3})
    if store.manages_offsets:
        assert store.recover({LOG: 3}).offsets == {LOG: 3}
        assert store.recover({LOG: 2}).offsets == {LOG: 3}
    for behind in ({LOG: 4}, {TopicPartition("changelog", 1): 0}):
        with pytest.raises(StoreCorruptedError):
            store.recover(behind)


def test_persist_may_be_called_at_any_time_and_commits_nothing(store: KeyValueStore) -> None:
    store.put(b"a", b"1")
    store.commit()
    store.put(b"b", b"2")
    store.persist()
    assert store.read_only().get(b"b") == (None if store.transactional else b"2")
    store.commit()
    store.persist()
    assert list(store.all()) == [(b"a", b"1"), (b"b", b"2")]
