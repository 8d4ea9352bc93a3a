"""Commit and rollback: all or nothing; and the promises of what keeps nothing apart.

Restore writes past the open transaction; recover returns what opening did. Source: KIP-844, KIP-892.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from stores import IsolationLevel, KeyValueStore, RecoveryOutcome, StoreCorruptedError, StoreError, TopicPartition
from stores.tests.conformance.cases import Case

Reopen = Callable[[], KeyValueStore]


@pytest.mark.every_durability
def test_a_commit_is_there_after_reopening_if_the_backend_keeps_anything(
    case: Case, store: KeyValueStore, reopen: Reopen
) -> None:
    assert store.persistent is case.backend.persistent
    assert store.durability is case.durability
    store.put_all([(b"a", b"1"), (b"b", b"2")])
    store.commit()
    store.delete(b"a")
    store.put(b"c", b"3")
    store.commit()
    assert list(reopen().all()) == ([(b"b", b"2"), (b"c", b"3")] if store.persistent else [])


def test_closing_never_commits(case: Case, store: KeyValueStore, reopen: Reopen) -> None:
    """A backend that is not transactional has written everything at once."""
    store.put(b"a", b"1")
    store.commit()
    store.put(b"a", b"2")
    store.put(b"b", b"3")
    store.delete_range(b"c", None)
    expected = [(b"a", b"1")] if store.transactional else [(b"a", b"2"), (b"b", b"3")]
    assert list(reopen().all()) == (expected if store.persistent else [])


def test_leaving_the_block_without_commit_rolls_back(case: Case, store: KeyValueStore, reopen: Reopen) -> None:
    with pytest.raises(LookupError), store:
        store.put(b"key", b"value")
        raise LookupError
    assert not store.is_open
    left = reopen().get(b"key")
    assert left == (b"value" if store.persistent and not store.transactional else None)


def test_a_rollback_discards_every_kind_of_write_or_none_is_ever_apart(store: KeyValueStore) -> None:
    """Not transactional: what was written stays, and nothing counts as uncommitted."""
    committed = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    store.put_all(committed)
    store.commit()
    store.put(b"a", b"changed")
    store.delete(b"b")
    store.delete_range(b"c", None)
    store.put_if_absent(b"d", b"new")
    store.put_all([(b"e", b"new"), (b"f", None)])
    pairs = [(b"a", b"changed"), (b"d", b"new"), (b"e", b"new")]
    assert list(store.all()) == pairs
    store.rollback()
    assert list(store.all()) == (committed if store.transactional else pairs)
    assert store.get(b"b") == (b"2" if store.transactional else None)
    assert store.approximate_num_uncommitted_bytes() == 0


def test_there_is_always_an_open_transaction(store: KeyValueStore) -> None:
    """The first from opening on, the next after each commit or rollback."""
    for number in range(5):
        store.rollback()
        store.put(b"%d" % number, b"1")
        store.commit()
        store.commit()
        store.put(b"gone", b"1")
        store.rollback()
        store.rollback()
    keys = [key for key, _ in store.all() if key != b"gone"]
    assert keys == [b"0", b"1", b"2", b"3", b"4"]
    assert store.get(b"gone") == (None if store.transactional else b"1")


def test_uncommitted_writes_show_to_no_reader_of_committed_data(store: KeyValueStore) -> None:
    """Not transactional: they show at once, to both levels."""
    view = store.read_only(IsolationLevel.READ_COMMITTED)
    uncommitted = store.read_only(IsolationLevel.READ_UNCOMMITTED)
    apart = store.transactional
    writes: list[Callable[[], object]] = [
        lambda: store.put(b"a", b"1"),
        lambda: store.put_all([(b"a", b"1")]),
        lambda: store.put_if_absent(b"a", b"1"),
    ]
    for write in writes:
        write()
        assert view.get(b"a") == (None if apart else b"1")
        assert list(view.all()) == ([] if apart else [(b"a", b"1")])
        assert uncommitted.get(b"a") == b"1"
        assert list(uncommitted.reverse_all()) == [(b"a", b"1")]
        if write is not writes[-1]:
            store.rollback()
            store.delete(b"a")
            assert uncommitted.get(b"a") is None
    store.commit()
    assert view.get_many([b"a", b"b"]) == [b"1", None]
    assert list(view.prefix_scan(b"a")) == list(view.reverse_prefix_scan(b"a")) == [(b"a", b"1")]


def test_uncommitted_bytes_count_keys_and_values_and_an_overwrite_once(store: KeyValueStore) -> None:
    """A thousand overwrites of an entry of 104 bytes count 104. Source: KIP-892, ``approximateNumUncommittedBytes``."""
    apart = store.transactional
    for number in range(1000):
        store.put(b"key!", b"%0100d" % number)
    assert store.approximate_num_uncommitted_bytes() == (104 if apart else 0)
    store.put(b"second", b"")
    assert store.approximate_num_uncommitted_bytes() == (110 if apart else 0)
    store.put(b"key!", None)
    assert store.approximate_num_uncommitted_bytes() == (10 if apart else 0)
    store.delete(b"never there")
    assert store.approximate_num_uncommitted_bytes() == (10 if apart else 0)


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_the_open_transaction_ends_with_no_uncommitted_bytes(store: KeyValueStore, ending: str) -> None:
    store.put(b"key", b"value")
    store.delete_range(b"x", b"y")
    getattr(store, ending)()
    assert store.approximate_num_uncommitted_bytes() == 0
    store.put(b"key", b"longer value")
    assert store.approximate_num_uncommitted_bytes() == (15 if store.transactional else 0)


def test_uncommitted_bytes_stay_exact_while_scans_are_open(store: KeyValueStore) -> None:
    iterators = []
    for number in range(50):
        store.put(b"key%d" % (number % 5), b"v" * number)
        iterators.append(store.all())
    assert store.approximate_num_uncommitted_bytes() == (5 * 4 + sum(range(45, 50)) if store.transactional else 0)


def test_a_range_delete_takes_back_the_bytes_that_it_covers(store: KeyValueStore) -> None:
    """At most the bounds of the range itself remain."""
    store.put_all([(b"%03d" % number, b"v" * 100) for number in range(100)])
    store.delete_range(b"010", b"099")
    least = 10 * 103 if store.transactional else 0
    assert least <= store.approximate_num_uncommitted_bytes() <= least + 6


def test_flush_is_deprecated_and_commits(store: KeyValueStore) -> None:
    """Source: KIP-844, "StateStore changes"."""
    store.put(b"key", b"value")
    with pytest.warns(DeprecationWarning):
        store.flush()
    assert store.read_only().get(b"key") == b"value"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.commit()


def test_a_large_transaction_is_one_step(store: KeyValueStore) -> None:
    reader = store.read_only()
    expected = [(b"%08d" % number, b"value") for number in range(5000)]
    store.put_all(expected)
    if store.transactional:
        assert list(reader.all()) == []
    store.commit()
    assert list(reader.all()) == expected


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
    wrong_restores: list[tuple[Any, Any]] = [
        ([(b"a", b"1"), (b"", b"2")], {LOG: 6}), ([(b"a", b"1"), ("b", b"2")], {LOG: 6}), ([(b"a", 1)], {LOG: 6}),
        ([(b"a", b"1")], {LOG: -1}), ([(b"a", b"1")], {"log": 6}),
    ]  # fmt: skip
    for pairs, offsets in wrong_restores:
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
    scan = store.all()
    store.restore([(b"a", b"2"), (b"b", b"2")], {})
    assert list(scan) == [(b"a", b"1")]


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
    recovery = again.recover()
    assert recovery.outcome is RecoveryOutcome.NOTHING_TO_DO
    assert recovery.offsets == ({LOG: 3} if again.persistent and again.manages_offsets else {})


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
