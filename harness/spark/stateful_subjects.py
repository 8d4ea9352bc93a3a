"""The query of each subject, with its function, and its state as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from harness.experiments.stateful.trial import APPLY, JVM, PANDAS, ROWS, SUBJECTS
from stores.config import StoreConfig
from stores.records import INT64, STR, KeyValue
from stores.spark import Context, Rows, stateful
from stores.spark.sources import StateTable
from stores.tasks import Batch, TaskContext, Topic

OUTPUT = "key string, count long"
CHECKPOINT, STATE = "checkpoint", "state"
STORE = "counts"
COUNT, COUNT_SCHEMA = "count", "count long"
"""The state of Spark's own functions."""
_ARROW, _BATCH = "-arrow", "-batch"
WORDS, COUNTED = Topic("words", key=STR, value=STR), Topic("counted", key=STR, value=INT64)
BATCH_RECORDS, BATCH_BYTES = 100_000, 16 << 20
"""The bounds of a batch of records: one has all rows of a partition, so it gives out each key once."""


def counted(subject: str, events: DataFrame, folder: Path, partitions: int, local: Path | None = None) -> DataFrame:
    """Return the counts of the keys of each batch of ``events``, by ``subject``.

    ``folder`` is that of the query. ``local`` is where copies of our stores outlive a session, if they do.
    """
    backend = SUBJECTS[subject].backend
    if backend is None:
        return _THEIRS[subject](events)
    places: dict[str, Any] = {
        "key": "key",
        "stores": {STORE: config(backend)},
        "partitions": partitions,
        "state": folder / STATE,
        "local": local,
    }
    if not subject.endswith(_BATCH):
        return stateful(events, process=in_arrow if subject.endswith(_ARROW) else by_record, output=OUTPUT, **places)
    return stateful(
        events.selectExpr("key", "'' as value"),
        process_batch=in_batches,
        batch_max_records=BATCH_RECORDS,
        batch_max_bytes=BATCH_BYTES,
        topics=[WORDS],
        output="key binary, value binary",
        **places,
    )


def state_of(subject: str, spark: SparkSession, folder: Path) -> DataFrame:
    """Return the state at the end of the newest batch: the columns ``key`` and ``count``."""
    if SUBJECTS[subject].backend is not None:
        spark.dataSource.register(StateTable)
        rows = spark.read.format("txstores").load(str(folder / STATE))
        return rows.selectExpr("key", "cast(value as long) as count")
    reader = spark.read.format("statestore")
    if subject in (ROWS, PANDAS):
        reader = reader.option("stateVarName", COUNT)
    column = "value.groupState.count" if subject == APPLY else "value.count"
    return reader.load(str(folder / CHECKPOINT)).selectExpr("key.key as key", f"{column} as count")


def _applied(events: DataFrame) -> DataFrame:
    return events.groupBy("key").applyInPandasWithState(
        of_frames, OUTPUT, COUNT_SCHEMA, "update", GroupStateTimeout.NoTimeout
    )


def _of_rows(events: DataFrame) -> DataFrame:
    return events.groupBy("key").transformWithState(OfRows(), OUTPUT, "Update", "None")


def _of_frames(events: DataFrame) -> DataFrame:
    return events.groupBy("key").transformWithStateInPandas(OfFrames(), OUTPUT, "Update", "None")


def _in_the_jvm(events: DataFrame) -> DataFrame:
    return events.groupBy("key").count()


_THEIRS: dict[str, Callable[[DataFrame], DataFrame]] = {
    APPLY: _applied,
    ROWS: _of_rows,
    PANDAS: _of_frames,
    JVM: _in_the_jvm,
}


def config(backend: str) -> StoreConfig:
    """Return the store of counts by key."""
    return StoreConfig(backend, records=KeyValue(key=STR, value=INT64))


def by_record(rows: Rows, context: Context) -> Iterator[tuple[str, int]]:
    """Read and write the count of each record's key; give out the last one of each key."""
    counts = context.store(STORE)
    touched: dict[str, int] = {}
    for row in rows:
        number = (counts.get(row.key) or 0) + 1
        counts.put(row.key, number)
        touched[row.key] = number
    yield from touched.items()


def in_arrow(rows: Rows, context: Context) -> Iterator[pa.RecordBatch]:
    """Count in Arrow first, and read and write the count of each key once."""
    table = rows.table()
    if table is None:
        return
    groups = table.group_by("key").aggregate([([], "count_all")])
    keys = groups.column("key").to_pylist()
    counts = context.store(STORE)
    before = counts.get_many(keys)
    new = groups.column("count_all").to_pylist()
    after = [number + (old or 0) for number, old in zip(new, before, strict=True)]
    counts.put_many(dict(zip(keys, after, strict=True)))
    yield pa.record_batch([pa.array(keys, pa.string()), pa.array(after, pa.int64())], names=["key", "count"])


def in_batches(batch: Batch[str, str], context: TaskContext) -> None:
    """Do the same as a task does with many records."""
    groups = batch.table().group_by("key").aggregate([([], "count_all")])
    keys, new = groups.column("key").to_pylist(), groups.column("count_all").to_pylist()
    counts = context.store(STORE)
    after = [number + (old or 0) for number, old in zip(new, counts.get_many(keys), strict=True)]
    counts.put_many(dict(zip(keys, after, strict=True)))
    context.forward_many(COUNTED, groups.column("key"), pa.array(after, pa.int64()))


def of_frames(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Count the rows of a key, for ``applyInPandasWithState``."""
    number = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
    state.update((number,))
    yield pd.DataFrame({"key": [key[0]], "count": [number]})


class _Counter(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState(COUNT, COUNT_SCHEMA)

    def _add(self, new: int) -> int:
        before = self._count.get()
        number = new + (before[0] if before is not None else 0)
        self._count.update((number,))
        return int(number)

    def close(self) -> None:
        """Close nothing."""


class OfRows(_Counter):
    """Counts the rows of a key, for ``transformWithState``."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """Return the count of the key."""
        yield Row(key=key[0], count=self._add(sum(1 for _ in rows)))


class OfFrames(_Counter):
    """Counts the rows of a key, for ``transformWithStateInPandas``."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        """Return the count of the key."""
        yield pd.DataFrame({"key": [key[0]], "count": [self._add(sum(len(frame) for frame in rows))]})
