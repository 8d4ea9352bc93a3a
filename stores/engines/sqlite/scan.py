"""Scans of committed data in SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import RLock

from stores.engines.checksum import ValueCodec
from stores.engines.engine import Scan, take
from stores.engines.snapshots import Snapshot, Snapshots
from stores.engines.sqlite.errors import READING_ERRORS, reading_error
from stores.engines.sqlite.tables import Table, selection
from stores.files.sqlite_library import Connection
from stores.ordered.ranges import ScanRange

_FETCH_FIRST, _FETCH = 32, 512


class SqliteScan(Scan):
    """A statement on a connection that scans share. The first scan begins its snapshot, and the last one ends it."""

    _snapshot: Snapshot[Connection] | None = None

    def __init__(
        self,
        file: Path,
        codec: ValueCodec,
        snapshots: Snapshots[Connection],
        snapshot: Snapshot[Connection],
        tables: Sequence[Table],
        bounds: ScanRange,
        *,
        reverse: bool,
    ) -> None:
        """Begin the scan. It is already counted as a user of ``snapshot``."""
        self._file, self._codec, self._snapshots = file, codec, snapshots
        self._size = _FETCH_FIRST
        self._lock = RLock()
        # Set now: if the next lines raise, the finalizer gives the snapshot back.
        self._snapshot = snapshot
        with snapshot.lock:
            self._rows = snapshot.reading.execute(*selection(tables, bounds, reverse=reverse))

    def fetch(self) -> list[tuple[bytes, bytes]]:
        with self._lock:
            if self._snapshot is None:
                return []
            try:
                with self._snapshot.lock:
                    chunk, ended = take(self._rows, self._size)
            except READING_ERRORS as error:
                raise reading_error(error, self._file) from error
            if ended:
                self.close()
            self._size = min(2 * self._size, _FETCH)
            return self._codec.decode_scanned(chunk)

    def close(self) -> None:
        with self._lock:
            snapshot, self._snapshot = self._snapshot, None
            if snapshot is not None:
                with snapshot.lock:
                    self._rows.close()
                self._snapshots.release(snapshot)

    def __del__(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            # Freeing the statement ends it. No lock is taken, because a finalizer may run at any point.
            self.__dict__.pop("_rows", None)
            self._snapshots.release(snapshot)
