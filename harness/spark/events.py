"""A workload's input as a DataFrame: partitioned by key and in order, one task's input in each Spark partition.

Columns: ``partition`` (int), ``key`` and ``value`` (binary), ``timestamp_ms`` (long, -1 if unknown), ``seq`` (long:
the place in the log, unique within a partition). Spark partition i has exactly the rows with ``partition`` = i, sorted
by ``seq``; it may be empty. The frame is lazy, and computes the same rows each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from harness.workloads.event_log import (
    EventLog,
    EventLogColumnError,
    EventLogEmptyError,
    EventLogError,
    EventLogFormat,
    EventLogFormatError,
    EventLogNotFoundError,
    EventLogValueError,
)
from harness.workloads.event_log_rows import bad_rows, missing_column
from harness.workloads.new_york_flights import archive, arrivals
from harness.workloads.workload import EventSource
from stores.errors import ConfigError

_EVENT_SCHEMA = "key binary, value binary, timestamp_ms long, seq long"
_SLICE_EVENTS = 50_000
_BATCH_EVENTS = 10_000
_JSON_OPTIONS = {"ignoreNullFields": "false", "timeZone": "UTC"}
_Batches = Iterator[pa.RecordBatch]
_CORRUPT, _TIME_TEXT = "__unreadable_line", "__time"
EXAMPLES_SHOWN = 3
"""The number of rows that an error about a log names by their lines."""
_NO_TIMES_MAX = 1_000
"""The number of texts that are no times, the first ones of a log, by which such rows are found."""
_NOT_DECODED = "\ufffd".encode()
"""The replacement of bytes that are not UTF-8 in texts that Spark has read. Keys with it may be confused."""
_LINE_RULES = {
    EventLogFormat.CSV: "as many cells as columns, quotes closed",
    EventLogFormat.JSON_LINES: "one object per line",
}
_LOG_ORDER = ("__file", "__block", "__line")
_TIME_TYPES = (T.StringType, T.IntegralType, T.DateType, T.TimestampType, T.TimestampNTZType)
_KEY_TYPES = (*_TIME_TYPES, T.BinaryType, T.BooleanType, T.DecimalType)


def flights(
    spark: SparkSession, partitions: int, count: int | None = None, *, late_ms: int = 0, seed: int = 0
) -> DataFrame:
    """Return the departures of 2013 from New York, or the first ``count`` of them, keyed by aircraft.

    Each comes late by less than ``late_ms``, depending on ``seed``: see ``new_york_flights.arrivals``.

    One executor reads them on its machine, so that they do not use the driver's memory.
    Raises: DatasetMissingError if the driver does not have them; an executor must have them too.
    """
    archive()
    return _partitioned(
        spark.range(0, 1, 1, 1).mapInArrow(_departures_reader(count, late_ms, seed), _EVENT_SCHEMA), partitions
    )


def generated(spark: SparkSession, source: EventSource, seed: int, count: int, partitions: int) -> DataFrame:
    """Return the first ``count`` events of ``source``, generated on executors; they do not depend on ``partitions``."""
    slices = max(1, -(-count // _SLICE_EVENTS))
    starts = spark.range(0, slices, 1, slices)
    return _partitioned(starts.mapInArrow(_slice_maker(source, seed, count), _EVENT_SCHEMA), partitions)


def repeated(events: DataFrame, laps: int) -> DataFrame:
    """Return ``events`` as a log of ``laps`` laps: each begins after the last event of the one before it.

    Times are later by a lap's span of times and 1 ms, or the same if all events have the same time.
    """
    if laps == 1:
        return events
    longer = (F.max("timestamp_ms") - F.min("timestamp_ms")).alias("longer_ms")
    spans = events.groupBy("partition").agg((F.max("seq") + 1).alias("places"), longer)
    span_ms = F.when(F.col("longer_ms") > 0, F.col("longer_ms") + 1).otherwise(0)
    lap = events.sparkSession.range(laps).select(F.col("id").alias("lap"))
    return (
        events.join(spans, "partition")
        .crossJoin(lap)
        .select(
            "partition",
            "key",
            "value",
            (F.col("timestamp_ms") + F.col("lap") * span_ms).alias("timestamp_ms"),
            (F.col("seq") + F.col("lap") * F.col("places")).alias("seq"),
        )
    )


def event_log(
    spark: SparkSession, log: EventLog, partitions: int, say: Callable[[str], None] = lambda _: None
) -> DataFrame:
    """Return a user's event log. An event's value is its row as a JSON object, with the file's columns.

    Values of CSV and JSON lines stay the texts of the file. The log is read once to check it. ``say`` gets a sentence
    about its rows, and those that ``log.drop_bad`` leaves out, by cause.

    Raises: EventLogNotFoundError, EventLogFormatError, EventLogEmptyError, EventLogColumnError for a column that does
    not exist or cannot be used, EventLogValueError for rows without a key or a readable time.
    """
    try:
        events = _events(spark, log, multi_line=False)
        counts = _counts(events)
        if counts.corrupt and log.format() is EventLogFormat.CSV:
            # Slower, because Spark reads a file as a whole then, so only if a line by itself is no row.
            whole = _events(spark, log, multi_line=True)
            if (whole_counts := _counts(whole)).corrupt < counts.corrupt:
                events, counts = whole, whole_counts
        events = _usable(events, counts, log, say)
    except (PySparkException, Py4JJavaError) as error:
        raise _translated(error, log) from error
    return _partitioned(events, partitions, _LOG_ORDER)


def _events(spark: SparkSession, log: EventLog, *, multi_line: bool) -> DataFrame:
    """Return all rows of the log as events, those too that cannot be any: ``_CORRUPT`` marks unreadable ones."""
    rows = _read(spark, log, multi_line=multi_line)
    columns = [name for name in rows.columns if name != _CORRUPT]
    key = _key(rows, log, columns)
    time = F.lit(-1).cast("long") if log.time is None else _time(rows, log.time, log.path, columns)
    corrupt = F.col(_CORRUPT).isNotNull() if _CORRUPT in rows.columns else F.lit(False)
    value = F.to_json(F.struct(*map(_column, columns)), _JSON_OPTIONS).cast("binary")
    metadata = rows.metadataColumn("_metadata")
    place = (metadata["file_path"], metadata["file_block_start"], F.monotonically_increasing_id())
    return rows.select(
        key.alias("key"),
        value.alias("value"),
        time.alias("timestamp_ms"),
        corrupt.alias(_CORRUPT),
        _time_text(rows, log).alias(_TIME_TEXT),
        *(column.alias(name) for column, name in zip(place, _LOG_ORDER, strict=True)),
    )


def _partitioned(events: DataFrame, partitions: int, order: tuple[str, ...] = ("seq",)) -> DataFrame:
    if partitions < 1:
        raise ConfigError(f"{partitions} partitions: ask for 1 or more")
    placed = events.withColumn("partition", F.pmod(F.xxhash64("key"), F.lit(partitions)).cast("int"))
    placed = placed.repartitionById(partitions, "partition")
    if order != ("seq",):
        # A log's own order has several columns. Within its partition each row gets one number for them.
        number = F.row_number().over(Window.partitionBy("partition").orderBy("timestamp_ms", *order))
        placed = placed.withColumn("seq", number.cast("long") - 1)
    return placed.select("partition", "key", "value", "timestamp_ms", "seq").sortWithinPartitions("seq")


def _departures_reader(count: int | None, late_ms: int, seed: int) -> Callable[[_Batches], _Batches]:
    def read(batches: _Batches) -> _Batches:
        for batch in batches:
            if batch.num_rows:
                yield from arrivals(late_ms, seed).slice(0, count).to_batches(max_chunksize=_BATCH_EVENTS)

    return read


def _slice_maker(source: EventSource, seed: int, count: int) -> Callable[[_Batches], _Batches]:
    def make(batches: _Batches) -> _Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                first = number * _SLICE_EVENTS
                events = list(source.events(seed, min(_SLICE_EVENTS, count - first), first))
                yield pa.record_batch(
                    {
                        "key": pa.array([event.key for event in events], pa.binary()),
                        "value": pa.array([event.value for event in events], pa.binary()),
                        "timestamp_ms": pa.array([event.timestamp_ms for event in events], pa.int64()),
                        "seq": pa.array(range(first, first + len(events)), pa.int64()),
                    }
                )

    return make


def _read(spark: SparkSession, log: EventLog, *, multi_line: bool) -> DataFrame:
    format_ = log.format()
    path = log.location()
    if format_ is EventLogFormat.PARQUET:
        return spark.read.option("mergeSchema", True).parquet(path)
    # Quotes are doubled as in RFC 4180. Without pruning, a line with too many or too few cells is detected, whichever
    # columns are read. In a folder every file's header is compared with that of the first file. A single file's is not
    # compared, because Spark replaces missing and duplicate names of columns by names of its own.
    options: dict[str, bool | str] = {
        "header": True,
        "escape": '"',
        "columnPruning": False,
        "primitivesAsString": True,
        "enforceSchema": log.is_one_file,
        "columnNameOfCorruptRecord": _CORRUPT,
        "multiLine": multi_line,
    }
    reader = spark.read.format(format_.value).options(**options)
    frame = reader.load(path)
    fields = [field for field in frame.schema.fields if field.name != _CORRUPT]
    if not fields:
        if frame.columns:
            raise EventLogFormatError(f"no line of {log.path} can be read as {format_.value}: correct or rename it")
        raise EventLogEmptyError(f"{log.path} is empty: it has not even columns")
    return reader.schema(T.StructType([*fields, T.StructField(_CORRUPT, T.StringType())])).load(path)


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _type_of(rows: DataFrame, name: str, role: str, path: str, columns: list[str]) -> T.DataType:
    if name not in columns:
        raise missing_column(path, name, role, columns)
    return rows.schema[name].dataType


def _key(rows: DataFrame, log: EventLog, columns: list[str]) -> Column:
    type_ = _type_of(rows, log.key, "key", log.path, columns)
    if not isinstance(type_, _KEY_TYPES):
        raise EventLogColumnError(
            f"column {log.key!r} of {log.path} is {type_.simpleString()}, which can't be a key: name another"
        )
    return _column(log.key) if isinstance(type_, T.BinaryType) else _column(log.key).cast("string").cast("binary")


def _time(rows: DataFrame, name: str, path: str, columns: list[str]) -> Column:
    type_ = _type_of(rows, name, "time", path, columns)
    if not isinstance(type_, _TIME_TYPES):
        raise EventLogColumnError(
            f"column {name!r} of {path} is {type_.simpleString()}, which can't be a time: name another"
        )
    if isinstance(type_, T.IntegralType):
        return _column(name).cast("long")
    if isinstance(type_, T.StringType):
        return F.coalesce(_column(name).try_cast("long"), F.unix_millis(F.try_to_timestamp(_column(name))))
    return F.unix_millis(_column(name).cast("timestamp"))


def _time_text(rows: DataFrame, log: EventLog) -> Column:
    """Return the text of the time as the log has it; null if the log has no texts there."""
    if log.time is None or not isinstance(rows.schema[log.time].dataType, T.StringType):
        return F.lit(None).cast("string")
    return _column(log.time)


def _no_times(events: DataFrame) -> frozenset[str]:
    """Return the texts of the first rows that have a text for their time which is none."""
    rows = events.filter(_timeless() & F.col(_TIME_TEXT).isNotNull()).orderBy(*_LOG_ORDER).limit(_NO_TIMES_MAX)
    return frozenset(row[0] for row in rows.select(_TIME_TEXT).collect())


class _Counts(NamedTuple):
    """The rows of a log, and those that cannot be events, by what is wrong with them."""

    rows: int = 0
    corrupt: int = 0
    keyless: int = 0
    timeless: int = 0
    garbled: int = 0


def _counts(events: DataFrame) -> _Counts:
    # A row counts by the first thing that is wrong with it, so that the numbers add up to what is left out.
    readable = ~F.col(_CORRUPT)
    causes = (~readable, readable & _keyless(), readable & ~_keyless() & _timeless(), readable & _garbled())
    row = events.agg(F.count("*"), *map(F.count_if, causes)).head()
    return _Counts() if row is None else _Counts(*row)


def _usable(events: DataFrame, counts: _Counts, log: EventLog, say: Callable[[str], None]) -> DataFrame:
    """Return the rows that can be events. Raises: EventLogError for any other row, unless ``log.drop_bad``."""
    if not counts.rows:
        raise EventLogEmptyError(f"{log.path} has columns but no events")
    garbled = counts.garbled if log.format() is not EventLogFormat.PARQUET else 0
    form = log.format()
    problems: list[tuple[int, str, str, type[EventLogError]]] = [
        (
            counts.corrupt,
            f"can't be read as {form.value}" + (f" ({_LINE_RULES[form]})" if form in _LINE_RULES else ""),
            "correct them",
            EventLogFormatError,
        ),
        (
            garbled,
            f"have a {log.key!r} that is no UTF-8",
            "convert the file, for example with iconv -f latin1 -t utf-8",
            EventLogValueError,
        ),
        (counts.keyless, f"have no {log.key!r}", "give them a key", EventLogValueError),
        (
            counts.timeless,
            f"have no readable time in {log.time!r} (milliseconds since 1970, or a date and time such as "
            "2013-01-31T15:04:05Z)",
            "correct them",
            EventLogValueError,
        ),
    ]
    wrong = [each for each in problems if each[0]]
    if not wrong:
        say(f"all {counts.rows:,} rows of {log.path} are events")
        return events
    no_times = _no_times(events) if counts.timeless else ()
    examples = "".join(f"; {row}" for row in islice(bad_rows(log, no_times), EXAMPLES_SHOWN))
    if not log.drop_bad:
        causes = "; ".join(
            f"{count:,}{f' of {counts.rows:,} rows of {log.path}' * (not number)} {problem}: {advice}"
            for number, (count, problem, advice, _) in enumerate(wrong)
        )
        raise wrong[0][-1](f"{causes}. Or leave such rows out with --drop-bad (make: DROP_BAD=1){examples}")
    good = ~F.col(_CORRUPT) & ~_keyless() & ~_timeless()
    if garbled:
        good &= ~_garbled()
    usable = events.filter(good)
    number = usable.count()
    if not number:
        raise EventLogEmptyError(f"none of the {counts.rows:,} rows of {log.path} can be an event{examples}")
    reasons = ", ".join(f"{count:,} {problem}" for count, problem, _, _ in wrong)
    say(f"left out {counts.rows - number:,} of {counts.rows:,} rows of {log.path}: {reasons}{examples}")
    return usable


def _keyless() -> Column:
    return F.col("key").isNull() | (F.length("key") == 0)


def _timeless() -> Column:
    return F.col("timestamp_ms").isNull()


def _garbled() -> Column:
    return F.coalesce(F.contains(F.col("key"), F.lit(_NOT_DECODED)), F.lit(False))


def _translated(error: PySparkException | Py4JJavaError, log: EventLog) -> EventLogError:
    # Some errors of Spark, such as that for a Parquet file without a footer, reach Python as Java exceptions.
    if isinstance(error, PySparkException):
        condition, message = error.getCondition(), str(error)
    else:
        condition, message = None, str(error.java_exception.getMessage())
    if condition == "PATH_NOT_FOUND":
        return EventLogNotFoundError(f"no event log at {log.path}")
    if condition == "UNABLE_TO_INFER_SCHEMA":
        return EventLogEmptyError(f"{log.path} has no events")
    reason = message.splitlines()[0] if message else type(error).__name__
    if condition == "CANNOT_MERGE_SCHEMAS":
        reason = "its files have columns of different types"
    elif not log.is_one_file and log.format() is EventLogFormat.CSV:
        reason += " (the columns of every file must be those of the first)"
    return EventLogFormatError(
        f"Spark can't read {log.path} as {log.format().value}: {reason.rstrip('.')}. Correct it, or leave it out"
    )
