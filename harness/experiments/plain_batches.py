"""The committed records of an embedded changelog, read without the library: from its layout in docs/format.md."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import accumulate, pairwise

_WIDTHS = (0, 1, 2, 4, 1, 2, 4, 8)
"""The bytes of a number in a column, by the lower three bits of the column's shape."""


def committed_records(connection: sqlite3.Connection, topic: str) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """Yield offset, key and value of each committed record of ``topic``, in order."""
    for first, count, content in connection.execute(
        "select base_offset, count, content from batches where topic = ? and state = 'COMMITTED' order by batch_id",
        (topic,),
    ):
        shapes, at, columns = int.from_bytes(content[4:6], "little"), 6, []
        for shape in (shapes & 15, shapes >> 4 & 15, shapes >> 8 & 15, shapes >> 12):
            width, has_each = _WIDTHS[shape & 7], shape & 7 > 3
            end = at + width * (count if has_each else 1)
            packed = [int.from_bytes(content[place : place + width], "little") for place in range(at, end, width or 1)]
            numbers = packed if has_each else (packed or [0]) * count
            columns.append([number - 1 for number in numbers] if shape & 8 else numbers)
            at = end
        key_lengths, value_lengths, _, gaps = columns
        offsets = [first + gap for gap in gaps] if shapes >> 12 else range(first, first + count)
        ends = accumulate([max(length, 0) for length in (*key_lengths, *value_lengths)], initial=at)
        parts = [
            content[begin:end] if length >= 0 else None
            for (begin, end), length in zip(pairwise(ends), (*key_lengths, *value_lengths), strict=True)
        ]
        yield from zip(offsets, parts[:count], parts[count:], strict=True)
