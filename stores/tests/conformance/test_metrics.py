"""The metrics of a store: each measure changes with what it counts, and with nothing else. Source: KIP-892, "
""Metrics"."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields
from itertools import pairwise
from time import time

import pytest

from stores import IsolationLevel, KeyValueStore, StoreClosedError, TopicPartition
from stores.metrics import MetricKind, StoreMetrics, measures
from stores.strategies.store import Store
from stores.tests.conformance.cases import Case
from stores.tests.touched import Touched

LOG = TopicPartition("changelog", 0)


def counts(store: KeyValueStore) -> dict[str, int]:
    """The measures that are not times."""
    metrics = store.metrics
    return {entry.name: value for entry in fields(metrics) if type(value := getattr(metrics, entry.name)) is int}


NOTHING = {
    "commit_total": 0,
    "commit_failed_total": 0,
    "rollback_total": 0,
    "restore_total": 0,
    "late_total": 0,
    "skipped_total": 0,
    "dead_letter_total": 0,
    "uncommitted_bytes": 0,
    "uncommitted_memory_bytes": 0,
    "num_open_iterators": 0,
}


def test_a_new_store_has_counted_nothing(case: Case, store: KeyValueStore) -> None:
    metrics = store.metrics
    assert isinstance(metrics, StoreMetrics)
    assert (metrics.store, metrics.backend) == ("store", case.backend.name)
    assert counts(store) == NOTHING
    assert metrics.commit_latency_seconds_total == metrics.commit_latency_max_seconds == 0.0
    assert metrics.commit_rate == metrics.commit_latency_avg_seconds == metrics.restore_rate == 0.0
    assert metrics.oldest_iterator_open_since_seconds is None


def test_commits_are_counted_and_timed_and_each_is_no_longer_than_the_longest(store: KeyValueStore) -> None:
    snapshots = [store.metrics]
    for number in range(3):
        store.put(b"key", b"%d" % number)
        store.commit({LOG: number})
        snapshots.append(store.metrics)
        assert counts(store) == {**NOTHING, "commit_total": number + 1}
    for earlier, later in pairwise(snapshots):
        took = later.commit_latency_seconds_total - earlier.commit_latency_seconds_total
        assert 0.0 < took <= later.commit_latency_max_seconds + 1e-9
        assert later.commit_latency_max_seconds >= earlier.commit_latency_max_seconds
    last = snapshots[-1]
    assert last.commit_latency_avg_seconds == pytest.approx(last.commit_latency_seconds_total / 3)
    assert last.commit_latency_avg_seconds <= last.commit_latency_max_seconds <= last.commit_latency_seconds_total
    assert last.commit_rate == pytest.approx(3 / last.seconds)


def test_a_commit_that_fails_is_counted_apart_and_not_timed(
    store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails in the strategy, whatever that is; then the same commit is tried again."""

    def fail(*_: object) -> None:
        raise OSError

    assert isinstance(store, Store)
    store.put(b"key", b"value")
    staged_bytes = store.metrics.uncommitted_bytes
    memory = {"uncommitted_memory_bytes": store.uncommitted_memory_bytes()}
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(store.staging, "commit", fail)
        store.commit()
    assert counts(store) == {**NOTHING, "commit_failed_total": 1, "uncommitted_bytes": staged_bytes, **memory}
    assert store.metrics.commit_latency_seconds_total == 0.0
    store.commit()
    assert counts(store) == {**NOTHING, "commit_failed_total": 1, "commit_total": 1}


def test_a_refused_commit_is_no_commit(store: KeyValueStore) -> None:
    with pytest.raises(ValueError):
        store.commit({LOG: -1})
    assert counts(store) == NOTHING


def test_rollbacks_are_counted_that_have_something_to_undo(store: KeyValueStore) -> None:
    for number in range(2):
        store.put(b"key", b"%d" % number)
        store.advance_position(LOG, number)
        store.rollback()
        store.rollback()
    assert counts(store) == {**NOTHING, "rollback_total": 2}


def test_uncommitted_bytes_are_those_of_the_open_transaction(store: KeyValueStore) -> None:
    """Source: Kafka Streams, gauge ``uncommitted-bytes``."""
    store.put(b"key", b"value")
    store.put(b"key", b"other")
    store.put(b"k2", None)
    memory_bytes = store.uncommitted_memory_bytes()
    assert (memory_bytes > 0) is store.transactional
    assert counts(store) == {
        **NOTHING,
        "uncommitted_bytes": 10 if store.transactional else 0,
        "uncommitted_memory_bytes": memory_bytes,
    }
    store.commit()
    assert counts(store) == {**NOTHING, "commit_total": 1}


def test_restored_records_are_counted_one_by_one_and_timed(store: KeyValueStore) -> None:
    """Two records of one key are two: what is counted is the changelog's records, not the keys."""
    store.restore(iter([(b"a", b"1"), (b"b", None), (b"a", b"2")]), {LOG: 2})
    assert counts(store) == {**NOTHING, "restore_total": 3}
    first = store.metrics
    assert first.restore_latency_seconds_total > 0.0
    assert first.restore_rate == pytest.approx(3 / first.restore_latency_seconds_total)
    store.restore([(b"c", b"3")], {LOG: 3})
    assert counts(store) == {**NOTHING, "restore_total": 4}
    with pytest.raises(ValueError):
        store.restore([(b"", b"4")], {LOG: 4})
    assert counts(store) == {**NOTHING, "restore_total": 4}


def test_iterators_are_open_until_their_end_or_until_they_are_closed_or_forgotten(store: KeyValueStore) -> None:
    store.put_all([(b"%d" % number, b"value") for number in range(5)])
    store.commit()
    store.put(b"staged", b"value")

    def is_open() -> int:
        return store.metrics.num_open_iterators

    began = time()
    closed, ended, forgotten = store.all(), store.reverse_all(), store.prefix_scan(b"1")
    reading = store.read_only(IsolationLevel.READ_COMMITTED).all()
    oldest = store.metrics.oldest_iterator_open_since_seconds
    assert is_open() == 4
    assert oldest is not None
    assert began <= oldest <= time()
    next(closed)
    closed.close()
    closed.close()
    assert is_open() == 3
    assert len(list(ended)) == 6
    assert is_open() == 2
    del forgotten
    gc.collect()
    assert is_open() == 1
    later = store.metrics.oldest_iterator_open_since_seconds
    assert later is not None
    assert later >= oldest
    reading.close()
    assert is_open() == 0
    assert store.metrics.oldest_iterator_open_since_seconds is None


READS: Mapping[str, Callable[[KeyValueStore], object]] = {
    "get": lambda store: store.get(b"key"),
    "get_many": lambda store: store.get_many([b"key", b"none"]),
    "scan": lambda store: list(store.all()),
    "persist": lambda store: store.persist(),
    "recover": lambda store: store.recover(),
    "position": lambda store: store.position(IsolationLevel.READ_COMMITTED),
    "metrics": lambda store: (store.metrics, store.engine_metrics()),
}


def test_what_only_reads_is_not_counted(store: KeyValueStore) -> None:
    store.put(b"key", b"value")
    store.commit()
    for name, read in READS.items():
        read(store)
        assert counts(store) == {**NOTHING, "commit_total": 1}, name


def test_the_metrics_are_a_copy_and_what_lies_between_two_of_them_is_their_difference(store: KeyValueStore) -> None:
    store.put(b"a", b"1")
    store.commit()
    earlier = store.metrics
    store.commit()
    store.advance_position(LOG, 1)
    store.rollback()
    store.restore([(b"b", b"2")], {})
    store.put(b"c", b"33")
    now = store.metrics
    between = now.since(earlier)
    assert earlier.commit_total == between.commit_total == between.rollback_total == between.restore_total == 1
    assert between.uncommitted_bytes == now.uncommitted_bytes == (3 if store.transactional else 0)
    assert between.seconds == pytest.approx(now.seconds - earlier.seconds)
    assert between.commit_rate == pytest.approx(1 / between.seconds)
    assert between.commit_latency_avg_seconds == pytest.approx(
        now.commit_latency_seconds_total - earlier.commit_latency_seconds_total
    )
    assert between.commit_latency_max_seconds == now.commit_latency_max_seconds


def test_counting_is_for_each_commit_and_not_for_each_record(
    store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counters are touched as often for 500 records as for 5, whatever is done with them."""
    assert isinstance(store, Store)
    counters = Touched(store._counters)
    monkeypatch.setattr(store, "_counters", counters)
    touched = []
    for records in (5, 500):
        keys = [b"%d" % number for number in range(records)]
        before = counters.count
        for key in keys:
            store.put(key, b"value")
            assert store.get(key) == b"value"
            store.advance_position(LOG, len(key))
        store.delete(keys[0])
        assert len(list(store.all())) == records - 1
        store.commit({LOG: records})
        store.restore([(key, b"other") for key in keys], {LOG: records + 1})
        touched.append(counters.count - before)
        store.delete_range(None, None)
        store.commit()
    assert touched[0] == touched[1] > 0


def test_a_closed_store_still_reports_its_counts_and_holds_nothing(store: KeyValueStore) -> None:
    store.put(b"a", b"1")
    store.commit()
    store.put(b"b", b"2")
    scan = store.all()
    store.close()
    last_metrics = store.metrics
    assert counts(store) == {**NOTHING, "commit_total": 1}
    assert last_metrics.oldest_iterator_open_since_seconds is None
    assert store.metrics.seconds == last_metrics.seconds
    with pytest.raises(StoreClosedError):
        store.engine_metrics()
    with pytest.raises(StoreClosedError):
        next(scan)


def test_metrics_may_be_read_on_any_thread_and_totals_never_fall(store: KeyValueStore) -> None:
    readings: list[StoreMetrics] = []
    figures: list[Mapping[str, int]] = []
    end = threading.Event()
    errors: list[BaseException] = []

    def watch() -> None:
        try:
            while not end.is_set():
                readings.append(store.metrics)
                figures.append(store.engine_metrics())
        except BaseException as error:
            errors.append(error)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        for number in range(100):
            store.put(b"%d" % number, b"value")
            with store.all() as pairs:
                next(pairs)
            store.commit()
            if len(readings) > 20:
                break
    finally:
        end.set()
        watching.join()
    assert errors == []
    assert figures
    totals = [name for name, measure in measures(StoreMetrics).items() if measure.kind is not MetricKind.CURRENT]
    for name in totals:
        values = [getattr(metrics, name) for metrics in readings]
        assert values == sorted(values), name
    assert readings[-1].commit_total <= store.metrics.commit_total == number + 1


def test_an_engine_shows_figures_that_are_counts_or_bytes(store: KeyValueStore) -> None:
    store.put_all([(b"%04d" % number, b"x" * 100) for number in range(500)])
    store.commit()
    figures = store.engine_metrics()
    assert figures
    assert all(type(name) is str and type(value) is int and value >= 0 for name, value in figures.items())
    sizes = [value for name, value in figures.items() if name.endswith(("_bytes", "num_keys"))]
    assert max(sizes) >= 500
