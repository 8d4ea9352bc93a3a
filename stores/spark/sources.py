"""The sources of data for Spark's Python Data Source API: the state as a table, and batches without rows.

``spark.read.format("txstores").load(FOLDER)`` reads the state. Register it once per session with
``spark.dataSource.register(StateTable)``.

In batches without rows timers fire that the watermark has reached while no data comes. Spark runs such a batch for its
own stateful operators only. Here a source without rows asks for it: its offset is the watermark that Spark has written
for the next batch, ``nextBatchWatermarkMs`` in the file ``commits/N`` of the checkpoint. So one batch follows each time
that the watermark has advanced, and none after that.

Source: Apache Spark, ``spark.sql.streaming.noDataMicroBatches.enabled``; SPARK-24156.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from stores.changelog.files import VersionLog
from stores.errors import ChangelogError, ConfigError, SerdeMismatchError
from stores.records.expiry import STREAM_TIME, has_expired, stream_time_of
from stores.records.headers import stored_time_ms, stored_value
from stores.records.segments import (
    SEGMENT_BYTES,
    RecordRetention,
    has_headers,
    has_timestamps,
    keys_described,
    unpacked,
)
from stores.records.serdes import FLOAT64, INT64, JSON, STR
from stores.records.values import TIME_BYTES
from stores.records.versions import INDEX, VERSIONED, key_in, time_in, value_in
from stores.spark.context import TIMES_KIND, shown_timer
from stores.spark.local_state import TTL
from stores.spark.watermark import next_watermark_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # Spark 4.1: with availableNow the last timers fire in the next run.
    SupportsTriggerAvailableNow = object  # type: ignore[assignment, misc]

__all__ = ["SCHEMA", "StateTable"]


SCHEMA = (
    "partition int, store string, key string, value string, timestamp timestamp, window_start timestamp, "
    "window_end timestamp"
)


class StateTable(DataSource):
    """The state in the folder of a stateful query, also while the query runs, at one version in all partitions.

    Options: ``version``, by default the newest that all partitions have; ``store``, by default all. Keys and values are
    text as it is, numbers and JSON as JSON, and all else in hexadecimal. A task reads one partition, and holds it in
    memory.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "txstores"

    def schema(self) -> str:
        """Return the columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader. Raises: ConfigError for a wrong option; as ``VersionLog.open``."""
        options = {name.lower(): value for name, value in self.options.items()}
        return StateReader(options)


class StateReader(DataSourceReader):
    """Reads one version. It is determined when the table is planned, so that all partitions have the same."""

    def __init__(self, options: Mapping[str, str]) -> None:
        if "path" not in options:
            raise ConfigError("no folder is given: load the folder that is the state of a query")
        self._location = options["path"].removeprefix("file:") if options["path"][:6] == "file:/" else options["path"]
        self._store = options.get("store")
        log = VersionLog.open(self._location)
        # An executor may have another working folder.
        self._location = log.location
        stores = log.description.get("stores")
        if not isinstance(stores, dict):
            raise ConfigError(f"{log.location} is a version log, and no state of a query")
        if self._store is not None and self._store not in stores:
            raise ConfigError(f"{log.location} has no store {self._store!r}: choose one of {', '.join(sorted(stores))}")
        version = options.get("version")
        if version is None:
            self._version = log.newest_complete()
        elif version.isdecimal():
            self._version = int(version)
        else:
            raise ConfigError(f"version is a number from 0, not {version!r}")
        self._partitions = log.partitions

    def partitions(self) -> Sequence[InputPartition]:
        """Return one part for each partition of the state."""
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Return the rows of a partition."""
        if self._version is not None:
            yield from rows_of(VersionLog.open(self._location), partition.value, self._version, self._store)


K = TypeVar("K")
Row = tuple[int, str, str, str | None, datetime | None, datetime | None, datetime | None]
"""Partition, store, key, value, timestamp, and the start and the end of a window or a session.

A versioned store has a row for each version; that of a deletion has no value."""
_Shown = tuple[str, str | None, datetime | None, datetime | None, datetime | None]
_SERDES: Mapping[str, Any] = {serde.name: serde for serde in (STR, INT64, FLOAT64, JSON)}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rows_of(log: VersionLog, partition: int, version: int, store: str | None = None) -> Iterator[Row]:
    """Return the rows of one partition at ``version``, by store and key, without those that have expired.

    The partition is held in memory.

    Raises: OffsetOutOfRangeError for a version that the log does not keep; ChangelogError; SerdeMismatchError.
    """
    kinds: Any = log.description["stores"]
    state: dict[str, dict[bytes, bytes]] = {}
    marks: dict[str, dict[str, bytes]] = {}
    for piece in log.partition(partition).restore(None, version):
        if piece.fresh:
            state, marks = {}, {}
        for name, changes in piece.changes.items():
            if store in (None, name):
                _apply(changes.pairs, state.setdefault(name, {}))
                _apply(changes.marks, marks.setdefault(name, {}))
    for name in sorted(state):
        kind = kinds.get(name)
        if not _is_kind(kind):
            raise ChangelogError(
                f"{log.location} describes store {name!r} with {json.dumps(kind)[:200]}, which this library never "
                "writes: bring the folder back from a copy"
            )
        decoder, is_expired = _Decoder(name, kind), expired_by(kind, marks.get(name, {}))
        for key, value in sorted(state[name].items()):
            if is_expired(key, value):
                continue
            yield (partition, name, *decoder.row(key, value))


def _apply(changes: Mapping[K, bytes | None], kept: dict[K, bytes]) -> None:
    for key, value in changes.items():
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = value


def _is_kind(kind: Any) -> bool:
    """Return True if ``kind`` is the description of a store of records, as the library may have written it."""
    if not isinstance(kind, dict) or not isinstance(kind.get("kind"), str):
        return False
    if keys_described(kind) is not None and not all(
        type(kind.get(name)) is int and kind[name] > 0 for name in ("retention_ms", "segment_ms")
    ):
        return False
    return all(isinstance(kind.get(name, ""), str) for name in ("key", "value"))


def expired_by(kind: Mapping[str, Any], marks: Mapping[str, bytes]) -> Callable[[bytes, bytes], bool]:
    """Return whether a key and its value have expired, by the kind and the marks of a store: no function sees them."""
    stream_time_ms = stream_time_of(marks.get(STREAM_TIME))
    keys = keys_described(kind)
    if keys is not None:
        first_ms = RecordRetention(kind["retention_ms"], kind["segment_ms"]).first_live_ms(stream_time_ms)
        return lambda key, value: keys.time(key) < first_ms
    if kind["kind"] == VERSIONED:
        return lambda key, value: key.startswith(INDEX)
    if TTL in marks:
        limit_ms = stream_time_ms - unpacked(marks[TTL])
        return lambda key, value: has_expired(value, limit_ms)
    return lambda key, value: False


class _Decoder:
    """Takes the keys, values and times of one store apart, as its description says."""

    def __init__(self, store: str, kind: Mapping[str, Any]) -> None:
        self._store = store
        self._kind = kind["kind"]
        self._timestamped, self._with_headers = has_timestamps(kind), has_headers(kind)
        self._keys = keys_described(kind)
        self._size_ms = kind.get("size_ms")
        self._key, self._value = _SERDES.get(kind.get("key", "")), _SERDES.get(kind.get("value", ""))

    def row(self, key: bytes, value: bytes) -> _Shown:
        if self._kind == TIMES_KIND:
            text, nothing, time_ms = shown_timer(key, value)
            return text, nothing, _time(time_ms), None, None
        if self._kind == VERSIONED:
            data, shown_key = value_in(key, value), self._shown(self._key, key_in(key), "key", key)
            shown = None if data is None else self._shown(self._value, data, "value", key)
            return shown_key, shown, _time(time_in(key, value)), None, None
        start = end = timestamp = None
        bare = key
        if self._keys is not None:
            start, *ends = self._keys.times(key).values()
            end = ends[0] if ends else start + self._size_ms if isinstance(self._size_ms, int) else None
            bare = self._keys.key(key[SEGMENT_BYTES:])
        if self._timestamped:
            timestamp, value = self._timed(key, value)
        return (
            self._shown(self._key, bare, "key", key),
            self._shown(self._value, value, "value", key),
            None if timestamp is None or timestamp < 0 else _time(timestamp),
            None if start is None else _time(start),
            None if end is None else _time(end),
        )

    def _timed(self, key: bytes, value: bytes) -> tuple[int, bytes]:
        if not self._with_headers:
            return int.from_bytes(value[:TIME_BYTES], "big", signed=True), value[TIME_BYTES:]
        try:
            return stored_time_ms(value), stored_value(value)
        except ValueError as error:
            raise SerdeMismatchError(
                f"the value under the key {key.hex()} of store {self._store!r} can't be read: {error}. Read the state "
                "with the release that wrote it"
            ) from error

    def _shown(self, serde: Any, data: bytes, what: str, key: bytes) -> str:
        if serde is None:
            return data.hex()
        try:
            read = serde.deserialize(data)
        except Exception as error:
            raise SerdeMismatchError(
                f"the {what} under the key {key.hex()} of store {self._store!r} is not of type {serde.name}: read the "
                "state with the release that wrote it"
            ) from error
        return read if isinstance(read, str) and serde is STR else json.dumps(read, ensure_ascii=False, sort_keys=True)


def _time(milliseconds: int) -> datetime | None:
    """Return the time, None if it is after the year 9999."""
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


LOOK_S = 1.0
"""The time between two looks at the checkpoint. Spark asks for an offset 100 times a second while no data comes."""
_WATERMARK = "watermark_ms"


class WatermarkReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads no rows. Its offset is the watermark of the next batch. Used on the driver."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        self._look_s, self._looked_s = LOOK_S, -LOOK_S
        self._watermark_ms = 0

    def initialOffset(self) -> dict[str, int]:
        """Return the offset before the first batch."""
        return {_WATERMARK: 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """Look each time: the query ends when no offset is new."""
        self._look_s = 0.0

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        """Return the watermark. Spark 4.1 calls it without arguments."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= self._look_s:
            self._looked_s = now_s
            self._watermark_ms = max(self._watermark_ms, next_watermark_of(self._checkpoint))
        return {_WATERMARK: max(self._watermark_ms, 0 if start is None else start[_WATERMARK])}

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        """Return no part."""
        return []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return no rows."""
        return iter(())


class WatermarkSource(DataSource):
    """The source for ``WatermarkReader``. Its option ``checkpoint`` is the query's checkpoint."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "txstores_watermark"

    def schema(self) -> str:
        """Return a column, which has no rows."""
        return "nothing int"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return the reader."""
        return WatermarkReader(self.options["checkpoint"])


def with_idle_batches(events: DataFrame, checkpoint: str) -> DataFrame:
    """Return ``events``, with a batch without rows when the query's watermark has advanced and there is no other."""
    from pyspark.sql import functions as F

    spark = events.sparkSession
    spark.dataSource.register(WatermarkSource)
    source = spark.readStream.format(WatermarkSource.name()).option("checkpoint", checkpoint).load()
    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in events.schema.fields]
    return events.union(source.select(*columns))
