"""Scans of committed data in RocksDB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stores.engines.engine import Scan, take
from stores.engines.rocksdb.errors import reading_error


class RocksDBScan(Scan):
    """A scan over a rocksdict iterator, which is a snapshot.

    Bounds are compared here, because rocksdict does not copy bounds that it is given.
    """

    def __init__(
        self,
        db: Any,
        pairs: Iterator[tuple[bytes, bytes]],
        start: bytes | None,
        end: bytes | None,
        *,
        end_open: bool,
        reverse: bool,
    ) -> None:
        self._db = db
        self._pairs: Iterator[tuple[bytes, bytes]] | None = pairs
        self._last = end if reverse else start
        self._start, self._end, self._end_open, self._reverse = start, end, end_open, reverse
        self._size = 32

    def fetch(self) -> list[tuple[bytes, bytes]]:
        if self._pairs is None:
            return []
        try:
            chunk, ended = take(self._pairs, self._size)
            if chunk:
                self._last = chunk[-1][0]
            if ended:
                self._pairs = None
                check_end(self._db, self._last, reverse=self._reverse)
        except Exception as error:
            raise reading_error(error) from error
        self._size = min(2 * self._size, 512)
        end, start = self._end, self._start
        if self._reverse:
            if end is not None and self._end_open and chunk and chunk[0][0] == end:
                del chunk[0]
            if start is not None and chunk and chunk[-1][0] < start:
                self._pairs = None
                chunk = [pair for pair in chunk if pair[0] >= start]
        elif end is not None and chunk and (chunk[-1][0] > end or (self._end_open and chunk[-1][0] == end)):
            self._pairs = None
            chunk = [pair for pair in chunk if pair[0] < end or (pair[0] == end and not self._end_open)]
        return chunk

    def close(self) -> None:
        self._pairs = None


def check_end(db: Any, last: bytes | None, *, reverse: bool = False) -> None:
    """Raise the error that ended a scan at ``last``, if there was one: rocksdict's iterators end silently at damage."""
    probe = db.iter()
    try:
        if not reverse:
            probe.seek((last or b"") + b"\x00")
        elif last is None:
            probe.seek_to_last()
        else:
            probe.seek_for_prev(last)
            if probe.valid():
                probe.prev()
        probe.status()
    finally:
        # An exception keeps this frame alive, and an iterator the database, which could then not be opened again.
        del probe
