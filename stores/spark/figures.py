"""The figures of a batch: what it changed, what the state then holds, and what its commit took.

A task gives them out as one row behind its rows. The query observes that row and leaves it out, so the figures are in
``observedMetrics`` of the query's progress. Those of a version are in its header in the log. So a batch that is given
out again has the same ones, and ``inspect`` shows them as well.

Source: Apache Spark, ``Dataset.observe`` and ``StateOperatorProgress``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stores.changelog.files import Header, StoreChanges
from stores.interface import IsolationLevel, KeyValueStore
from stores.spark.context import TIMES

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FIGURES_COLUMN = "__txstores_figures"
"""The column that the row with the figures has, and no other row."""
OF_STORE = ("rows_updated", "rows_removed", "keys", "state_bytes")
"""The figures of each store: keys that the batch put, keys that it removed; keys and bytes that the store then has."""
_OF_VERSION = ("partition", *OF_STORE, "restored_versions")
_LOOKUP_KEYS = 10_000


ABSENT = -1
"""The size of the value that a key has not."""


def size_of(value: bytes | None) -> int:
    """Return the bytes of a value, ``ABSENT`` for None."""
    return ABSENT if value is None else len(value)


def store_figures(
    store: KeyValueStore, changes: StoreChanges, before: Mapping[str, int], sizes: Mapping[bytes, int]
) -> dict[str, int]:
    """Return the figures of a store with staged ``changes``, which had those of ``before``. Bytes are keys and values.

    ``sizes`` are those of committed values, ``ABSENT`` for none. A changed key that is not among them is looked up in
    the last commit. Raises: as ``KeyValueStore.get_many``.
    """
    committed = store.read_only(IsolationLevel.READ_COMMITTED)
    changed = list(changes.pairs)
    updated = removed = 0
    keys, state_bytes = before.get("keys", 0), before.get("state_bytes", 0)
    for at in range(0, len(changed), _LOOKUP_KEYS):
        part = changed[at : at + _LOOKUP_KEYS]
        unknown = [key for key in part if key not in sizes]
        found = dict(zip(unknown, map(size_of, committed.get_many(unknown)), strict=True))
        lengths, old = list(map(len, part)), [sizes[key] if key in sizes else found[key] for key in part]
        new = [size_of(changes.pairs[key]) for key in part]
        keys += old.count(ABSENT) - new.count(ABSENT)
        state_bytes += _bytes_of(lengths, new) - _bytes_of(lengths, old)
        updated += len(part) - new.count(ABSENT)
        removed += sum(after < 0 <= size for size, after in zip(old, new, strict=True))
    return dict(zip(OF_STORE, (updated, removed, keys, state_bytes), strict=True))


def _bytes_of(lengths: list[int], sizes: list[int]) -> int:
    return sum(length + size for length, size in zip(lengths, sizes, strict=True) if size >= 0)


def total(figures: Mapping[str, Mapping[str, int]], name: str) -> int:
    """Return the sum of a figure over the stores that the user has declared: timers are not among them."""
    return sum(of_store.get(name, 0) for store, of_store in figures.items() if store != TIMES)


def figures_of(version: Header, commit_ms: int) -> list[int]:
    """Return the figures of a version as the query observes them, and the time that this attempt's commit took."""
    of_stores = [total(version.figures, name) for name in OF_STORE]
    return [version.partition, *of_stores, version.restored, commit_ms]


def with_figures(
    batches: Iterator[pyarrow.RecordBatch], schema: pyarrow.Schema, figures: list[int]
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the batches in ``schema``, whose last column is for figures, and one more, whose only row has them."""
    import pyarrow as pa

    *fields, column = schema
    for batch in batches:
        yield pa.record_batch([*batch.columns, pa.nulls(batch.num_rows, column.type)], schema=schema)
    blank = [pa.array([None if field.nullable else _blank(field.type)], field.type) for field in fields]
    yield pa.record_batch([*blank, pa.array([figures], column.type)], schema=schema)


def with_column(output: StructType) -> StructType:
    """Return the schema of rows with the column of figures."""
    from pyspark.sql.types import ArrayType, LongType, StructField, StructType

    return StructType([*output.fields, StructField(FIGURES_COLUMN, ArrayType(LongType(), containsNull=False))])


def observed(frame: DataFrame, name: str) -> DataFrame:
    """Return the rows of ``frame`` without those with figures, which Spark adds up as the metrics ``name``.

    A partition counts once, however many actions or attempts have given it out; the time of commits is their sum.
    """
    from pyspark.sql import functions as F

    figures = F.col(FIGURES_COLUMN)
    # A set, because each attempt and each action gives out the same figures of a version.
    versions = F.collect_set(F.slice(figures, 1, len(_OF_VERSION)))
    sums = [_sum(versions, at).alias(field) for at, field in enumerate(_OF_VERSION) if at]
    commit_ms = F.coalesce(F.sum(figures[len(_OF_VERSION)]), F.lit(0)).alias("commit_ms")
    both = frame.observe(name, F.size(versions).alias("partitions"), *sums, commit_ms)
    return both.where(figures.isNull()).drop(FIGURES_COLUMN)


def _sum(versions: Any, at: int) -> Any:
    from pyspark.sql import functions as F

    return F.aggregate(versions, F.lit(0).cast("long"), lambda sum_, version: sum_ + version[at])


def _blank(kind: pyarrow.DataType) -> Any:
    """Return some value of a type, for a column that may not be null."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return {field.name: None if field.nullable else _blank(field.type) for field in kind}
    candidates: tuple[Any, ...] = (0, "", b"", False, [])
    for value in candidates:
        try:
            pa.array([value], kind)
        except (pa.ArrowException, TypeError, ValueError):
            continue
        return value
    raise TypeError(f"no value of {kind} is known")
