"""The batches that ``process_batch`` gets from rows, and the rows that it gives out by columns."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from stores.changelog.interface import Record
from stores.interface import TopicPartition
from stores.records import FLOAT64, INT64, JSON, STR
from stores.spark.plan import PARTITION_COLUMN
from stores.spark.record_columns import inputs_of, records_of
from stores.spark.record_wise import BatchWise
from stores.tasks import Batch, Topic
from stores.tasks.arrow_records import ArrowRecords
from stores.tests.spark.batches import FEW, HEADERS, TEXTS, TOTALS, as_rows, batch_plan, rows_of
from stores.tests.spark.test_record_wise import START, records

# The batch


def interleaved() -> pa.RecordBatch:
    """Ten rows of three inputs, in the order of their offsets."""
    topics = ["a", "b", "a", "a", "b", "a", "b", "b", "a", "a"]
    return pa.record_batch(
        {
            "key": pa.array([b"k"] * 10, pa.binary()),
            "value": pa.array([b"1234"] * 10, pa.binary()),
            "topic": pa.array(topics, pa.string()),
            "partition": pa.array([0, 0, 1, 0, 0, 0, 0, 0, 1, 1], pa.int32()),
            "offset": pa.array(range(10), pa.int64()),
            PARTITION_COLUMN: pa.array([0] * 10, pa.int32()),
        }
    )


@pytest.mark.parametrize("in_order", [True, False])
def test_a_null_topic_or_partition_is_as_without_the_column_in_both_forms(in_order: bool) -> None:
    topics, partitions = [None, "a", None, None, "a", "a"], [7, None, 7, None, None, 1]
    rows = pa.record_batch(
        {
            "key": pa.array([b"k"] * 6, pa.binary()),
            "value": pa.array([b"%d" % number for number in range(6)], pa.binary()),
            "topic": pa.array(topics, pa.string()),
            "partition": pa.array(partitions, pa.int32()),
        }
    )
    one_by_one = [(origin, record.value) for origin, record in records_of(rows, "key", 3)]
    expected = [("input", 7), ("a", 3), ("input", 7), ("input", 3), ("a", 3), ("a", 1)]
    assert one_by_one == [(origin, b"%d" % number) for number, origin in enumerate(expected)]
    parts = [
        (origin, [record.value for record in some]) for origin, some in inputs_of(rows, "key", 3, in_order=in_order)
    ]
    assert sorted((origin, value) for origin, values in parts for value in values) == sorted(one_by_one)
    # Rows of one input come together, also those with a null.
    assert len(parts) == (6 if in_order else 4)


A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, [(A0, [0, 3, 5]), (A1, [2, 8, 9]), (B0, [1, 4, 6, 7])]),
        (
            {"max_records": 2},
            [(A0, [0, 3]), (A0, [5]), (A1, [2, 8]), (A1, [9]), (B0, [1, 4]), (B0, [6, 7])],
        ),
        ({"max_bytes": 15}, [(A0, [0, 3, 5]), (A1, [2, 8, 9]), (B0, [1, 4, 6]), (B0, [7])]),
        (
            {"max_bytes": 1},
            [(origin, [n]) for origin, some in ((A0, (0, 3, 5)), (A1, (2, 8, 9)), (B0, (1, 4, 6, 7))) for n in some],
        ),
        (
            {"in_order": True},
            [(A0, [0]), (B0, [1]), (A1, [2]), (A0, [3]), (B0, [4]), (A0, [5]), (B0, [6, 7]), (A1, [8, 9])],
        ),
    ],
)
def test_a_batch_has_one_input_in_order_and_ends_at_the_first_of_its_bounds(
    tmp_path: Path, bounds: dict[str, Any], expected: list[Any]
) -> None:
    seen: list[Any] = []

    def function(batch: Batch, context: Any) -> None:
        assert context.partition == batch.partition
        seen.append((batch.partition, list(batch.offsets)))

    rows_of(batch_plan(tmp_path, function, **bounds), 0, [interleaved()])
    assert seen == expected


@pytest.mark.parametrize("piece_rows", [10_000, 40])
def test_batches_are_as_large_as_they_may_be_whatever_spark_sends_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_rows: int
) -> None:
    monkeypatch.setattr("stores.spark.record_wise._PIECE_ROWS", piece_rows)
    sizes: list[int] = []
    parts = [interleaved().drop_columns(["topic", "partition"])] * 7
    rows_of(batch_plan(tmp_path, lambda batch, context: sizes.append(len(batch)), max_records=32), 0, parts)
    assert sizes == [32, 32, 6]


def test_rows_without_columns_for_it_are_of_one_input_with_unknown_places_and_times(tmp_path: Path) -> None:
    seen: list[Any] = []

    def function(batch: Batch, context: Any) -> None:
        seen.append((batch.partition, batch.offsets, batch.timestamps_ms, batch.headers, batch.keys))
        seen.append((context.offset, context.timestamp_ms, context.stream_time_ms))

    rows = interleaved().select(["key", "value", PARTITION_COLUMN]).slice(0, 2)
    rows_of(batch_plan(tmp_path, function), 0, [rows])
    assert seen == [(TopicPartition("input", 0), [-1, -1], [-1, -1], [(), ()], [b"k", b"k"]), (-1, -1, -1)]


def test_the_context_of_a_batch_has_its_end_and_its_highest_time_also_for_writes_and_rows(tmp_path: Path) -> None:
    seen: list[Any] = []

    def function(batch: Batch, context: Any) -> None:
        context.store("hours").put("a", 1, 0)
        [(_, found)] = context.store("hours").all()
        context.forward("out", b"a", b"")
        context.forward_many("out", [b"b", b"c"], [None, b""], [-1, 7])
        seen.append((context.offset, context.timestamp_ms, context.stream_time_ms, found.timestamp_ms))

    some = [Record(number, b"k", b"", time_ms) for number, time_ms in enumerate((9, 5, 8, 3))]
    query_plan = batch_plan(tmp_path, function, max_records=2)
    rows = rows_of(query_plan, 0, as_rows(some, Random(1)))
    assert seen == [(1, 9, 9, 9), (3, 8, 9, 8)]
    assert [row["timestamp"].timestamp() for row in rows] == [0.009, 0.009, 0.007, 0.008, 0.008, 0.007]


@pytest.mark.parametrize(
    "topic",
    [None, TEXTS, *(Topic("in", key=key, value=value) for key, value in ((STR, JSON), (INT64, INT64), (STR, FLOAT64)))],
)
def test_a_batch_has_the_columns_the_slices_and_the_table_of_one_in_a_task(topic: Any) -> None:
    key, serde = (TEXTS.key, TEXTS.value) if topic is None else (topic.key, topic.value)
    keys: list[Any] = [3, None, -5] if key is INT64 else ["a", None, "é"]
    of_texts: dict[str, list[Any]] = {"json": [{"n": 1}, None, {"n": 3}], "str": ["é", None, ""]}
    values = of_texts.get(serde.name, [-5, None, 1 << 62])
    raw = [
        Record(
            number + 3,
            None if each is None else key.serialize(each),
            None if value is None else serde.serialize(value),
            10 - number,
            HEADERS if number == 2 else (),
        )
        for number, (each, value) in enumerate(zip(keys, values, strict=True))
    ]
    wise = BatchWise(print, "key", (), **FEW)
    [whole] = wise._batches(next(as_rows(raw, Random(4))).drop_columns([PARTITION_COLUMN]), 0)
    of_arrow = Batch[Any, Any](whole[0], whole[2]._raw, topic)
    of_records = Batch[Any, Any](whole[0], raw, topic)
    assert isinstance(of_arrow._raw, ArrowRecords)
    for cut in (slice(None), slice(1, None), slice(0, 1), slice(None, None, 2), slice(None, None, -1), slice(-2, None)):
        one, other = of_arrow[cut], of_records[cut]
        assert one.table().equals(other.table())
        assert list(one) == list(other)
        assert (one.keys, one.values, one.headers) == (other.keys, other.values, other.headers)
        assert (one.offsets, one.timestamps_ms) == (other.offsets, other.timestamps_ms)
    assert of_arrow[-1] == of_records[-1]
    with pytest.raises(IndexError):
        of_arrow._raw[3]


def test_a_table_and_its_outputs_make_no_object_of_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("an object of each row")

    def function(batch: Batch, context: Any) -> None:
        sums = batch.table().group_by("key", use_threads=False).aggregate([("value", "count")])
        context.forward_many(TOTALS, sums["key"], sums["value_count"])

    monkeypatch.setattr("stores.tasks.record_batch.new_record", refuse)
    monkeypatch.setattr(ArrowRecords, "column", refuse)
    monkeypatch.setattr(ArrowRecords, "__iter__", refuse)
    some = [record._replace(value=b"v") for record in records()]
    rows = rows_of(batch_plan(tmp_path, function, [TEXTS]), 0, as_rows(some, Random(1)))
    found = {row["key"]: INT64.deserialize(row["value"]) for row in rows}
    assert found == Counter(record.key for record in some)


# Outputs

KEYS, VALUES, AT_MS = ["a", "é", None, ""], [1, None, -3, 1 << 62], [7, -1, 0, 9]


def both_ways(folder: Path, function: Any, columns: Any) -> list[Any]:
    """The rows that ``function`` gives out with columns as lists, and as arrays of Arrow."""
    found = []
    for name, make in (("lists", lambda values, kind: values), ("arrays", pa.array), ("chunks", _chunked)):
        given_columns = [make(values, kind) for values, kind in columns]
        query_plan = batch_plan(folder / name, lambda batch, context, of=given_columns: function(context, *of))
        found.append(rows_of(query_plan, 0, as_rows([Record(0, b"k", b"", 50)], Random(1))))
    assert found[0] == found[1] == found[2]
    return found[0]


def _chunked(values: list[Any], kind: Any) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values[:1], kind), pa.array(values[1:], kind).slice(0)])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_columns_of_arrow_are_given_out_as_lists_are(tmp_path: Path, kind: pa.DataType) -> None:
    def function(context: Any, keys: Any, values: Any, times: Any) -> None:
        context.forward(TOTALS, "first", 1)
        context.forward_many(TOTALS, keys, values, times, headers=[HEADERS, (), (), HEADERS], partition=3)
        context.forward(TOTALS, "last", 2, 3)
        context.forward_many(TOTALS, keys, values)

    rows = both_ways(tmp_path, function, [(KEYS, kind), (VALUES, pa.int64()), (AT_MS, pa.int64())])
    read = [TOTALS.decoded(Record(0, row["key"], row["value"]))[1:3] for row in rows]
    pairs = list(zip(KEYS, VALUES, strict=True))
    assert read == [("first", 1), *pairs, ("last", 2), *pairs]
    assert [row["partition"] for row in rows] == [None, 3, 3, 3, 3, *[None] * 5]
    times = [50, 7, 50, 0, 9, 3, 50, 50, 50, 50]
    assert [round((row["timestamp"] - START.replace(year=1970)).total_seconds() * 1000) for row in rows] == times
    assert [row["headers"] is None for row in rows] == [True, False, True, True, False, *[True] * 5]


def test_columns_of_bytes_and_of_serdes_without_a_way_of_arrow_are_given_out_as_lists_are(tmp_path: Path) -> None:
    texts = Topic("out", key=STR, value=JSON)

    def function(context: Any, keys: Any, data: Any, none: Any) -> None:
        context.forward_many("out", data, data)
        context.forward_many(texts, keys, keys)
        context.forward_many("out", none, none)

    binary = [b"a", None, b"\xff"]
    rows = both_ways(tmp_path, function, [(KEYS[:3], pa.string()), (binary, pa.binary()), ([], pa.binary())])
    assert [row["value"] for row in rows] == [*binary, b'"a"', '"é"'.encode(), None]


WRONG: list[tuple[Any, type[Exception]]] = [
    (("out", pa.array(["a"]), pa.array([b""])), TypeError),
    (("out", pa.array([b"a"]), pa.array([1])), TypeError),
    ((TOTALS, pa.array([b"a"]), pa.array([1])), TypeError),
    ((TOTALS, pa.array(["a"]), pa.array([1.5])), TypeError),
    ((TOTALS, pa.array(["a"]), pa.array([1 << 63], pa.uint64())), ValueError),
    ((TOTALS, pa.array(["a"]), pa.array([1, 2])), ValueError),
    ((TOTALS, pa.array(["a"]), [1, 2]), ValueError),
    ((TOTALS, pa.array(["a"]), pa.array([1]), pa.array([1, 2])), ValueError),
    ((TOTALS, pa.array(["a"]), pa.array([1]), pa.array([-2])), ValueError),
    ((TOTALS, pa.array(["a"]), pa.array([1]), pa.array([None], pa.int64())), TypeError),
    ((TOTALS, pa.array(["a"]), pa.array([1]), pa.array(["1"])), TypeError),
    ((TOTALS, pa.array(["a"]), pa.array([1]), [(1 << 63) - 1]), ValueError),
    ((TOTALS, pa.array(["a"]), pa.array([1]), None, [(("h", "text"),)]), TypeError),
    ((TOTALS, pa.array(["a"]), pa.array([1]), None, []), ValueError),
    (("", pa.array([b"a"]), pa.array([b""])), ValueError),
]


@pytest.mark.parametrize(("arguments", "error"), WRONG)
def test_columns_that_are_refused_give_out_no_row(tmp_path: Path, arguments: Any, error: type[Exception]) -> None:
    def function(batch: Batch, context: Any) -> None:
        context.forward("out", b"before", b"")
        with pytest.raises(error):
            context.forward_many(*arguments)
        context.forward("out", b"after", b"")

    rows = rows_of(batch_plan(tmp_path, function), 0, as_rows(records()[:3], Random(1)))
    assert [row["key"] for row in rows] == [b"before", b"after"]
