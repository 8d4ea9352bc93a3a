"""The changelog: ordered, transactional logs that stores are materialisations of. It is the truth.

Modelled on what Kafka gives Kafka Streams (KIP-98, KIP-129): partitions of records with offsets, producers
with epochs, transactions over several partitions that carry input offsets too, and readers that see
committed records only, up to the last stable offset. Offsets rise but may have gaps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from stores.interface import Closeable, TopicPartition

Headers = tuple[tuple[str, bytes], ...]


class Record(NamedTuple):
    """One committed record. ``value`` None is a tombstone; ``timestamp_ms`` is since the Unix epoch, -1 if unknown."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int = -1
    headers: Headers = ()


class Producer(Closeable):
    """Appends to a changelog: in transactions where it has a transactional id, else at once on ``flush``.

    A producer belongs to one thread. Opening another with the same transactional id aborts what this one left
    open and fences it: its next call that reaches the log raises ProducerFencedError (KIP-98).
    """

    @abstractmethod
    def begin(self) -> None:
        """Open a transaction. Raises ChangelogError where one is open or there is no transactional id."""

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

        May reach the log before the commit, where no reader sees it; memory stays bounded however long the
        transaction. ``timestamp_ms`` is since the Unix epoch, -1 for unknown.

        Raises: ChangelogError for an unknown topic or partition, or where no transaction is open; TypeError and
        ValueError for what is no record: nothing of it is sent.
        """

    def send_all(self, partition: TopicPartition, records: Iterable[tuple[bytes | None, bytes | None, int]]) -> None:
        """``send`` each record, given as key, value and timestamp. Raises as ``send``, after those before it."""
        for key, value, timestamp_ms in records:
            self.send(partition, key, value, timestamp_ms)

    @abstractmethod
    def send_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Let the open transaction also commit ``group``'s next input offsets (KIP-98, sendOffsetsToTransaction).

        Without transactional id they are committed at once. Raises: ChangelogError where no transaction is open,
        TypeError, and ValueError for a negative offset.
        """

    @abstractmethod
    def commit(self) -> Mapping[TopicPartition, int]:
        """Commit records and offsets atomically; returns the last record's offset per partition written to.

        Raises: ProducerFencedError; CommitInDoubtError where the log can't tell whether it has the commit: another
        producer with the same id settles that, this one can only be closed; ChangelogTimeoutError where the log did
        not answer in time and has nothing of it: commit again, or abort; ChangelogError.
        """

    @abstractmethod
    def flush(self) -> Mapping[TopicPartition, int]:
        """Append what was sent without a transaction; returns the last record's offset per partition written to.

        Raises: ChangelogError, also where the producer has a transactional id; CommitInDoubtError where the log can't
        tell whether it has the records: ``abort``, and send them again, if twice is better than never.
        """

    @abstractmethod
    def abort(self) -> None:
        """Discard the open transaction; readers never see its records. Nothing to do where none is open."""

    @abstractmethod
    def close(self) -> None:
        """Abort what is open and release the producer. May be called more than once."""


class Changelog(Closeable):
    """A set of topics with numbered partitions. Many producers, many readers.

    Raises, all methods: ChangelogError for a topic or partition that is not there, and where the log refuses;
    ChangelogTimeoutError where it does not answer in time; StoreClosedError after close; TypeError.
    """

    @abstractmethod
    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create ``topic`` with ``partitions`` (1 or more) unless it is there with as many.

        Raises: ChangelogError if it has another number, ValueError for an empty name or fewer than one.
        """

    @abstractmethod
    def topics(self) -> Mapping[str, int]:
        """Number of partitions by topic name."""

    @abstractmethod
    def producer(self, transactional_id: str | None = None) -> Producer:
        """A new producer; with an id, the older one of that id is fenced and its open transaction aborted."""

    @abstractmethod
    def read(self, partition: TopicPartition, from_offset: int = 0) -> Iterator[Record]:
        """Committed records with ``offset >= from_offset``, in order, up to the last stable offset as of this call.

        Aborted records are skipped. Raises OffsetOutOfRangeError, at the call, where ``from_offset`` lies below
        ``start_offset`` (unless it is 0 and nothing was ever truncated) or beyond ``end_offset``.
        """

    @abstractmethod
    def start_offset(self, partition: TopicPartition) -> int:
        """The first offset that truncation has left; 0 in a new log."""

    @abstractmethod
    def end_offset(self, partition: TopicPartition) -> int:
        """The last stable offset: every record before it is decided, committed or aborted. One past the last one."""

    @abstractmethod
    def committed_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        """The next input offsets that ``group`` has committed."""

    @abstractmethod
    def compact(self, partition: TopicPartition) -> int:
        """Keep only the last committed record of each key before the last stable offset; returns how many were removed.

        Offsets stay as they are; a removed record leaves a gap. Tombstones that are last of their key are kept.
        """

    def compact_step(self, partition: TopicPartition) -> int:
        """Make one bounded step of compacting ``partition``, if that is due; return how many records were removed.

        A task calls it after each commit, for the changelogs of its stores. Logs that compact themselves, such as those
        of Kafka's brokers, do nothing. Raises: ChangelogError; a failed step can be tried again.
        """
        return 0

    @abstractmethod
    def truncate(self, partition: TopicPartition, before_offset: int) -> int:
        """Drop all records with a smaller offset, and move ``start_offset`` there; returns how many were removed.

        Raises ValueError where ``before_offset`` lies beyond the last stable offset or below the start.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the log. May be called more than once."""
