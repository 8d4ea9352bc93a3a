"""The function of a stream task over the rows of a stateful query: outputs and stores as in the task itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from stores.changelog import MemoryChangelog
from stores.changelog.interface import Record
from stores.config import StoreConfig
from stores.errors import ConfigError, DeserializationError, StoreError
from stores.interface import TopicPartition
from stores.records import INT64, STR
from stores.spark import task
from stores.spark.context import TIMES
from stores.spark.plan import PARTITION_COLUMN, Plan, QueryBatch
from stores.spark.record_wise import BatchWise, RecordContext, RecordWise, checked_output, topics_by_name
from stores.tasks import StreamTask, TaskContext, TaskId, Topic
from stores.tests.spark.batches import COLUMNS, KINDS, OUTPUT
from stores.tests.spark.counting import QUERY, close_all, plan
from stores.tests.spark.test_timers import make_checkpoint
from stores.tests.tasks.setup import in_batches, over_both_forms

INPUT = TopicPartition("in", 0)
START = datetime(2024, 1, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
BATCHES, ROWS = 4, 40


def process(record: Record, context: Any) -> None:
    """Use each kind of store, and each property of the context."""
    assert record.key is not None
    assert record.value is not None
    key = record.key.decode()
    counts, hours, latest = context.store("counts"), context.store("hours"), context.store("latest")
    counts.put(key, (counts.get(key) or 0) + 1)
    hours.put(key, counts.get(key), record.timestamp_ms // 1000 * 1000)
    before = latest.get(key)
    latest.put(key, record.value.decode(), record.timestamp_ms)
    context.store("raw").put(record.key, record.value)
    known = [(at.key, value.value, value.timestamp_ms) for at, value in hours.all()]
    seen = context.partition, context.offset, context.timestamp_ms, context.stream_time_ms, hours.late_total
    context.forward("out", record.key, repr((counts.get(key), before, known, seen)).encode(), headers=record.headers)
    if counts.get(key) % 3 == 0:
        context.forward("out", None, None, record.timestamp_ms + 1)
    context.commit()


def records(seed: int = 5) -> list[Record]:
    random = Random(seed)
    made = []
    for number in range(BATCHES * ROWS):
        at = START_MS + number * 500 + random.randrange(12_000)
        headers = (("n", b"%d" % number),) if number % 2 else ()
        made.append(Record(number, b"N%d" % random.randrange(5), b"v%d" % number, at, headers))
    return made


def by_a_task(function: Any = process, inputs: Sequence[Any] = (INPUT,)) -> list[Record]:
    """The outputs of a stream task over the same records."""
    with MemoryChangelog() as log:
        for topic in ("in", "out"):
            log.create_topic(topic, 1)
        with log.producer() as producer:
            for record in records():
                producer.send(INPUT, record.key, record.value, record.timestamp_ms, record.headers)
            producer.flush()
        memory = {name: replace(config, backend="memory") for name, config in KINDS.items()}
        settings: dict[str, Any] = {"stores": memory, "process": function, "inputs": inputs}
        with StreamTask("app", TaskId(0, 0), state_dir="unused", changelog=log, **settings) as made:
            made.run()
        return list(log.read(TopicPartition("out", 0)))


def arrow(some: list[Record]) -> Iterator[pa.RecordBatch]:
    # Other sources than Kafka have microseconds, which a record has not.
    times = [START + timedelta(milliseconds=record.timestamp_ms - START_MS, microseconds=7) for record in some]
    headers = [[{"key": name, "value": content} for name, content in record.headers] for record in some]
    yield pa.record_batch(
        {
            "key": pa.array([(record.key or b"").decode() for record in some], pa.string()),
            "value": pa.array([record.value for record in some], pa.binary()),
            "topic": pa.array(["in"] * len(some), pa.string()),
            "partition": pa.array([0] * len(some), pa.int32()),
            "offset": pa.array([record.offset for record in some], pa.int64()),
            "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
            "headers": pa.array(headers, OUTPUT.field("headers").type),
            PARTITION_COLUMN: pa.array([0] * len(some), pa.int32()),
        }
    )


def record_plan(folder: Path, function: Any = process, *, batches: bool = False, **changed: Any) -> Plan:
    """A plan with ``function``; with ``batches`` it is called for the records of small ones."""
    stores = {**KINDS, TIMES: StoreConfig("rocksdb")}
    columns = changed.pop("columns", COLUMNS)
    timer = changed.pop("timer", None)
    topics = topics_by_name(changed.pop("topics", ()), changed.pop("has", ["topic"]))
    wise = RecordWise(function, "key", columns, timer, topics)
    if batches:
        wise = BatchWise(in_batches(function), "key", columns, timer, topics, max_records=7, max_bytes=1_000)
    settings = {"stores": stores, "key": ("key",), "output": pa.schema([OUTPUT.field(name) for name in columns])}
    return plan(folder, wise, **{**settings, "on_timer": wise.on_timer if timer else None, **changed})


def run(given: Plan, number: int, some: list[Record]) -> list[dict[str, Any]]:
    return [row for batch in task.run(given, QueryBatch(0, number, QUERY), arrow(some)) for row in batch.to_pylist()]


def test_outputs_stores_and_times_are_those_of_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = []
    for number in range(BATCHES):
        made += run(record_plan(tmp_path), number, records()[number * ROWS : (number + 1) * ROWS])
    wanted = by_a_task()
    assert len(wanted) > BATCHES * ROWS
    for row, record in zip(made, wanted, strict=True):
        assert (row["topic"], row["key"], row["value"]) == ("out", record.key, record.value)
        assert row["timestamp"] == START + timedelta(milliseconds=record.timestamp_ms - START_MS)
        assert tuple((each["key"], each["value"]) for each in row["headers"] or ()) == record.headers
        assert row["partition"] is None


@over_both_forms
def test_the_stream_time_survives_a_restart(tmp_path: Path, batches: bool) -> None:
    offsets: list[int] = []
    query_plan = record_plan(tmp_path, lambda record, context: offsets.append(context.stream_time_ms), batches=batches)
    run(query_plan, 0, [Record(0, b"a", b"", START_MS + 50)])
    close_all()
    run(replace(query_plan, local=str(tmp_path / "elsewhere")), 1, [Record(1, b"a", b"", START_MS + 20)])
    assert offsets == [START_MS + 50, START_MS + 50]


def test_an_exception_names_task_partition_offset_and_key_and_commits_nothing(tmp_path: Path) -> None:
    def broken(record: Record, context: Any) -> None:
        context.store("counts").put("wrong", 1)
        if record.offset == 7:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as error:
        run(record_plan(tmp_path, broken), 0, records()[:20])
    notes = " ".join(error.value.__notes__)
    for part in ("Task 0_0", "offset 7 of in-0", repr(records()[7].key), "batch 0"):
        assert part in notes
    seen: list[Any] = []

    def looks(record: Record, context: Any) -> None:
        seen.append(context.store("counts").get("wrong"))

    run(record_plan(tmp_path, looks), 0, records()[:1])
    assert seen == [None]


@over_both_forms
def test_columns_of_the_output_may_be_left_out(tmp_path: Path, batches: bool) -> None:
    def forwards(record: Record, context: Any) -> None:
        context.forward("out", record.key, record.value)

    assert run(record_plan(tmp_path, forwards, columns=("value", "key"), batches=batches), 0, records()[:1]) == [
        {"value": records()[0].value, "key": records()[0].key}
    ]


@over_both_forms
def test_many_rows_are_given_out_all_or_none(tmp_path: Path, batches: bool) -> None:
    def forwards(record: Record, context: Any) -> None:
        context.forward_many("out", [b"a", b"b"], [b"1", None])
        with pytest.raises(TypeError):
            context.forward_many("out", [b"c", b"d"], [b"1", "2"])
        with pytest.raises(ValueError, match="one length"):
            context.forward_many("out", [b"c", b"d"], [b"1"])

    assert run(record_plan(tmp_path, forwards, columns=("key", "value"), batches=batches), 0, records()[:1]) == [
        {"key": b"a", "value": b"1"},
        {"key": b"b", "value": None},
    ]


@over_both_forms
def test_a_timer_forwards_and_has_the_time_of_its_own(tmp_path: Path, batches: bool) -> None:
    def registers(record: Record, context: Any) -> None:
        context.timers.register("a", 60)

    def fires(key: Any, time_ms: int, context: Any) -> None:
        context.store("hours").put("a", 1, 0)
        [(_, found)] = context.store("hours").all()
        context.forward("out", key.encode(), repr((context.timestamp_ms, found.timestamp_ms)).encode())

    checkpoint = make_checkpoint(tmp_path)
    query_plan = record_plan(tmp_path, registers, timer=fires, checkpoint=checkpoint, batches=batches)
    assert run(query_plan, 0, [Record(0, b"a", b"", 10)]) == []
    [row] = run(query_plan, 1, [Record(0, b"a", b"", 70)])
    assert (row["key"], row["value"]) == (b"a", b"(60, 60)")
    assert row["timestamp"] == datetime.fromtimestamp(0.06, UTC)


@over_both_forms
def test_calls_that_a_query_can_not_carry_out_are_refused(tmp_path: Path, batches: bool) -> None:
    kept: list[Any] = []

    def calls(record: Record, context: Any) -> None:
        kept.append(context)
        with pytest.raises(StoreError):
            context.schedule(10, None, None)
        for wrong in ((5, b"", b""), ("out", "text", b""), ("out", b"", b"", -2), ("", b"", b"")):
            with pytest.raises((TypeError, ValueError)):
                context.forward(*wrong)
        context.forward("out", b"k", b"v")
        for wrong_one, wrong_many in (
            ({"partition": "1"}, {"partition": "1"}),
            ({"partition": -1}, {"partition": -1}),
            ({"partition": 2**31}, {"partition": 2**31}),
            ({"timestamp_ms": 2**62}, {"timestamps_ms": [2**62]}),
            ({"timestamp_ms": 2**62}, {"timestamps_ms": pa.array([2**62])}),
            ({"headers": (("\ud800", b""),)}, {"headers": [(("\ud800", b""),)]}),
        ):
            for call in (
                partial(context.forward, "out", b"", b"", **wrong_one),
                partial(context.forward_many, "out", [b""], [b""], **wrong_many),
            ):
                with pytest.raises((TypeError, ValueError)) as refused:
                    call()
                assert not isinstance(refused.value, pa.ArrowException)
        with pytest.raises(ConfigError):
            context.forward("out", b"", b"", partitioner="murmur2")
        with pytest.raises(ConfigError):
            context.forward_many("out", [b""], [b""], partitioner="murmur2")

    # What is refused takes nothing along that was given out before.
    [row] = run(record_plan(tmp_path, calls, batches=batches), 0, records()[:1])
    assert row["key"] == b"k"
    with pytest.raises(StoreError):
        kept[0].forward("out", b"", b"")
    with pytest.raises(StoreError):
        kept[0].forward_many("out", [b""], [b""])


TEXTS = Topic("in", key=STR, value=STR)
LENGTHS = Topic("out", key=STR, value=INT64)


def typed(record: Record[str, str], context: Any) -> None:
    context.forward(LENGTHS, record.key, None if record.value is None else len(record.value), headers=record.headers)
    if record.offset == 0:
        for key, value in ((b"a", 5), ("a", "5")):
            with pytest.raises(TypeError):
                context.forward(LENGTHS, key, value)


@over_both_forms
@pytest.mark.parametrize("has", [["topic"], []])
def test_topics_have_serdes_as_in_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has: list[str], batches: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    some, topics = records(), TEXTS if has else Topic("named by no column", key=STR, value=STR)
    query_plan = record_plan(tmp_path, typed, topics=[topics], has=has, batches=batches)
    rows = [
        row
        for batch in arrow([*some, Record(len(some), b"N1", None)])
        for row in task.run(query_plan, QueryBatch(0, 0, QUERY), [batch if has else batch.drop_columns(["topic"])])
        for row in row.to_pylist()
    ]
    assert [(row["key"], row["value"]) for row in rows[:-1]] == [
        (record.key, record.value) for record in by_a_task(typed, [TEXTS])
    ]
    assert (rows[-1]["key"], rows[-1]["value"]) == (b"N1", None)


@over_both_forms
def test_a_record_that_a_serde_cannot_read_fails_the_batch_with_its_place(tmp_path: Path, batches: bool) -> None:
    query_plan = record_plan(tmp_path, typed, topics=[Topic("in", key=STR, value=INT64)], batches=batches)
    with pytest.raises(DeserializationError) as error:
        run(query_plan, 0, records()[:3])
    notes = " ".join(error.value.__notes__)
    assert ("offsets 0 to 2 of in-0" if batches else "offset 0 of in-0") in notes
    assert "offset 0" in str(error.value)


@pytest.mark.parametrize(
    ("topics", "error"),
    [
        ("in", TypeError),
        (TEXTS, TypeError),
        (["in"], TypeError),
        ([TEXTS, Topic("in", key=STR, value=INT64)], ConfigError),
        ([TEXTS, LENGTHS], ConfigError),
    ],
)
def test_topics_that_do_not_fit_the_rows_are_refused(topics: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        topics_by_name(topics, ["key", "value"])


def test_the_context_has_what_a_task_gives() -> None:
    assert {name for name in dir(TaskContext) if not name.startswith("_")} <= {*dir(RecordContext), "stream_time_ms"}


@pytest.mark.parametrize(("columns", "named"), [(("key", "price"), "'price'"), ((), "none")])
def test_an_output_of_other_columns_is_refused(columns: tuple[str, ...], named: str) -> None:
    output: Any = SimpleNamespace(names=columns)
    with pytest.raises(ConfigError, match=f"columns topic, .*, and not {named}: correct output"):
        checked_output(output)
