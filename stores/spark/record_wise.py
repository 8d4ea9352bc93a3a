"""The function of records, or of batches, of a ``StreamTask`` over the rows of a partition of a batch of Spark.

A row is a record by its columns, which are those of Spark's Kafka source; what the function forwards are rows with the
columns of Spark's Kafka sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

from stores.changelog.arguments import check_name, check_record
from stores.changelog.interface import Headers, Record
from stores.contract.arguments import check_type
from stores.errors import ConfigError, StoreError
from stores.interface import TopicPartition
from stores.records.handles import StoreHandle
from stores.spark.context import Context, Timers, set_stream_time, stream_time_ms
from stores.spark.record_columns import (
    FORWARDED_COLUMNS,
    PARTITION_MAX,
    UNNAMED,
    Forwarded,
    check_time,
    inputs_of,
    records_of,
)
from stores.spark.rows import Rows, in_pieces
from stores.tasks.context import NO_PARTITION, NO_RECORD, not_processing
from stores.tasks.identifier import TaskId
from stores.tasks.on_error import origin_note, read_whole
from stores.tasks.record_batch import Batch, place_of, within_bytes
from stores.topic import Topic

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

_PIECE_ROWS = 10_000
"""The rows of which those of one input come together. Spark sends as many at a time, unless it is set otherwise."""
_PIECE_BYTES = 16 << 20
K = TypeVar("K")
V = TypeVar("V")
Store = TypeVar("Store")

Step = tuple[TopicPartition, Record, Any]
"""A call of the function: its input partition, the current record of the context, and what the function is called for.
"""


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
        self._forwarded = Forwarded()
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
        self._check(partition, partitioner)
        if isinstance(topic, Topic):
            key, value = topic.encoded(key, value)
            topic = topic.name
        check_name("topic's name", topic)
        time_ms = self.record.timestamp_ms if timestamp_ms == -1 else timestamp_ms
        pairs = check_record(key, value, time_ms, headers)
        check_time(time_ms)
        self._forwarded.add((topic, key, value, time_ms, pairs, partition))

    def _check(self, partition: object, partitioner: object) -> None:
        """Check that an output may be given out. Raises: StoreError, ConfigError, TypeError, ValueError."""
        if not self._active:
            raise not_processing(self.task_id)
        if partition is not None:
            check_type(partition, int, "the partition of an output is an int, or None")
            if not 0 <= partition <= PARTITION_MAX:  # type: ignore[operator]
                raise ValueError(f"the partition of an output is 0 to {PARTITION_MAX:,}, not {partition}")
        if partitioner is not None:
            raise ConfigError(
                "a stateful query does not know the number of partitions of a topic: give forward() a partition, or "
                "the Kafka sink the option kafka.partitioner.class"
            )

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
        """Give out rows by their columns, all of one length: sequences, or Arrow arrays.

        Of arrays, keys and values are binary, or what the serdes of the topic write: texts for STR, integers for INT64.
        The default timestamp is that of the input record, in a batch the highest of its records.

        Raises: as ``forward``; ValueError for columns of different lengths. No row is given out then.
        """
        self._check(partition, partitioner)
        own_ms = self.record.timestamp_ms
        self._forwarded.add_columns(topic, keys, values, timestamps_ms, own_ms, headers, partition)

    def commit(self) -> None:
        """Do nothing: the batch is what is committed."""

    def schedule(self, *arguments: object) -> None:
        """Refuse a schedule. Raises: StoreError."""
        raise StoreError("a stateful query has no schedules: register timers by event time in context.timers")


@dataclass(frozen=True)
class RecordWise:
    """A function of a batch of Spark that calls ``function`` for each record, and ``timer`` for each due timer."""

    function: Callable[[Any, Any], None]
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
        context._state.record_time.of, before = record_context, record_context.stream_time_ms
        for steps in self.steps(rows, context.partition):
            for partition, record, argument in steps:
                record_context.partition, record_context.record, record_context._active = partition, record, True
                if record.timestamp_ms > record_context.stream_time_ms:
                    record_context.stream_time_ms = record.timestamp_ms
                try:
                    self.call(argument, self.topics.get(partition.topic), record_context)
                except BaseException as error:
                    error.add_note(origin_note(record_context.task_id, partition, record))
                    raise
                finally:
                    record_context._active = False
            yield from record_context._forwarded.take(self.columns)
        record_context.record = NO_RECORD._replace(timestamp_ms=record_context.timestamp_ms)
        if record_context.stream_time_ms > before:
            set_stream_time(times, record_context.stream_time_ms)

    def steps(self, rows: Rows, number: int) -> Iterator[Iterable[Step]]:
        """Return the calls of the function; what is forwarded in each part of them is given out before the next."""
        for batch in rows.batches():
            yield ((partition, record, record) for partition, record in records_of(batch, self.key, number))

    def call(self, argument: Any, topic: Topic[Any, Any] | None, context: RecordContext) -> None:
        """Call the function with a record of bytes, as the serdes of its topic read it."""
        self.function(argument if topic is None else topic.decoded(argument), context)

    def on_timer(self, key: Any, time_ms: int, context: Context) -> Iterator[pyarrow.RecordBatch]:
        """Call ``timer`` with a context of records; yield what it forwards."""
        assert self.timer is not None
        record_context = RecordContext(context)
        record_context.record = NO_RECORD._replace(timestamp_ms=time_ms)
        record_context._active, context._state.record_time.of = True, record_context
        try:
            self.timer(key, time_ms, record_context)
        finally:
            record_context._active = False
        yield from record_context._forwarded.take(self.columns)


@dataclass(frozen=True, kw_only=True)
class BatchWise(RecordWise):
    """A function of a batch of Spark that calls ``function`` with ``Batch``es, and ``timer`` for each due timer."""

    max_records: int
    max_bytes: int
    """The most records of a ``Batch``, and the most bytes of their keys and values; a larger record is alone."""
    in_order: bool = False
    """True to keep the order of the rows of several inputs: a ``Batch`` ends where another input has the next row."""

    def steps(self, rows: Rows, number: int) -> Iterator[Iterable[Step]]:
        most = max(_PIECE_ROWS // self.max_records, 1) * self.max_records
        for piece in in_pieces(rows.batches(), most, max(_PIECE_BYTES, self.max_bytes)):
            yield self._batches(piece, number)

    def _batches(self, piece: pyarrow.RecordBatch, number: int) -> Iterator[Step]:
        for partition, records in inputs_of(piece, self.key, number, in_order=self.in_order):
            first = 0
            while ahead := records[first : first + self.max_records]:
                count = within_bytes(ahead, len(ahead), self.max_bytes)
                batch = Batch[Any, Any](partition, ahead[:count])
                yield partition, place_of(batch), batch
                first += count

    def call(self, argument: Any, topic: Topic[Any, Any] | None, context: RecordContext) -> None:
        read_whole(self.function, argument if topic is None else argument.read_by(topic), context)


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
    return dict.fromkeys([UNNAMED], *by_name.values())


def checked_output(output: StructType) -> tuple[str, ...]:
    """Return the columns of an output that a record-wise function may have. Raises: ConfigError for others."""
    unknown = [name for name in output.names if name not in FORWARDED_COLUMNS]
    if unknown or not output.names:
        raise ConfigError(
            f"the output of a record-wise function has some of the columns {', '.join(FORWARDED_COLUMNS)}, and not "
            f"{', '.join(map(repr, unknown)) or 'none'}: correct output, or give a function of rows as process"
        )
    return tuple(output.names)
