"""The writes to the embedded changelog: appends of the records of producers, and compaction in bounded steps.

A pass of compaction has two parts. The first reads the records after the last pass, and notes the last offset of each
key. The second reads the log from its start, and removes the records that these supersede and aborted records. A step
is one transaction of SQLite. A removed record is superseded even if its pass does not end: so a crash between steps
loses only the notes. Readers keep their snapshot, and offsets do not change.

The last record of a key is kept, even if it is a tombstone: a store that was closed long ago may still need it. It is
removed if its key is older than the retention of a window or session store. A restore drops such a key as well, at the
later record that has the stream time; that record is kept.

Source: Kafka, "Log Compaction" and ``LogCleaner`` (``min.cleanable.dirty.ratio``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import repeat
from math import ceil
from operator import le
from time import perf_counter
from typing import NamedTuple

from stores.changelog.arguments import fenced
from stores.changelog.batches import (
    COLUMNS,
    BatchRow,
    RecordBatch,
    are_sparse,
    batch_number,
    offset_of,
    rows_of,
    rows_with,
)
from stores.changelog.interface import IsExpired, IsNeeded, RecordColumns, joined
from stores.changelog.log_file import LogFile
from stores.changelog.producer import (
    AFTER_COMMIT,
    BEFORE_COMMIT,
    FIELDS_PER_RECORD,
    Appended,
    AppendRequest,
    AtomicWriter,
    Pending,
    ProducerIdentity,
)
from stores.failpoints import reach
from stores.files.sqlite_library import Connection
from stores.interface import TopicPartition

STEP_S = 0.05
"""The time limit of a step."""
STEP_RECORDS_MIN = 1_000
RECORDS_PER_APPENDED = 4
"""The number of records that a step reads for each record appended since the last: a pass reads new ones twice."""
NOTED_KEYS_MAX = 200_000
"""The most keys of one pass, more than a batch has. If there are more, the next pass continues from there."""
_ROWS = 1_000
"""The number of records from which on no more batches are read at once."""
_BYTES = 1 << 20
_KEY_BYTES = 32
"""Longer keys are noted by a digest. Source: Kafka, ``SkimpyOffsetMap``."""

ABORTED = "select transaction_id from log_transaction where state = 'ABORTED'"


def batch_with(connection: Connection, partition_id: int, offset: int) -> int:
    """Return the number of the batch that has ``offset``, or of one before: no earlier batch has it."""
    number = batch_number(partition_id, offset)
    [before] = connection.execute(
        "select max(batch_id) from batch where batch_id between ? and ?", (batch_number(partition_id, 0), number)
    ).fetchone()
    return number if before is None else int(before)


def insert(writer: Connection, rows: Iterable[BatchRow]) -> None:
    """Insert batches."""
    writer.executemany("insert into batch values (?, ?, ?, ?, ?)", rows)


def replace(writer: Connection, read: Sequence[RecordBatch], records: RecordColumns) -> None:
    """Put ``records`` in the place of ``read``, all batches of a range, of one transaction or committed."""
    writer.execute("delete from batch where batch_id between ? and ?", (read[0].number, read[-1].number))
    insert(writer, rows_with(read[0].number, read[0].transaction if len(read) == 1 else 0, records))


def truncate(writer: Connection, partition_id: int, before_offset: int) -> int:
    """Remove the records of a partition that are before an offset; return their number."""
    begin, border = batch_number(partition_id, 0), batch_with(writer, partition_id, before_offset)
    [num_removed] = writer.execute(
        "select coalesce(sum(count), 0) from batch where batch_id >= ? and batch_id < ?", (begin, border)
    ).fetchone()
    writer.execute("delete from batch where batch_id >= ? and batch_id < ?", (begin, border))
    for row in writer.execute(f"select {COLUMNS} from batch where batch_id = ?", (border,)).fetchall():
        batch = RecordBatch(*row)
        records = batch.columns()
        first = bisect_left(records.offsets, before_offset)
        if first:
            replace(writer, [batch], records.part(first))
            num_removed += first
    return int(num_removed)


class SqliteWriter(AtomicWriter):
    """Appends to ``file``. ``partition_id`` returns the identifier of a partition, which it checks. For any thread."""

    def __init__(self, file: LogFile, partition_id: Callable[[TopicPartition], int]) -> None:
        self._file, self._partition_id = file, partition_id
        self.appended: dict[TopicPartition, int] = {}
        """The offset after the last record that was appended here."""

    def check_partition(self, partition: TopicPartition) -> None:
        self._partition_id(partition)

    def append_together(self, requests: Sequence[AppendRequest]) -> list[Appended]:
        ends = any(request.ends and request.identity is not None for request in requests)
        with self._file.write(once=True) as writer:
            appended = [self._append(writer, request) for request in requests]
            if ends:
                reach(BEFORE_COMMIT)
        if ends:
            reach(AFTER_COMMIT)
        return appended

    def _append(self, writer: Connection, request: AppendRequest) -> Appended:
        identity, transaction = request.identity, request.transaction
        last_offsets = {}
        if identity is not None:
            self._check_epoch(writer, identity)
            if transaction is None and not request.ends:
                [transaction] = writer.execute(
                    "insert into log_transaction (transactional_id, epoch, state) values (?, ?, 'OPEN') "
                    "returning transaction_id",
                    (identity.transactional_id, identity.epoch),
                ).fetchone()
        for partition, pending in request.records.items():
            if pending:
                last_offsets[partition] = self._insert(writer, partition, transaction, pending)
        if request.ends and transaction is not None:
            writer.execute("delete from transaction_range where transaction_id = ?", (transaction,))
            writer.execute("delete from log_transaction where transaction_id = ?", (transaction,))
        for (group, (topic, number)), offset in request.all_group_offsets().items():
            writer.execute("insert or replace into group_offset values (?, ?, ?, ?)", (group, topic, number, offset))
        return None if request.ends else transaction, last_offsets

    def abort(self, transaction: int) -> None:
        with self._file.write() as writer:
            writer.execute("update log_transaction set state = 'ABORTED' where transaction_id = ?", (transaction,))

    def _insert(self, writer: Connection, partition: TopicPartition, transaction: int | None, pending: Pending) -> int:
        partition_id, count = self._partition_id(partition), len(pending) // FIELDS_PER_RECORD
        [following] = writer.execute(
            "update topic_partition set next_offset = next_offset + ? where partition_id = ? returning next_offset",
            (count, partition_id),
        ).fetchone()
        first = following - count
        insert(writer, rows_of(batch_number(partition_id, first), transaction or 0, pending))
        if transaction is not None:
            writer.execute(
                "insert into transaction_range values (?, ?, ?, ?) "
                "on conflict do update set last_offset = excluded.last_offset",
                (transaction, partition_id, first, following - 1),
            )
        self.appended[partition] = int(following)
        return int(following) - 1

    def _check_epoch(self, writer: Connection, identity: ProducerIdentity) -> None:
        row = writer.execute(
            "select epoch from producer where transactional_id = ?", (identity.transactional_id,)
        ).fetchone()
        if row != (identity.epoch,):
            raise fenced(identity.transactional_id)


class Kept(NamedTuple):
    """The functions of a store that say more about its records than which one is the last of its key."""

    is_expired: IsExpired | None
    is_needed: IsNeeded | None


class Compaction:
    """The compaction of one partition. It is called within a transaction of the log's writer."""

    def __init__(self, partition_id: int, dirty_ratio: float, records_min: int) -> None:
        self._partition_id = partition_id
        self._dirty_ratio, self._records_min = dirty_ratio, records_min
        self._pass: _Pass | None = None
        self._seen_end = -1

    def share(self, reader: Connection, start: int, end: int) -> float:
        """Return the share of the partition's records that no pass has compacted yet: 0 for none, 1 for all."""
        num_clean, dirty = self._kept_and_dirty(reader, start, end)
        return dirty / (num_clean + dirty) if dirty else 0.0

    def due_at(self, reader: Connection, start: int, end: int) -> int:
        """Return the lowest end of the log at which a pass is due; 0 during a pass."""
        if self._pass is not None:
            return 0
        num_clean, dirty = self._kept_and_dirty(reader, start, end)
        dirty_share = min(self._dirty_ratio, 1 - 2**-20)
        return end - dirty + max(self._records_min, 1, ceil(num_clean * dirty_share / (1 - dirty_share)))

    def step(self, writer: Connection, start: int, end: int, kept: Kept) -> int:
        """Continue the pass, or begin one; return the number of removed records."""
        if self._pass is None:
            self._pass = self._new_pass(writer, start, end)
        appended = end - self._seen_end if self._seen_end >= 0 else 0
        self._seen_end = end
        budget = max(STEP_RECORDS_MIN, RECORDS_PER_APPENDED * appended)
        deadline = perf_counter() + STEP_S
        num_removed = 0
        while budget > 0 and self._pass is not None and perf_counter() < deadline:
            num_read, num_superseded = self._advance(writer, self._pass, kept)
            num_removed += num_superseded
            budget -= num_read
        return num_removed

    def give_up(self) -> None:
        """End the pass after an error. The transaction is rolled back, so the removed records are there again."""
        self._pass = None

    def whole(self, writer: Connection, start: int, end: int, kept: Kept) -> int:
        """Compact all records before ``end``, in as many passes as needed; return the number of removed records."""
        num_removed, clean = 0, -1
        try:
            while clean < end:
                self._pass = self._new_pass(writer, start, end)
                while self._pass is not None:
                    num_removed += self._advance(writer, self._pass, kept)[1]
                clean = self._clean_offset(writer)[0]
        finally:
            self._pass = None
        return num_removed

    def _new_pass(self, writer: Connection, start: int, end: int) -> _Pass:
        # A pass that did not end may have put clean and dirty records into one batch.
        dirty = max(self._clean_offset(writer)[0], start)
        return _Pass(batch_with(writer, self._partition_id, dirty), self._number(end), self._number(start))

    def _number(self, offset: int) -> int:
        return batch_number(self._partition_id, offset)

    def _advance(self, writer: Connection, under_way: _Pass, kept: Kept) -> tuple[int, int]:
        """Continue with the next batches; return the numbers of records that were read and removed."""
        aborted = {transaction for (transaction,) in writer.execute(ABORTED)}
        read = _batches(writer, under_way.at, under_way.end)
        committed = [batch for batch in read if batch.transaction not in aborted]
        num_read = num_live = sum([batch.count for batch in read])
        if read:
            under_way.at = read[-1].end
        if not under_way.sweeping:
            _note(under_way, committed)
            if not read or len(under_way.last) >= NOTED_KEYS_MAX:
                under_way.begin_sweep(full=bool(read))
        elif read:
            num_live = self._sweep(writer, under_way, read, committed, kept)
        else:
            self._end_pass(writer, under_way)
        return num_read, num_read - num_live

    def _sweep(
        self,
        writer: Connection,
        under_way: _Pass,
        read: Sequence[RecordBatch],
        committed: Sequence[RecordBatch],
        kept: Kept,
    ) -> int:
        """Remove superseded and aborted records from ``read``, all batches of a range; return how many are left."""
        live = [_live(batch, under_way.last, kept) for batch in committed]
        num_live = sum(map(sum, live))
        under_way.kept += num_live
        if num_live < sum([batch.count for batch in read]) or are_sparse(read):
            left = [batch.columns().where(of_batch) for batch, of_batch in zip(committed, live, strict=True)]
            replace(writer, read, joined(left))
        return num_live

    def _end_pass(self, writer: Connection, under_way: _Pass) -> None:
        self._pass = None
        writer.execute(
            "insert or replace into cleaning values (?, ?, ?)",
            (self._partition_id, offset_of(under_way.end), under_way.kept),
        )

    def _kept_and_dirty(self, reader: Connection, start: int, end: int) -> tuple[int, int]:
        clean, num_clean = self._clean_offset(reader)
        if clean <= start:
            return 0, end - start
        # Truncation may have removed some of what was kept.
        return min(num_clean, clean - start), max(end - clean, 0)

    def _clean_offset(self, reader: Connection) -> tuple[int, int]:
        row = reader.execute(
            "select clean_offset, kept_records from cleaning where partition_id = ?", (self._partition_id,)
        ).fetchone()
        return row or (0, 0)


@dataclass(slots=True)
class _Pass:
    """A pass: first it notes the new records before ``end``, then it compacts all before ``end``; ``at`` is next.

    All these are numbers of batches.
    """

    at: int
    end: int
    start: int
    sweeping: bool = False
    kept: int = 0
    last: dict[bytes | None, int] = field(default_factory=dict)

    def begin_sweep(self, *, full: bool) -> None:
        """Begin the second part: of all noted records, or as far as there was room for notes."""
        if full:
            self.end = self.at
        self.sweeping, self.at = True, self.start


def _batches(writer: Connection, begin: int, end: int) -> list[RecordBatch]:
    """Return the next batches from ``begin`` on, aborted ones as well; none at the end."""
    read, num_records, num_bytes = [], 0, 0
    rows = writer.execute(
        f"select {COLUMNS} from batch where batch_id >= ? and batch_id < ? order by batch_id", (begin, end)
    )
    with closing(rows):
        for row in rows:
            read.append(batch := RecordBatch(*row))
            num_records, num_bytes = num_records + batch.count, num_bytes + batch.num_bytes
            if num_records >= _ROWS or num_bytes >= _BYTES:
                break
    return read


def _note(under_way: _Pass, read: Sequence[RecordBatch]) -> None:
    for batch in read:
        offsets, keys = batch.keys()
        under_way.last.update(zip(_noted(keys), offsets, strict=True))
    under_way.last.pop(None, None)


def _live(batch: RecordBatch, last: Mapping[bytes | None, int], kept: Kept) -> list[bool]:
    """Return for each record of the batch whether it stays."""
    offsets, keys = batch.keys()
    live = list(map(le, map(last.get, _noted(keys), repeat(-1)), offsets))
    is_expired, is_needed = kept
    if is_expired is not None:
        live = [stays and (key is None or not is_expired(key)) for stays, key in zip(live, keys, strict=True)]
    if is_needed is not None and not all(live):
        times_ms = batch.columns().timestamps_ms
        live = [
            stays or (key is not None and is_needed(key, time_ms))
            for stays, key, time_ms in zip(live, keys, times_ms, strict=True)
        ]
    return live


def _noted(keys: Sequence[bytes | None]) -> Sequence[bytes | None]:
    """Return what is noted of each key: a short one itself, of a longer one a digest."""
    if max(map(len, filter(None, keys)), default=0) <= _KEY_BYTES:
        return keys
    # A digest is longer than every key that is noted itself, so that they never collide.
    return [
        key if key is None or len(key) <= _KEY_BYTES else blake2b(key, digest_size=_KEY_BYTES + 1).digest()
        for key in keys
    ]
