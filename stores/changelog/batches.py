"""Record batches: the records of one append in one partition, as one row of the embedded changelog.

A batch has up to 1,000 records and 64 KiB, or one larger record. Its number is the identifier of its partition times
2^46, plus the offset of its first record. So SQLite keeps the batches of a partition in order, without an index. All
records of a batch are of one transaction. Compaction leaves gaps in the offsets. The content, little-endian:

    checksum    4 bytes   CRC-32 of the rest, begun with that of number, count, transaction and time (8 bytes each)
    shapes      2 bytes   4 bits each, from the lowest: lengths of keys, of values, times, offsets
    columns               the numbers of these four, as their shapes say
    keys, values          the bytes of all keys, then of all values
    headers               to the end; empty if no record has any. JSON, a list of runs of equal headers:
                          [number of records, [[name, content in Latin-1 or null], ...]]

The row has the lowest time, and times are differences to it. Offsets are differences to the first one, without a column
where no record was removed in between. A shape of 0 is a column of zeros without bytes. 1 to 3 are one number for all
records, in 1, 2 or 4 bytes; 4 to 7 are a number for each record, in 1, 2, 4 or 8 bytes. Where a key or value is null, 8
is added to the shape; the numbers then are 0 for null, and the length plus 1.

The model is Kafka's record batch of version 2: base offset, count, first time, transaction, a checksum over all, and
differences in place of full offsets and times. Kafka writes the fields of a record one after the other, as
variable-length integers. In Python that takes 6 times the time to write and 4 times to read, because each byte of a
number is a step of the interpreter. A column of numbers is packed by one call.
Source: Kafka, "Record Batch"; KIP-98, "Message Format".
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, repeat
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple
from zlib import crc32

from stores.changelog.interface import Headers, RecordColumns
from stores.changelog.producer import FIELDS_PER_RECORD, Pending
from stores.files.plain_files import parsed_json

RECORDS_MAX = 1_000
BYTES_MAX = 64 * 1024
OFFSET_BITS = 46
"""An offset is below 2^46, and the identifier of a partition below 2^17."""

COLUMNS = "batch_id, count, transaction_id, time_ms, content"
"""The columns of a row, in the order of ``BatchRow`` and of the arguments of ``RecordBatch``."""

_CODES = "BHIQ"
_NULLS = 8
_EACH = 4
_ROW = Struct("<4q")
_BEGIN = Struct("<IH")


class UnsoundBatchError(Exception):
    """The row with the ``number`` differs from what was written. The text says how; its subject is the records."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


class BatchRow(NamedTuple):
    """A row of the table of batches."""

    number: int
    num_records: int
    transaction: int
    time_ms: int
    content: bytes


def batch_number(partition_id: int, offset: int) -> int:
    """Return the number of a batch that begins at ``offset``."""
    return partition_id << OFFSET_BITS | offset


def offset_of(number: int) -> int:
    """Return the offset at which a batch begins."""
    return number & ((1 << OFFSET_BITS) - 1)


def rows_of(number: int, transaction: int, fields: Pending) -> Iterator[BatchRow]:
    """Yield the batches of consecutive records. The first one has the ``number``."""
    width = RECORDS_MAX * FIELDS_PER_RECORD
    for at in range(0, len(fields), width):
        part = fields[at : at + width]
        columns = [part[column::FIELDS_PER_RECORD] for column in range(FIELDS_PER_RECORD)]
        yield from _bounded_rows(number + at // FIELDS_PER_RECORD, transaction, None, columns)


def rows_with(number: int, transaction: int, records: RecordColumns) -> Iterator[BatchRow]:
    """Yield batches with ``records``, which may have gaps. ``number`` is that of any batch of the partition."""
    begin = number - offset_of(number)
    for at in range(0, len(records.keys), RECORDS_MAX):
        offsets, keys, values, times_ms, headers = records.part(at, at + RECORDS_MAX)
        columns = [keys, values, times_ms, headers or [()] * len(keys)]
        yield from _bounded_rows(begin, transaction, offsets, columns)


def are_sparse(batches: Sequence[RecordBatch]) -> bool:
    """Return whether the records of consecutive batches fit into half as many."""
    num_records = sum([int(batch.count) for batch in batches])
    num_bytes = sum([batch.num_bytes for batch in batches])
    num_needed = max(-(-num_records // RECORDS_MAX), -(-num_bytes // BYTES_MAX))
    return len(batches) >= 2 * num_needed


def _bounded_rows(
    number: int, transaction: int, offsets: Sequence[int] | None, columns: Sequence[Sequence[Any]]
) -> Iterator[BatchRow]:
    """Yield the batches of the columns; of more than one record none is too large.

    Without ``offsets`` the records are consecutive from ``number`` on. With them, ``number`` is that of offset 0.
    """
    row = _row(number, transaction, offsets, *columns)
    half = row.num_records // 2
    if not half or len(row.content) <= BYTES_MAX:
        yield row
        return
    for part in (slice(None, half), slice(half, None)):
        begin = number if offsets is not None or part.start is None else number + half
        of_part = None if offsets is None else offsets[part]
        yield from _bounded_rows(begin, transaction, of_part, [column[part] for column in columns])


def _row(
    number: int,
    transaction: int,
    offsets: Sequence[int] | None,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    times_ms: Sequence[int],
    headers: Sequence[Headers | None],
) -> BatchRow:
    count, time_ms = len(keys), min(times_ms)
    key_shape, key_lengths, present_keys = _packed_parts(keys)
    value_shape, value_lengths, present_values = _packed_parts(values)
    time_shape, times = _packed_differences(times_ms, time_ms)
    offset_shape, gaps = 0, b""
    if offsets is not None:
        number += offsets[0]
        if offsets[-1] - offsets[0] >= count:
            offset_shape, gaps = _packed_differences(offsets, offsets[0])
    shapes = key_shape | value_shape << 4 | time_shape << 8 | offset_shape << 12
    content = b"".join(
        chain(
            (shapes.to_bytes(2, "little"), key_lengths, value_lengths, times, gaps),
            present_keys,
            present_values,
            (_encoded(headers),) if any(headers) else (),
        )
    )
    return sealed(number, count, transaction, time_ms, content)


def _packed_parts(parts: Sequence[Any]) -> tuple[int, bytes, Iterable[bytes]]:
    """Return the shape of the lengths of keys or values, the lengths, and those that are not null."""
    if None not in parts:
        return *_packed(list(map(len, parts))), parts
    shape, packed = _packed([0 if part is None else len(part) + 1 for part in parts])
    # Not those that are true: a subclass of bytes decides itself what is.
    return shape | _NULLS, packed, [part for part in parts if part is not None]


def _packed_differences(numbers: Sequence[int], lowest: int) -> tuple[int, bytes]:
    return (0, b"") if max(numbers) == lowest else _packed([number - lowest for number in numbers])


def _packed(numbers: Sequence[int]) -> tuple[int, bytes]:
    """Return the shape of a column, and its bytes."""
    highest = max(numbers)
    if not highest:
        return 0, b""
    power = 0 if highest < 1 << 8 else 1 if highest < 1 << 16 else 2 if highest < 1 << 32 else 3
    if highest == min(numbers):
        return power + 1, highest.to_bytes(1 << power, "little")
    return power + _EACH, _little_endian(array(_CODES[power], numbers)).tobytes()


def _little_endian(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _encoded(headers: Sequence[Headers | None]) -> bytes:
    runs = [
        [len(list(run)), [(name, _text(content)) for name, content in pairs]]
        for pairs, run in groupby(each or () for each in headers)
    ]
    return json.dumps(runs).encode()


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("latin-1")


def sealed(number: int, count: int, transaction: int, time_ms: int, content: bytes) -> BatchRow:
    """Return the row of a batch, with its checksum before the ``content``."""
    checksum = crc32(content, crc32(_ROW.pack(number, count, transaction, time_ms)))
    return BatchRow(number, count, transaction, time_ms, checksum.to_bytes(4, "little") + content)


def is_sound(number: Any, count: Any, transaction: Any, time_ms: Any, content: Any) -> bool:
    """Return whether the row of a batch fits its checksum."""
    try:
        checksum = crc32(memoryview(content)[4:], crc32(_ROW.pack(number, count, transaction, time_ms)))
        return checksum.to_bytes(4, "little") == bytes(content[:4])
    except (TypeError, StructError):
        return False


class RecordBatch:
    """A batch, from the columns of its row. It is decoded when its records are asked for.

    Raises: UnsoundBatchError if the row differs from its checksum, or another program wrote it.
    """

    def __init__(self, number: Any, count: Any, transaction: Any, time_ms: Any, content: Any) -> None:
        if not is_sound(number, count, transaction, time_ms, content):
            raise UnsoundBatchError(number, "fail their checksum")
        if count < 1 or len(content) < _BEGIN.size:
            raise UnsoundBatchError(number, "are of another program")
        _, shapes = _BEGIN.unpack_from(content)
        self.number, self.count, self.transaction = number, count, transaction
        self._time_ms, self._content, self._shapes = time_ms, content, shapes

    @property
    def num_bytes(self) -> int:
        """The size of the content."""
        return len(self._content)

    @property
    def end(self) -> int:
        """The number of a batch that begins after the last record of this one."""
        if not self._shapes >> 12:
            return int(self.number + self.count)
        return int(self.number + self._columns()[-1][-1] + 1)

    def keys(self) -> tuple[Sequence[int], list[Any]]:
        """Return the offsets and keys of the records."""
        at, key_lengths, _, _, offsets = self._columns()
        return self._offsets(offsets), self._parts(at, key_lengths, self._shapes)[0]

    def columns(self) -> RecordColumns:
        """Return the records."""
        at, key_lengths, value_lengths, times, offsets = self._columns()
        keys, at = self._parts(at, key_lengths, self._shapes)
        values, at = self._parts(at, value_lengths, self._shapes >> 4)
        times_ms = [self._time_ms] * self.count if times is None else [self._time_ms + time for time in times]
        return RecordColumns(self._offsets(offsets), keys, values, times_ms, self._headers(at))

    def _columns(self) -> tuple[Any, ...]:
        """Return the place of the keys, and the four columns; the last two are None if they are zeros."""
        at, columns = _BEGIN.size, []
        for number in range(4):
            shape = self._shapes >> 4 * number & (_NULLS - 1)
            column, at = self._numbers(at, shape)
            columns.append(None if number > 1 and not shape else column)
        return at, *columns

    def _numbers(self, at: int, shape: int) -> tuple[Sequence[int], int]:
        if not shape:
            return bytes(self.count), at
        if shape < _EACH:
            end = at + (1 << shape - 1)
            return [int.from_bytes(self._content[at:end], "little")] * self.count, end
        end = at + (self.count << shape - _EACH)
        packed = self._content[at:end]
        if len(packed) != end - at:
            raise UnsoundBatchError(self.number, "are of another program")
        return packed if shape == _EACH else _little_endian(array(_CODES[shape - _EACH], packed)), end

    def _parts(self, at: int, lengths: Sequence[int], shape: int) -> tuple[list[bytes | None], int]:
        """Return the keys or values that begin at ``at``, and their end."""
        content, parts = self._content, []
        if not shape & _NULLS:
            for length in lengths:
                end = at + length
                parts.append(content[at:end])
                at = end
            return parts, at
        for length in lengths:
            end = at + length - 1 if length else at
            parts.append(content[at:end] if length else None)
            at = end
        return parts, at

    def _offsets(self, gaps: Sequence[int] | None) -> Sequence[int]:
        first = offset_of(self.number)
        return range(first, first + self.count) if gaps is None else [first + gap for gap in gaps]

    def _headers(self, at: int) -> list[Headers] | None:
        if at == len(self._content):
            return None
        try:
            runs: Any = parsed_json(self._content[at:].decode())
            decoded = [(tuple((name, _bytes(content)) for name, content in pairs), count) for count, pairs in runs]
            if sum([count for _, count in decoded]) != self.count:
                raise UnsoundBatchError(self.number, "are of another program")
        except (ValueError, TypeError, AttributeError) as error:
            raise UnsoundBatchError(self.number, "are of another program") from error
        return list(chain.from_iterable(repeat(pairs, count) for pairs, count in decoded))


def _bytes(text: Any) -> bytes | None:
    return None if text is None else text.encode("latin-1")
