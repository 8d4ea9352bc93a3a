"""The changelog: ordered, transactional logs of which stores are materializations. It is the source of truth.

Modelled on Kafka (KIP-98, KIP-129). Records in partitions have offsets, which rise but may have gaps. Producers have
epochs. Transactions span several partitions, and include input offsets. Readers see committed records only, up to the
last stable offset. Processes that share partitions are a group: a member gets partitions, and is asked to release
partitions, while the others stay as they are (cooperative rebalances, KIP-429).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress, islice, repeat
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple

from stores.contract import arguments
from stores.errors import ChangelogError
from stores.interface import Closeable, TopicPartition

if TYPE_CHECKING:
    # Checkers of types know it without the package: ``Record`` alone is one of bytes.
    from typing_extensions import TypeVar

    from stores.changelog.group import Copies, GroupListener, GroupMember

    K_co = TypeVar("K_co", covariant=True, default=bytes)
    V_co = TypeVar("V_co", covariant=True, default=bytes)
else:
    from typing import TypeVar

    K_co = TypeVar("K_co", covariant=True)
    V_co = TypeVar("V_co", covariant=True)

Headers = arguments.Headers
IsExpired = Callable[[bytes], bool]
"""A function that returns True for a key that is older than the retention of its store."""
IsNeeded = Callable[[bytes, int], bool]
"""A function that returns True for the key and the time of a record that a restore needs, although another record of
its key follows."""


class Record(NamedTuple, Generic[K_co, V_co]):
    """One committed record. ``value`` None is a tombstone; ``timestamp_ms`` is since the Unix epoch, -1 if unknown.

    ``headers`` are pairs of a name and a content, which is None for a header of Kafka without a value.

    Key and value are bytes. A function gets those of a ``Topic`` as its serdes read them: ``Record[str, Order]``.
    """

    offset: int
    key: K_co | None
    value: V_co | None
    timestamp_ms: int = -1
    headers: Headers = ()


class RecordColumns(NamedTuple):
    """Consecutive records of one partition: each part of all, in their order. ``headers`` is None if none has any."""

    offsets: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps_ms: Sequence[int]
    headers: Sequence[Headers] | None = None

    def part(self, start: int, end: int | None = None) -> RecordColumns:
        """Return the records from index ``start`` on, up to but without ``end``."""
        part = slice(start, end)
        return self._each(lambda column: column[part])

    def where(self, selected: Iterable[bool]) -> RecordColumns:
        """Return the records that are ``selected``."""
        selected = list(selected)
        return self._each(lambda column: list(compress(column, selected)))

    def _each(self, of: Callable[[Sequence[Any]], Sequence[Any]]) -> RecordColumns:
        headers = None if self.headers is None else of(self.headers)
        return RecordColumns(of(self.offsets), of(self.keys), of(self.values), of(self.timestamps_ms), headers)

    def records(self) -> Iterator[Record]:
        """Return the records one by one."""
        *columns, headers = self
        return map(new_record, zip(*columns, headers or repeat(()), strict=False))


def joined(parts: Sequence[RecordColumns]) -> RecordColumns:
    """Return the records of all parts, which follow each other, as one."""
    if len(parts) == 1:
        return parts[0]
    headers = None
    if any(part.headers is not None for part in parts):
        headers = [each for part in parts for each in part.headers or repeat((), len(part.offsets))]
    return RecordColumns(
        [each for part in parts for each in part.offsets],
        [each for part in parts for each in part.keys],
        [each for part in parts for each in part.values],
        [each for part in parts for each in part.timestamps_ms],
        headers,
    )


new_record: Callable[[Any], Record[Any, Any]] = partial(tuple.__new__, Record)
"""Returns the record of its parts, which an iterable has in their order. It is faster than ``Record`` itself."""
_RECORDS_AT_ONCE = 100
"""Few enough that the largest ones of Kafka, of a megabyte each by default, have room in memory."""


def _columns_of(records: Iterator[Record]) -> Iterator[RecordColumns]:
    while some := list(islice(records, _RECORDS_AT_ONCE)):
        offsets, keys, values, timestamps_ms, headers = zip(*some, strict=True)
        yield RecordColumns(offsets, keys, values, timestamps_ms, headers if any(headers) else None)


def stream_time_group(group: str) -> str:
    """Return the consumer group whose offsets are the stream times of ``group``. No application has such a name."""
    return f"{group}/stream-time"


class Producer(Closeable):
    """A writer to a changelog: in transactions if it has a transactional ID, otherwise without one at ``flush``.

    A producer belongs to one thread. Opening another with the same transactional ID aborts this one's open transaction
    and fences it: its next call that reaches the log raises ProducerFencedError (KIP-98).

    The end of a ``with`` block drops what was neither committed nor flushed. Unless an exception leaves the block, a
    RuntimeWarning says so.
    """

    @abstractmethod
    def begin(self) -> None:
        """Open a transaction. Raises: ChangelogError if one is open, or there is no transactional ID."""

    @abstractmethod
    def send(
        self,
        partition: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int = -1,
        headers: Headers = (),
    ) -> None:
        """Append a record to the open transaction (or, without transactional id, to the next ``flush``).

        The record may reach the log before the commit, but no reader sees it. Memory is bounded for any length of the
        transaction. ``timestamp_ms`` is since the Unix epoch, -1 for unknown.

        Raises: ChangelogError for an unknown topic or partition, or if no transaction is open; TypeError and ValueError
        for an invalid record, which is not sent.
        """

    def send_all(self, partition: TopicPartition, records: Iterable[tuple[bytes | None, bytes | None, int]]) -> None:
        """Send each record, given as key, value and timestamp. Raises: as ``send``; earlier records are sent then."""
        for key, value, timestamp_ms in records:
            self.send(partition, key, value, timestamp_ms)

    def send_columns(
        self,
        partition: TopicPartition,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_ms: Sequence[int],
    ) -> None:
        """Send records by their columns, all of one length. Raises: as ``send``; earlier records may be sent then."""
        self.send_all(partition, zip(keys, values, timestamps_ms, strict=True))

    @abstractmethod
    def send_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], times_ms: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Add the next input offsets of ``group`` to the open transaction (KIP-98, sendOffsetsToTransaction).

        ``times_ms`` has the stream time up to some of the offsets, in milliseconds. It is committed with the offset of
        its partition. Give it each time: a log may forget it when an offset is committed without one.

        Without a transactional ID they are committed immediately, offsets and times together. Raises: ChangelogError
        if no transaction is open; TypeError; ValueError for a negative offset or time.
        """

    @abstractmethod
    def commit(self) -> Mapping[TopicPartition, int]:
        """Commit records and offsets atomically; return the last record's offset for each written partition.

        Raises: ProducerFencedError; CommitInDoubtError if it is unknown whether the log has the commit (another
        producer with the same ID decides it, and this one can only be closed); ChangelogTimeoutError if the log did not
        answer in time and has nothing of the commit (commit again, or abort); ChangelogError.
        """

    @abstractmethod
    def flush(self) -> Mapping[TopicPartition, int]:
        """Append the records sent without a transaction; return the last record's offset for each written partition.

        Raises: ChangelogError, also if the producer has a transactional ID; CommitInDoubtError if it is unknown whether
        the log has the records: call ``abort``, and send them again if duplicates are better than a loss.
        """

    @abstractmethod
    def abort(self) -> None:
        """Discard the open transaction; readers never see its records. No effect if none is open."""

    @abstractmethod
    def close(self) -> None:
        """Abort the open transaction and release the producer. May be called more than once."""


class Committed(NamedTuple):
    """The commit of a consumer group, by partition."""

    offsets: Mapping[TopicPartition, int]
    """The next input offsets."""
    times_ms: Mapping[TopicPartition, int]
    """The stream times that were committed with offsets."""


class SharedProducer(Closeable):
    """The producers of the tasks of one thread, in one transaction: it is committed or aborted as a whole.

    A task joins before it is restored. A task of another thread or process that joins with the same transactional ID,
    or opens a producer with it, fences the older one. For one thread.

    Raises, all methods: ChangelogTimeoutError if the log does not answer in time: call again.
    """

    @abstractmethod
    def join(
        self,
        transactional_id: str,
        group: str,
        inputs: Sequence[TopicPartition],
    ) -> None:
        """Add a task, and wait until the input offsets of its older instances are decided.

        ``group`` commits the offsets of ``inputs``. When this returns, the log has the task's last commit, and nothing
        of an older instance can be committed any more. Raises: ChangelogError if the log can't fence older instances.
        """

    @abstractmethod
    def of(self, transactional_id: str) -> Producer:
        """Return the producer of a task. Call only its ``send``, ``send_all`` and ``send_offsets``.

        It is another one after ``renew``.
        """

    @abstractmethod
    def leave(self, transactional_id: str) -> None:
        """Remove a task. The open transaction must have nothing of it."""

    @abstractmethod
    def begin(self) -> None:
        """Open a transaction; no effect if one is open."""

    @abstractmethod
    def commit(self) -> Mapping[TopicPartition, int]:
        """Commit records and offsets of all tasks atomically; return the last record's offset for each partition.

        Raises: as ``Producer.commit``. A ProducerFencedError has the transactional ID that was taken.
        """

    @abstractmethod
    def abort(self) -> None:
        """Discard the open transaction; no effect if none is open."""

    @abstractmethod
    def renew(self) -> None:
        """Decide a commit in doubt: its transaction is committed or aborted when this returns. None is open then."""

    @abstractmethod
    def close(self) -> None:
        """Abort the open transaction and release the producers. May be called more than once."""


class Changelog(Closeable):
    """A set of topics with numbered partitions. Many producers, many readers.

    Raises, all methods: ChangelogError for an unknown topic or partition, and for errors of the log;
    ChangelogTimeoutError if it does not answer in time; StoreClosedError after close; TypeError.
    """

    compacts_itself: ClassVar[bool] = False
    """True for a log that compacts its topics when it likes, such as Kafka's: ``compact`` only checks the partition."""
    reads_hold_snapshots: ClassVar[bool] = True
    """False if a read may stay open while its records are processed: it holds nothing of the log."""
    takes_inputs_elsewhere: ClassVar[bool] = True
    """True if input offsets of topics that the log does not have can be committed. Kafka's brokers refuse them."""

    @abstractmethod
    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create ``topic`` with ``partitions`` (1 or more) unless it exists with the same number.

        Raises: ChangelogError if it has another number, ValueError for an empty name or fewer than one.
        """

    def create_store_topic(
        self, topic: str, partitions: int, *, expires: bool = False, history_ms: int | None = None
    ) -> None:
        """Create the changelog topic of a store unless it exists.

        If its records expire, as those of window and session stores, ``drop_before`` says when. With ``history_ms`` it
        keeps records for so long that are followed by another one of their key, as a versioned store needs. Raises: as
        ``create_topic``; a log whose topics have settings also changes or refuses those of a topic that would lose
        records of the store, and refuses one that has fewer partitions.
        """
        if topic not in self.topics():
            self.create_topic(topic, partitions)

    def expect_reads_to_end(self, topic: str) -> None:
        """Let reads of ``topic`` end soon after the last record: the caller waits for their ends, as a restore does.

        It changes no result. Call it before the first read. Topics of ``create_store_topic`` do not need it.
        """

    @abstractmethod
    def topics(self) -> Mapping[str, int]:
        """Return the number of partitions by topic name."""

    def topic_id(self, topic: str) -> str:
        """Return the identity of ``topic``: another one if a topic of its name was removed and made again.

        Raises: ChangelogError also if the log can't tell, as by default.
        """
        raise ChangelogError(f"{type(self).__name__} does not tell a topic from an earlier one of its name")

    def deletes_kept_s(self, topic: str) -> float | None:
        """Return how long the log keeps a tombstone that is the last record of its key; None, the default, for good."""
        return None

    @abstractmethod
    def producer(self, transactional_id: str | None = None, timeout_s: float | None = None) -> Producer:
        """Return a new producer. With an ID, the older one of that ID is fenced and its open transaction aborted.

        Kafka aborts a transaction that is open for longer than ``timeout_s``; None for the client's setting.
        """

    def shared_producer(self, transactional_id: str, timeout_s: float | None = None) -> SharedProducer:
        """Return a producer that several tasks of one thread share: see ``SharedProducer``. No other has this ID.

        ``timeout_s`` as for ``producer``. Raises: ChangelogError if the log has no transactions over several tasks.
        """
        raise ChangelogError(f"{type(self).__name__} has no transactions over several tasks: give each its own")

    @abstractmethod
    def read(self, partition: TopicPartition, from_offset: int = 0) -> Iterator[Record]:
        """Return the committed records from ``from_offset`` on, in order, up to the last stable offset as of this call.

        Aborted records are skipped. From beyond the last stable offset there is nothing to read yet: a commit of
        another process may not be visible. Raises: OffsetOutOfRangeError, at the call, if ``from_offset`` is below
        ``start_offset`` or beyond ``written_end``.
        """

    def read_columns(self, partition: TopicPartition, from_offset: int = 0) -> Iterator[RecordColumns]:
        """Return the records that ``read`` returns, some at a time. Many at once take a fraction of the time of each.

        Raises: as ``read``.
        """
        return _columns_of(self.read(partition, from_offset))

    def has_arrived(self, partition: TopicPartition, from_offset: int) -> bool:
        """Return False if a read from there would give nothing, as far as that is known without asking the log.

        A log that is not in this process may have more, which arrives a moment later.
        """
        return True

    @abstractmethod
    def start_offset(self, partition: TopicPartition) -> int:
        """Return the first offset after truncated records; 0 in a new log."""

    @abstractmethod
    def end_offset(self, partition: TopicPartition) -> int:
        """Return the last stable offset: every record before it is committed or aborted. It is exclusive."""

    @abstractmethod
    def written_end(self, partition: TopicPartition) -> int:
        """Return the offset after the last record, which may belong to an open transaction; 0 in a new log."""

    @abstractmethod
    def await_decided(self, partition: TopicPartition) -> None:
        """Return once each transaction that now has records in the partition is committed or aborted.

        Only for its one writer, which has opened its producer and has no open transaction in the partition: such a
        transaction is of an earlier writer. It would hide what is committed after it. An embedded log aborts it, and
        fences its producer. Kafka's brokers abort it after its ``transaction.timeout.ms``. Raises:
        ChangelogTimeoutError.
        """

    def lag(self, partition: TopicPartition, next_offset: int) -> int:
        """Return the number of offsets that a reader at ``next_offset`` has before it, and 0 if none has a record.

        Markers of transactions and aborted records are among the offsets. In Kafka they are known to be all that is
        left once this object has read the partition to its end.
        """
        end = self.end_offset(partition)
        if self.start_offset(partition) <= next_offset <= end and next(self.read(partition, next_offset), None) is None:
            return 0
        return max(end - next_offset, 0)

    @abstractmethod
    def committed_offsets(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, int]:
        """Return the next input offsets that ``group`` has committed: of these partitions, or of all that it has."""

    def committed(self, group: str, partitions: Collection[TopicPartition] | None = None) -> Committed:
        """Return the offsets as ``committed_offsets``, with their stream times.

        By default the times are the offsets of a group of their own: see ``stream_time_group``.
        """
        times_ms = self.committed_offsets(stream_time_group(group), partitions)
        return Committed(self.committed_offsets(group, partitions), times_ms)

    def check_group(self, group: str, *, fingerprint: str, fencing: bool = False) -> None:
        """Check that the members of ``group`` now are of the same kind as one that joins with these arguments.

        Nothing is changed. Raises: as ``join_group``.
        """
        raise self._has_no_groups()

    def join_group(
        self,
        group: str,
        topics: Sequence[str],
        listener: GroupListener,
        *,
        fingerprint: str,
        session_timeout_s: float,
        server: str = "",
        copies: Copies | None = None,
        instance_id: str | None = None,
        fencing: bool = False,
    ) -> GroupMember:
        """Join the processes that share the partitions of ``topics``, and return the membership.

        The members of a group have the same ``fingerprint``. In Kafka the group takes a member for dead that is silent
        for ``session_timeout_s``. ``server`` is the address that ``GroupMember.addresses`` returns for what this member
        has. A member with ``copies`` keeps standby copies. One with an ``instance_id`` that joins again within the
        session gets its partitions back (KIP-345). With ``fencing``, a ``SharedProducer`` commits offsets of ``group``
        only for partitions that this member has (KIP-447).

        Raises: ChangelogError if the group has members with another fingerprint or ``fencing``, or the log is for one
        process only.
        """
        raise self._has_no_groups()

    def _has_no_groups(self) -> ChangelogError:
        return ChangelogError(f"{type(self).__name__} is for one process only: use SqliteChangelog or KafkaChangelog")

    @abstractmethod
    def compact(
        self, partition: TopicPartition, is_expired: IsExpired | None = None, is_needed: IsNeeded | None = None
    ) -> int:
        """Keep only the last committed record of each key before the last stable offset; return the number removed.

        Offsets do not change; a removed record leaves a gap. Tombstones that are last of their key are kept.
        A record is removed as well if ``is_expired`` returns True for its key. One that is not the last of its key is
        kept if ``is_needed`` returns True for it. Without that function a changelog of versions loses its history.
        Raises: ChangelogError; a failed compaction changes nothing that is read, and can be tried again.
        """

    def compact_step(
        self, partition: TopicPartition, is_expired: IsExpired | None = None, is_needed: IsNeeded | None = None
    ) -> int:
        """Make one bounded step of compacting ``partition``, if that is due; return the number of removed records.

        A task calls it after each commit, for the changelogs of its stores; the functions are as in ``compact``. Logs
        that compact themselves, such as those of Kafka's brokers, do nothing: ``drop_before`` is for these. Raises:
        ChangelogError; a failed step can be tried again.
        """
        return 0

    def drop_before(self, partition: TopicPartition, before_offset: int) -> None:
        """Let a log that compacts itself drop the records before an offset, which its store does not need any more.

        It does not wait for the log. A log that refuses this keeps them, and says so in a warning. Other logs drop what
        has expired in ``compact_step``.
        """

    def can_truncate(self, topic: str) -> bool:
        """Return True if ``truncate`` may drop records of ``topic``. Otherwise only compaction removes them."""
        return True

    @abstractmethod
    def truncate(self, partition: TopicPartition, before_offset: int) -> int:
        """Drop all records before ``before_offset``, and move ``start_offset`` there; return the number removed.

        Raises: ValueError if ``before_offset`` is beyond the last stable offset or below the start; ChangelogError
        where ``can_truncate`` is False.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the log. May be called more than once."""
