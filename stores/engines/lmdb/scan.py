"""Scans of committed data in LMDB."""

from __future__ import annotations

from threading import RLock
from typing import Any

import lmdb

from stores.engines.checksum import ValueCodec
from stores.engines.engine import Scan, take
from stores.engines.lmdb.errors import reading_error
from stores.engines.lmdb.ranges import cut, pairs_from
from stores.engines.snapshots import Snapshot, Snapshots
from stores.errors import StoreCorruptedError
from stores.ordered.ranges import ScanRange

_FETCH_FIRST, _FETCH = 32, 512


class Reading:
    """A read transaction, with the number of pairs in each data family."""

    __slots__ = ("entries", "txn")

    def __init__(self, txn: Any, entries: list[int]) -> None:
        self.txn, self.entries = txn, entries

    def end(self) -> None:
        """End the transaction."""
        self.txn.abort()


class LmdbScan(Scan):
    """A cursor of a shared snapshot, opened by the first fetch. When the map must grow, the remaining pairs are read
    into memory.
    """

    _snapshot: Snapshot[Reading] | None = None

    def __init__(
        self,
        path: str,
        codec: ValueCodec,
        snapshots: Snapshots[Reading],
        snapshot: Snapshot[Reading],
        stored: Any,
        bounds: ScanRange,
        *,
        reverse: bool,
    ) -> None:
        """Begin the scan. It is already counted as a user of ``snapshot``, which shows its moment."""
        start, end, end_open, family = bounds
        self._path, self._codec, self._snapshots, self._stored = path, codec, snapshots, stored
        self._size = _FETCH_FIRST
        self._rest: list[tuple[bytes, bytes]] = []
        self._lock = RLock()
        self._start, self._end, self._end_open, self._reverse = start, end, end_open, reverse
        self._cursor: Any = None
        self._snapshot = snapshot
        self._due = snapshot.reading.entries[family] if start is None and end is None else None
        """The number of remaining pairs, if it is known."""

    def fetch(self) -> list[tuple[bytes, bytes]]:
        with self._lock:
            if self._rest:
                chunk, self._rest = self._rest[:_FETCH], self._rest[_FETCH:]
                return chunk
            if self._snapshot is None:
                return []
            try:
                if self._cursor is None:
                    self._seek(self._snapshot.reading)
                chunk, ended = take(self._pairs, self._size)
            except lmdb.Error as error:
                raise reading_error(error) from error
            if self._due is not None:
                self._due -= len(chunk)
                if ended and self._due:
                    raise StoreCorruptedError(
                        f"a scan of {self._path} and LMDB's record count differ by {abs(self._due):,} "
                        "records: wipe the store and restore it from its changelog"
                    )
            if ended:
                self._release()
            self._size = min(2 * self._size, _FETCH)
            within, ended = cut(chunk, self._start, self._end, end_open=self._end_open, reverse=self._reverse)
            if ended:
                self._release()
            return self._codec.decode_scanned(within)

    def _seek(self, reading: Reading) -> None:
        self._cursor = reading.txn.cursor(self._stored)
        self._pairs = pairs_from(self._cursor, self._start, self._end, end_open=self._end_open, reverse=self._reverse)

    def detach(self) -> None:
        """Read the remaining pairs into memory and release the snapshot."""
        with self._lock:
            if self._snapshot is not None:
                rest: list[tuple[bytes, bytes]] = []
                while chunk := self.fetch():
                    rest += chunk
                self._rest = rest

    def _release(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            if self._cursor is not None:
                self._pairs = iter(())
                self._cursor.close()
            self._snapshots.release(snapshot)

    def close(self) -> None:
        with self._lock:
            self._rest = []
            self._release()

    def __del__(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            self._snapshots.release(snapshot)
