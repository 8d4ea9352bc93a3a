"""The input of a task: the loop over its partitions, which also keeps its commit interval and its punctuators.

Of several inputs the earliest record is next: that with the lowest timestamp among the next ones of all inputs. So a
task that has much to catch up with joins and counts by time as one that keeps up. An input without a record is not
waited for. Source: KIP-353; KIP-695, ``max.task.idle.ms=0``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from stores.changelog.interface import Record, RecordColumns, joined
from stores.errors import ChangelogTimeoutError, OffsetOutOfRangeError, TransactionAbortedError
from stores.interface import TopicPartition
from stores.tasks.bounds import BatchSize
from stores.tasks.column_records import ColumnRecords
from stores.tasks.identifier import TaskId, check_inputs
from stores.tasks.record_batch import num_bytes
from stores.tasks.task_transaction import TaskTransaction
from stores.tasks.timing import TaskTimeout
from stores.topic import Topic

_POLL_NS = 20_000_000
"""The interval between two looks for new input while the loop waits."""
_ATTEMPTS = 3
"""The number of reads of one input in a row: its first offset may be gone again before it is read."""
_RUN_RECORDS = 10_000
"""The most records of one read. One that holds a snapshot of the changelog is ended before its records are
processed."""

Read = TypeVar("Read")


class _Head(NamedTuple):
    """The next record of an input, which was read when ``next_offset`` was to be processed."""

    next_offset: int
    record: Record


def _earliest(times_ms: Mapping[TopicPartition, int]) -> TopicPartition:
    """Return the input with the lowest time, the first of equals. An unknown time (-1) is equal to the lowest one.

    Otherwise an input without times would keep all others waiting.
    """
    lowest_ms = min(times_ms.values())
    if lowest_ms < 0:
        lowest_ms = min((time_ms for time_ms in times_ms.values() if time_ms >= 0), default=0)
    return next(partition for partition, time_ms in times_ms.items() if time_ms <= lowest_ms)


class InputLoop:
    """The loop of one task. It gives each record to ``process``, and calls ``keep_time`` when the timing is due.

    With ``batches`` it gives ``process_all`` as many records in a row as one batch may have.
    """

    def __init__(
        self,
        transaction: TaskTransaction,
        *,
        process: Callable[[TopicPartition, Record], None],
        process_all: Callable[[TopicPartition, Sequence[Record]], None],
        batches: BatchSize | None,
        commit: Callable[[], None],
        keep_time: Callable[[], None],
    ) -> None:
        self._transaction, self._batches = transaction, batches
        self._process, self._process_all = process, process_all
        self._commit, self._keep_time = commit, keep_time
        self._first = 0
        """The input that is first in the next round: of records with equal times its record comes first."""
        self._heads: dict[TopicPartition, _Head] = {}
        """Records that a read without a snapshot has given, and the last round did not come to. The next read begins
        after them: a client that had to go back would drop what it has read ahead."""
        self._rests: dict[TopicPartition, tuple[int, RecordColumns]] = {}
        """The same for columns, with the offset that was to be processed next."""

    def run(self, max_records: int | None, wait_ns: int, timeout_s: float, *, commit: bool, only_arrived: bool) -> int:
        """Process up to ``max_records`` records, and ``commit`` if asked to; return by how many the task has advanced.

        With ``only_arrived`` the first look for input is as those while it waits: ``Changelog.has_arrived``.

        After a timeout of the changelog it continues from the last commit, for up to ``timeout_s`` without progress.
        """
        transaction = self._transaction
        timeout = TaskTimeout(str(transaction.task_id), timeout_s)
        began = -1
        while True:
            try:
                transaction.resume()
                if began < 0:
                    began = transaction.done
                self._process_input(sys.maxsize if max_records is None else began + max_records, wait_ns, only_arrived)
                end = transaction.done
                if commit:
                    self._commit()
                return end - began
            except TransactionAbortedError:
                continue  # Another task of the transaction has failed: from the last commit on.
            except ChangelogTimeoutError as error:
                timeout.failed(error, transaction.done)

    def _process_input(self, done_at_most: int, wait_ns: int, only_arrived: bool) -> None:
        """Process input until ``done_at_most`` records are done, or there was no input for ``wait_ns``."""
        transaction, timing = self._transaction, self._transaction.timing
        ends_ns = -1
        while True:
            got_on = (not only_arrived or self._has_arrived()) and self._go_over_inputs(done_at_most)
            only_arrived |= not got_on  # While it waits it does not ask the log at each look.
            now_ns = timing.now_ns()
            if now_ns >= timing.due_ns:
                self._keep_time()
            if not got_on:
                transaction.stores.idle()
            if got_on or ends_ns < 0:
                ends_ns = now_ns + wait_ns
            if transaction.done >= done_at_most or (not got_on and now_ns >= ends_ns):
                return
            if not got_on:
                timing.clock.sleep(max(0, min(_POLL_NS, ends_ns - now_ns, timing.due_ns - now_ns)) / 1_000_000_000)

    def _has_arrived(self) -> bool:
        """Return False if no input has a record, as far as that is known without asking the changelog."""
        transaction = self._transaction
        has_arrived, next_offsets = transaction.changelog.has_arrived, transaction.next_offsets
        return any(has_arrived(partition, next_offsets[partition]) for partition in transaction.inputs)

    def _go_over_inputs(self, done_at_most: int) -> bool:
        """Process some records of the inputs; return True if there were any."""
        transaction = self._transaction
        inputs, first = transaction.inputs, self._first
        limit = min(done_at_most - transaction.done, _RUN_RECORDS)
        got_on = False
        if not limit:
            return False
        if len(inputs) == 1:
            read: Iterator[Any] = iter(())
            try:
                if self._batches is None:
                    read = self._records(inputs[0], limit)
                    for record in islice(read, limit):
                        self._process(inputs[0], record)
                        got_on = True
                else:
                    read = self._column_pieces(inputs[0], limit, self._batches)
                    for piece in read:
                        self._process_all(inputs[0], piece)
                        got_on = True
            finally:
                _end(read)
            return got_on
        self._first = (first + 1) % len(inputs)
        earliest = self._earliest_first([*inputs[first:], *inputs[:first]], limit)
        try:
            for partition, records in earliest:
                self._process_all(partition, records)
                got_on = True
        finally:
            _end(earliest)
        return got_on

    def _column_pieces(
        self, partition: TopicPartition, limit: int, batches: BatchSize
    ) -> Generator[ColumnRecords, None, None]:
        """Return up to ``limit`` records of the only input, for one batch each or a few more. No record is made."""
        held: list[RecordColumns] = []
        num_records = held_bytes = 0
        read = self._columns(partition, limit)
        try:
            for columns in read:
                taken, rest = columns.part(0, limit), columns.part(limit)
                if rest.offsets:
                    self._rests[partition] = taken.offsets[-1] + 1, rest
                held.append(taken)
                limit -= len(taken.offsets)
                num_records += len(taken.offsets)
                held_bytes += ColumnRecords(taken).num_bytes
                if not limit or num_records >= batches.max_records or held_bytes >= batches.max_bytes:
                    yield ColumnRecords(joined(held))
                    held, num_records, held_bytes = [], 0, 0
                if not limit:
                    return
        finally:
            _end(read)
        if held:
            yield ColumnRecords(joined(held))

    def _columns(self, partition: TopicPartition, limit: int) -> Generator[RecordColumns, None, None]:
        """Return the records of an input as columns. Reads that hold a snapshot have ended, after ``limit`` records."""
        changelog, after = self._transaction.changelog, 0
        next_offset, rest = self._rests.pop(partition, (-1, None))
        # After a rollback the records before it are next.
        if rest is not None and next_offset == self._transaction.next_offsets[partition]:
            yield rest
            after = rest.offsets[-1] + 1
            limit -= len(rest.offsets)
        read = self._reread(partition, after, changelog.read_columns)
        if not changelog.reads_hold_snapshots:
            yield from read
            return
        page: list[RecordColumns] = []
        try:
            while limit > 0 and (columns := next(read, None)) is not None:
                page.append(columns)
                limit -= len(columns.offsets)
        finally:
            _end(read)
        yield from page

    def _earliest_first(
        self, inputs: Sequence[TopicPartition], limit: int
    ) -> Generator[tuple[TopicPartition, list[Record]], None, None]:
        """Return up to ``limit`` next records of all inputs, the earliest one first, in pieces of one input.

        Each piece is processed before the next is asked. Without batches it is one record.
        """
        next_offsets = self._transaction.next_offsets
        # Together they have no more records in memory than one input alone.
        share = -(-limit // len(inputs))
        reads = {partition: self._records(partition, share) for partition in inputs}
        heads: dict[TopicPartition, _Head] = {}
        try:
            for partition, read in reads.items():
                for record in islice(read, 1):
                    heads[partition] = _Head(next_offsets[partition], record)
            times_ms = {partition: head.record.timestamp_ms for partition, head in heads.items()}
            while heads and limit:
                partition = _earliest(times_ms)
                records = [heads[partition].record]
                held_bytes = num_bytes(records)
                while (following := next(reads[partition], None)) is not None:
                    times_ms[partition] = following.timestamp_ms
                    if not self._takes_more(len(records), held_bytes, limit) or _earliest(times_ms) != partition:
                        break
                    records.append(following)
                    held_bytes += num_bytes((following,))
                if following is None:
                    del heads[partition], times_ms[partition]
                else:
                    heads[partition] = _Head(records[-1].offset + 1, following)
                limit -= len(records)
                yield partition, records
        finally:
            for read in reads.values():
                _end(read)
            if not self._transaction.changelog.reads_hold_snapshots:
                self._heads = heads

    def _takes_more(self, count: int, held_bytes: int, limit: int) -> bool:
        """Return whether a piece of several inputs, with ``count`` records, may have one more."""
        batches = self._batches
        return batches is not None and count < min(limit, batches.max_records) and held_bytes < batches.max_bytes

    def _records(self, partition: TopicPartition, most: int) -> Iterator[Record]:
        """Return the records of an input. Reads that hold a snapshot have ended, and have up to ``most`` records."""
        if not self._transaction.changelog.reads_hold_snapshots:
            return self._read(partition)
        return self._pages(partition, most)

    def _pages(self, partition: TopicPartition, most: int) -> Iterator[Record]:
        after = 0
        while True:
            read = self._read(partition, after)
            try:
                page = list(islice(read, most))
            finally:
                _end(read)
            yield from page
            if len(page) < most:
                return
            after = page[-1].offset + 1

    def _read(self, partition: TopicPartition, after: int = 0) -> Iterator[Record]:
        """Return the records of an input from its next offset on, wherever that is after it was gone.

        Those before ``after`` were read already, and may not be processed yet.
        """
        transaction = self._transaction
        head = self._heads.pop(partition, None)
        # After a rollback the records before it are next.
        if head is not None and head.next_offset == transaction.next_offsets[partition]:
            yield head.record
            after = head.record.offset + 1
        yield from self._reread(partition, after, transaction.changelog.read)

    def _reread(
        self, partition: TopicPartition, after: int, read: Callable[[TopicPartition, int], Iterator[Read]]
    ) -> Generator[Read, None, None]:
        """Return what ``read`` does from the next offset on, wherever that is after it was gone, or from ``after``."""
        transaction = self._transaction
        for attempt in range(_ATTEMPTS):
            try:
                yield from read(partition, max(transaction.next_offsets[partition], after))
                return
            except OffsetOutOfRangeError:
                if after > transaction.next_offsets[partition]:
                    return  # The next read moves, once these records are processed.
                if attempt == _ATTEMPTS - 1:
                    raise
                transaction.move(partition)


def _end(read: Iterator[object]) -> None:
    """End a read now, and not when nothing refers to it any more: an error that is kept would."""
    if isinstance(read, Generator):
        read.close()


def checked_inputs(inputs: object, task_partition: int) -> dict[TopicPartition, Topic[Any, Any] | None]:
    """Return the input partitions, each with its topic if that has serdes. A ``Topic`` is its ``task_partition``.

    Raises: TypeError; ConfigError for one that no task can have.
    """
    if isinstance(inputs, TopicPartition) or not isinstance(inputs, Sequence) or isinstance(inputs, str | bytes):
        description = repr(inputs) if isinstance(inputs, str | TopicPartition | Topic) else type(inputs).__name__
        raise TypeError(f"inputs is a list of TopicPartition, not {description}: write [TopicPartition('topic', 0)]")
    partitions = []
    for each in inputs:
        if isinstance(each, Topic):
            partitions.append(TopicPartition(each.name, task_partition))
        elif isinstance(each, tuple) and len(each) == len(TopicPartition._fields):
            partitions.append(TopicPartition(*each))
        else:
            raise TypeError(f"an input is a TopicPartition or a Topic, not {each!r}: write TopicPartition('topic', 0)")
    check_inputs(partitions)
    topics = (each if isinstance(each, Topic) else None for each in inputs)
    return dict(zip(partitions, topics, strict=True))


def unexpected_record(
    task_id: TaskId, next_offsets: Mapping[TopicPartition, int], partition: TopicPartition, record: Record
) -> ValueError:
    """Return the error for a record that a task can't be given: of another partition, or processed before."""
    if partition not in next_offsets:
        inputs = ", ".join(map(str, next_offsets))
        return ValueError(f"{partition} is not an input of task {task_id}: give it a record of {inputs}")
    return ValueError(
        f"record {record.offset} of {partition} was processed before: the next one is {next_offsets[partition]}"
    )
