"""The query of each subject, and its state as a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupStateTimeout

from harness.experiments.stateful.subjects import APPLY, JVM, PANDAS, ROWS, SUBJECTS
from harness.spark.stateful import ours, theirs
from stores.spark import stateful
from stores.spark.table import StateTable

OUTPUT = "key string, count long"
CHECKPOINT, STATE = "checkpoint", "state"
_ARROW = "-arrow"


def counted(subject: str, events: DataFrame, folder: Path, partitions: int, local: Path | None = None) -> DataFrame:
    """Return the counts of the keys of each batch of ``events``, by ``subject``.

    ``folder`` is that of the query. ``local`` is where copies of our stores outlive a session, if they do.
    """
    backend = SUBJECTS[subject].backend
    if backend is not None:
        return stateful(
            events,
            key="key",
            process=ours.in_arrow if subject.endswith(_ARROW) else ours.by_record,
            output=OUTPUT,
            stores={ours.STORE: ours.config(backend)},
            partitions=partitions,
            state=folder / STATE,
            local=local,
        )
    return _THEIRS[subject](events)


def state_of(subject: str, spark: SparkSession, folder: Path) -> DataFrame:
    """Return the state at the end of the newest batch: the columns ``key`` and ``count``."""
    if SUBJECTS[subject].backend is not None:
        spark.dataSource.register(StateTable)
        rows = spark.read.format("txstores").load(str(folder / STATE))
        return rows.selectExpr("key", "cast(value as long) as count")
    reader = spark.read.format("statestore")
    if subject in (ROWS, PANDAS):
        reader = reader.option("stateVarName", theirs.STATE)
    column = "value.groupState.count" if subject == APPLY else "value.count"
    return reader.load(str(folder / CHECKPOINT)).selectExpr("key.key as key", f"{column} as count")


def _applied(events: DataFrame) -> DataFrame:
    return events.groupBy("key").applyInPandasWithState(
        theirs.of_frames, OUTPUT, theirs.STATE_SCHEMA, "update", GroupStateTimeout.NoTimeout
    )


def _of_rows(events: DataFrame) -> DataFrame:
    return events.groupBy("key").transformWithState(theirs.OfRows(), OUTPUT, "Update", "None")


def _of_frames(events: DataFrame) -> DataFrame:
    return events.groupBy("key").transformWithStateInPandas(theirs.OfFrames(), OUTPUT, "Update", "None")


def _in_the_jvm(events: DataFrame) -> DataFrame:
    return events.groupBy("key").count()


_THEIRS: dict[str, Callable[[DataFrame], DataFrame]] = {
    APPLY: _applied,
    ROWS: _of_rows,
    PANDAS: _of_frames,
    JVM: _in_the_jvm,
}
