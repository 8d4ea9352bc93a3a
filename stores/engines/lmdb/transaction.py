"""LMDB's transactions: those that read, with scans and snapshots of committed data, and the one of a strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from threading import RLock, get_ident
from typing import Any

import lmdb

from stores.engines.checksum import ValueCodec
from stores.engines.engine import FETCH_FIRST, FETCH_MAX, EngineSnapshot, Scan, Transaction, take
from stores.engines.lmdb.environment import reading_error, writing_error
from stores.engines.snapshots import MapSnapshot, SharedSnapshots, Snapshot, read_whole
from stores.errors import CommitFailedError, StoreError, damaged, must_reopen
from stores.ordered import WHOLE, ScanRange


class ReadTransaction:
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

    _snapshot: Snapshot[ReadTransaction] | None = None

    def __init__(
        self,
        path: str,
        codec: ValueCodec,
        snapshots: SharedSnapshots[ReadTransaction],
        snapshot: Snapshot[ReadTransaction],
        stored: Any,
        bounds: ScanRange,
        *,
        reverse: bool,
    ) -> None:
        """Begin the scan. It is already counted as a user of ``snapshot``, which shows its moment."""
        self._path, self._codec, self._snapshots, self._stored = path, codec, snapshots, stored
        self._size = FETCH_FIRST
        self._rest: list[tuple[bytes, bytes]] = []
        self._lock = RLock()
        self._bounds, self._reverse = bounds, reverse
        self._cursor: Any = None
        self._snapshot = snapshot
        is_whole = bounds.start is None and bounds.end is None
        self._due = snapshot.reading.entries[bounds.family] if is_whole else None
        """The number of remaining pairs, if it is known."""

    def fetch(self) -> list[tuple[bytes, bytes]]:
        with self._lock:
            if self._rest:
                chunk, self._rest = self._rest[:FETCH_MAX], self._rest[FETCH_MAX:]
                return chunk
            if self._snapshot is None:
                return []
            try:
                if self._cursor is None:
                    self._seek(self._snapshot.reading)
                chunk, at_end = take(self._pairs, self._size)
            except lmdb.Error as error:
                raise reading_error(error) from error
            if self._due is not None:
                self._due -= len(chunk)
                if at_end and self._due:
                    raise damaged(
                        f"a scan of {self._path} and LMDB's record count differ by {abs(self._due):,} records"
                    )
            if at_end:
                self._release()
            self._size = min(2 * self._size, FETCH_MAX)
            within, at_end = cut(chunk, self._bounds, reverse=self._reverse)
            if at_end:
                self._release()
            return self._codec.decode_scanned(within)

    def _seek(self, reading: ReadTransaction) -> None:
        self._cursor = reading.txn.cursor(self._stored)
        self._pairs = pairs_from(self._cursor, self._bounds, reverse=self._reverse)

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


class LmdbSnapshot(EngineSnapshot):
    """A read transaction, which scans may share. When the map must grow, all its data is read into memory.

    ``begin_scan`` returns a scan of a range that is a user of ``snapshot``, one of ``snapshots``. It is called with the
    lock ``held_map``.
    """

    def __init__(
        self,
        codec: ValueCodec,
        snapshots: SharedSnapshots[ReadTransaction],
        snapshot: Snapshot[ReadTransaction],
        stored: Sequence[Any],
        meta: Mapping[bytes, bytes],
        held_map: AbstractContextManager[object],
        begin_scan: Callable[[Snapshot[ReadTransaction], ScanRange, bool], Scan],
    ) -> None:
        self._codec, self._snapshots, self._stored, self._meta = codec, snapshots, stored, meta
        self._held_map, self._begin_scan = held_map, begin_scan
        self._snapshot: Snapshot[ReadTransaction] | None = snapshot
        self._copy: MapSnapshot | None = None
        # Taken after the lock of the map, if both are held.
        self._lock = RLock()

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        with self._lock:
            if self._snapshot is None:
                return None if self._copy is None else self._copy.get(key, family)
            try:
                raw = self._snapshot.reading.txn.get(key, None, self._stored[family])
            except lmdb.BadValsizeError:
                return None
            except lmdb.Error as error:
                raise reading_error(error) from error
        return None if raw is None else self._codec.decode(key, raw)

    def scan(self, bounds: ScanRange, *, reverse: bool = False) -> Scan:
        with self._held_map, self._lock:
            if self._snapshot is None:
                assert self._copy is not None, "a closed snapshot is not used"
                return self._copy.scan(bounds, reverse=reverse)
            try:
                return self._begin_scan(self._snapshots.share(self._snapshot), bounds, reverse)
            except lmdb.Error as error:
                raise reading_error(error) from error

    def detach(self) -> None:
        """Read all data into memory and release the transaction. The caller holds the lock of the map."""
        with self._lock:
            if self._snapshot is not None:
                whole = [self.scan(WHOLE._replace(family=family)) for family in range(len(self._stored))]
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


class LmdbTransaction(Transaction):
    """The write transaction of a strategy. After any error LMDB refuses all further use of it.

    ``commit`` ends it with meta entries, for the engine, whose readers then see the data.
    """

    # LMDB's writer mutex belongs to that thread until the transaction ends.
    bound_to_thread = True

    def __init__(
        self,
        txn: Any,
        stored: Sequence[Any],
        codec: ValueCodec,
        commit: Callable[[Any, Mapping[bytes, bytes | None]], None],
    ) -> None:
        self._txn, self._stored, self._codec, self._commit = txn, stored, codec, commit
        self._thread = get_ident()

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        try:
            # The first family is the transaction's default database: passing it would cost a tenth of the call.
            raw = self._txn.get(key, None, self._stored[family]) if family else self._txn.get(key)
        except lmdb.BadValsizeError:
            return None
        except lmdb.Error as error:
            raise self._aborted(error) from error
        return None if raw is None else self._codec.decode(key, raw)

    def fetch(self, bounds: ScanRange, most: int, *, reverse: bool) -> tuple[list[tuple[bytes, bytes]], bool]:
        try:
            with self._txn.cursor(self._stored[bounds.family]) as cursor:
                chunk, at_end = take(pairs_from(cursor, bounds, reverse=reverse), most)
        except lmdb.Error as error:
            raise self._aborted(error) from error
        within, beyond = cut(chunk, bounds, reverse=reverse)
        return self._codec.decode_scanned(within), at_end or beyond

    def put(self, key: bytes, value: bytes | None, family: int = 0) -> None:
        try:
            if value is None:
                self._txn.delete(key, b"", self._stored[family])
            elif not family:
                # As in ``get``.
                self._txn.put(key, self._codec.encode(key, value))
            else:
                # Arguments by position (dupdata, overwrite, append): keywords take 1.5 times as long.
                self._txn.put(key, self._codec.encode(key, value), True, True, False, self._stored[family])
        except lmdb.Error as error:
            raise self._aborted(error) from error

    def delete_range(self, start: bytes | None, end: bytes | None, family: int = 0) -> None:
        try:
            delete_range(self._txn, self._stored[family], start, end)
        except lmdb.Error as error:
            raise self._aborted(error) from error

    def commit(self, meta: Mapping[bytes, bytes | None]) -> None:
        try:
            self._commit(self._txn, meta)
        except lmdb.Error as error:
            raise self._aborted(error) from error

    def abort(self) -> None:
        self._txn.abort()

    def _aborted(self, error: lmdb.Error) -> StoreError:
        if get_ident() == self._thread:
            # A reader on another thread leaves the abort to the writer, whose next use fails as well.
            self._txn.abort()
        translated = writing_error(error)
        if not isinstance(translated, CommitFailedError) or translated.reopen:
            return translated
        if isinstance(error, lmdb.MapFullError):
            return CommitFailedError(
                f"the transaction does not fit into LMDB's map: {error}. Close the store, open it again with a larger "
                "map_size_bytes, or commit less at once, and continue from its committed offset",
                reopen=True,
            )
        return must_reopen(f"LMDB has aborted the transaction: {error}. Correct the cause")


def pairs_from(cursor: Any, bounds: ScanRange, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
    """Return the pairs from the begin of a range on, without a limit at its end."""
    start, end, end_open, _ = bounds
    pairs: Iterator[tuple[bytes, bytes]] = iter(())
    if reverse:
        if _seek_last(cursor, end, end_open=end_open):
            pairs = cursor.iterprev()
    elif cursor.set_range(start) if start else cursor.first():
        pairs = cursor.iternext()
    return pairs


def cut(
    chunk: list[tuple[bytes, bytes]], bounds: ScanRange, *, reverse: bool
) -> tuple[list[tuple[bytes, bytes]], bool]:
    """Return the pairs of ``chunk`` before the end of a range, and whether ``chunk`` has pairs beyond it."""
    start, end, end_open, _ = bounds

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
        on_key = cursor.set_range(start) if start else cursor.first()
        while on_key and (end is None or cursor.key() <= end):
            on_key = cursor.delete()
