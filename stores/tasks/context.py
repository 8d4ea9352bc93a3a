"""The context that a user's function gets with each record or batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast, overload

from stores.changelog.arguments import check_columns, check_record
from stores.changelog.interface import Changelog, Headers, Producer, Record
from stores.changelog.partitioners import PARTITIONERS, all_of_murmur2, of_murmur2, partitioner_named
from stores.errors import ChangelogError, StoreError
from stores.interface import TopicPartition
from stores.records.arrow_serdes import as_list
from stores.records.handles import Kinds, StoreHandle, StoreTable, ViewHandle
from stores.records.values import Report
from stores.tasks.identifier import TaskId
from stores.tasks.memory_budget import WrittenBytes
from stores.tasks.record_batch import Batch
from stores.tasks.record_undo import RecordUndo
from stores.tasks.timing import Punctuation, PunctuationType, Punctuator, Schedule, StreamTime
from stores.topic import Topic

K = TypeVar("K")
V = TypeVar("V")
Store = TypeVar("Store")
View = TypeVar("View")

OutputPartitioner = Callable[[Any, int], int]
"""Returns the partition of an output by the bytes of its key, or None, among a number of partitions."""
_BY_KEY: tuple[OutputPartitioner, ...] = tuple(PARTITIONERS.values())
"""Those that are not asked about outputs without a key."""
NO_RECORD = Record(-1, None, None)
NO_PARTITION = TopicPartition("", -1)


REPORT_ROUNDS_MAX = 1_000
"""The most times in a row that reports of closed windows and expired records may lead to others."""


class TaskContext:
    """The task's stores and outputs, and the origin of the current record. Valid while the function runs.

    A punctuator may keep the context that ``init`` got. While it runs there is no current record, and ``timestamp_ms``
    is the time that the punctuator was called with.
    """

    def __init__(
        self,
        task_id: TaskId,
        changelog: Changelog,
        punctuation: Punctuation,
        stream_time: StreamTime,
        partitioner: OutputPartitioner = of_murmur2,
    ) -> None:
        self.task_id = task_id
        self.partition = NO_PARTITION
        """The input partition of the current record."""
        self.record = NO_RECORD
        """The current record as it is in its topic: with its bytes, whatever the serdes of a ``Topic`` read.

        While a batch of several is processed it has the batch as its value, the last offset and the highest timestamp,
        which is the time of writes and outputs without one of their own.
        """
        self._active = False
        """True while a record is processed or a punctuator runs: only then may stores be written and outputs sent."""
        self._commit_requested = False
        self._written = WrittenBytes()
        """The bytes that the current record has written to transactional stores."""
        self._reports: dict[str, Callable[[], Iterator[Report]]] = {}
        """The calls that stores have asked for, by the stores' names: each yields what is due after the record."""
        self._failure: BaseException | None = None
        """The error after which the open transaction must not be committed."""
        self._undo: RecordUndo | None = None
        """The undo of the current record; None if an exception of the function rolls back the transaction."""
        self._producer: Producer
        self._stores = self._global_stores = StoreTable(f"task {task_id}", {}, {})
        """The task's stores, as its function sees them, and views of the global stores."""
        self._changelog = changelog
        self._punctuation, self._stream_time = punctuation, stream_time
        self._partitioner = partitioner
        self._outputs: dict[str, tuple[TopicPartition, ...]] = {}
        """The partitions of each output topic, by number."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of task {self.task_id}>"

    @property
    def offset(self) -> int:
        """The current record's offset in its input partition."""
        return self.record.offset

    @property
    def timestamp_ms(self) -> int:
        """The current record's timestamp, -1 if unknown."""
        return self.record.timestamp_ms

    @property
    def stream_time_ms(self) -> int:
        """The highest timestamp of the task's input up to the current record, or the end of the batch.

        It is -1 if unknown, and kept across restarts. Source: KIP-622, ``currentStreamTimeMs``.
        """
        return self._stream_time.ms

    def schedule(self, interval_ms: int, kind: PunctuationType, callback: Punctuator) -> Schedule:
        """Call ``callback`` with a timestamp after each ``interval_ms`` (1 or more). May only be called in ``init``.

        With STREAM_TIME it is called with the stream time: after the very first record, and then after each record
        whose timestamp reaches the next multiple of the interval. With WALL_CLOCK_TIME the first call comes after one
        interval. Missed calls are skipped. Writes and outputs of ``callback`` belong to the open transaction.

        Raises: StoreError outside of ``init``, TypeError, ConfigError. Source: KIP-138.
        """
        return self._punctuation.schedule(interval_ms, kind, callback)

    @overload
    def store(self, store: StoreHandle[Store]) -> Store: ...

    @overload
    def store(self, store: str) -> Any: ...

    def store(self, store: object) -> Any:
        """Return a store of the task, for reads, writes and scans. The task commits it: see ``commit``.

        ``store`` is the description that the store was declared with, which has the store's name. Then a checker of
        types knows the type of the store. Or it is the name: of a ``KeyValueStore`` of bytes, of a typed store, or of a
        global store (``global_store``).

        Raises: ConfigError if the task has no such store, or declares it by another description; TypeError.
        """
        return self._stores[store]

    @overload
    def global_store(self, store: ViewHandle[View]) -> View: ...

    @overload
    def global_store(self, store: str) -> Any: ...

    def global_store(self, store: object) -> Any:
        """Return the view of a global store, by its description or its name. It shows the last commit, and only reads.

        Raises: as ``store``.
        """
        return self._global_stores[store]

    def _show(self, stores: Mapping[str, Any], kinds: Kinds, views: Mapping[str, Any], view_kinds: Kinds) -> None:
        """Show the task's stores and the views of global stores, each with their kinds."""
        self._stores = StoreTable(f"task {self.task_id}", stores, kinds, views)
        self._global_stores = StoreTable("the worker", views, view_kinds)
        # A call less for each record.
        self.store = self._stores.__getitem__  # type: ignore[assignment, method-assign]

    @overload
    def forward(
        self,
        topic: Topic[K, V],
        key: K | None,
        value: V | None,
        timestamp_ms: int = -1,
        headers: Headers = (),
        partition: int | None = None,
        partitioner: OutputPartitioner | str | None = None,
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
        partitioner: OutputPartitioner | str | None = None,
    ) -> None: ...

    def forward(
        self,
        topic: Any,
        key: Any,
        value: Any,
        timestamp_ms: int = -1,
        headers: Headers = (),
        partition: int | None = None,
        partitioner: OutputPartitioner | str | None = None,
    ) -> None:
        """Send an output. Readers see it after the task's next commit.

        ``topic`` is a name, for a key and a value of bytes, or a ``Topic``, whose serdes write them.

        Its partition is ``partition``; else that of its key's bytes, by ``partitioner`` or by the task's partitioner.
        So all outputs of a key are in one partition, and topics with equal numbers of partitions have it in the same
        one. An output without a key goes to the partition with the task's number, modulo the number of partitions of
        the topic.

        ``partitioner`` is a name of ``stores.changelog.partitioners``, or a function of these bytes and the number of
        partitions, which is called for an output without a key as well. That number is read once for each topic. The
        default timestamp is that of the input record.

        Raises: StoreError outside the function; ChangelogError for a topic or partition that does not exist;
        ConfigError for an unknown partitioner; TypeError and ValueError for an invalid record, and for a key or value
        that the topic's serde refuses: nothing is sent then. Source: Kafka, ``BuiltInPartitioner``, and
        ``StreamPartitioner`` of Kafka Streams.
        """
        if not self._active:
            raise not_processing(self.task_id)
        if isinstance(topic, Topic):
            key, value = topic.encoded(key, value)
            topic = topic.name
        targets = self._outputs.get(topic) or self._output(topic)
        if partition is None:
            target = targets[self._chosen(topic, len(targets), key, partitioner)]
        elif partitioner is not None:
            raise _both_given()
        else:
            target = TopicPartition(topic, partition)
        time_ms = self.record.timestamp_ms if timestamp_ms == -1 else timestamp_ms
        undo = self._undo
        if undo is not None and undo.active:
            # It is sent when the function has returned: a record that is refused must be refused here.
            headers = check_record(key, value, time_ms, headers)
            undo.hold(partial(self._producer.send, target, key, value, time_ms, headers))
            return
        self._producer.send(target, key, value, time_ms, headers)

    @overload
    def forward_many(
        self,
        topic: Topic[K, V],
        keys: Sequence[K | None],
        values: Sequence[V | None],
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
        partition: int | None = None,
        partitioner: OutputPartitioner | str | None = None,
    ) -> None: ...

    @overload
    def forward_many(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
        partition: int | None = None,
        partitioner: OutputPartitioner | str | None = None,
    ) -> None: ...

    def forward_many(
        self,
        topic: Any,
        keys: Any,
        values: Any,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
        partition: int | None = None,
        partitioner: OutputPartitioner | str | None = None,
    ) -> None:
        """Send outputs as ``forward`` does, by their columns, all of one length. In a partition they keep their order.

        A column of keys, values or timestamps may also be an Arrow array. ``partition`` and ``partitioner`` are those
        of all of them. The default timestamp is that of the input record, in a batch the highest of its records.

        Raises: as ``forward``; ValueError for columns of different lengths. Nothing is sent if a record is refused.
        """
        if not self._active:
            raise not_processing(self.task_id)
        keys, values = as_list(keys), as_list(values)
        own_ms, given_ms = self.record.timestamp_ms, [-1] * len(keys) if timestamps_ms is None else timestamps_ms
        times_ms = [own_ms if time_ms == -1 else time_ms for time_ms in as_list(given_ms)]
        if isinstance(topic, Topic):
            keys, values = topic.encoded_columns(keys, values)
            topic = topic.name
        checked_headers = check_columns(keys, values, times_ms, headers)
        columns = [keys, values, times_ms, *([] if checked_headers is None else [checked_headers])]
        outputs = self._by_target(topic, columns, partition, partitioner)
        undo = self._undo
        if undo is not None and undo.active:
            undo.hold(partial(self._send_all, outputs))
        else:
            self._send_all(outputs)

    def _by_target(
        self,
        topic: str,
        columns: Sequence[Sequence[Any]],
        partition: int | None,
        partitioner: OutputPartitioner | str | None,
    ) -> Mapping[TopicPartition, Sequence[Sequence[Any]]]:
        """Return the columns of outputs, which begin with their keys, by partition."""
        targets = self._outputs.get(topic) or self._output(topic)
        if partition is not None:
            if partitioner is not None:
                raise _both_given()
            return {TopicPartition(topic, partition): columns} if columns[0] else {}
        if len(targets) == 1 and partitioner is None and self._partitioner in _BY_KEY:
            return {targets[0]: columns} if columns[0] else {}
        places: dict[int, list[int]] = {}
        for place, number in enumerate(self._all_chosen(topic, len(targets), columns[0], partitioner)):
            places.setdefault(number, []).append(place)
        return {
            targets[number]: [[column[place] for place in some] for column in columns]
            for number, some in places.items()
        }

    def _send_all(self, outputs: Mapping[TopicPartition, Sequence[Sequence[Any]]]) -> None:
        """Send records by partition: columns without headers, or with headers."""
        try:
            for target, columns in outputs.items():
                if len(columns) == 3:
                    self._producer.send_columns(target, *columns)
                    continue
                for record in zip(*columns, strict=True):
                    self._producer.send(target, *record)
        except BaseException as error:
            self._failure = error  # Some of them may have been sent.
            raise

    def commit(self) -> None:
        """Request a commit after the current record or batch, or after the punctuators that run.

        Source: Kafka Streams, ``ProcessingContext#commit``.
        """
        self._commit_requested = True

    def _call(self, timestamp_ms: int, call: Callable[[], None]) -> None:
        """Call a function of the user without a current record."""
        self.partition, self.record = NO_PARTITION, NO_RECORD._replace(timestamp_ms=timestamp_ms)
        call()
        if self._failure is not None:
            raise self._failure

    def _call_reports(self) -> None:
        """Make the calls that stores have asked for, until none is left: one may lead to others.

        Raises: StoreError if each of many rounds has led to another one.
        """
        rounds = 0
        while self._reports:
            if rounds == REPORT_ROUNDS_MAX:
                raise _endless_reports(self.task_id, next(iter(self._reports)))
            asked, self._reports = self._reports, {}
            for reports in asked.values():
                for timestamp_ms, call in reports():
                    self._call(timestamp_ms, partial(call, self))
            rounds += 1

    def _output(self, topic: str) -> tuple[TopicPartition, ...]:
        count = self._changelog.topics().get(topic)
        if count is None:
            raise ChangelogError(f"output topic {topic!r} does not exist: create it with create_topic()")
        targets = self._outputs[topic] = tuple(TopicPartition(topic, number) for number in range(count))
        return targets

    def _all_chosen(
        self, topic: str, count: int, keys: Sequence[bytes | None], partitioner: OutputPartitioner | str | None
    ) -> list[int]:
        """Return the partition of each key of valid outputs that name none. Raises: as ``forward``."""
        if self._chooses(partitioner) is of_murmur2 and None not in keys:
            return all_of_murmur2(cast(Sequence[bytes], keys), count)
        return [self._chosen(topic, count, key, partitioner) for key in keys]

    def _chooses(self, partitioner: OutputPartitioner | str | None) -> OutputPartitioner:
        chosen_by = self._partitioner if partitioner is None else partitioner
        return partitioner_named(chosen_by) if isinstance(chosen_by, str) else chosen_by

    def _chosen(self, topic: str, count: int, key: bytes | None, partitioner: OutputPartitioner | str | None) -> int:
        """Return the partition of an output that names none. Raises: as ``forward``."""
        if type(key) is not bytes:
            check_record(key, None, -1, ())  # It refuses what is no key.
        chooses = self._chooses(partitioner)
        if key is None and chooses in _BY_KEY:
            return self.task_id.partition % count
        number = chooses(key, count)
        if type(number) is not int or not 0 <= number < count:
            raise ChangelogError(
                f"the partitioner returned {number!r} for topic {topic!r}: it has the partitions 0 to {count - 1}"
            )
        return number


def _endless_reports(task_id: TaskId, store: str) -> StoreError:
    return StoreError(
        f"task {task_id}: on_close or on_expiry has closed windows or expired records of store {store!r} by its own "
        f"writes {REPORT_ROUNDS_MAX:,} times in a row, and was called for these again. Nothing is committed. Let the "
        "function write no times after the store's stream time, which they move, and none that have expired"
    )


def not_processing(task_id: TaskId) -> StoreError:
    """Return the error for a write while no record is being processed."""
    return StoreError(f"task {task_id} is not processing a record: write to its stores only in its function")


def _both_given() -> TypeError:
    return TypeError("an output has a partition or a partitioner, not both: leave one out")


def still_processing(task_id: TaskId, call: str) -> StoreError:
    """Return the error for a ``call`` of the task that its own function must not make."""
    return StoreError(
        f"task {task_id} can't {call} before its function has returned, and nothing was changed: call "
        "context.commit() to commit after the current record"
    )


InitFunction = Callable[[TaskContext], None]
"""Called when the task is opened, and again after each rollback, to make the schedules. It may read stores, but not
write them. An error in it fails the opening, or closes the task."""
ProcessFunction = Callable[[Record[Any, Any], TaskContext], None]
"""A user's function. A record has bytes, or what the serdes of its ``Topic`` read. If the function raises, everything
since the task's last commit is rolled back, unless the task's ``on_error`` says otherwise. The exception gets a note
with the record's task, partition, offset and key."""
BatchFunction = Callable[[Batch[Any, Any], TaskContext], None]
"""A user's function of many records, as ``ProcessFunction`` is one of a single record. The note has the partition and
the offsets of the batch."""
