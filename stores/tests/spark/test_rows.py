"""An error of a function names the row that it was at, by its key, and no row if it was at none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stores.spark import task
from stores.spark.context import Context
from stores.spark.plan import PARTITION_COLUMN, Batch
from stores.spark.rows import Rows
from stores.tests.spark.counting import QUERY, plan


def note_of(folder: Path, process: Callable[[Rows, Context], Any]) -> str:
    names = ["tail no.", "class", PARTITION_COLUMN]
    batch = pa.record_batch([pa.array(["N1", "N2"]), pa.array([7, 8]), pa.array([0, 0])], names)
    given = plan(folder, process, key=("tail no.", "class"))
    with pytest.raises(ZeroDivisionError) as raised:
        list(task.run(given, Batch(0, 0, QUERY), iter([batch])))
    [note] = raised.value.__notes__
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
        seen = [row[1] for row in rows]
        yield "N1", 1 // (sum(seen) - 15)

    assert "row" not in note_of(tmp_path, process)
