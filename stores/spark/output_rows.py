"""The rows that a function gives out, as Arrow batches of the declared schema; errors name the row and the column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stores.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow

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
    joined: list[pyarrow.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


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
    columns = []
    for field, values in zip(schema, zip(*tuples, strict=True), strict=True):
        try:
            column = pa.array(values, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise _unfit(values, before, field) from error
        if column.null_count and not field.nullable:
            raise _null(column.is_null().index(True).as_py() + 1 + before, field)
        columns.append(column)
    return pa.record_batch(columns, schema=schema)


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


def _unfit(values: tuple[Any, ...], before: int, field: pyarrow.Field) -> ConfigError:
    import pyarrow as pa

    for number, value in enumerate(values, before + 1):
        try:
            pa.array([value], field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return ConfigError(
                f"output row {number} has {value!r} in column {field.name!r}, which does not fit its type "
                f"{field.type}: correct the function, or the declared output"
            )
    raise AssertionError("a column does not fit, although each of its values does")


def _null(number: int, field: pyarrow.Field) -> ConfigError:
    return ConfigError(
        f"output row {number} has null in column {field.name!r}, which is declared as not null: correct the function, "
        "or the declared output"
    )


def _from_batch(batch: pyarrow.RecordBatch, before: int, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    import pyarrow as pa

    if set(batch.schema.names) != set(schema.names) or len(batch.schema.names) != len(schema.names):
        raise ConfigError(
            f"output row {before + 1} is in a batch with the columns {', '.join(batch.schema.names)}, and the output "
            f"is declared with {', '.join(schema.names)}: yield these"
        )
    columns = []
    for field in schema:
        column = batch.column(batch.schema.get_field_index(field.name))
        try:
            converted = column if column.type == field.type else column.cast(field.type)
        except pa.ArrowException as error:
            raise _unfit_in_batch(column, before, field) from error
        if converted.null_count and not field.nullable:
            raise _null(before + 1 + converted.is_null().index(True).as_py(), field)
        columns.append(converted)
    return pa.record_batch(columns, schema=schema)


def _unfit_in_batch(column: pyarrow.Array, before: int, field: pyarrow.Field) -> ConfigError:
    import pyarrow as pa

    number = before + 1
    for at in range(len(column)):
        try:
            column.slice(at, 1).cast(field.type)
        except pa.ArrowException:
            number = before + at + 1
            break
    return ConfigError(
        f"output row {number} has a value of type {column.type} in column {field.name!r}, which does not fit its type "
        f"{field.type}: correct the function, or the declared output"
    )
