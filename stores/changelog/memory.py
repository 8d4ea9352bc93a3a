"""A changelog in the memory of this process, for tests. It has the semantics of the embedded one."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from secrets import choice
from string import ascii_lowercase

from stores.changelog.arguments import (
    check_name,
    check_readable,
    check_topic,
    check_truncation,
    checked_partition,
    fenced,
    of_partitions,
)
from stores.changelog.interface import Changelog, IsExpired, IsNeeded, Record, SharedProducer
from stores.changelog.producer import (
    AFTER_COMMIT,
    BEFORE_COMMIT,
    FIELDS_PER_RECORD,
    Appended,
    AppendRequest,
    AtomicWriter,
    BufferedProducer,
    EmbeddedSharedProducer,
    Pending,
    ProducerIdentity,
)
from stores.errors import ChangelogError, StoreClosedError
from stores.failpoints import reach
from stores.interface import TopicPartition


@dataclass(slots=True)
class _Log:
    """One partition: records in offset order, each with the number of its transaction (0: committed)."""

    records: list[tuple[Record, int]] = field(default_factory=list)
    start_offset: int = 0
    next_offset: int = 0

    def index(self, offset: int) -> int:
        return bisect_left(self.records, offset, key=lambda entry: entry[0].offset)

    def extend(self, pending: Pending, transaction: int) -> int:
        for at in range(0, len(pending), FIELDS_PER_RECORD):
            key, value, timestamp_ms, headers = pending[at : at + FIELDS_PER_RECORD]
            self.records.append((Record(self.next_offset, key, value, timestamp_ms, headers or ()), transaction))
            self.next_offset += 1
        return self.next_offset - 1


class MemoryChangelog(Changelog):
    """A changelog without a file. May be used from any thread, each producer from one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._closed = False
        self._id = "".join(choice(ascii_lowercase) for _ in range(16))
        self._topics: dict[str, int] = {}
        self._logs: dict[TopicPartition, _Log] = {}
        self._epochs: dict[str, int] = {}
        self._open: dict[int, str] = {}
        self._aborted: set[int] = set()
        self._transactions = 0
        self._groups: dict[str, dict[TopicPartition, int]] = {}
        self._writer = _Writer(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {'closed' if self._closed else 'open'}>"

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        check_topic(topic, partitions)
        with self._lock:
            self._check_open()
            if self._topics.setdefault(topic, partitions) != partitions:
                raise ChangelogError(f"topic {topic!r} has {self._topics[topic]} partitions, not {partitions}")
            for partition in range(partitions):
                self._logs.setdefault(TopicPartition(topic, partition), _Log())

    def topics(self) -> Mapping[str, int]:
        self._check_open()
        return dict(self._topics)

    def topic_id(self, topic: str) -> str:
        if topic not in self.topics():
            raise ChangelogError(f"there is no topic {topic!r}")
        return self._id

    def producer(self, transactional_id: str | None = None, timeout_s: float | None = None) -> BufferedProducer:
        with self._lock:
            self._check_open()
            if transactional_id is None:
                return BufferedProducer(self._writer, None)
            check_name("transactional id", transactional_id)
            epoch = self._epochs[transactional_id] = self._epochs.get(transactional_id, -1) + 1
            for transaction in [number for number, owner in self._open.items() if owner == transactional_id]:
                self._abort(transaction)
            return BufferedProducer(self._writer, ProducerIdentity(transactional_id, epoch))

    def shared_producer(self, transactional_id: str, timeout_s: float | None = None) -> SharedProducer:
        check_name("transactional id", transactional_id)
        self._check_open()
        return EmbeddedSharedProducer(self.producer, self._writer)

    def read(self, partition: TopicPartition, from_offset: int = 0) -> Iterator[Record]:
        with self._lock:
            log, start, end = self._bounds(partition)
            check_readable(partition, from_offset, start, end, self.written_end)
            entries = log.records[log.index(from_offset) : log.index(end)]
            return iter([record for record, transaction in entries if transaction not in self._aborted])

    def start_offset(self, partition: TopicPartition) -> int:
        with self._lock:
            return self._bounds(partition)[1]

    def end_offset(self, partition: TopicPartition) -> int:
        with self._lock:
            return self._bounds(partition)[2]

    def written_end(self, partition: TopicPartition) -> int:
        with self._lock:
            return self._log(partition).next_offset

    def await_decided(self, partition: TopicPartition) -> None:
        with self._lock:
            log, _, stable = self._bounds(partition)
            there = {transaction for _, transaction in log.records[log.index(stable) :]}
            for transaction in there & self._open.keys():
                self._epochs[self._open[transaction]] += 1
                self._abort(transaction)

    def committed_offsets(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, int]:
        self._check_open()
        return of_partitions(self._groups.get(group, {}), partitions)

    def compact(
        self, partition: TopicPartition, is_expired: IsExpired | None = None, is_needed: IsNeeded | None = None
    ) -> int:
        with self._lock:
            log, _, end = self._bounds(partition)
            entries = log.records[: log.index(end)]
            committed = [entry for entry in entries if entry[1] not in self._aborted]
            last = {record.key: record.offset for record, _ in committed}
            survivors = [
                entry
                for entry in committed
                if (key := entry[0].key) is None
                or (last[key] == entry[0].offset and not (is_expired is not None and is_expired(key)))
                or (last[key] != entry[0].offset and is_needed is not None and is_needed(key, entry[0].timestamp_ms))
            ]
            log.records[: len(entries)] = survivors
            return len(entries) - len(survivors)

    def truncate(self, partition: TopicPartition, before_offset: int) -> int:
        with self._lock:
            log, start, end = self._bounds(partition)
            check_truncation(partition, before_offset, start, end)
            count = log.index(before_offset)
            del log.records[:count]
            log.start_offset = before_offset
            return count

    def close(self) -> None:
        self._closed = True

    def _abort(self, transaction: int) -> None:
        with self._lock:
            if self._open.pop(transaction, None) is not None:
                self._aborted.add(transaction)

    def _bounds(self, partition: TopicPartition) -> tuple[_Log, int, int]:
        """Return the log, its start offset, and its last stable offset."""
        log = self._log(partition)
        stable = log.next_offset
        if self._open:
            stable = next((record.offset for record, transaction in log.records if transaction in self._open), stable)
        return log, log.start_offset, stable

    def _log(self, partition: TopicPartition) -> _Log:
        self._check_open()
        log = self._logs.get(checked_partition(partition))
        if log is None:
            raise ChangelogError(f"{partition} does not exist: create its topic with create_topic()")
        return log

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the changelog is closed: open another one")


class _Writer(AtomicWriter):
    """The interface of a changelog to its producers, besides its own."""

    def __init__(self, changelog: MemoryChangelog) -> None:
        self._changelog = changelog

    def check_partition(self, partition: TopicPartition) -> None:
        self._changelog._log(partition)

    def append_together(self, requests: Sequence[AppendRequest]) -> list[Appended]:
        log, ends = self._changelog, False
        with log._lock:
            log._check_open()
            for request in requests:
                identity = request.identity
                if identity is not None:
                    ends |= request.ends
                    if log._epochs[identity.transactional_id] != identity.epoch:
                        raise fenced(identity.transactional_id)
            if ends:
                reach(BEFORE_COMMIT)
            appended = [self._append(log, request) for request in requests]
        if ends:
            reach(AFTER_COMMIT)
        return appended

    def abort(self, transaction: int) -> None:
        self._changelog._abort(transaction)

    def _append(self, log: MemoryChangelog, request: AppendRequest) -> Appended:
        identity, transaction = request.identity, request.transaction
        if identity is not None and transaction is None and not request.ends:
            log._transactions += 1
            transaction = log._transactions
            log._open[transaction] = identity.transactional_id
        last_offsets = {
            partition: log._log(partition).extend(pending, transaction or 0)
            for partition, pending in request.records.items()
            if pending
        }
        if request.ends and transaction is not None:
            del log._open[transaction]
        for (group, partition), offset in request.all_group_offsets().items():
            log._groups.setdefault(group, {})[partition] = offset
        return None if request.ends else transaction, last_offsets
