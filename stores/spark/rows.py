"""The rows of one partition of one batch, as a function gets them and as it gives them out.

It gets Arrow batches, a table, or tuples. It gives out these as well, or dictionaries; they become Arrow batches of the
declared schema, and errors name the row and the column.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
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
        make_row: Any = None
        for batch in self.batches():
            if make_row is None:
                self._names = batch.schema.names
                make_row = _named(self._names)._make
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                self.row_number += 1
                self.row = row = make_row(values)
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

    for whole in batches:
        if not whole.num_rows:
            continue
        at = whole.schema.get_field_index(PARTITION_COLUMN)
        numbers = pc.min_max(whole.column(at)).as_py()
        if not partition == numbers["min"] == numbers["max"]:
            raise StoreError(
                f"task {partition} got rows of partition {numbers['min']} of {partitions}: the query has changed the "
                "tasks of stateful(). Put its result through repartition() before coalesce() or union(), or write it "
                "first"
            )
        batch = whole.drop_columns([PARTITION_COLUMN])
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


def in_pieces(batches: Iterable[pyarrow.RecordBatch], most: int, most_bytes: int) -> Iterator[pyarrow.RecordBatch]:
    """Return the rows in batches of ``most`` each, but for the last one, and for larger ones than ``most_bytes``."""
    waiting: list[pyarrow.RecordBatch] = []
    num_rows = num_bytes = 0
    for batch in batches:
        rest = batch
        while rest.num_rows:
            part = rest.slice(0, most - num_rows)
            rest = rest.slice(part.num_rows)
            waiting.append(part)
            num_rows, num_bytes = num_rows + part.num_rows, num_bytes + part.nbytes
            if num_rows == most or num_bytes >= most_bytes:
                yield from _as_one(waiting)
                waiting, num_rows, num_bytes = [], 0, 0
    yield from _as_one(waiting)


_BATCH_ROWS = 10_000
_BATCH_BYTES = 16 << 20


def output_batches(given: Iterable[Any] | None, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    """Return what a function gave out as batches of ``schema``.

    Items are Arrow record batches or tables, whose columns are found by name, or rows: tuples or lists in the order of
    the columns, or dictionaries by name. Values are converted only if nothing is lost.

    Small batches are joined: a function may give out one for each key.

    Raises: ConfigError for a row that does not fit, with its number (from 1) and the column; as the function.
    """
    return _joined(_fitted(given, schema))


def _joined(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    waiting: list[pyarrow.RecordBatch] = []
    num_rows = num_bytes = 0
    for batch in batches:
        num_rows, num_bytes = num_rows + batch.num_rows, num_bytes + batch.nbytes
        if num_rows > _BATCH_ROWS or num_bytes > _BATCH_BYTES:
            yield from _as_one(waiting)
            waiting, num_rows, num_bytes = [], batch.num_rows, batch.nbytes
        waiting.append(batch)
    yield from _as_one(waiting)


def _as_one(batches: list[pyarrow.RecordBatch]) -> list[pyarrow.RecordBatch]:
    import pyarrow as pa

    if len(batches) < 2:
        return batches
    whole: list[pyarrow.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


def _fitted(given: Iterable[Any] | None, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    """Return the batches as they come, and rows in batches."""
    import pyarrow as pa

    number = 0
    rows: list[Any] = []
    if isinstance(given, (pa.RecordBatch, pa.Table)):
        given = [given]
    for item in () if given is None else given:
        if isinstance(item, (pa.RecordBatch, pa.Table)):
            if rows:
                yield _from_rows(rows, number, schema)
                number, rows = number + len(rows), []
            for batch in item.to_batches() if isinstance(item, pa.Table) else [item]:
                if batch.num_rows:
                    yield _from_batch(batch, number, schema)
                    number += batch.num_rows
            continue
        rows.append(item)
        if len(rows) == _BATCH_ROWS:
            yield _from_rows(rows, number, schema)
            number, rows = number + len(rows), []
    if rows:
        yield _from_rows(rows, number, schema)


def _from_rows(rows: list[Any], before: int, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    import pyarrow as pa

    names = schema.names
    tuples = [_as_tuple(row, before + number, names) for number, row in enumerate(rows, 1)]
    columns = [
        _column(field, before, values, partial(pa.array, type=field.type))
        for field, values in zip(schema, zip(*tuples, strict=True), strict=True)
    ]
    return pa.record_batch(columns, schema=schema)


def _from_batch(batch: pyarrow.RecordBatch, before: int, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    import pyarrow as pa

    if set(batch.schema.names) != set(schema.names) or len(batch.schema.names) != len(schema.names):
        raise ConfigError(
            f"output row {before + 1} is in a batch with the columns {', '.join(batch.schema.names)}, and the output "
            f"is declared with {', '.join(schema.names)}: yield these"
        )
    columns = [
        _column(field, before, batch.column(batch.schema.get_field_index(field.name)), partial(_cast, kind=field.type))
        for field in schema
    ]
    return pa.record_batch(columns, schema=schema)


def _cast(column: pyarrow.Array, kind: pyarrow.DataType) -> pyarrow.Array:
    return column if column.type == kind else column.cast(kind)


def _column(field: pyarrow.Field, before: int, values: Any, convert: Callable[[Any], pyarrow.Array]) -> pyarrow.Array:
    """Return the values of a column by ``convert``. Raises: ConfigError with the first row that does not fit."""
    import pyarrow as pa

    unfit = (pa.ArrowException, TypeError, ValueError, OverflowError)
    try:
        column = convert(values)
    except unfit as error:
        for at in range(len(values)):
            try:
                convert(values[at : at + 1])
            except unfit:
                value = getattr(values[at], "as_py", partial(values.__getitem__, at))()
                raise ConfigError(
                    f"output row {before + at + 1} has {value!r} in column {field.name!r}, which does not fit its type "
                    f"{field.type}: correct the function, or the declared output"
                ) from error
        raise
    if column.null_count and not field.nullable:
        raise ConfigError(
            f"output row {before + 1 + column.is_null().index(True).as_py()} has null in column {field.name!r}, which "
            "is declared as not null: correct the function, or the declared output"
        )
    return column


def _as_tuple(row: Any, number: int, names: list[str]) -> tuple[Any, ...]:
    if isinstance(row, Mapping):
        if set(row) != set(names):
            raise ConfigError(
                f"output row {number} has the columns {', '.join(map(str, row))}, and the output is declared with "
                f"{', '.join(names)}: yield these"
            )
        return tuple(row[name] for name in names)
    if not isinstance(row, (tuple, list)):
        raise ConfigError(
            f"output row {number} is of type {type(row).__name__}: yield tuples, dictionaries, or Arrow record batches"
        )
    if len(row) != len(names):
        raise ConfigError(
            f"output row {number} has {len(row)} values, and the output is declared with {len(names)} columns: "
            f"{', '.join(names)}"
        )
    return tuple(row)
