"""Rows as records, and records as rows, in the columns of Spark's Kafka source and sink."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stores.changelog.arguments import check_columns, check_name
from stores.changelog.interface import Headers, Record
from stores.interface import TopicPartition
from stores.records.arrow_serdes import as_list, is_arrow, one_array, serialized
from stores.records.serdes import BYTES
from stores.tasks.arrow_records import ArrowRecords, header_type
from stores.tasks.column_records import COLUMNS
from stores.topic import Topic

if TYPE_CHECKING:
    import pyarrow

VALUE = "value"
"""The column with a record's value, which there must be. The key's column is named by the caller."""
FORWARDED = (
    "topic string not null, key binary, value binary, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>, partition int"
)
"""The columns of forwarded records, and their order."""
FORWARDED_COLUMNS = ("topic", "key", "value", "timestamp", "headers", "partition")
UNNAMED = "input"
"""The topic of records that have no column for it, or a null there."""
_ORIGIN = ("topic", "partition")
_US = 1000
"""The microseconds of a millisecond."""
_TIME_MS_MAX = (2**63 - 1) // _US
"""The last timestamp that Spark can keep, in microseconds of 64 bits."""
PARTITION_MAX = 2**31 - 1


def raw_rows(rows: pyarrow.RecordBatch, key: str) -> pyarrow.RecordBatch:
    """Return rows with the columns of ``ArrowRecords``: bytes, and -1 for what is unknown."""
    import pyarrow as pa

    names, count = set(rows.schema.names), rows.num_rows
    times: pyarrow.Array | None = None
    if "timestamp_ms" in names:
        times = rows.column("timestamp_ms")
    elif "timestamp" in names:
        times = rows.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False)
    columns = [
        _numbers(rows.column("offset") if "offset" in names else None, count),
        rows.column(key).cast(pa.binary()),
        rows.column(VALUE).cast(pa.binary()),
        _numbers(times, count),
        _headers(rows.column("headers") if "headers" in names else None, count),
    ]
    return pa.record_batch(columns, names=list(COLUMNS))


def _numbers(column: pyarrow.Array | None, count: int) -> pyarrow.Array:
    import pyarrow as pa

    unknown = pa.scalar(-1, pa.int64())
    return pa.repeat(unknown, count) if column is None else column.cast(pa.int64()).fill_null(unknown)


def _headers(column: pyarrow.Array | None, count: int) -> pyarrow.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = header_type()
    if column is None:
        ends = pa.Array.from_buffers(pa.int32(), count + 1, [None, pa.py_buffer(bytes(4 * (count + 1)))])
        return pa.ListArray.from_arrays(ends, pa.array([], kind.value_type))
    pairs = column.cast(kind)
    return pc.coalesce(pairs, pa.scalar([], kind)) if pairs.null_count else pairs


def records_of(rows: pyarrow.RecordBatch, key: str, number: int) -> Iterator[tuple[TopicPartition, Record]]:
    """Return rows as records, with the input partition of each; ``number`` is that of rows without one."""
    rows = _with_origins(rows, number)
    names, count = set(rows.schema.names), rows.num_rows
    topics = rows.column("topic").to_pylist() if "topic" in names else [UNNAMED] * count
    numbers = rows.column("partition").to_pylist() if "partition" in names else [number] * count
    partitions: dict[tuple[str, int], TopicPartition] = {}
    for origin, record in zip(zip(topics, numbers, strict=True), ArrowRecords(raw_rows(rows, key)), strict=True):
        partition = partitions.get(origin)
        if partition is None:
            partition = partitions[origin] = TopicPartition(*origin)
        yield partition, record


def inputs_of(
    rows: pyarrow.RecordBatch, key: str, number: int, *, in_order: bool
) -> Iterator[tuple[TopicPartition, ArrowRecords]]:
    """Return rows as records of one input partition after the other, in their order within each.

    With ``in_order`` it is their order among all: the same input may come again after another one.
    """
    rows = _with_origins(rows, number)
    names = [name for name in _ORIGIN if name in rows.schema.names]
    starts = _starts(rows, names)
    if len(starts) > 1 and not in_order:
        # The order of rows of one input stays: this sort is stable.
        rows = rows.sort_by([(name, "ascending") for name in names])
        starts = _starts(rows, names)
    records = ArrowRecords(raw_rows(rows, key))
    for start, end in zip(starts, [*starts[1:], rows.num_rows], strict=True):
        origin = {name: rows.column(name)[start].as_py() for name in names}
        yield TopicPartition(origin.get("topic", UNNAMED), origin.get("partition", number)), records[start:end]


def _with_origins(rows: pyarrow.RecordBatch, number: int) -> pyarrow.RecordBatch:
    """Return the rows without nulls in the columns of their input, as if such a row had no such column."""
    for name, unknown in zip(_ORIGIN, (UNNAMED, number), strict=True):
        place = rows.schema.get_field_index(name)
        if place >= 0 and rows.column(place).null_count:
            rows = rows.set_column(place, name, rows.column(place).fill_null(unknown))
    return rows


def _starts(rows: pyarrow.RecordBatch, names: Sequence[str]) -> list[int]:
    """Return the places of rows that differ from those before them in one of these columns."""
    import pyarrow.compute as pc

    starts = {0}
    for name in names:
        column = rows.column(name)
        changed = pc.not_equal(column.slice(1), column.slice(0, rows.num_rows - 1))
        starts.update(place + 1 for place in pc.indices_nonzero(changed).to_pylist())
    return sorted(starts)


Output = tuple[str, bytes | None, bytes | None, int, Headers, int | None]
"""A record that is given out: topic, key, value, timestamp in milliseconds (-1 for none), headers and partition."""


def check_time(time_ms: int) -> None:
    """Check that Spark can keep a timestamp. Raises: ValueError."""
    if time_ms > _TIME_MS_MAX:
        raise ValueError(f"timestamp {time_ms} is out of range for Spark: up to {_TIME_MS_MAX} milliseconds since 1970")


class Forwarded:
    """The records that a function gives out, in order, until they are taken."""

    def __init__(self) -> None:
        self._records: list[Output] = []
        """The last ones, which came one by one."""
        self._before: list[pyarrow.RecordBatch] = []

    def add(self, record: Output) -> None:
        """Add a record, which is checked."""
        self._records.append(record)

    def add_columns(
        self,
        topic: Topic[Any, Any] | str,
        keys: Any,
        values: Any,
        timestamps_ms: Any,
        own_ms: int,
        headers: Sequence[Headers] | None,
        partition: int | None,
    ) -> None:
        """Add records by their columns: sequences, or Arrow arrays. ``own_ms`` is the timestamp in place of -1.

        Raises: TypeError, ValueError; no record is added then.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        count = len(keys)
        name, data = _data(topic, keys, values)
        times = [own_ms] * count if timestamps_ms is None else _times(timestamps_ms, own_ms)
        given = [[None] * len(column) if is_arrow(column) else column for column in data]
        checked = check_columns(given[0], given[1], [-1] * len(times) if is_arrow(times) else times, headers)
        if count:
            check_time(pc.max(times).as_py() if is_arrow(times) else max(times))
        columns = [
            pa.repeat(name, count),
            *(column if is_arrow(column) else pa.array(column, pa.binary()) for column in data),
            _timestamps(times if is_arrow(times) else pa.array(times, pa.int64())),
            pa.nulls(count, header_type()) if checked is None else _as_arrow(checked),
            pa.repeat(pa.scalar(partition, pa.int32()), count),
        ]
        self._flush()
        if count:
            self._before.append(pa.record_batch(columns, names=list(FORWARDED_COLUMNS)))

    def take(self, names: Sequence[str]) -> Iterable[pyarrow.RecordBatch]:
        """Return and forget the records, as rows with the columns ``names``."""
        self._flush()
        taken, self._before = self._before, []
        return [batch.select(list(names)) for batch in taken]

    def _flush(self) -> None:
        import pyarrow as pa

        records, self._records = self._records, []
        if not records:
            return
        topics, keys, values, times_ms, headers, partitions = map(list, zip(*records, strict=True))
        columns = [
            pa.array(topics, pa.string()),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            _timestamps(pa.array(times_ms, pa.int64())),
            _as_arrow(headers),
            pa.array(partitions, pa.int32()),
        ]
        self._before.append(pa.record_batch(columns, names=list(FORWARDED_COLUMNS)))


def _as_arrow(headers: Iterable[Headers]) -> pyarrow.Array:
    """Return headers, null for a record that has none."""
    import pyarrow as pa

    rows = [[{"key": name, "value": content} for name, content in pairs] or None for pairs in headers]
    return pa.array(rows, header_type())


def _timestamps(times_ms: pyarrow.Array) -> pyarrow.Array:
    """Return times, which Spark can keep, null where one is unknown."""
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pc.if_else(pc.less(times_ms, 0), None, times_ms) if len(times_ms) else times_ms
    return pc.multiply(known, _US).cast(pa.timestamp("us", "UTC"))


def _times(timestamps_ms: Any, own_ms: int) -> Any:
    """Return timestamps with ``own_ms`` in place of -1: as an array, or as a list that is to be checked."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_arrow(timestamps_ms) and pa.types.is_int64(timestamps_ms.type) and not timestamps_ms.null_count:
        times = one_array(timestamps_ms)
        if pc.all(pc.greater_equal(times, -1)).as_py():
            return pc.if_else(pc.equal(times, -1), own_ms, times)
    return [own_ms if time_ms == -1 else time_ms for time_ms in as_list(timestamps_ms)]


def _data(topic: Topic[Any, Any] | str, keys: Any, values: Any) -> tuple[str, tuple[Any, Any]]:
    """Return the name of a topic, and the bytes of keys and values: as arrays, or as lists that are to be checked."""
    name, key, value = (topic.name, topic.key, topic.value) if isinstance(topic, Topic) else (topic, BYTES, BYTES)
    check_name("topic's name", name)
    if is_arrow(keys) and is_arrow(values):
        arrays = serialized(key, keys), serialized(value, values)
        if arrays[0] is not None and arrays[1] is not None:
            return name, arrays
    lists = as_list(keys), as_list(values)
    return name, topic.encoded_columns(*lists) if isinstance(topic, Topic) else lists
