"""Latencies of a task's stores: histograms at the level DEBUG, and nothing on the way of a call at INFO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog, Record
from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.metrics import LATENCY_BOUNDS_S
from stores.records import BYTES, INT64, Session, TimestampedKeyValue, Versioned, Window, Windowed
from stores.tasks import StreamTask, TaskConfig, TaskContext
from stores.tasks.stores.store_metrics import LatencyHistograms, RecordingLevel
from stores.tests.tasks.setup import MEMORY, Crash, feed, single


def totals(task: StreamTask, store: str = "s") -> dict[str, int]:
    return {name: each.total for name, each in task.metrics.stores[store].operation_latency_seconds.items()}


def calls(record: Record, context: TaskContext) -> None:
    store = context.store("s")
    store.put(b"a", b"1")
    store.put_all([(b"b", b"2")])
    store.put_if_absent(b"c", b"3")
    store.delete(b"c")
    store.delete_range(b"x", b"y")
    assert store.get(b"a") == b"1"
    assert store.get_many([b"a", b"b"]) == [b"1", b"2"]
    assert list(store.range(None, None)) == [(b"a", b"1"), (b"b", b"2")]
    with store.prefix_scan(b"a") as found:
        assert next(found) == (b"a", b"1")
    store.reverse_all().close()


def test_each_call_of_the_function_is_counted_once_at_debug(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, [1, 2])
    with single(tmp_path, log, calls, recording_level="debug") as task:
        task.run(commit=True)
        assert totals(task) == {"get": 4, "put": 10, "scan": 6, "commit": 1}
        for histogram in task.metrics.stores["s"].operation_latency_seconds.values():
            assert histogram.seconds > 0
            assert len(histogram.counts) == len(LATENCY_BOUNDS_S) + 1


def test_a_scan_that_is_used_up_and_closed_counts_once(tmp_path: Path, log: MemoryChangelog) -> None:
    def process(record: Record, context: TaskContext) -> None:
        with context.store("s").all() as pairs:
            assert list(pairs) == list(pairs) == []

    feed(log, [1])
    with single(tmp_path, log, process, recording_level="DEBUG") as task:
        task.run()
        assert totals(task)["scan"] == 1


@pytest.mark.parametrize("level", ["info", RecordingLevel.INFO, None])
def test_at_info_the_function_gets_the_stores_themselves(tmp_path: Path, log: MemoryChangelog, level: Any) -> None:
    """The same objects, of the same types, with the same methods: nothing is measured, and nothing costs anything."""
    feed(log, [1])
    with single(tmp_path, log, calls, **({} if level is None else {"recording_level": level})) as task:
        [inner] = task._stores.logged(task._context).values()
        store = task._context.store("s")
        assert type(store) is type(inner)
        assert store.get.__func__ is type(inner).get
        assert "commit" not in vars(task._stores._stores[0])
        task.run(commit=True)
        assert totals(task) == {}


def test_a_call_that_raises_is_counted_and_its_error_reaches_the_function(tmp_path: Path, log: MemoryChangelog) -> None:
    def process(record: Record, context: TaskContext) -> None:
        with pytest.raises(ValueError, match="key"):
            context.store("s").put(b"", b"v")
        with pytest.raises(TypeError):
            context.store("s").get(7)
        with pytest.raises(ConfigError):
            context.store("other")

    feed(log, [1])
    with single(tmp_path, log, process, recording_level="trace") as task:
        task.run()
        assert totals(task) == {"get": 1, "put": 1, "scan": 0, "commit": 0}


def test_typed_stores_of_every_kind_are_measured(tmp_path: Path, log: MemoryChangelog) -> None:
    def process(record: Record, context: TaskContext) -> None:
        values, windows, sessions = context.store("values"), context.store("windows"), context.store("sessions")
        versions = context.store("versions")
        versions.put(b"k", 1, 5)
        assert versions.get(b"k", 7) == (1, 5)
        assert len(list(versions.get_versions(b"k"))) == 1
        versions.delete(b"k", 9)
        values.put(b"k", 1, 5)
        assert values.get(b"k").value == 1
        assert len(list(values.all())) == 1
        windows.put(b"k", 2, 0)
        assert windows.fetch_one(b"k", 0) == 2
        assert len(list(windows.fetch(b"k", 0, 10))) == 1
        assert len(list(windows.backward_all())) == 1
        sessions.put(Windowed(b"k", 0, 5), 3)
        assert sessions.fetch_session(b"k", 0, 5) == 3
        assert len(list(sessions.find_sessions(b"k", 0, 10))) == 1
        sessions.remove(Windowed(b"k", 0, 5))

    kinds = {
        "values": TimestampedKeyValue(key=BYTES, value=INT64),
        "versions": Versioned(key=BYTES, value=INT64, history_retention_ms=1_000),
        "windows": Window(key=BYTES, value=INT64, size_ms=10, retention_ms=1_000),
        "sessions": Session(key=BYTES, value=INT64, retention_ms=1_000),
    }
    feed(log, [1])
    stores = {name: StoreConfig(MEMORY, records=kind) for name, kind in kinds.items()}
    with single(tmp_path, log, process, stores=stores, recording_level="DEBUG") as task:
        task.run(commit=True)
        assert totals(task, "values") == {"get": 1, "put": 1, "scan": 1, "commit": 1}
        assert totals(task, "versions") == {"get": 1, "put": 2, "scan": 1, "commit": 1}
        assert totals(task, "windows") == {"get": 1, "put": 1, "scan": 2, "commit": 1}
        assert totals(task, "sessions") == {"get": 1, "put": 2, "scan": 1, "commit": 1}


def test_counts_go_on_when_the_task_is_opened_again(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, [1, 2])
    task = single(tmp_path, log, calls, recording_level="DEBUG")
    for commits in (1, 2):
        with task:
            task.run(1)
        assert totals(task)["commit"] == commits
    assert totals(task)["get"] == 4


def test_a_measured_task_rolls_back_what_its_function_wrote(tmp_path: Path, log: MemoryChangelog) -> None:
    def process(record: Record, context: TaskContext) -> None:
        context.store("s").put(b"k", b"v")
        raise Crash

    feed(log, [1])
    with single(tmp_path, log, process, recording_level="DEBUG", on_error="skip") as task:
        task.run(commit=True)
        assert list(task.store("s").all()) == []
        assert totals(task)["put"] == 1


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, 0), (1e-6, 0), (1.1e-6, 1), (2.5e-6, 1), (1e-3, 9), (5.0, 20), (5.1, 21), (1e9, 21)]
)
def test_a_duration_is_in_the_bucket_whose_bound_it_does_not_exceed(seconds: float, bucket: int) -> None:
    latencies = LatencyHistograms()
    latencies.record("get", seconds)
    histogram = latencies.read()["get"]
    assert [number for number, count in enumerate(histogram.counts) if count] == [bucket]
    assert histogram.seconds == seconds


def test_the_property_has_kafkas_values(tmp_path: Path) -> None:
    properties = {"application.id": "a", "state.dir": str(tmp_path)}
    for text in ("INFO", "debug", "TRACE"):
        config = TaskConfig.from_properties({**properties, "metrics.recording.level": text})
        assert config.recording_level is RecordingLevel[text.upper()]
    with pytest.raises(ConfigError, match="INFO, DEBUG, TRACE"):
        TaskConfig.from_properties({**properties, "metrics.recording.level": "loud"})
    with pytest.raises(ConfigError):
        single(tmp_path, MemoryChangelog(), calls, recording_level="loud")
