"""Snapshots of committed data in LMDB."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from threading import RLock
from typing import Any

import lmdb

from stores.engines.checksum import ValueCodec
from stores.engines.engine import EngineSnapshot, Scan
from stores.engines.lmdb.errors import reading_error
from stores.engines.lmdb.scan import Reading
from stores.engines.map_snapshot import MapSnapshot, read_whole
from stores.engines.snapshots import Snapshot, Snapshots
from stores.ordered.ranges import ScanRange


class LmdbSnapshot(EngineSnapshot):
    """A read transaction, which scans may share. When the map must grow, all its data is read into memory.

    ``begin_scan`` returns a scan of a range that is a user of ``snapshot``, one of ``snapshots``. It is called with the
    lock ``held_map``.
    """

    def __init__(
        self,
        codec: ValueCodec,
        snapshots: Snapshots[Reading],
        snapshot: Snapshot[Reading],
        stored: Sequence[Any],
        meta: Mapping[bytes, bytes],
        held_map: AbstractContextManager[object],
        begin_scan: Callable[[Snapshot[Reading], ScanRange, bool], Scan],
    ) -> None:
        self._codec, self._snapshots, self._stored, self._meta = codec, snapshots, stored, meta
        self._held_map, self._begin_scan = held_map, begin_scan
        self._snapshot: Snapshot[Reading] | None = snapshot
        self._copy: MapSnapshot | None = None
        # Taken after the lock of the map, if both are held.
        self._lock = RLock()

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        with self._lock:
            if self._snapshot is None:
                return None if self._copy is None else self._copy.get(key, family)
            try:
                kept = self._snapshot.reading.txn.get(key, None, self._stored[family])
            except lmdb.BadValsizeError:
                return None
            except lmdb.Error as error:
                raise reading_error(error) from error
        return None if kept is None else self._codec.decode(key, kept)

    def scan(self, bounds: ScanRange, *, reverse: bool = False) -> Scan:
        with self._held_map, self._lock:
            if self._snapshot is None:
                assert self._copy is not None, "a closed snapshot is not used"
                return self._copy.scan(bounds, reverse=reverse)
            try:
                return self._begin_scan(self._snapshots.share(self._snapshot), bounds, reverse)
            except lmdb.Error as error:
                raise reading_error(error) from error

    def meta(self) -> Mapping[bytes, bytes]:
        return self._meta

    def detach(self) -> None:
        """Read all data into memory and release the transaction. The caller holds the lock of the map."""
        with self._lock:
            if self._snapshot is not None:
                families = range(len(self._stored))
                whole = [self.scan(ScanRange(None, None, family=family)) for family in families]
                self._copy = read_whole(whole, self._meta)
                self._release()

    def close(self) -> None:
        with self._lock:
            self._copy = None
            self._release()

    def _release(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            self._snapshots.release(snapshot)

    def __del__(self) -> None:
        self._release()
