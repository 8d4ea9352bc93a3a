"""The records of an embedded changelog as a program without the library reads them, by the layout in docs/format.md."""

from __future__ import annotations

import json
import sqlite3
import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import Any, NamedTuple


class PlainRecord(NamedTuple):
    partition: int
    offset: int
    state: str
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Any]


def plain_records(connection: sqlite3.Connection, topic: str) -> Iterator[PlainRecord]:
    """Yield all records of ``topic``: committed, open and aborted ones."""
    for partition, state, *row in connection.execute(
        "select partition, state, batch_id, count, transaction_id, time_ms, content from batches where topic = ? "
        "order by partition, base_offset",
        (topic,),
    ):
        for offset, *fields in decoded(*row):
            yield PlainRecord(partition, offset, state, *fields)


def decoded(batch_id: int, count: int, transaction_id: int, time_ms: int, content: bytes) -> Iterator[tuple[Any, ...]]:
    """Yield offset, timestamp, key, value and headers of each record of a batch."""
    stream = BytesIO(content)
    checksum, shapes = struct.unpack("<IH", stream.read(6))
    assert checksum == zlib.crc32(
        content[4:], zlib.crc32(struct.pack("<qqqq", batch_id, count, transaction_id, time_ms))
    )
    keys, values, times, offsets = (column(stream, count, shapes >> bits & 15) for bits in (0, 4, 8, 12))
    if not shapes >> 12:
        offsets = list(range(count))
    keys = [None if length is None else stream.read(length) for length in keys]
    values = [None if length is None else stream.read(length) for length in values]
    headers = [pairs for number, pairs in json.loads(stream.read() or b"[]") for _ in range(number)] or [[]] * count
    for offset, time, key, value, pairs in zip(offsets, times, keys, values, headers, strict=True):
        yield (batch_id & 2**46 - 1) + offset, time_ms + time, key, value, pairs


def column(stream: BytesIO, count: int, shape: int) -> list[Any]:
    if shape & 7 == 0:
        numbers = [0] * count
    elif shape & 7 < 4:
        numbers = [int.from_bytes(stream.read(2 ** ((shape & 7) - 1)), "little")] * count
    else:
        numbers = [int.from_bytes(stream.read(2 ** ((shape & 7) - 4)), "little") for _ in range(count)]
    return [number - 1 if number else None for number in numbers] if shape & 8 else numbers
