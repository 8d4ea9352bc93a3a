"""The metrics of a task and its stores, which are kept when it is opened again. Source: KIP-892, "Metrics"; KIP-869."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores.changelog import MemoryChangelog, Record
from stores.config import StoreConfig
from stores.errors import StoreClosedError
from stores.metrics import EarlyCommitCause, TaskMetrics, TaskStoreMetrics
from stores.tasks import ProcessingGuarantee, StreamTask, TaskContext
from stores.tasks.stores.store_group import BETWEEN_STORES
from stores.tests.tasks.setup import (
    DIRECT,
    INDEXED,
    MEMORY,
    Crash,
    begun,
    counting_task,
    crashing_at,
    feed,
    raising_at,
    single,
)
from stores.tests.touched import Touched

NONE_EARLY = dict.fromkeys(EarlyCommitCause, 0)


def counts(metrics: TaskMetrics) -> tuple[int, int, int, int, int]:
    """Commits, failed commits, records committed, rollbacks, records undone."""
    return (
        metrics.commit_total,
        metrics.commit_failed_total,
        metrics.process_total,
        metrics.rollback_total,
        metrics.rollback_records_total,
    )


def recovery(task: StreamTask, store: str = "left") -> tuple[int, int, int]:
    """Records restored, those of them replayed, wipes."""
    metrics = task.metrics.stores[store]
    assert type(metrics) is TaskStoreMetrics
    return metrics.restore_total, metrics.replay_total, metrics.wipe_total


def put(record: Record, context: TaskContext) -> None:
    assert record.key is not None
    context.store("s").put(record.key, record.value)


def test_a_task_that_was_never_opened_has_counted_nothing(tmp_path: Path, log: MemoryChangelog) -> None:
    task = counting_task(tmp_path, log)
    metrics = task.metrics
    assert (metrics.application, metrics.task) == ("app", "0_0")
    assert counts(metrics) == (0, 0, 0, 0, 0)
    assert metrics.stores == {}
    assert metrics.early_commit_total == NONE_EARLY
    assert metrics.restore_rate == metrics.commit_rate == 0.0
    assert task.engine_metrics() == {}


@pytest.mark.parametrize("guarantee", ProcessingGuarantee)
def test_a_commit_of_a_task_is_one_of_each_store_and_counts_its_records(
    tmp_path: Path, log: MemoryChangelog, guarantee: ProcessingGuarantee
) -> None:
    feed(log, range(7))
    task = counting_task(tmp_path, log, MEMORY, commit_every_records=3, guarantee=guarantee)
    task.open()
    assert task.run() == 7
    metrics = task.metrics
    assert counts(metrics) == (2, 0, 6, 0, 0)
    assert {name: store.commit_total for name, store in metrics.stores.items()} == {"left": 2, "right": 2}
    assert metrics.early_commit_total == NONE_EARLY
    assert metrics.uncommitted_bytes == sum(store.uncommitted_bytes for store in metrics.stores.values()) == 4
    assert 0.0 < metrics.commit_latency_max_seconds <= metrics.commit_latency_seconds_total
    of_stores = sum(store.commit_latency_seconds_total for store in metrics.stores.values())
    assert 0.0 < of_stores < metrics.commit_latency_seconds_total
    task.commit()
    task.commit()
    assert counts(task.metrics) == (3, 0, 7, 0, 0)
    assert task.metrics.uncommitted_bytes == 0
    task.close()
    assert counts(task.metrics) == (3, 0, 7, 0, 0)


def test_a_function_that_raises_is_a_rollback_of_the_records_before_it(tmp_path: Path, log: MemoryChangelog) -> None:
    poisoned = [3]
    feed(log, range(5))
    task = begun(counting_task(tmp_path, log, MEMORY, process=raising_at(poisoned)))
    with pytest.raises(Crash):
        task.run()
    poisoned.clear()
    assert counts(task.metrics) == (1, 0, 1, 1, 2)
    assert recovery(task) == (0, 0, 0)
    assert task.metrics.stores["left"].rollback_total == 1
    task.run()
    task.close()
    assert counts(task.metrics) == (2, 0, 5, 1, 2)


def test_commits_before_the_interval_are_counted_by_cause(tmp_path: Path, log: MemoryChangelog) -> None:
    def process(record: Record, context: TaskContext) -> None:
        context.store("s").put(b"%d" % record.offset, sizes[record.offset])
        if record.offset == 1:
            context.commit()

    # A pair counts 220 bytes beside its key and value.
    sizes = [b"", b"", b"x" * 400, b"x" * 400, b"x" * 2000, b""]
    feed(log, range(len(sizes)))
    stores = {"s": StoreConfig(MEMORY, uncommitted_max_bytes=1300)}
    task = single(tmp_path, log, process, stores=stores, commit_every_records=100)
    task.open()
    expected = dict(NONE_EARLY)
    for cause in (None, EarlyCommitCause.REQUESTED, None, EarlyCommitCause.PREDICTED, EarlyCommitCause.EXCEEDED, None):
        task.run(1)
        if cause is not None:
            expected[cause] += 1
        assert task.metrics.early_commit_total == expected
    assert task.metrics.commit_total == 3
    task.close()
    assert task.metrics.commit_total == 4
    assert task.metrics.early_commit_total == expected


def test_a_commit_that_the_changelog_refuses_is_a_failed_one_and_is_rolled_back(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    feed(log, range(3))
    task = counting_task(tmp_path, log, MEMORY)
    task.open()
    task.run()
    with crashing_at("task.before_log_commit"):
        task.commit()
    assert counts(task.metrics) == (0, 1, 0, 1, 3)
    task.run()
    task.close()
    assert counts(task.metrics) == (1, 1, 3, 1, 3)


def test_a_replayed_tail_is_distinguished_from_a_rebuilt_store(tmp_path: Path, log: MemoryChangelog) -> None:
    """The right store misses a commit of four records; then a store whose folder has gone is restored whole."""
    feed(log, range(6))
    task = counting_task(tmp_path, log, INDEXED)
    task.open()
    task.run(2)
    task.commit()
    task.run(4)
    with crashing_at(BETWEEN_STORES):
        task.commit()
    task.close(clean=False)

    again = counting_task(tmp_path, log, INDEXED)
    again.open()
    assert recovery(again, "left") == (0, 0, 0)
    assert recovery(again, "right") == (4, 4, 0)
    metrics = again.metrics
    assert (metrics.restore_total, metrics.replay_total) == (4, 4)
    seconds = sum(store.recovery_seconds_total for store in metrics.stores.values())
    assert seconds >= metrics.stores["right"].restore_latency_seconds_total > 0.0
    assert metrics.restore_rate == pytest.approx(4 / seconds)
    again.close()

    fresh = counting_task(tmp_path / "elsewhere", log, INDEXED)
    fresh.open()
    assert recovery(fresh, "left") == recovery(fresh, "right") == (6, 0, 0)
    fresh.close()


def test_a_store_that_is_wiped_goes_on_counting_where_it_was(tmp_path: Path, log: MemoryChangelog) -> None:
    """A store that keeps nothing apart is thrown away when its task falls; its totals never fall with it."""
    poisoned = [2]
    feed(log, range(4))
    task = single(tmp_path, log, raising_at(poisoned, put), DIRECT, commit_every_records=1)
    task.open()
    with pytest.raises(Crash):
        task.run()
    poisoned.clear()
    store = task.metrics.stores["s"]
    assert recovery(task, "s") == (2, 0, 1)
    assert store.commit_total == 2
    task.run()
    later = task.metrics.stores["s"]
    assert later.commit_total == 4
    assert later.commit_latency_max_seconds >= store.commit_latency_max_seconds
    assert later.seconds > store.seconds
    task.close()
    task.open()
    assert task.metrics.stores["s"].commit_total == 4
    assert recovery(task, "s") == (2, 0, 1)
    task.close()


def test_what_lies_between_two_readings_is_their_difference_for_each_store_as_well(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    feed(log, range(6))
    task = counting_task(tmp_path, log, MEMORY, commit_every_records=2)
    unopened = task.metrics
    task.open()
    task.run(2)
    earlier = task.metrics
    task.run(4)
    between = task.metrics.since(earlier)
    assert counts(between) == (2, 0, 4, 0, 0)
    assert between.stores["left"].commit_total == 2
    assert between.commit_rate == pytest.approx(2 / between.seconds)
    assert between.early_commit_total == NONE_EARLY
    assert task.metrics.since(unopened).stores["right"].commit_total == 3
    task.close()


def test_a_task_counts_for_each_commit_and_not_for_each_record(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(log, range(205))
    task = counting_task(tmp_path, log, MEMORY)
    task.open()
    counters = Touched(task._counters)
    monkeypatch.setattr(task, "_counters", counters)
    touched = []
    for records in (5, 200):
        before = counters.count
        assert task.run(records) == records
        assert counters.count == before
        task.commit()
        touched.append(counters.count - before)
    assert touched[0] == touched[1] > 0
    task.close()


def test_a_function_sees_the_metrics_of_its_stores(tmp_path: Path, log: MemoryChangelog) -> None:
    def process(record: Record, context: TaskContext) -> None:
        put(record, context)
        store = context.store("s")
        seen.append(store.metrics.uncommitted_bytes)
        assert store.engine_metrics() == {"num_keys": 0}

    seen: list[int] = []
    feed(log, range(2))
    task = single(tmp_path, log, process)
    task.open()
    task.run()
    assert seen == [2, 4]
    assert task.engine_metrics() == {"s": {"num_keys": 0}}
    task.commit()
    assert task.engine_metrics() == {"s": {"num_keys": 2}}
    inner = task._context.store("s")
    task.close()
    assert task.engine_metrics() == {}
    assert inner.metrics.commit_total == 1
    with pytest.raises(StoreClosedError):
        inner.engine_metrics()
