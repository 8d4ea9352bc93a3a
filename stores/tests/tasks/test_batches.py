"""``process_batch``: many records at a time, with what is promised for one. The other suites run over both forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stores.changelog import Changelog, MemoryChangelog, Record
from stores.changelog.interface import new_record
from stores.config import StoreConfig
from stores.errors import ChangelogError, ConfigError, StoreError
from stores.interface import TopicPartition
from stores.records import INT64, JSON, STR
from stores.tasks import Batch, MemoryBudget, PunctuationType, TaskContext, Topic
from stores.tasks.context import BatchFunction
from stores.tests.tasks.hand_clock import HandClock
from stores.tests.tasks.setup import (
    HEADERS,
    INDEXED,
    INPUT,
    MEMORY,
    OUTPUT,
    WORDS,
    batch_task,
    counting_task,
    feed,
    outputs,
    over_each_changelog,
    send,
    single,
)

OTHER = TopicPartition("other", 0)


def sizes_of(folder: Path, log: Any, count: int, **settings: Any) -> list[int]:
    """Return the sizes of the batches of ``count`` records."""
    sizes: list[int] = []
    feed(log, range(count))
    with batch_task(folder, log, lambda batch, context: sizes.append(len(batch)), **settings) as task:
        assert task.run(commit=True) == count
    return sizes


# The batch


@pytest.mark.parametrize("topic", [None, WORDS])
def test_a_batch_has_its_records_and_a_column_for_each_of_their_parts(topic: Any) -> None:
    key, value = (b"a", INT64.serialize(7)) if topic is None else ("a", 7)
    raw = [Record(3, b"a", INT64.serialize(7), 10, HEADERS), Record(4, None, None), Record(9, b"a", None, 5)]
    expected = [Record(3, key, value, 10, HEADERS), Record(4, None, None), Record(9, key, None, 5)]
    batch = Batch[Any, Any](INPUT, raw, topic)
    assert (batch.keys, batch.values) == ([key, None, key], [value, None, None])
    assert (batch.offsets, batch.timestamps_ms, batch.headers) == ([3, 4, 9], [10, -1, 5], [HEADERS, (), ()])
    assert list(batch) == expected == [batch[number] for number in range(3)]
    assert all(type(record) is Record for record in batch)
    assert (len(batch), batch[-1], batch.partition) == (3, expected[2], INPUT)
    part = batch[1:]
    assert isinstance(part, Batch)
    assert (list(part), part.keys, part.offsets) == (expected[1:], [None, key], [4, 9])
    assert "offsets 3 to 9 of input-0" in repr(batch)


class Counting:
    """Text as UTF-8, which counts what it has read."""

    name, keeps_order, keeps_prefixes = "counting", True, True

    def __init__(self) -> None:
        self.read = 0

    def serialize(self, value: str, /) -> bytes:
        return value.encode()

    def deserialize(self, data: bytes, /) -> str:
        self.read += 1
        return data.decode()


def test_a_column_is_read_once_and_only_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, values = Counting(), Counting()
    raw = [Record(number, b"k", b"v", number) for number in range(10)]
    made: list[Any] = []
    real = new_record

    def noted(columns: Any) -> Record[Any, Any]:
        made.append(columns)
        return real(columns)

    monkeypatch.setattr("stores.tasks.record_batch.new_record", noted)
    batch = Batch[str, str](INPUT, raw, Topic("input", key=keys, value=values))
    assert batch.timestamps_ms == batch.offsets == list(range(10))
    assert (keys.read, values.read) == (0, 0)
    assert batch.keys == batch.keys == ["k"] * 10
    assert (keys.read, values.read, made) == (10, 0, [])
    assert batch[:5].keys == ["k"] * 5
    assert [record.value for record in batch] == [record.value for record in batch] == ["v"] * 10
    assert (keys.read, values.read, len(made)) == (10, 10, 10)


@pytest.mark.parametrize(
    ("topic", "types"),
    [
        (None, [pa.binary(), pa.binary()]),
        (WORDS, [pa.string(), pa.int64()]),
        (Topic("input", key=STR, value=JSON), [pa.string(), pa.struct([("n", pa.int64())])]),
    ],
)
def test_a_batch_is_a_table_of_arrow(topic: Any, types: list[Any]) -> None:
    value = b'{"n":7}' if topic is not None and topic.value is JSON else INT64.serialize(7)
    table = Batch[Any, Any](INPUT, [Record(3, b"a", value, 10, HEADERS), Record(4, None, None)], topic).table()
    assert table.column_names == ["offset", "key", "value", "timestamp_ms", "headers"]
    assert table.schema.types[:4] == [pa.int64(), *types, pa.int64()]
    [row, empty] = table.to_pylist()
    assert (row["offset"], row["timestamp_ms"], row["headers"]) == (3, 10, [{"key": "own", "value": b"1"}])
    assert row["value"] == (value if topic is None else {"n": 7} if topic.value is JSON else 7)
    assert empty == {"offset": 4, "key": None, "value": None, "timestamp_ms": -1, "headers": []}


def test_a_table_of_values_that_arrow_has_no_type_for_is_refused() -> None:
    raw = [Record(0, b"a", b'"text"'), Record(1, b"a", b"[1]")]
    with pytest.raises(TypeError):
        Batch[Any, Any](INPUT, raw, Topic("input", key=STR, value=JSON)).table()


# The function


@pytest.mark.parametrize(
    ("functions", "error"),
    [
        ({}, TypeError),
        ({"process": lambda record, context: None, "process_batch": lambda batch, context: None}, ConfigError),
        ({"process_batch": lambda batch: None}, TypeError),
        ({"process_batch": 5}, TypeError),
        ({"process_batch": lambda batch, context: None, "batch_max_records": 0}, ConfigError),
        ({"process_batch": lambda batch, context: None, "batch_max_bytes": "1"}, TypeError),
    ],
)
def test_a_task_has_one_function(
    tmp_path: Path, log: MemoryChangelog, functions: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        counting_task(tmp_path, log, **{"process": None, **functions})


def test_the_context_of_a_batch_has_its_partition_its_end_and_its_highest_time(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    seen: list[tuple[Any, ...]] = []

    def process_batch(batch: Batch, context: TaskContext) -> None:
        seen.append((context.partition, context.offset, context.timestamp_ms, context.stream_time_ms, len(batch)))
        context.store("s").put(b"k", b"v")
        context.forward("output", b"k", b"v")

    send(log, [(b"a", b"", time_ms) for time_ms in (9, 5, 8, 3)])
    with batch_task(tmp_path, log, process_batch) as task:
        task.run()
    assert seen == [(INPUT, 0, 9, 9, 1), (INPUT, 3, 8, 9, 3)]
    assert [record.timestamp_ms for record in log.read(OUTPUT)] == [9, 8]
    assert [record.timestamp_ms for record in log.read(TopicPartition("app-s-changelog", 0))] == [9, 8]


def test_a_record_that_is_given_by_itself_is_a_batch_of_one(tmp_path: Path, log: MemoryChangelog) -> None:
    seen: list[list[Record]] = []
    with batch_task(tmp_path, log, lambda batch, context: seen.append(list(batch))) as task:
        task.process(INPUT, Record(5, b"a", b"b", 7))
        task.process_all(INPUT, [Record(number, b"a", b"b") for number in range(6, 10)])
        assert task.input_offsets() == {INPUT: 10}
        with pytest.raises(ValueError, match="processed before"):
            task.process_all(INPUT, [Record(9, b"a", b"b"), Record(10, b"a", b"b")])
        assert task.input_offsets() == {INPUT: 10}
    assert [[record.offset for record in records] for records in seen] == [[5], [6, 7, 8, 9]]


@over_each_changelog
def test_a_function_of_batches_may_not_commit_or_run_its_own_task(tmp_path: Path, log: Changelog) -> None:
    committed: list[Any] = []

    def process_batch(batch: Batch, context: TaskContext) -> None:
        for call in (task.commit, task.run, lambda: task.process_all(INPUT, [Record(99, None, None)])):
            with pytest.raises(StoreError):
                call()
        committed.append(log.committed_offsets("app"))
        context.commit()

    feed(log, range(9))
    task = batch_task(tmp_path, log, process_batch)
    with task:
        assert task.run() == 9
        assert task.metrics.early_commit_total["REQUESTED"] == 2
    assert committed == [{}, {INPUT: 1}]


# Its size


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1, 8, 64, 27]),
        ({"batch_max_records": 30}, [1, 8, 30, 30, 30, 1]),
        ({"commit_every_records": 10}, [1, 8, 1] + 9 * [10]),
        ({"batch_max_bytes": 12}, [1, 6, 5, *[4] * 22]),
        ({"commit_interval_ms": 0}, 100 * [1]),
    ],
)
def test_a_batch_ends_at_the_first_of_its_bounds(
    tmp_path: Path, log: MemoryChangelog, settings: dict[str, int], expected: list[int]
) -> None:
    """The first ten records have 2 bytes each, the others 3."""
    assert sizes_of(tmp_path, log, 100, **settings) == expected


def test_a_record_larger_than_a_batch_may_be_is_a_batch_by_itself(tmp_path: Path, log: MemoryChangelog) -> None:
    sizes: list[int] = []
    send(log, [(b"k", b"x" * size, 1) for size in (1, 1, 1, 500, 1, 500, 500, 1)])
    with batch_task(tmp_path, log, lambda batch, context: sizes.append(len(batch)), batch_max_bytes=100) as task:
        assert task.run() == 8
    assert sizes == [1, 2, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("kind", list(PunctuationType))
def test_a_batch_ends_before_what_is_due_by_time(tmp_path: Path, log: MemoryChangelog, kind: PunctuationType) -> None:
    """A record takes 3 ms: the punctuator is called at each 30 ms, as it is for single records."""

    def called(folder: str, *, batches: bool) -> tuple[list[tuple[int, int]], int]:
        clock, calls, offsets = HandClock(), [], [-1]

        def process(record: Record, context: TaskContext) -> None:
            clock.advance(3)
            offsets.append(record.offset)

        def init(context: TaskContext) -> None:
            context.schedule(30, kind, lambda time_ms: calls.append((time_ms, offsets[-1])))

        settings: dict[str, Any] = {"clock": clock, "commit_interval_ms": 50, "init": init, "batches": batches}
        with MemoryChangelog() as own:
            feed(own, [])
            send(own, [(b"k", b"v", 3 * number) for number in range(100)])
            with single(tmp_path / folder, own, process, **settings) as task:
                assert task.run() == 100
                return calls, task.metrics.commit_total

    assert called("batches", batches=True) == called("records", batches=False)


@pytest.mark.parametrize("limit", ["memory", "replay"])
def test_a_batch_is_cut_before_a_limit_and_not_after_it(tmp_path: Path, log: MemoryChangelog, limit: str) -> None:
    """Each record writes 1,000 bytes, more than it has. 20 of them fit."""
    staged: list[int] = []
    max_bytes = 20_000 + 20 * 250

    def process_batch(batch: Batch, context: TaskContext) -> None:
        for offset in batch.offsets:
            context.store("s").put(b"%d" % offset, b"x" * 1_000)
        staged.append(task.uncommitted_memory_bytes() if limit == "memory" else task.uncommitted_bytes())

    backend = StoreConfig(MEMORY if limit == "memory" else INDEXED)
    settings: dict[str, Any] = {"stores": {"s": backend}, "memory": MemoryBudget(max_bytes).share()}
    if limit == "replay":
        settings = {"stores": {"s": StoreConfig(INDEXED, restore_max_bytes=max_bytes)}}
    feed(log, range(300))
    task = batch_task(tmp_path, log, process_batch, batch_max_records=12, **settings)
    with task:
        assert task.run() == 300
        early = task.metrics.early_commit_total
    assert max(staged) <= max_bytes
    assert len(staged) < 60
    assert early["EXCEEDED"] == 0
    # 15, if each has all that fits, which is more than one batch.
    assert 10 <= early["PREDICTED" if limit == "memory" else "REPLAY"] <= 20


def test_batches_grow_again_after_one_that_wrote_much(tmp_path: Path, log: MemoryChangelog) -> None:
    sizes: list[int] = []

    def process_batch(batch: Batch, context: TaskContext) -> None:
        sizes.append(len(batch))
        if batch.offsets[0] == 0:
            context.store("s").put(b"k", b"x" * 900_000)

    feed(log, range(8_000))
    settings = {"memory": MemoryBudget(1_000_000).share(), "commit_every_records": 2_000}
    with batch_task(tmp_path, log, process_batch, **settings) as task:
        assert task.run() == 8_000
    assert sizes[:2] == [1, 1]
    assert max(sizes) >= 900
    assert len(sizes) < 150


@pytest.mark.parametrize("slice_records", [3, 100])
def test_a_batch_has_one_input_and_the_earliest_record_of_all_is_next(
    tmp_path: Path, log: MemoryChangelog, slice_records: int
) -> None:
    log.create_topic("other")
    send(log, [(b"k", b"v", time_ms) for time_ms in (1, 2, 3, 10, 11, 30)])
    send(log, [(b"k", b"v", time_ms) for time_ms in (4, 5, 6, 7, 20)], OTHER)
    seen: list[tuple[str, list[int]]] = []
    function: BatchFunction = lambda batch, context: seen.append((batch.partition.topic, list(batch.timestamps_ms)))  # noqa: E731
    with batch_task(tmp_path, log, function, inputs=[INPUT, OTHER]) as task:
        while task.run(slice_records):
            pass
    assert [time_ms for _, times_ms in seen for time_ms in times_ms] == [1, 2, 3, 4, 5, 6, 7, 10, 11, 20, 30]
    assert all(set(times_ms) <= {4, 5, 6, 7, 20} for topic, times_ms in seen if topic == "other")
    assert max(len(times_ms) for _, times_ms in seen) == min(slice_records, 4)


# Outputs


def test_many_outputs_are_those_of_forward(tmp_path: Path, log: MemoryChangelog) -> None:
    log.create_topic("wide", 4)
    wide = Topic("wide", key=STR, value=INT64)
    keys, values, times = ["a", "b", None, "d", "a"], [1, 2, 3, None, 5], [7, -1, 9, 1, 2]

    def one_by_one(batch: Batch, context: TaskContext) -> None:
        for key, value, time_ms in zip(keys, values, times, strict=True):
            context.forward(wide, key, value, time_ms)
            context.forward(wide, key, value, headers=HEADERS, partition=1)

    def at_once(batch: Batch, context: TaskContext) -> None:
        context.forward_many(wide, keys, values, times)
        context.forward_many(wide, keys, values, headers=[HEADERS] * 5, partition=1)
        context.forward_many("output", [], [])

    def sent(folder: str, function: BatchFunction) -> list[list[Record]]:
        with MemoryChangelog() as own:
            feed(own, [3])
            own.create_topic("wide", 4)
            with batch_task(tmp_path / folder, own, function) as task:
                task.run()
            records = [own.read(TopicPartition("wide", number)) for number in range(4)]
            return [sorted((record._replace(offset=0) for record in each), key=repr) for each in records]

    def in_arrow(batch: Batch, context: TaskContext) -> None:
        columns = pa.array(keys), pa.chunked_array([values])
        context.forward_many(wide, *columns, pa.array(times))
        context.forward_many(wide, *columns, headers=[HEADERS] * 5, partition=1)

    assert sent("many", at_once) == sent("arrow", in_arrow) == sent("one", one_by_one)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("output", [b"a", "b"], [b"1", b"2"]), TypeError),
        (("output", [b"a"], [b"1", b"2"]), ValueError),
        (("output", [b"a", b"b"], [b"1", b"2"], [1, -2]), ValueError),
        (("output", [b"a", b"b"], [b"1", b"2"], [1, "2"]), TypeError),
        (("output", [b"a", b"b"], [b"1", b"2"], None, [(), (("h", "text"),)]), TypeError),
        ((Topic("output", key=STR, value=INT64), ["a", "b"], [1, "2"]), TypeError),
        (("nowhere", [b"a"], [b"1"]), ChangelogError),
        (("output", [b"a"], [b"1"], None, None, 0, "murmur2"), TypeError),
    ],
)
def test_many_outputs_of_which_one_is_refused_are_not_sent(
    tmp_path: Path, log: MemoryChangelog, arguments: tuple[Any, ...], error: type[Exception], on_error: str
) -> None:
    def process_batch(batch: Batch, context: TaskContext) -> None:
        with pytest.raises(error):
            context.forward_many(*arguments)
        context.forward("output", b"after", None)

    feed(log, [1])
    with batch_task(tmp_path, log, process_batch, on_error=on_error) as task:
        task.run()
    assert outputs(log) == [(b"after", None)]


def test_many_outputs_that_are_sent_in_part_are_never_committed(tmp_path: Path, log: MemoryChangelog) -> None:
    def process_batch(batch: Batch, context: TaskContext) -> None:
        with pytest.raises(ChangelogError):
            context.forward_many("output", [b"a"], [b"1"], partition=5)

    feed(log, [1])
    task = batch_task(tmp_path, log, process_batch)
    task.open()
    with pytest.raises(ChangelogError):
        task.run()
    with pytest.raises(StoreError):
        contexts = task._context
        contexts.forward_many("output", [b"a"], [b"1"])
    assert task.input_offsets() == {INPUT: 0}
    task.close(clean=False)


def test_a_record_that_was_processed_before_is_refused_within_a_batch_too(tmp_path: Path, log: MemoryChangelog) -> None:
    log.create_topic("input")
    seen: list[int] = []
    with batch_task(tmp_path, log, lambda batch, context: seen.extend(batch.offsets)) as task:
        task.process_all(INPUT, [Record(0, b"k", b"v")])
        with pytest.raises(ValueError, match=r"record 3 of .* was processed before: the next one is 10"):
            task.process_all(INPUT, [Record(offset, b"k", b"v") for offset in (1, 9, 3, 4)])
        assert (seen, task.input_offsets()) == ([0, 1, 9], {INPUT: 10})
        with pytest.raises(ValueError, match="record 10 of"):
            task.process_all(INPUT, [Record(offset, b"k", b"v") for offset in (10, 10)])
        assert (seen, task.input_offsets()) == ([0, 1, 9, 10], {INPUT: 11})


class Sliced(list[Record]):
    """Records that count how many of them were copied."""

    copied = 0

    def __getitem__(self, index: Any) -> Any:
        result = super().__getitem__(index)
        self.copied += len(result) if isinstance(index, slice) else 0
        return result


@pytest.mark.parametrize("count", [100, 1_000])
def test_records_are_copied_once_however_small_their_batches_are(
    tmp_path: Path, log: MemoryChangelog, count: int
) -> None:
    log.create_topic("input")
    records = Sliced(Record(offset, b"k", b"v") for offset in range(count))
    with batch_task(tmp_path, log, lambda batch, context: None, batch_max_records=1) as task:
        task.process_all(INPUT, records)
        assert task.input_offsets() == {INPUT: count}
    assert records.copied == count


def test_of_several_inputs_no_more_is_held_than_the_bytes_of_a_batch(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("other")
    send(log, [(b"k", b"v" * 99, time_ms) for time_ms in range(300)])
    pieces: list[int] = []
    with batch_task(tmp_path, log, lambda batch, context: None, inputs=[INPUT, OTHER], batch_max_bytes=1_000) as task:
        process_all = task._input_loop._process_all

        def noted(partition: TopicPartition, records: Any) -> None:
            pieces.append(len(records))
            process_all(partition, records)

        monkeypatch.setattr(task._input_loop, "_process_all", noted)
        assert task.run(commit=True) == 300
    assert max(pieces) == 10
