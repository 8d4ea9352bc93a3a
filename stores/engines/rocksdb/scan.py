"""Scans and snapshots of committed data in RocksDB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Any

from stores.engines.engine import FETCH_BYTES_MAX, FETCH_FIRST, FETCH_MAX, EngineSnapshot, Scan, take
from stores.engines.rocksdb.database import FIRST_KEY, reading_error
from stores.ordered import ScanRange


class RocksDBScan(Scan):
    """A scan over a rocksdict iterator, which is a snapshot.

    Bounds are compared here, because rocksdict does not copy bounds that it is given.
    """

    def __init__(self, db: Any, bounds: ScanRange, *, reverse: bool = False) -> None:
        self._db, self._bounds, self._reverse = db, bounds, reverse
        self._last = bounds.end if reverse else bounds.start
        try:
            self._pairs: Iterator[tuple[bytes, bytes]] | None = db.items(backwards=reverse, from_key=self._last)
        except Exception as error:
            raise reading_error(error) from error
        self._size = FETCH_FIRST

    def fetch(self) -> list[tuple[bytes, bytes]]:
        if self._pairs is None:
            return []
        try:
            chunk, at_end = take(self._pairs, self._size)
            if chunk:
                self._last = chunk[-1][0]
            if at_end:
                self._pairs = None
                check_end(self._db, self._last, reverse=self._reverse)
        except Exception as error:
            raise reading_error(error) from error
        self._size = min(2 * self._size, FETCH_MAX)
        start, end, end_open, _ = self._bounds
        if self._reverse:
            if end is not None and end_open and chunk and chunk[0][0] == end:
                del chunk[0]
            if start is not None and chunk and chunk[-1][0] < start:
                self._pairs = None
                chunk = [pair for pair in chunk if pair[0] >= start]
        elif end is not None and chunk and (chunk[-1][0] > end or (end_open and chunk[-1][0] == end)):
            self._pairs = None
            chunk = [pair for pair in chunk if pair[0] < end or (pair[0] == end and not end_open)]
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


class RocksDBSnapshot(EngineSnapshot):
    """An iterator for each data family, which shows the moment of its creation wherever it is moved.

    (Scans of rocksdict's own snapshots show later writes.) Reads move the iterators, so they take turns.
    """

    def __init__(self, iterators: Sequence[Any], meta: Mapping[bytes, bytes]) -> None:
        self._iterators, self._meta = list(iterators), meta
        self._lock = Lock()

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        with self._lock:
            try:
                iterator = self._iterators[family]
                iterator.seek(key)
                if iterator.valid():
                    value: bytes | None = iterator.value() if iterator.key() == key else None
                    return value
                # At the end of the data, or at damage.
                iterator.status()
            except Exception as error:
                raise reading_error(error) from error
        return None

    def scan(self, bounds: ScanRange, *, reverse: bool = False) -> Scan:
        return _SnapshotScan(self, bounds, reverse=reverse)

    def fetch(self, bounds: ScanRange, most: int, *, reverse: bool) -> tuple[list[tuple[bytes, bytes]], bool]:
        """Return the first pairs of a range, ``most`` or about ``FETCH_BYTES_MAX``, and whether there are no more.

        Raises: StoreCorruptedError, StoreUnavailableError.
        """
        start, end, end_open, family = bounds
        start = start or FIRST_KEY
        chunk: list[tuple[bytes, bytes]] = []
        num_bytes = 0
        with self._lock:
            try:
                iterator = self._iterators[family]
                _seek(iterator, end if reverse else start, reverse=reverse)
                if reverse and end_open and end is not None and iterator.valid() and iterator.key() == end:
                    iterator.prev()
                step = iterator.prev if reverse else iterator.next
                # Moving an iterator that is not valid ends the process.
                while iterator.valid():
                    key = iterator.key()
                    if reverse:
                        if key < start:
                            return chunk, True
                    elif end is not None and (key > end or (end_open and key == end)):
                        return chunk, True
                    if len(chunk) >= most or num_bytes >= FETCH_BYTES_MAX:
                        return chunk, False
                    value = iterator.value()
                    chunk.append((key, value))
                    num_bytes += len(value)
                    step()
                iterator.status()
            except Exception as error:
                raise reading_error(error) from error
        return chunk, True

    def close(self) -> None:
        with self._lock:
            self._iterators.clear()


def shared_scans(snapshot: RocksDBSnapshot, ranges: Sequence[ScanRange], *, reverse: bool) -> list[Scan]:
    """Return a scan of each range. The snapshot is released with the last of them."""
    open_scans: set[object] = set()
    scans: list[Scan] = []
    for bounds in ranges:
        scan = _SnapshotScan(snapshot, bounds, reverse=reverse, others=open_scans)
        open_scans.add(scan.token)
        scans.append(scan)
    return scans


class _SnapshotScan(Scan):
    """A scan that finds its place again for each chunk: other reads of the snapshot move the same iterator.

    If it has ``others``, which are the tokens of open scans, the last one of them closes the snapshot.
    """

    def __init__(
        self, snapshot: RocksDBSnapshot, bounds: ScanRange, *, reverse: bool, others: set[object] | None = None
    ) -> None:
        self._snapshot, self._bounds, self._reverse, self._others = snapshot, bounds, reverse, others
        self.token = object()
        self._size, self._ended = FETCH_FIRST, False

    def fetch(self) -> list[tuple[bytes, bytes]]:
        if self._ended:
            return []
        chunk, self._ended = self._snapshot.fetch(self._bounds, self._size, reverse=self._reverse)
        if chunk:
            self._bounds = self._bounds.rest_after(chunk[-1][0], reverse=self._reverse)
        self._size = min(2 * self._size, FETCH_MAX)
        return chunk

    def close(self) -> None:
        self._ended = True
        others = self._others
        if others is not None:
            others.discard(self.token)
            if not others:
                self._snapshot.close()


def _seek(iterator: Any, key: bytes | None, *, reverse: bool) -> None:
    """Move to the first key of a scan from ``key``; None is the beginning, or the end if ``reverse``."""
    if key is None:
        if reverse:
            iterator.seek_to_last()
        else:
            iterator.seek_to_first()
    elif reverse:
        iterator.seek_for_prev(key)
    else:
        iterator.seek(key)
