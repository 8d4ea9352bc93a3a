"""Reads and deletes of key ranges with LMDB's cursors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def pairs_from(
    cursor: Any, start: bytes | None, end: bytes | None, *, end_open: bool, reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Return the pairs from the begin of a range on, without a limit at its end."""
    pairs: Iterator[tuple[bytes, bytes]] = iter(())
    if reverse:
        if _seek_last(cursor, end, end_open=end_open):
            pairs = cursor.iterprev()
    elif cursor.set_range(start) if start else cursor.first():
        pairs = cursor.iternext()
    return pairs


def cut(
    chunk: list[tuple[bytes, bytes]], start: bytes | None, end: bytes | None, *, end_open: bool, reverse: bool
) -> tuple[list[tuple[bytes, bytes]], bool]:
    """Return the pairs of ``chunk`` before the end of a range, and whether ``chunk`` has pairs beyond it."""

    def within(key: bytes) -> bool:
        if reverse:
            return start is None or key >= start
        return end is None or key < end or (key == end and not end_open)

    if not chunk or within(chunk[-1][0]):
        return chunk, False
    return [pair for pair in chunk if within(pair[0])], True


def _seek_last(cursor: Any, end: bytes | None, *, end_open: bool) -> bool:
    """Set the cursor to the last key at or below ``end`` (below it, if ``end_open``)."""
    if end is None or not cursor.set_range(end):
        return bool(cursor.last())
    if cursor.key() == end and not end_open:
        return True
    return bool(cursor.prev())


def delete_range(txn: Any, stored: Any, start: bytes | None, end: bytes | None) -> None:
    """Remove the keys from ``start`` to ``end`` of the database ``stored``."""
    with txn.cursor(stored) as cursor:
        found = cursor.set_range(start) if start else cursor.first()
        while found and (end is None or cursor.key() <= end):
            found = cursor.delete()
