"""The record-wise function of a ``StreamTask`` over the rows of a partition of a batch.

A row is a record by its columns, which are those of Spark's Kafka source; what the function forwards are rows with the
columns of Spark's Kafka sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

from stores.changelog.arguments import check_name, check_record
from stores.changelog.interface import Headers, Record
from stores.errors import ConfigError, StoreError
from stores.interface import TopicPartition
from stores.records.handles import StoreHandle
from stores.spark.context import Context, Timers, set_stream_time, stream_time_ms
from stores.spark.rows import Rows
from stores.tasks.context import NO_PARTITION, NO_RECORD, not_processing
from stores.tasks.identifier import TaskId
from stores.tasks.on_error import origin_note
from stores.topic import Topic

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

K = TypeVar("K")
V = TypeVar("V")
Store = TypeVar("Store")

VALUE = "value"
"""The column with a record's value, which there must be. The key's column is named by the caller."""
FORWARDED = (
    "topic string not null, key binary, value binary, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>, partition int"
)
"""The columns of forwarded records, and their order."""
_COLUMNS = ("topic", "key", "value", "timestamp", "headers", "partition")
_UNNAMED = "input"
"""The topic of records that have no column for it."""


class RecordContext:
    """The context of a record-wise function: as that of a ``StreamTask``, for one partition of one batch.

    Its differences: outputs are rows of the DataFrame, so topics need not exist. Commits are those of the batch. Timers
    are in the place of schedules: ``timers`` and ``watermark_ms`` are those of ``stores.spark.Context``.
    """

    def __init__(self, batch: Context) -> None:
        self.task_id = TaskId(0, batch.partition)
        """The partition of the batch as a task."""
        self.partition = NO_PARTITION
        """The input partition of the current record."""
        self.record = NO_RECORD
        self._stores = batch._stores
        self._active = False
        """True while a record is processed or a timer fires."""
        self._forwarded: list[tuple[str, bytes | None, bytes | None, int, Headers, int | None]] = []
        """The outputs since they were last taken."""
        self.batch = batch
        """The batch, with its ID and version."""
        times = batch._state.times
        assert times is not None
        self.stream_time_ms = stream_time_ms(times)
        """The highest timestamp of the partition's input up to the current record, -1 if unknown; kept in the state."""

    @property
    def offset(self) -> int:
        """The current record's offset in its input partition, -1 if the rows have no such column."""
        return self.record.offset

    @property
    def timestamp_ms(self) -> int:
        """The current record's timestamp, or the time of the timer that fires; -1 if unknown."""
        return self.record.timestamp_ms

    @property
    def timers(self) -> Timers:
        """The timers: see ``Context.timers``."""
        return self.batch.timers

    @property
    def watermark_ms(self) -> int:
        """The query's watermark: see ``Context.watermark_ms``."""
        return self.batch.watermark_ms

    @overload
    def store(self, store: StoreHandle[Store]) -> Store: ...

    @overload
    def store(self, store: str) -> Any: ...

    def store(self, store: object) -> Any:
        """Return a store: see ``Context.store``."""
        return self._stores[store]

    def global_store(self, store: object) -> NoReturn:
        """Refuse a global store. Raises: StoreError."""
        raise StoreError("a stateful query has no global stores: join the DataFrame with that of the other topic")

    @overload
    def forward(
        self,
        topic: Topic[K, V],
        key: K | None,
        value: V | None,
        timestamp_ms: int = -1,
        headers: Headers = (),
        partition: int | None = None,
        partitioner: object = None,
    ) -> None: ...

    @overload
    def forward(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int = -1,
        headers: Headers = (),
        partition: int | None = None,
        partitioner: object = None,
    ) -> None: ...

    def forward(
        self,
        topic: Any,
        key: Any,
        value: Any,
        timestamp_ms: int = -1,
        headers: Headers = (),
        partition: int | None = None,
        partitioner: object = None,
    ) -> None:
        """Give out a row, with the bytes of its key and its value. The default timestamp is that of the input record.

        The default partition is null: Spark's Kafka sink then chooses by the key, as a task does. A ``partitioner`` is
        refused, because nothing here knows how many partitions a topic has.

        Raises: StoreError outside of the function; ConfigError for a partitioner; TypeError and ValueError for an
        invalid record, and for what a serde of the topic refuses.
        """
        if not self._active:
            raise not_processing(self.task_id)
        if partitioner is not None:
            raise ConfigError(
                "a stateful query does not know the number of partitions of a topic: give forward() a partition, or "
                "the Kafka sink the option kafka.partitioner.class"
            )
        if isinstance(topic, Topic):
            key, value = topic.encoded(key, value)
            topic = topic.name
        check_name("topic's name", topic)
        time_ms = self.record.timestamp_ms if timestamp_ms == -1 else timestamp_ms
        self._forwarded.append((topic, key, value, time_ms, check_record(key, value, time_ms, headers), partition))

    def forward_many(
        self,
        topic: Topic[Any, Any] | str,
        keys: Sequence[Any],
        values: Sequence[Any],
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
        partition: int | None = None,
        partitioner: object = None,
    ) -> None:
        """Give out rows by their columns, all of one length. Raises: as ``forward``; no row is given out then."""
        before = len(self._forwarded)
        times_ms = [-1] * len(keys) if timestamps_ms is None else timestamps_ms
        pairs: Sequence[Headers] = [()] * len(keys) if headers is None else headers
        try:
            for key, value, time_ms, own in zip(keys, values, times_ms, pairs, strict=True):
                self.forward(topic, key, value, time_ms, own, partition, partitioner)
        except BaseException:
            del self._forwarded[before:]
            raise

    def commit(self) -> None:
        """Do nothing: the batch is what is committed."""

    def schedule(self, *arguments: object) -> None:
        """Refuse a schedule. Raises: StoreError."""
        raise StoreError("a stateful query has no schedules: register timers by event time in context.timers")


@dataclass(frozen=True)
class RecordWise:
    """A function of a batch that calls ``function`` for each record, and ``timer`` for each timer that is due."""

    function: Callable[[Record[Any, Any], Any], None]
    key: str
    columns: tuple[str, ...]
    """The columns that are given out, some of ``FORWARDED``."""
    timer: Callable[[Any, int, Any], Any] | None = None
    topics: Mapping[str, Topic[Any, Any]] = field(default_factory=dict)
    """The topics with serdes, by name, whose records the function gets as the serdes read them."""

    def __call__(self, rows: Rows, context: Context) -> Iterator[pyarrow.RecordBatch]:
        """Process the rows; yield what is forwarded. An exception gets a note with partition, offset and key."""
        times = context._state.times
        assert times is not None
        record_context = RecordContext(context)
        time, before = context._state.record_time, record_context.stream_time_ms
        for batch in rows.batches():
            for partition, record in _records(batch, self.key, context.partition):
                record_context.partition, record_context.record, record_context._active = partition, record, True
                time.ms = record.timestamp_ms
                if record.timestamp_ms > record_context.stream_time_ms:
                    record_context.stream_time_ms = record.timestamp_ms
                try:
                    topic = self.topics.get(partition.topic)
                    self.function(record if topic is None else topic.decoded(record), record_context)
                except BaseException as error:
                    error.add_note(origin_note(record_context.task_id, partition, record))
                    raise
                finally:
                    record_context._active = False
            yield from self._taken(record_context)
        if record_context.stream_time_ms > before:
            set_stream_time(times, record_context.stream_time_ms)

    def on_timer(self, key: Any, time_ms: int, context: Context) -> Iterator[pyarrow.RecordBatch]:
        """Call ``timer`` with a context of records; yield what it forwards."""
        assert self.timer is not None
        record_context = RecordContext(context)
        record_context.record = NO_RECORD._replace(timestamp_ms=time_ms)
        record_context._active, context._state.record_time.ms = True, time_ms
        try:
            self.timer(key, time_ms, record_context)
        finally:
            record_context._active = False
        yield from self._taken(record_context)

    def _taken(self, context: RecordContext) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        outputs, context._forwarded = context._forwarded, []
        if not outputs:
            return
        columns = dict(zip(_COLUMNS, map(list, zip(*outputs, strict=True)), strict=True))
        columns["timestamp"] = [None if time_ms < 0 else time_ms * 1000 for time_ms in columns["timestamp"]]
        columns["headers"] = [
            [{"key": name, "value": content} for name, content in pairs] or None for pairs in columns["headers"]
        ]
        yield pa.record_batch([pa.array(columns[name], _types()[name]) for name in self.columns], names=self.columns)


def topics_by_name(topics: Iterable[Topic[Any, Any]], columns: Iterable[str]) -> dict[str, Topic[Any, Any]]:
    """Return the topics of a function's records. Rows without a column ``topic`` are all of one topic.

    Raises: TypeError for what is no list of ``Topic``; ConfigError for a topic that comes twice, or among several that
    the rows do not name.
    """
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        raise TypeError(f"topics is a list of Topic, not {type(topics).__name__}")
    by_name: dict[str, Topic[Any, Any]] = {}
    for topic in topics:
        if not isinstance(topic, Topic):
            raise TypeError(f"topics is a list of Topic, not of {type(topic).__name__}: leave out those of bytes")
        if by_name.setdefault(topic.name, topic) is not topic:
            raise ConfigError(f"topic {topic.name!r} is given twice: drop one of the two")
    if not by_name or "topic" in columns:
        return by_name
    if len(by_name) > 1:
        raise ConfigError("rows without a column 'topic' are of one topic: give one Topic, or add the column")
    return dict.fromkeys([_UNNAMED], *by_name.values())


def checked_output(output: StructType) -> tuple[str, ...]:
    """Return the columns of an output that a record-wise function may have. Raises: ConfigError for others."""
    unknown = [name for name in output.names if name not in _COLUMNS]
    if unknown or not output.names:
        raise ConfigError(
            f"the output of a record-wise function has some of the columns {', '.join(_COLUMNS)}, and not "
            f"{', '.join(map(repr, unknown)) or 'none'}: correct output, or give a function of rows as process"
        )
    return tuple(output.names)


def _types() -> dict[str, Any]:
    import pyarrow as pa

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return {
        "topic": pa.string(),
        "key": pa.binary(),
        "value": pa.binary(),
        "timestamp": pa.timestamp("us", "UTC"),
        "headers": pa.list_(header),
        "partition": pa.int32(),
    }


def _records(batch: pyarrow.RecordBatch, key: str, number: int) -> Iterator[tuple[TopicPartition, Record]]:
    """Return the rows of a batch as records, with the input partition of each."""
    import pyarrow as pa

    names = set(batch.schema.names)
    times, offsets, headers = [-1] * batch.num_rows, [-1] * batch.num_rows, None
    if "timestamp_ms" in names:
        times = batch.column("timestamp_ms").cast(pa.int64()).fill_null(-1).to_pylist()
    elif "timestamp" in names:
        at = batch.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False)
        times = at.cast(pa.int64()).fill_null(-1).to_pylist()
    if "offset" in names:
        offsets = batch.column("offset").cast(pa.int64()).fill_null(-1).to_pylist()
    if "headers" in names:
        headers = [
            tuple((one["key"], one["value"]) for one in some or ()) for some in batch.column("headers").to_pylist()
        ]
    topics = batch.column("topic").to_pylist() if "topic" in names else [_UNNAMED] * batch.num_rows
    numbers = batch.column("partition").to_pylist() if "partition" in names else [number] * batch.num_rows
    keys, values = _bytes(batch.column(key)), _bytes(batch.column(VALUE))
    partitions: dict[tuple[str, int], TopicPartition] = {}
    for row in range(batch.num_rows):
        origin = topics[row], numbers[row]
        partition = partitions.get(origin)
        if partition is None:
            partition = partitions[origin] = TopicPartition(*origin)
        yield partition, Record(offsets[row], keys[row], values[row], times[row], headers[row] if headers else ())


def _bytes(column: pyarrow.Array) -> list[bytes | None]:
    """Return texts as UTF-8, and bytes as they are."""
    import pyarrow as pa

    values: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return values
