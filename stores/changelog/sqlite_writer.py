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

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from itertools import count
from math import ceil
from time import perf_counter
from typing import Any
from zlib import crc32

from stores.changelog.arguments import fenced
from stores.changelog.interface import Headers, IsExpired
from stores.changelog.log_file import ROWS_PER_INSERT, LogFile
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
"""The most keys of one pass. If there are more, it ends early, and the next pass continues from there."""
_ROWS = 500
_KEY_BYTES = 32
"""Longer keys are noted by a digest. Source: Kafka, ``SkimpyOffsetMap``."""

ABORTED = "select transaction_id from log_transaction where state = 'ABORTED'"


_MASK = 0xFFFFFFFF


def checksums(first_offset: int, fields: Pending) -> list[int]:
    """Return the checksums of consecutive records, from ``first_offset`` on.

    SQLite has none, and damaged stores are restored from the changelog. A checksum is the CRC-32 of offset and
    timestamp folded into one number, key, value and headers, in this order. A null counts as empty.
    """
    keys, values, timestamps, headers = (fields[at::FIELDS_PER_RECORD] for at in range(FIELDS_PER_RECORD))
    sums = [
        crc32(value or b"", crc32(key or b"", (offset ^ ms ^ ms >> 31) & _MASK))
        for offset, key, value, ms in zip(count(first_offset), keys, values, timestamps)
    ]
    if any(headers):
        sums = [crc32(text.encode(), of_pair) if text else of_pair for text, of_pair in zip(headers, sums, strict=True)]
    return sums


def is_sound(checksum: Any, offset: Any, key: Any, value: Any, timestamp_ms: Any, headers: Any) -> bool:
    """Return whether a record fits its checksum."""
    try:
        seed = (offset ^ timestamp_ms ^ timestamp_ms >> 31) & _MASK
        of_pair = crc32(b"" if value is None else value, crc32(b"" if key is None else key, seed))
        return (crc32(headers.encode(), of_pair) if headers else of_pair) == checksum  # type: ignore[no-any-return]
    except (TypeError, AttributeError):
        return False


class SqliteWriter(AtomicWriter):
    """Appends to ``file``. ``topic_id`` returns the number of a partition's topic, which it checks. For any thread."""

    def __init__(self, file: LogFile, topic_id: Callable[[TopicPartition], int]) -> None:
        self._file, self._topic_id = file, topic_id
        self.appended: dict[TopicPartition, int] = {}
        """The offset after the last record that was appended here."""

    def check_partition(self, partition: TopicPartition) -> None:
        self._topic_id(partition)

    def append_together(self, requests: Sequence[AppendRequest]) -> list[Appended]:
        ends = any(request.ends and request.identity is not None for request in requests)
        with self._file.write() as writer:
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
        for (group, (topic, number)), offset in request.group_offsets.items():
            writer.execute("insert or replace into group_offset values (?, ?, ?, ?)", (group, topic, number, offset))
        return None if request.ends else transaction, last_offsets

    def abort(self, transaction: int) -> None:
        with self._file.write() as writer:
            writer.execute("update log_transaction set state = 'ABORTED' where transaction_id = ?", (transaction,))

    def _insert(self, writer: Connection, partition: TopicPartition, transaction: int | None, pending: Pending) -> int:
        topic_id, number = self._topic_id(partition), partition.partition
        count = len(pending) // FIELDS_PER_RECORD
        [following] = writer.execute(
            "update topic_partition set next_offset = next_offset + ? "
            "where topic_id = ? and partition = ? returning next_offset",
            (count, topic_id, number),
        ).fetchone()
        first = following - count
        width = ROWS_PER_INSERT * FIELDS_PER_RECORD
        for first_field in range(0, len(pending), width):
            fields, at = pending[first_field : first_field + width], first_field // FIELDS_PER_RECORD
            if any(fields[3::FIELDS_PER_RECORD]):
                fields[3::FIELDS_PER_RECORD] = [_encoded(headers) for headers in fields[3::FIELDS_PER_RECORD]]
            writer.execute(
                _insert_statement(len(fields) // FIELDS_PER_RECORD),
                (topic_id, number, first + at, transaction or 0, *fields, *checksums(first + at, fields)),
            )
        if transaction is not None:
            writer.execute(
                "insert into transaction_range values (?, ?, ?, ?, ?) "
                "on conflict do update set last_offset = excluded.last_offset",
                (transaction, topic_id, number, first, following - 1),
            )
        self.appended[partition] = int(following)
        return int(following) - 1

    def _check_epoch(self, writer: Connection, identity: ProducerIdentity) -> None:
        row = writer.execute(
            "select epoch from producer where transactional_id = ?", (identity.transactional_id,)
        ).fetchone()
        if row != (identity.epoch,):
            raise fenced(identity.transactional_id)


class Compaction:
    """The compaction of one partition. It is called within a transaction of the log's writer."""

    def __init__(self, topic_id: int, partition: int, dirty_ratio: float, records_min: int) -> None:
        self._where = {"topic": topic_id, "partition": partition}
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

    def step(self, writer: Connection, start: int, end: int, is_expired: IsExpired | None = None) -> int:
        """Continue the pass, or begin one; return the number of removed records."""
        try:
            return self._step(writer, start, end, is_expired)
        except BaseException:
            # The transaction is rolled back, so the removed records are there again.
            self._pass = None
            raise

    def whole(self, writer: Connection, start: int, end: int, is_expired: IsExpired | None = None) -> int:
        """Compact all records before ``end``, in as many passes as needed; return the number of removed records."""
        num_removed, clean = 0, -1
        try:
            while clean < end:
                self._pass = self._new_pass(writer, start, end)
                while self._pass is not None:
                    num_removed += self._advance(writer, self._pass, start, is_expired)
                clean = self._clean_offset(writer)[0]
        finally:
            self._pass = None
        return num_removed

    def _step(self, writer: Connection, start: int, end: int, is_expired: IsExpired | None) -> int:
        if self._pass is None:
            self._pass = self._new_pass(writer, start, end)
        appended = end - self._seen_end if self._seen_end >= 0 else 0
        self._seen_end = end
        budget = max(STEP_RECORDS_MIN, RECORDS_PER_APPENDED * appended)
        deadline = perf_counter() + STEP_S
        num_removed = 0
        while budget > 0 and self._pass is not None and perf_counter() < deadline:
            num_removed += self._advance(writer, self._pass, start, is_expired)
            budget -= _ROWS
        return num_removed

    def _new_pass(self, writer: Connection, start: int, end: int) -> _Pass:
        return _Pass(max(self._clean_offset(writer)[0], start), end)

    def _advance(self, writer: Connection, under_way: _Pass, start: int, is_expired: IsExpired | None) -> int:
        if under_way.sweeping:
            return self._sweep(writer, under_way, start, is_expired)
        self._note(writer, under_way, start)
        return 0

    def _note(self, writer: Connection, under_way: _Pass, start: int) -> None:
        rows = writer.execute(
            "select offset, key from record where topic_id = :topic and partition = :partition and offset >= :at "
            f"and offset < :end and transaction_id not in ({ABORTED}) order by offset limit {_ROWS}",
            {**self._where, "at": under_way.at, "end": under_way.end},
        ).fetchall()
        under_way.last.update((_noted(key), offset) for offset, key in rows if key is not None)
        if rows:
            under_way.at = rows[-1][0] + 1
        full = len(under_way.last) >= NOTED_KEYS_MAX
        if full:
            under_way.end = under_way.at
        if full or not rows:
            under_way.sweeping, under_way.at = True, start

    def _sweep(self, writer: Connection, under_way: _Pass, start: int, is_expired: IsExpired | None) -> int:
        rows = writer.execute(
            f"select offset, key, transaction_id in ({ABORTED}) from record where topic_id = :topic "
            f"and partition = :partition and offset >= :at and offset < :end order by offset limit {_ROWS}",
            {**self._where, "at": max(under_way.at, start), "end": under_way.end},
        ).fetchall()
        last = under_way.last
        superseded = [
            offset
            for offset, key, aborted in rows
            if aborted
            or (
                key is not None and (last.get(_noted(key), -1) > offset or (is_expired is not None and is_expired(key)))
            )
        ]
        writer.executemany(
            "delete from record where topic_id = ? and partition = ? and offset = ?",
            [(*self._where.values(), offset) for offset in superseded],
        )
        under_way.kept += len(rows) - len(superseded)
        if rows:
            under_way.at = rows[-1][0] + 1
        else:
            self._pass = None
            writer.execute(
                "insert or replace into cleaning values (:topic, :partition, :end, :kept)",
                {**self._where, "end": under_way.end, "kept": under_way.kept},
            )
        return len(superseded)

    def _kept_and_dirty(self, reader: Connection, start: int, end: int) -> tuple[int, int]:
        clean, num_clean = self._clean_offset(reader)
        if clean <= start:
            return 0, end - start
        # Truncation may have removed some of what was kept.
        return min(num_clean, clean - start), max(end - clean, 0)

    def _clean_offset(self, reader: Connection) -> tuple[int, int]:
        row = reader.execute(
            "select clean_offset, kept_records from cleaning where topic_id = :topic and partition = :partition",
            self._where,
        ).fetchone()
        return row or (0, 0)


@cache
def _insert_statement(rows: int) -> str:
    values = (
        f"(?1, ?2, ?3 + {row}, ?4, ?{4 * row + 5}, ?{4 * row + 6}, ?{4 * row + 7}, ?{4 * row + 8}, "
        f"?{4 * rows + row + 5})"
        for row in range(rows)
    )
    return f"insert into record values {', '.join(values)}"


def _encoded(headers: Headers | None) -> str | None:
    if headers is None:
        return None
    return json.dumps([(name, content.decode("latin-1")) for name, content in headers])


@dataclass(slots=True)
class _Pass:
    """A pass: first it notes the new records before ``end``, then it compacts all before ``end``; ``at`` is next."""

    at: int
    end: int
    sweeping: bool = False
    kept: int = 0
    last: dict[bytes, int] = field(default_factory=dict)


def _noted(key: bytes) -> bytes:
    # A digest is longer than every key that is noted itself, so that they never collide.
    return key if len(key) <= _KEY_BYTES else blake2b(key, digest_size=_KEY_BYTES + 1).digest()
