"""The producers of all logs: they buffer sent records in bounded memory, and append them through a ``LogWriter``."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stores.changelog.arguments import (
    TIMESTAMP_MS_MAX,
    check_columns,
    check_name,
    check_record,
    checked_group_offsets,
    checked_partition,
)
from stores.changelog.interface import Headers, Producer, SharedProducer, stream_time_group
from stores.errors import ChangelogError, CommitInDoubtError, StoreClosedError
from stores.failpoints import Part, declare
from stores.interface import TopicPartition

FIELDS_PER_RECORD = 4

Pending = list[Any]
"""Records in a flat list: key, value, timestamp in milliseconds, headers or None. A column is one slice of it."""

GroupOffsets = Mapping[tuple[str, TopicPartition], int]

Appended = tuple[int | None, dict[TopicPartition, int]]
"""The number of the transaction if it stays open, and the last offset of each partition."""


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """The identity of a producer: its transactional ID, and an epoch that is higher for a newer producer."""

    transactional_id: str
    epoch: int


@dataclass(slots=True)
class AppendRequest:
    """The content of one append: pending records, and the state of their transaction.

    ``transaction`` is the number that the log gave to the transaction's first request, or None before that.
    ``ends`` marks the last request; a request without ``identity`` is committed as it is appended.
    """

    identity: ProducerIdentity | None
    transaction: int | None
    ends: bool
    records: Mapping[TopicPartition, Pending]
    group_offsets: GroupOffsets = field(default_factory=dict)
    group_times_ms: GroupOffsets = field(default_factory=dict)
    """The stream times that belong to offsets of ``group_offsets``."""
    num_bytes: int = 0
    """The bytes of the keys, values and headers of all records."""

    def all_group_offsets(self) -> GroupOffsets:
        """Return the offsets with the times, which are those of groups of their own."""
        if not self.group_times_ms:
            return self.group_offsets
        times_ms = self.group_times_ms.items()
        return {
            **self.group_offsets,
            **{(stream_time_group(group), partition): time_ms for (group, partition), time_ms in times_ms},
        }


class LogWriter(ABC):
    """The interface of a log to its producers. Each call is atomic: after an error, the log is unchanged."""

    @abstractmethod
    def check_partition(self, partition: TopicPartition) -> None:
        """Check that the log has ``partition``. Raises: ChangelogError."""

    @abstractmethod
    def append(self, request: AppendRequest) -> Appended:
        """Append; return the number of the transaction if it stays open, and the last offset of each partition.

        Raises: ProducerFencedError if the identity's epoch is not the newest; ChangelogError.
        """

    @abstractmethod
    def abort(self, transaction: int) -> None:
        """Mark the transaction as aborted if it is still open."""


class AtomicWriter(LogWriter):
    """A log that appends requests of several producers as one."""

    @abstractmethod
    def append_together(self, requests: Sequence[AppendRequest]) -> list[Appended]:
        """Append all requests or none; return the results in order. Raises: as ``append``."""

    def append(self, request: AppendRequest) -> Appended:
        [appended] = self.append_together([request])
        return appended


BEFORE_COMMIT = declare(
    "changelog.before_commit",
    "the transaction's end is written but not committed: readers see nothing of it",
    part=Part.TASK,
)
AFTER_COMMIT = declare(
    "changelog.after_commit",
    "the transaction is committed in the log; its producer does not know it yet",
    part=Part.TASK,
)

PENDING_RECORDS_MAX = 10_000
PENDING_BYTES_MAX = 4 * 1024 * 1024


class BufferedProducer(Producer):
    """A producer that holds up to 10,000 records or 4 MiB, and then appends them as a request of its transaction.

    With ``records_max`` it holds up to that many records.
    """

    def __init__(self, log: LogWriter, identity: ProducerIdentity | None, records_max: int | None = None) -> None:
        self._log = log
        self._identity = identity
        self._records_max = PENDING_RECORDS_MAX if records_max is None else records_max
        self._in_transaction = False
        self._closed = False
        self._in_doubt = False
        self._transaction: int | None = None
        self._pending: dict[TopicPartition, Pending] = {}
        self._pending_records = 0
        self._pending_bytes = 0
        self._group_offsets: dict[tuple[str, TopicPartition], int] = {}
        self._group_times_ms: dict[tuple[str, TopicPartition], int] = {}
        self._last_offsets: dict[TopicPartition, int] = {}

    def __repr__(self) -> str:
        name = "without transactions" if self._identity is None else repr(self._identity.transactional_id)
        return f"<{type(self).__name__} {name}, {self._pending_records:,} records pending>"

    def begin(self) -> None:
        self._check_certain()
        if self._identity is None:
            raise ChangelogError("this producer has no transactional ID: open it with one to use transactions")
        if self._in_transaction:
            raise ChangelogError("a transaction is already open: commit or abort it first")
        self._in_transaction = True

    def send(
        self,
        partition: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int = -1,
        headers: Headers = (),
    ) -> None:
        pending = self._pending.get(partition)
        if pending is None:
            pending = self._begin_partition(partition)
        if (
            (type(key) is bytes or key is None)
            and (type(value) is bytes or value is None)
            and type(timestamp_ms) is int
            and -1 <= timestamp_ms <= TIMESTAMP_MS_MAX
            and not headers
        ):
            # The hot path: a record that needs no other check.
            size = len(key or b"") + len(value or b"")
            if self._pending_records < self._records_max and self._pending_bytes + size <= PENDING_BYTES_MAX:
                pending += (key, value, timestamp_ms, None)
                self._pending_records += 1
                self._pending_bytes += size
                return
        self._send(partition, key, value, timestamp_ms, headers)

    def _send(
        self, partition: TopicPartition, key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Headers
    ) -> None:
        if partition not in self._pending:
            self._begin_partition(partition)
        headers = check_record(key, value, timestamp_ms, headers)
        size = len(key or b"") + len(value or b"") + sum([len(name) + len(content or b"") for name, content in headers])
        if self._pending_records >= self._records_max or self._pending_bytes + size > PENDING_BYTES_MAX:
            # Before the record is buffered: if the log refuses, the caller may send it again.
            self._append(ends=False)
        pending = self._pending.get(partition)
        if pending is None:
            pending = self._begin_partition(partition)
        pending += (key, value, timestamp_ms, headers or None)
        self._pending_records += 1
        self._pending_bytes += size

    def send_all(self, partition: TopicPartition, records: Iterable[tuple[bytes | None, bytes | None, int]]) -> None:
        if not isinstance(records, Collection):
            # It may run code of the caller's, which may send as well.
            for key, value, timestamp_ms in records:
                self.send(partition, key, value, timestamp_ms)
            return
        rest = list(records)
        if rest and partition not in self._pending:
            self._begin_partition(partition)
        at = 0
        while (at := at + self._buffer(partition, rest, at)) < len(rest):
            key, value, timestamp_ms = rest[at]
            self._send(partition, key, value, timestamp_ms, ())
            at += 1

    def send_columns(
        self,
        partition: TopicPartition,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_ms: Sequence[int],
    ) -> None:
        check_columns(keys, values, timestamps_ms, None)
        begin, count = 0, len(keys)
        while begin < count:
            if self._pending_records >= self._records_max:
                self._append(ends=False)
            part = slice(begin, begin + self._records_max - self._pending_records)
            self._extend(partition, keys[part], values[part], timestamps_ms[part])
            begin = part.stop

    def _extend(
        self,
        partition: TopicPartition,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_ms: Sequence[int],
    ) -> None:
        """Buffer valid records, of which there are no more than have room. Their bytes may be too many."""
        num_bytes = sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values)))
        if self._pending_bytes + num_bytes > PENDING_BYTES_MAX:
            for record in zip(keys, values, timestamps_ms, strict=True):
                self._send(partition, *record, ())
            return
        pending = self._pending.get(partition)
        if pending is None:
            pending = self._begin_partition(partition)
        count = len(keys)
        flat: Pending = [None] * (FIELDS_PER_RECORD * count)
        for field_number, column in enumerate((keys, values, timestamps_ms)):
            flat[field_number::FIELDS_PER_RECORD] = column
        pending += flat
        self._pending_records += count
        self._pending_bytes += num_bytes

    def _buffer(self, partition: TopicPartition, records: list[tuple[bytes | None, bytes | None, int]], at: int) -> int:
        """Buffer the records from ``at`` on that fit and need no further check; return their number."""
        pending = self._pending.get(partition)
        if pending is None:
            return 0
        before, room_bytes = len(pending), PENDING_BYTES_MAX - self._pending_bytes
        try:
            for key, value, timestamp_ms in records[at : at + self._records_max - self._pending_records]:
                if (
                    (type(key) is not bytes and key is not None)
                    or (type(value) is not bytes and value is not None)
                    or type(timestamp_ms) is not int
                    or not -1 <= timestamp_ms <= TIMESTAMP_MS_MAX
                    or (size := len(key or b"") + len(value or b"")) > room_bytes
                ):
                    break
                room_bytes -= size
                pending += (key, value, timestamp_ms, None)
        finally:
            count = (len(pending) - before) // FIELDS_PER_RECORD
            self._pending_records += count
            self._pending_bytes = PENDING_BYTES_MAX - room_bytes
        return count

    def send_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], times_ms: Mapping[TopicPartition, int] | None = None
    ) -> None:
        self._check_usable()
        check_name("group", group)
        checked = checked_group_offsets(group, offsets)
        checked_times_ms = checked_group_offsets(group, times_ms) if times_ms else {}
        if self._identity is None:
            self._log.append(AppendRequest(None, None, True, {}, checked, checked_times_ms))
        else:
            self._group_offsets.update(checked)
            if checked_times_ms:
                self._group_times_ms.update(checked_times_ms)

    def commit(self) -> Mapping[TopicPartition, int]:
        self._check_usable(commits=True)
        self._append(ends=True)
        return self._finish()

    def flush(self) -> Mapping[TopicPartition, int]:
        self._check_certain()
        if self._identity is not None:
            raise ChangelogError("this producer is transactional: call commit() to make its records visible")
        if self._pending_records:
            self._append(ends=True)
        return self._finish()

    def abort(self) -> None:
        self._check_open()
        if self._transaction is not None:
            self._log.abort(self._transaction)
        self._finish()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_unfinished = self._pending_records or self._group_offsets or self._transaction is not None
        try:
            if kind is None and is_unfinished and not self._closed:
                call = "flush()" if self._identity is None else "commit()"
                warnings.warn(
                    f"the producer's block ended with records or offsets that were sent but not followed by {call}: "
                    "they are dropped",
                    RuntimeWarning,
                    stacklevel=2,
                )
        finally:
            self.close()

    def close(self) -> None:
        if not self._closed:
            try:
                self.abort()
            finally:
                self._closed = True
                self._finish()

    def _append(self, *, ends: bool) -> None:
        try:
            appended = self._log.append(self._request(ends=ends))
        except CommitInDoubtError:
            self._doubt()
            raise
        self._note(appended)

    def _request(self, *, ends: bool) -> AppendRequest:
        return AppendRequest(
            self._identity,
            self._transaction,
            ends or self._identity is None,
            self._pending,
            self._group_offsets if ends else {},
            self._group_times_ms if ends else {},
            self._pending_bytes,
        )

    def _note(self, appended: Appended) -> None:
        self._transaction, last_offsets = appended
        self._last_offsets.update(last_offsets)
        self._forget_pending()

    def _doubt(self) -> None:
        self._in_doubt = True
        # The next record finds no pending list of its partition, and is refused.
        self._forget_pending()

    def _forget_pending(self) -> None:
        self._pending = {}
        self._pending_records = self._pending_bytes = 0

    def _finish(self) -> dict[TopicPartition, int]:
        last_offsets, self._last_offsets = self._last_offsets, {}
        self._forget_pending()
        self._group_offsets, self._group_times_ms = {}, {}
        self._transaction = None
        self._in_transaction = False
        # Without an ID, records may be sent again. With one, only the next producer can decide the transaction.
        self._in_doubt = self._in_doubt and self._identity is not None
        return last_offsets

    def _begin_partition(self, partition: TopicPartition) -> Pending:
        # Checked here, not per record: a partition has a pending list only after these checks passed.
        self._check_usable()
        self._log.check_partition(partition)
        return self._pending.setdefault(checked_partition(partition), [])

    def _check_usable(self, *, commits: bool = False) -> None:
        # Without further calls where all is right: it is asked for each partition of each commit.
        if self._closed or self._in_doubt or not (self._in_transaction or (self._identity is None and not commits)):
            self._check_certain()
            raise ChangelogError("no transaction is open: call begin() first")

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the producer is closed: open another one")

    def _check_certain(self) -> None:
        self._check_open()
        if self._in_doubt:
            raise CommitInDoubtError(
                "it is unknown whether the changelog has this producer's last commit: open another producer of the "
                "same ID"
                if self._identity is not None
                else "it is unknown whether the changelog has the sent records: call abort(), and send them again"
            )


class EmbeddedSharedProducer(SharedProducer):
    """The producers of some tasks, each opened with ``open_producer``. All of them commit in one append to ``log``.

    Each task keeps its own transactional ID. So an older instance of it is fenced, and its open transaction aborted, as
    without sharing; and a log that is opened after a crash has nothing else to decide.
    """

    def __init__(self, open_producer: Callable[[str], BufferedProducer], log: AtomicWriter) -> None:
        self._open_producer, self._log = open_producer, log
        self._producers: dict[str, BufferedProducer] = {}
        self._begun = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._producers)} tasks>"

    def join(
        self,
        transactional_id: str,
        group: str,
        inputs: Sequence[TopicPartition],
    ) -> None:
        producer = self._open_producer(transactional_id)
        if self._begun:
            producer.begin()
        self._producers[transactional_id] = producer

    def of(self, transactional_id: str) -> BufferedProducer:
        return self._producers[transactional_id]

    def leave(self, transactional_id: str) -> None:
        producer = self._producers.pop(transactional_id, None)
        if producer is not None:
            producer.close()

    def begin(self) -> None:
        if not self._begun:
            for producer in self._producers.values():
                producer.begin()
            self._begun = True

    def commit(self) -> Mapping[TopicPartition, int]:
        producers = list(self._producers.values())
        for producer in producers:
            producer._check_usable(commits=True)
        try:
            appended = self._log.append_together([producer._request(ends=True) for producer in producers])
        except CommitInDoubtError:
            for producer in producers:
                producer._doubt()
            raise
        last_offsets: dict[TopicPartition, int] = {}
        for producer, each in zip(producers, appended, strict=True):
            producer._note(each)
            last_offsets.update(producer._finish())
        self._begun = False
        return last_offsets

    def abort(self) -> None:
        for producer in self._producers.values():
            producer.abort()
        self._begun = False

    def renew(self) -> None:
        for transactional_id in self._producers:
            self._producers[transactional_id] = self._open_producer(transactional_id)
        self._begun = False

    def close(self) -> None:
        for transactional_id in list(self._producers):
            self.leave(transactional_id)
