"""Metrics are counted, added up and distinguished by store, on a clock that the tests set. Source: KIP-892, "
""Metrics"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stores import open_store
from stores.metrics import (
    EarlyCommitCause,
    Measure,
    MetricKind,
    StoreMetrics,
    TaskMetrics,
    TaskStoreMetrics,
    Timer,
    measures,
)
from stores.strategies import iterator
from stores.tasks.task_state import TaskCounters


def clock(*times: float) -> Callable[[], float]:
    return iter(times).__next__


def test_a_timer_keeps_the_sum_and_the_maximum_of_successful_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stores.metrics.perf_counter", clock(10, 11, 20, 23, 30, 40, 42))
    timer = Timer()
    for _ in range(2):
        with timer:
            pass
    with pytest.raises(OSError), timer:
        raise OSError
    with timer:
        pass
    assert (timer.total, timer.failed_total, timer.seconds_total, timer.seconds_max) == (3, 1, 6, 3)


def test_a_recent_maximum_is_that_of_one_window_and_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Source: Kafka, ``metrics.sample.window.ms`` and ``metrics.num.samples``."""
    commits = [(1000, 1005), (1010, 1012), (1040, 1041), (1042, 1044), (1070, 1071), (1195, 1200), (1258, 1259)]
    monkeypatch.setattr("stores.metrics.perf_counter", clock(*[time for commit in commits for time in commit]))
    timer = Timer()
    assert timer.recent_seconds_max(1000) == 0
    recent = []
    for _, ended in commits:
        with timer:
            pass
        recent.append(timer.recent_seconds_max(ended))
    assert recent == [5, 5, 5, 5, 2, 5, 5]
    # The last two are in windows that began at 1200 and at 1230.
    assert [timer.recent_seconds_max(now) for now in (1259.9, 1260, 1289.9, 1290)] == [5, 1, 1, 0]
    assert timer.seconds_max == 5


def test_a_store_that_follows_another_adds_its_totals_and_keeps_the_longer_maximum() -> None:
    first = StoreMetrics(
        store="s",
        backend="b",
        seconds=10.0,
        commit_total=4,
        commit_latency_seconds_total=2.0,
        commit_latency_max_seconds=1.5,
        uncommitted_bytes=7,
        num_open_iterators=2,
        oldest_iterator_open_since_seconds=5.0,
    )
    second = replace(first, seconds=2.0, commit_total=1, commit_latency_max_seconds=0.5, uncommitted_bytes=3)
    both = second.after(first)
    assert both == replace(
        second, seconds=12.0, commit_total=5, commit_latency_seconds_total=4.0, commit_latency_max_seconds=1.5
    )
    assert both.commit_rate == 5 / 12
    assert both.commit_latency_avg_seconds == 4 / 5
    assert both.since(first) == replace(second, commit_latency_max_seconds=1.5)


def test_early_commits_are_a_copy_and_differ_cause_by_cause() -> None:
    counters = TaskCounters()

    def read() -> TaskMetrics:
        return TaskMetrics(application="a", task="0_0", **counters.read())

    counters.committed_early(EarlyCommitCause.EXCEEDED)
    earlier = read()
    counters.committed_early(EarlyCommitCause.EXCEEDED)
    counters.committed_early(EarlyCommitCause.REQUESTED)
    assert earlier.early_commit_total == {"REQUESTED": 0, "EXCEEDED": 1, "PREDICTED": 0, "REPLAY": 0}
    assert read().since(earlier).early_commit_total == {"REQUESTED": 1, "EXCEEDED": 1, "PREDICTED": 0, "REPLAY": 0}


def test_the_oldest_open_iterator_is_the_one_that_was_made_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterator, "time", clock(100.5, 200.0, 300.0))
    with open_store("memory-indexed-batch", "unused") as store:
        scans = [store.all() for _ in range(3)]
        readings = []
        for scan in (scans[1], scans[0], scans[2]):
            readings.append(store.metrics.oldest_iterator_open_since_seconds)
            scan.close()
        assert readings == [100.5, 100.5, 300.0]


@pytest.mark.parametrize("kind", [StoreMetrics, TaskStoreMetrics, TaskMetrics])
def test_every_metric_has_a_description_and_a_kind(kind: type[TaskMetrics | StoreMetrics]) -> None:
    for name, measure in measures(kind).items():
        assert type(measure) is Measure
        assert measure.description
        assert (measure.unit == "s") is name.endswith(("_seconds", "_seconds_total"))
        assert (measure.unit == "By") is name.endswith(("_bytes", "_bytes_total"))
        assert (measure.kind is MetricKind.TOTAL) is name.endswith("_total")
