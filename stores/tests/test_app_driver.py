"""``AppDriver``: an application in a test, without a broker."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from stores import ConfigError, StoreClosedError
from stores.changelog import Record
from stores.config import StoreConfig
from stores.errors import ChangelogError, DeserializationError
from stores.records import (
    INT64,
    STR,
    KeyValue,
    RecordKind,
    Session,
    TimestampedKeyValue,
    TimestampedKeyValueWithHeaders,
    Versioned,
    Window,
)
from stores.registry import backends
from stores.tasks import Batch, DeadLetterTopic, GlobalStore, PunctuationType, StreamTask, TaskContext, TaskId
from stores.testing import AppDriver
from stores.worker import Application, Processor, Topic

COUNTS = KeyValue(key=STR, value=INT64, name="counts")


def split(record: Record, context: TaskContext) -> None:
    for word in (record.value or b"").split():
        context.forward("words", word, b"")


def count(record: Record, context: TaskContext) -> None:
    word = (record.key or b"").decode()
    if word == "poison":
        raise ValueError(word)
    total = context.store(COUNTS).update(word, lambda number: number + 1, 0)
    context.forward("counted", record.key, b"%d" % total)


COUNTING = Processor(["words"], count, [COUNTS])
APP = Application("word-count", [COUNTING, Processor(["lines"], split)], topics={"lines": 4, "words": 4, "counted": 4})


def counted(driver: AppDriver) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in driver.read("counted")]


def test_a_record_passes_through_all_sub_topologies_before_pipe_returns() -> None:
    with AppDriver(APP) as driver:
        driver.pipe("lines", None, b"to be to")
        assert counted(driver) == [(b"to", b"1"), (b"be", b"1"), (b"to", b"2")]
        assert counted(driver) == []
        driver.pipe("words", b"be", b"")
        assert counted(driver) == [(b"be", b"2")]
        assert dict(driver.store(COUNTS).all()) == {"to": 2, "be": 2} == dict(driver.store("counts").all())


def test_a_record_comes_with_its_time_its_headers_and_the_partition_of_its_key() -> None:
    seen: list[tuple[int, Record]] = []

    def see(record: Record, context: TaskContext) -> None:
        seen.append((context.partition.partition, record))

    with AppDriver(Processor(["input"], see), partitions=4, now_ms=1_000) as driver:
        driver.pipe("input", b"foobar", b"1")
        driver.pipe("input", b"foobar", b"2", 5, (("h", b"v"),), partition=3)
        driver.pipe("input", None, None, 6)
    assert seen == [
        (2, Record(0, b"foobar", b"1", 1_000)),
        (3, Record(0, b"foobar", b"2", 5, (("h", b"v"),))),
        (0, Record(0, None, None, 6)),
    ]


def test_records_that_are_piped_together_come_in_batches_that_grow_by_eight() -> None:
    seen: list[tuple[int, list[Record[str, int]]]] = []
    numbers = Topic("numbers", key=STR, value=INT64)

    def see(batch: Batch[str, int], context: TaskContext) -> None:
        seen.append((context.partition.partition, list(batch)))

    headers = [(("h", b"%d" % number),) for number in range(11)]
    with AppDriver(Processor([numbers], process_batch=see), partitions=4) as driver:
        driver.pipe_many(numbers, ["foobar"] * 10 + [None], [*range(10), None], range(11), headers)
    records = [Record(at, "foobar", at, at, headers[at]) for at in range(10)]
    assert seen == [
        (0, [Record(0, None, None, 10, headers[10])]),
        (2, records[:1]),
        (2, records[1:9]),
        (2, records[9:]),
    ]


def test_records_that_are_piped_together_have_the_time_of_the_driver_and_the_chosen_partition() -> None:
    seen: list[tuple[int, Record]] = []

    def see(record: Record, context: TaskContext) -> None:
        seen.append((context.partition.partition, record))

    with AppDriver(Processor(["input"], see), partitions=4, now_ms=1_000) as driver:
        driver.pipe_many("input", [b"foobar", None], [None, b"2"], partition=3)
        driver.pipe_many("input", [], [])
    assert seen == [(3, Record(0, b"foobar", None, 1_000)), (3, Record(1, None, b"2", 1_000))]


def test_with_several_partitions_each_task_has_a_store_of_its_own() -> None:
    with AppDriver(APP, partitions=4) as driver:
        driver.pipe("lines", None, b"to be or not to be")
        stores = [dict(driver.store(COUNTS, number).all()) for number in range(4)]
        assert sorted(pair for store in stores for pair in store.items()) == [
            ("be", 2),
            ("not", 1),
            ("or", 1),
            ("to", 2),
        ]
        assert sum(map(bool, stores)) > 1
        for partition in (None, 4, -1):
            with pytest.raises(ConfigError):
                driver.store(COUNTS, partition)


def test_an_exception_of_the_function_is_raised_and_rolls_back_what_its_transaction_did() -> None:
    with AppDriver(APP) as driver:
        driver.pipe("lines", None, b"to")
        for _ in range(2):  # The record is still there, as it is for a worker.
            with pytest.raises(ValueError, match="poison"):
                driver.pipe("lines", None, b"be poison")
            assert dict(driver.store(COUNTS).all()) == {"to": 1}
        assert counted(driver) == [(b"to", b"1")]


@pytest.mark.parametrize(
    ("on_error", "letters"), [("skip", {}), (DeadLetterTopic("dead"), {"dead": [b"poison"]})], ids=["skip", "dead"]
)
def test_on_error_works_as_in_a_worker(on_error: Any, letters: Mapping[str, list[bytes]]) -> None:
    counting = Processor(["words"], count, [COUNTS], on_error=on_error)
    with AppDriver(counting, topics=["counted"]) as driver:
        driver.pipe("words", b"poison", b"")
        driver.pipe("words", b"be", b"")
        assert counted(driver) == [(b"be", b"1")]
        assert driver.tasks[TaskId(0, 0)].metrics.skipped_total == 1
        assert {topic: [record.key for record in driver.read(topic)] for topic in letters} == letters


def reporting(kind: PunctuationType) -> Application:
    """An application that sends a report to the input of another function, whose task has its turn before."""

    def init(context: TaskContext) -> None:
        context.schedule(1_000, kind, lambda time_ms: context.forward("words", b"%d" % time_ms, b""))

    reports = Processor(["input"], lambda record, context: None, init=init)
    return Application("reports", [COUNTING, reports], topics={"counted": 1})


def test_punctuators_by_wall_clock_run_when_the_clock_is_moved_and_never_by_themselves() -> None:
    with AppDriver(reporting(PunctuationType.WALL_CLOCK_TIME), now_ms=50) as driver:
        driver.pipe("input", b"", b"", 100_000)
        driver.advance(999)
        assert counted(driver) == []
        driver.advance(1)
        assert counted(driver) == [(b"1050", b"1")]
        driver.advance(2_500)
        assert counted(driver) == [(b"3550", b"1")]
        assert driver.now_ms == 3_550


def test_punctuators_by_stream_time_run_when_a_timestamp_reaches_them() -> None:
    with AppDriver(reporting(PunctuationType.STREAM_TIME)) as driver:
        for time_ms in (100, 999, 1_000, 3_500):
            driver.pipe("input", b"", b"", time_ms)
        driver.advance(100_000)
        assert [key for key, _ in counted(driver)] == [b"100", b"1000", b"3500"]


KINDS: Mapping[str, tuple[RecordKind | None, Callable[[Any, str, int], None]]] = {
    "bytes": (None, lambda store, key, time_ms: store.put(key.encode(), b"%d" % time_ms)),
    "key-value": (KeyValue(key=STR, value=INT64), lambda store, key, time_ms: store.put(key, time_ms)),
    "timestamped": (
        TimestampedKeyValue(key=STR, value=INT64, ttl_ms=100),
        lambda store, key, time_ms: store.put(key, time_ms, time_ms),
    ),
    "headers": (
        TimestampedKeyValueWithHeaders(key=STR, value=INT64, ttl_ms=100),
        lambda store, key, time_ms: store.put(key, time_ms, time_ms, (("time", b"%d" % time_ms), ("none", None))),
    ),
    "versioned": (
        Versioned(key=STR, value=INT64, history_retention_ms=100),
        lambda store, key, time_ms: store.put(key, time_ms, time_ms),
    ),
    "window": (
        Window(key=STR, value=INT64, size_ms=10, retention_ms=100),
        lambda store, key, time_ms: store.update(key, time_ms, lambda number: (number or 0) + 1),
    ),
    "window with headers": (
        Window(key=STR, value=INT64, size_ms=10, retention_ms=100, headers=True),
        lambda store, key, time_ms: store.update(
            key, time_ms, lambda number: (number or 0) + 1, headers=(("time", b"%d" % time_ms),)
        ),
    ),
    "session with headers": (
        Session(key=STR, value=INT64, retention_ms=100, headers=True),
        lambda store, key, time_ms: store.merge(
            key, time_ms, 10, lambda parts: sum(parts) + 1, headers=(("time", b"%d" % time_ms),)
        ),
    ),
    "session": (
        Session(key=STR, value=INT64, retention_ms=100),
        lambda store, key, time_ms: store.merge(key, time_ms, 10, lambda parts: sum(parts) + 1),
    ),
}


def content(store: Any) -> list[tuple[object, object]]:
    with store.fetch_range(None, None) if hasattr(store, "find_sessions") else store.all() as pairs:
        return list(pairs)


@pytest.mark.parametrize("backend", sorted(backends()))
@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_brings_back_the_same_state_from_the_changelog_alone(kind: str, backend: str) -> None:
    records, write = KINDS[kind]

    def process(record: Record, context: TaskContext) -> None:
        write(context.store("s"), (record.key or b"").decode(), record.timestamp_ms)

    with AppDriver(Processor(["input"], process, {"s": StoreConfig(backend, records=records)})) as driver:
        for number in range(20):
            driver.pipe("input", b"%d" % (number % 3), b"", number * 9)
        before = content(driver.store("s"))
        driver.restart()
        assert content(driver.store("s")) == before != []
        driver.pipe("input", b"0", b"", 200)
        assert content(driver.store("s")) != before


def test_stores_are_of_the_backend_of_the_properties_and_in_memory_by_default() -> None:
    for properties, backend in (({}, "memory-indexed-batch"), ({"store.backend": "lmdb"}, "lmdb-indexed-batch")):
        with AppDriver(COUNTING, properties, topics=["counted"]) as driver:
            assert driver.tasks[TaskId(0, 0)].metrics.stores["counts"].backend == backend


def test_a_global_store_has_what_is_piped_to_its_topic() -> None:
    prices = KeyValue(key=STR, value=INT64, name="prices")

    def price(record: Record, context: TaskContext) -> None:
        context.forward("priced", record.key, b"%d" % (context.global_store(prices).get("apple") or 0))

    described = GlobalStore("p", prices, on_deserialization_error="skip")
    app = Application("shop", Processor(["orders"], price), topics={"priced": 1}, global_stores={"prices": described})
    with AppDriver(app) as driver:
        driver.pipe("p", b"apple", b"seven")
        driver.pipe("orders", b"1", b"")
        driver.pipe("p", b"apple", INT64.serialize(7))
        driver.restart()
        driver.pipe("orders", b"2", b"")
        assert [(record.key, record.value) for record in driver.read("priced")] == [(b"1", b"0"), (b"2", b"7")]
        assert driver.store(prices).get("apple") == 7


def test_nothing_is_left_behind_and_no_thread_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    threads, files = threading.enumerate(), len(os.listdir("/proc/self/fd"))
    with AppDriver(APP, {"store.backend": "sqlite"}) as driver:
        driver.pipe("lines", None, b"to be")
        assert threading.enumerate() == threads
        driver.restart()
    assert len(os.listdir("/proc/self/fd")) == files
    with pytest.raises(ConfigError), AppDriver(Processor(["input"], split, init=lambda context: context.store("none"))):
        raise AssertionError
    with pytest.raises(ValueError, match="poison"), AppDriver(APP) as driver:
        driver.pipe("words", b"poison", b"")
    assert list(tmp_path.iterdir()) == []
    for call in (lambda: driver.read("words"), lambda: driver.pipe("words", b"", b""), driver.restart):
        with pytest.raises(StoreClosedError):
            call()
    driver.close()


def test_the_folder_of_a_workers_properties_is_not_touched(tmp_path: Path) -> None:
    properties = {"state.dir": str(tmp_path), "application.id": "other", "store.backend": "rocksdb"}
    with AppDriver(APP, properties) as driver:
        driver.pipe("lines", None, b"to")
        assert list(tmp_path.iterdir()) == []
        assert {task.application_id for task in driver.tasks.values()} == {"word-count"}


def test_the_tasks_are_those_of_a_worker() -> None:
    with AppDriver(APP) as driver:
        assert {task_id: type(task) for task_id, task in driver.tasks.items()} == {
            TaskId(0, 0): StreamTask,
            TaskId(1, 0): StreamTask,
        }


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda driver: driver.pipe("counted", b"", b""), ConfigError),
        (lambda driver: driver.pipe("missing", b"", b""), ConfigError),
        (lambda driver: driver.pipe("words", "text", b""), TypeError),
        (lambda driver: driver.pipe("words", b"", b"", -2), ValueError),
        (lambda driver: driver.pipe_many("missing", [], []), ConfigError),
        (lambda driver: driver.pipe_many("words", [b"be", "text"], [b"", b""]), TypeError),
        (lambda driver: driver.pipe_many("words", [b"be", b"or"], [b""]), ValueError),
        (lambda driver: driver.pipe_many("words", [b"be", b"or"], [b"", b""], [1, -2]), ValueError),
        (lambda driver: driver.pipe_many("words", [b"be", b"or"], [b"", b""], None, [()]), ValueError),
        (lambda driver: driver.pipe_many(Topic("words", key=STR, value=STR), ["be", "or"], ["", 1]), TypeError),
        (lambda driver: driver.pipe_many("words", [b"be"], [b""], partition=4), ChangelogError),
        (lambda driver: driver.read("missing"), ConfigError),
        (lambda driver: driver.store("missing"), ConfigError),
        (lambda driver: driver.store(KeyValue(key=STR, value=STR, name="counts")), ConfigError),
        (lambda driver: driver.store(KeyValue(key=STR, value=INT64)), ConfigError),
        (lambda driver: driver.store(1), TypeError),
        (lambda driver: driver.advance(-1), ConfigError),
        (lambda driver: AppDriver(APP, {"nope": "1"}), ConfigError),
        (lambda driver: AppDriver(APP, partitions=0), ConfigError),
        (lambda driver: AppDriver(cast(Any, "word_count:app")), TypeError),
    ],
)
def test_a_wrong_call_is_refused_and_changes_nothing(call: Callable[[AppDriver], Any], error: type[Exception]) -> None:
    with AppDriver(APP) as driver:
        with pytest.raises(error):
            call(driver)
        driver.pipe("lines", None, b"to")
        assert counted(driver) == [(b"to", b"1")]


@pytest.mark.parametrize("topics", ["counted", Topic("counted", key=STR, value=STR), None, 5])
def test_further_topics_are_a_list(topics: Any) -> None:
    with pytest.raises(TypeError):
        AppDriver(COUNTING, topics=topics)


def test_topics_have_their_serdes_in_the_driver_as_in_a_worker() -> None:
    lines, counted = Topic("lines", key=STR, value=STR), Topic("counted", key=STR, value=INT64)
    failed = DeadLetterTopic("failed")

    def count_line(record: Record[str, str], context: TaskContext) -> None:
        for word in (record.value or "").split():
            context.forward(counted, word, context.store(COUNTS).update(word, lambda number: number + 1, 0))

    processor = Processor([lines], count_line, [COUNTS], on_deserialization_error=failed)
    with AppDriver(processor, topics=[counted]) as driver:
        driver.pipe(lines, "first", "to be")
        driver.pipe("lines", b"second", b"\xff")
        driver.pipe(lines, "third", None)
        with pytest.raises(TypeError):
            driver.pipe(lines, "fourth", 4)  # type: ignore[misc]
        assert [(each.key, each.value) for each in driver.read(counted)] == [("to", 1), ("be", 1)]
        assert [each.value for each in driver.read("failed")] == [b"\xff"]
        driver.pipe(lines, None, "be")
        with pytest.raises(DeserializationError):
            driver.read(Topic("counted", key=INT64, value=INT64))
        assert [each.value for each in driver.read("counted")] == [INT64.serialize(2)]
