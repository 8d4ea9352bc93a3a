"""The rows of one partition of one batch, as a function gets them: Arrow batches, a table, or tuples."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from stores.errors import ConfigError, StoreError
from stores.spark.plan import PARTITION_COLUMN

if TYPE_CHECKING:
    import pyarrow

REFUSE, GROUP = "refuse", "group"
"""The treatments of rows whose key is null: the batch fails, or they are one group."""


_named: Any = partial(namedtuple, "Row", rename=True)


class Rows:
    """The rows, once: iterate over them for tuples with the columns' names, or take ``batches`` or ``table``.

    All rows of a key are in one partition. With ``order_by`` they come in the order of that column, rows with the same
    value as Spark gave them; the partition is then held in memory as Arrow. Without it only a batch is.
    """

    def __init__(self, batches: Iterable[pyarrow.RecordBatch], order_by: str | None = None) -> None:
        self._batches = iter(batches)
        self._order_by = order_by
        self.row_number = 0
        """The number of the tuple that was given out last, from 1."""
        self.row: tuple[Any, ...] | None = None
        """That tuple, None before the first and after the last."""
        self._names: list[str] = []

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        """Return the rows as Arrow record batches."""
        if self._order_by is None:
            yield from self._batches
        else:
            table = self.table()
            if table is not None:
                yield from table.to_batches()

    def table(self) -> pyarrow.Table:
        """Return all rows as one Arrow table; None if there are none."""
        import pyarrow as pa

        batches = list(self._batches)
        if not batches:
            return None
        table = pa.Table.from_batches(batches)
        return table if self._order_by is None else table.sort_by(self._order_by)

    def __iter__(self) -> Iterator[Any]:
        made: Any = None
        for batch in self.batches():
            if made is None:
                self._names = batch.schema.names
                made = _named(self._names)._make
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                self.row_number += 1
                self.row = row = made(values)
                yield row
        self.forget()

    def value(self, name: str) -> Any:
        """Return the value of a column in the tuple that was given out last."""
        assert self.row is not None
        return self.row[self._names.index(name)]

    def forget(self) -> None:
        """Let no tuple be the last one: what follows belongs to no row."""
        self.row = None


def checked_batches(
    batches: Iterable[pyarrow.RecordBatch], partition: int, partitions: int, key: tuple[str, ...], null_keys: str
) -> Iterator[pyarrow.RecordBatch]:
    """Return the batches that have rows, without the column of the partition.

    Raises: StoreError if rows belong to another partition; ConfigError for a key that is null, if that is refused.
    """
    import pyarrow.compute as pc

    for given in batches:
        if not given.num_rows:
            continue
        at = given.schema.get_field_index(PARTITION_COLUMN)
        found = pc.min_max(given.column(at)).as_py()
        if not partition == found["min"] == found["max"]:
            raise StoreError(
                f"task {partition} got rows of partition {found['min']} of {partitions}: the query has changed the "
                "tasks of stateful(). Put its result through repartition() before coalesce() or union(), or write it "
                "first"
            )
        batch = given.drop_columns([PARTITION_COLUMN])
        if null_keys == REFUSE:
            for name in key:
                column = batch.column(batch.schema.get_field_index(name))
                if column.null_count:
                    row = batch.slice(pc.index(column.is_null(), True).as_py(), 1).to_pylist()[0]
                    raise ConfigError(
                        f"the key column {name!r} is null in the row {row}: filter such rows out, or give "
                        f"null_keys={GROUP!r}, which makes them a group of their own"
                    )
        yield batch
