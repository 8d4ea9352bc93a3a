"""An error of a function names the row that it was at, by its key, and no row if it was at none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa
import pytest

from stores.errors import ConfigError
from stores.spark import task
from stores.spark.context import Context
from stores.spark.plan import PARTITION_COLUMN, QueryBatch
from stores.spark.rows import Rows, output_batches
from stores.tests.spark.counting import QUERY, plan


def note_of(folder: Path, process: Callable[[Rows, Context], Any]) -> str:
    names = ["tail no.", "class", PARTITION_COLUMN]
    batch = pa.record_batch([pa.array(["N1", "N2"]), pa.array([7, 8]), pa.array([0, 0])], names)
    query_plan = plan(folder, process, key=("tail no.", "class"))
    with pytest.raises(ZeroDivisionError) as error:
        list(task.run(query_plan, QueryBatch(0, 0, QUERY), iter([batch])))
    [note] = error.value.__notes__
    return note


def test_a_key_whose_name_is_no_identifier_is_named(tmp_path: Path) -> None:
    def process(rows: Rows, context: Context) -> Iterator[Any]:
        for row in rows:
            yield "N1", 1 // (row[1] - 8)

    note = note_of(tmp_path, process)
    assert "row 2" in note
    assert "tail no. 'N2', class 8" in note


def test_an_error_after_the_last_row_is_of_no_row(tmp_path: Path) -> None:
    def process(rows: Rows, context: Context) -> Iterator[Any]:
        values = [row[1] for row in rows]
        yield "N1", 1 // (sum(values) - 15)

    assert "row" not in note_of(tmp_path, process)


SCHEMA = pa.schema([pa.field("name", pa.string()), pa.field("n", pa.int64())])
LISTS = pa.schema([pa.field("of", pa.list_(pa.int64()), nullable=False)])


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([f"N{number}" for number in numbers]), pa.array(numbers, pa.int64())], SCHEMA)


def numbers(batches: list[pa.RecordBatch]) -> list[list[int]]:
    return [batch.column(1).to_pylist() for batch in batches]


def test_small_batches_are_joined_and_large_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stores.spark.rows._BATCH_ROWS", 5)
    ones = [batch(number) for number in range(7)]
    assert numbers(list(output_batches(ones, SCHEMA))) == [[0, 1, 2, 3, 4], [5, 6]]
    mixed = [batch(0), batch(*range(1, 9)), batch(9), pa.Table.from_batches([batch(10), batch(11)]), ("N12", 12)]
    assert numbers(list(output_batches(mixed, SCHEMA))) == [[0], [1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11, 12]]
    assert list(output_batches([batch()], SCHEMA)) == []
    monkeypatch.setattr("stores.spark.rows._BATCH_BYTES", 1)
    assert numbers(list(output_batches(ones, SCHEMA))) == [[number] for number in range(7)]


def test_batches_are_joined_whatever_their_columns_order(monkeypatch: pytest.MonkeyPatch) -> None:
    turned = pa.record_batch([pa.array([1], pa.int32()), pa.array(["N1"])], ["n", "name"])
    [made] = output_batches([batch(0), turned], SCHEMA)
    assert made.schema.equals(SCHEMA)
    assert made.to_pylist() == [{"name": "N0", "n": 0}, {"name": "N1", "n": 1}]


@pytest.mark.parametrize(
    "rows",
    [
        [([1],), (numpy.array([1, 2]),), (None,)],
        [pa.record_batch([pa.array([[1], [2]])], ["of"]), pa.record_batch([pa.array([None], LISTS[0].type)], ["of"])],
    ],
)
def test_a_null_that_is_declared_as_none_is_named_by_its_row_and_column(rows: list[Any]) -> None:
    with pytest.raises(ConfigError) as error:
        list(output_batches(rows, LISTS))
    assert "row 3" in str(error.value)
    assert "'of'" in str(error.value)


def test_a_value_of_a_batch_that_does_not_fit_is_named_by_its_row_and_column() -> None:
    wrong = pa.record_batch([pa.array(["a", "b", "c", "d"]), pa.array(["1", "2", "many", "more"])], ["name", "n"])
    with pytest.raises(ConfigError) as error:
        list(output_batches([("first", 1), wrong], SCHEMA))
    assert "row 4" in str(error.value)
    assert "'n'" in str(error.value)
