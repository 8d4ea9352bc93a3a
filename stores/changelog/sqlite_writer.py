"""The writer of the embedded changelog: it appends the records of producers, in one SQLite transaction each time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from typing import Any
from zlib import crc32

from stores.changelog.arguments import fenced
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

_MASK = 0xFFFFFFFF


def checksums(first_offset: int, fields: list[Any], width: int) -> list[int]:
    """Return the checksums of consecutive records, from ``first_offset`` on.

    SQLite has none, and damaged stores are restored from the changelog. A checksum is the CRC-32 of offset and
    timestamp folded into one number, key, value and headers, in this order. A null counts as empty.

    ``fields`` has ``width`` entries for each record. The first four are the stored key, value, timestamp and headers.
    """
    keys, values, timestamps, headers = (fields[at::width] for at in range(4))
    sums = [
        crc32(value or b"", crc32(key or b"", (offset ^ ms ^ ms >> 31) & _MASK))
        for offset, key, value, ms in zip(count(first_offset), keys, values, timestamps)
    ]
    if any(headers):
        sums = [crc32(text.encode(), begun) if text else begun for text, begun in zip(headers, sums, strict=True)]
    return sums


def is_sound(checksum: Any, offset: Any, key: Any, value: Any, timestamp_ms: Any, headers: Any) -> bool:
    """Return whether a record fits its checksum."""
    try:
        begun = (offset ^ timestamp_ms ^ timestamp_ms >> 31) & _MASK
        of_pair = crc32(b"" if value is None else value, crc32(b"" if key is None else key, begun))
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
        each, width = FIELDS_PER_RECORD, ROWS_PER_INSERT * FIELDS_PER_RECORD
        for done in range(0, len(pending), width):
            fields, at = pending[done : done + width], done // each
            if any(fields[3::FIELDS_PER_RECORD]):
                fields[3::FIELDS_PER_RECORD] = [_encoded(headers) for headers in fields[3::FIELDS_PER_RECORD]]
            writer.execute(
                _insert_statement(len(fields) // FIELDS_PER_RECORD),
                (topic_id, number, first + at, transaction or 0, *fields, *checksums(first + at, fields, each)),
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


@cache
def _insert_statement(rows: int) -> str:
    values = (
        f"(?1, ?2, ?3 + {row}, ?4, ?{4 * row + 5}, ?{4 * row + 6}, ?{4 * row + 7}, ?{4 * row + 8}, "
        f"?{4 * rows + row + 5})"
        for row in range(rows)
    )
    return f"insert into record values {', '.join(values)}"


def _encoded(headers: object) -> str | None:
    if headers is None:
        return None
    assert isinstance(headers, tuple)
    return json.dumps([(name, content.decode("latin-1")) for name, content in headers])
