"""A store on disk as a reader of another process sees it: its committed data."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from threading import RLock
from typing import TypeVar, overload

from stores.batch.merge import chunks_of
from stores.contract.arguments import as_bytes, as_key_list, check_keys
from stores.contract.reading import ScannedReads
from stores.engines.engine import EngineSnapshot
from stores.errors import StoreClosedError, StoreError
from stores.files.store_directory import checked_path
from stores.interface import (
    Closeable,
    IsolationLevel,
    KeyValueIterator,
    KeyValueSnapshot,
    KeyValueView,
    Position,
    ShownTimestamps,
    TopicPartition,
)
from stores.meta_entries import MARK, OFFSET, POSITION, check_mark_name, decode_marks, decode_offsets
from stores.ordered import WHOLE, ScanRange
from stores.process import watch
from stores.read_only.store_files import StoreFiles, shared_files
from stores.records.handles import ViewHandle
from stores.records.record_kind import RECORDS, RecordKind
from stores.strategies.access import check_bounds
from stores.strategies.iterator import OpenIterators, Pin, StoreIterator
from stores.strategies.store.views import HeldSnapshot, StoreSnapshot

Answer = TypeVar("Answer")
View = TypeVar("View")
_TRIES = 5
_DESCRIPTION = MARK + RECORDS.encode() + b"\0"
"""The beginning of the meta entries of the description."""


class ReadOnlyStore(ScannedReads, KeyValueView, Closeable):
    """The store in the folder ``path``, for any thread. Use it in a ``with`` block.

    Each lookup and each scan shows the newest commit in the store's files. For RocksDB at CHANGELOG that is the last
    one that was flushed. A scan and a snapshot pin the files of their commit until they are closed. Nothing is
    recovered: between a crash and the next opening of the store, its last commit on disk is shown.

    Raises, all methods: StoreClosedError after ``close``; StoreUnavailableError if the store is being made or removed,
    or a commit is incomplete; StoreCorruptedError; else as ``KeyValueView``.
    """

    def __init__(self, path: Path, kind: RecordKind | None = None) -> None:
        self._path, self._kind = path, kind
        self._lock = RLock()
        self._files: StoreFiles | None = None
        self._accepted: Mapping[bytes, bytes] | None = None
        """The meta entries of the store's description when it was last checked."""
        self._scans = OpenIterators()
        self._is_open = True
        watch(self, ReadOnlyStore._disown)
        try:
            # This opens the files, and checks the description.
            self._answered(lambda data: None)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {str(self._path)!r}, {'open' if self._is_open else 'closed'}>"

    @property
    def isolation_level(self) -> IsolationLevel:
        return IsolationLevel.READ_COMMITTED

    @property
    def timestamps(self) -> ShownTimestamps:
        return self._using(lambda files, data: ShownTimestamps(is_split=files.is_split))

    def position(self) -> Position:
        return self._answered(lambda data: decode_offsets(POSITION, data.meta()))

    def committed_offsets(self) -> dict[TopicPartition, int]:
        """Return the changelog offsets of the newest commit: see ``StateStore.committed_offset``."""
        return self._answered(lambda data: decode_offsets(OFFSET, data.meta()))

    def mark(self, name: str) -> bytes | None:
        check_mark_name(name)
        return self._answered(lambda data: decode_marks(data.meta()).get(name))

    def at_one_moment(self, name: str, read: Callable[[bytes | None, KeyValueView], Answer]) -> Answer:
        snapshot = self.snapshot()
        try:
            return read(snapshot.mark(name), snapshot)
        except BaseException:
            snapshot.close()
            raise

    def get(self, key: bytes) -> bytes | None:
        as_bytes("key", key)
        return self._answered(lambda data: data.get(key) if key else None)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        check_keys(keys)
        checked = as_key_list(keys)
        return self._answered(lambda data: data.get_many(checked))

    def approximate_num_entries(self) -> int:
        return self._using(lambda files, data: files.approximate_num_entries())

    def range_many(
        self, bounds: Sequence[tuple[bytes | None, bytes | None]], *, reverse: bool = False
    ) -> list[KeyValueIterator]:
        snapshot = self.snapshot()
        try:
            scans = snapshot.range_many(bounds, reverse=reverse)
        except BaseException:
            snapshot.close()
            raise
        return _sharing(scans, snapshot)

    def _scan(self, bounds: ScanRange, *, reverse: bool) -> KeyValueIterator:
        check_bounds(bounds.start, bounds.end)

        def begin(files: StoreFiles, data: EngineSnapshot) -> KeyValueIterator:
            scan = data.scan(bounds, reverse=reverse)
            pin = self._pin(files, data, before=scan.close)
            return StoreIterator(chunks_of(scan), pin, self._scans)

        return self._using(begin, keep=True)

    def snapshot(self) -> KeyValueSnapshot:
        def begin(files: StoreFiles, data: EngineSnapshot) -> KeyValueSnapshot:
            num_entries, held = files.approximate_num_entries(), HeldSnapshot(data)
            pin = self._pin(files, data, before=held.release)
            name = str(self._path)
            return StoreSnapshot(name, held, pin, self._scans, {}, is_split=files.is_split, num_entries=num_entries)

        return self._using(begin, keep=True)

    def close(self) -> None:
        """Close the files, and all scans and snapshots. May be called more than once."""
        with self._lock:
            self._is_open = False
            self._scans.close()
            self._leave()

    def _disown(self) -> None:
        """Close the reader in the child of a fork. Its files belong to the parent, and so do its scans."""
        self._is_open, self._files = False, None
        # Another thread of the parent may have held it.
        self._lock = RLock()
        self._scans.abandon()

    def _pin(self, files: StoreFiles, data: EngineSnapshot, *, before: Callable[[], None]) -> Pin:
        def release() -> None:
            before()
            data.close()
            files.give_back()

        pin = Pin(release)
        self._scans.add(pin)
        if not self._is_open:
            # Another thread has closed the reader meanwhile and may have missed this pin.
            pin.close()
        return pin

    def _answered(self, query: Callable[[EngineSnapshot], Answer]) -> Answer:
        return self._using(lambda files, data: query(data))

    def _using(self, query: Callable[[StoreFiles, EngineSnapshot], Answer], *, keep: bool = False) -> Answer:
        """Return the result of ``query`` for the newest commit and its files. With ``keep`` the result holds both.

        It is called again if another process has replaced the files meanwhile.
        """
        for left in reversed(range(_TRIES)):
            files, data = self._current(), None
            is_kept = False
            try:
                data = files.committed()
                self._check_description(files, data)
                answer = query(files, data)
                is_kept = keep
                return answer
            except StoreError:
                if not left or not self._is_open or not files.is_replaced():
                    raise
            finally:
                if not is_kept:
                    if data is not None:
                        data.close()
                    files.give_back()
        raise AssertionError("the last try returns or raises")

    def _current(self) -> StoreFiles:
        """Return the files, opened again if they were replaced. They are given back once."""
        with self._lock:
            if not self._is_open:
                raise StoreClosedError(f"this reader of {self._path} is closed, or belongs to another process: open it")
            # At each call, because a symbolic link may lead to another store later.
            path, files = Path(os.path.realpath(self._path)), self._files
            if files is None or files.store.path != path or not files.is_current():
                self._leave()
                files = self._files = shared_files(path)
            return files.shared()

    def _leave(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            files.give_back()

    def _check_description(self, files: StoreFiles, data: EngineSnapshot) -> None:
        """Check that the store has the description of the reader. Raises: StoreIncompatibleError."""
        if self._kind is None:
            return
        entries = {key: value for key, value in data.meta().items() if key.startswith(_DESCRIPTION)}
        if entries != self._accepted:
            mark = decode_marks(entries).get(RECORDS)
            if mark is None and not data.scan(WHOLE).fetch():
                return
            self._kind.check_readable(str(self._path), mark)
            self._accepted = entries


def _sharing(scans: Sequence[KeyValueIterator], snapshot: KeyValueSnapshot) -> list[KeyValueIterator]:
    """Return ``scans``, the last of which to end closes their ``snapshot``."""
    left = len(scans)
    if not left:
        snapshot.close()

    def ended() -> None:
        nonlocal left
        left -= 1
        if not left:
            snapshot.close()

    return [_SharedScan(scan, ended) for scan in scans]


class _SharedScan(KeyValueIterator):
    """A scan that calls ``ended`` once, at its end or when it is closed or freed."""

    def __init__(self, scan: KeyValueIterator, ended: Callable[[], None]) -> None:
        self._scan, self._pin = scan, Pin(ended)
        self._at_end = False

    def __next__(self) -> tuple[bytes, bytes]:
        if self._at_end:
            # The snapshot may be closed by now, and the scan with it.
            raise StopIteration
        try:
            return next(self._scan)
        except StopIteration:
            self._at_end = True
            self._pin.let_go()
            raise

    def close(self) -> None:
        self._at_end = False
        self._scan.close()
        self._pin.let_go()


@overload
def open_read_only(path: str | PathLike[str]) -> ReadOnlyStore: ...


@overload
def open_read_only(path: str | PathLike[str], kind: ViewHandle[View]) -> View: ...


def open_read_only(path: str | PathLike[str], kind: object = None) -> object:
    """Open the store in the folder ``path`` for reads, beside a process that writes to it. Use it in a ``with`` block.

    ``kind`` is the store's description, such as ``KeyValue(key=STR, value=INT64)``: then the result is its typed view,
    else a ``ReadOnlyStore``. Each query shows the newest commit in the store's files. They are not changed, and the
    store's process is never in the way: it may open, close, restore or remove the store meanwhile. In that process
    itself, use ``read_only()`` of the store.

    RocksDB's files have the commits that were written to its WAL; at CHANGELOG, those that were flushed. LMDB needs
    write permission for its lock file, ``data/lock.mdb``. Without it, and for an engine of another package that reads
    no live files, a closed store can be read: no process can open it until the reader is closed.

    Raises: TypeError; ConfigError for an invalid path, and for a backend that is not installed; StoreUnavailableError
    if there is no store, or it is being made or removed; StoreIncompatibleError if the folder is not a store's, or the
    store has another description; StoreTooNewError; StoreLockedError if its engine can't read it beside its process;
    StoreCorruptedError for damage, or a store that power loss may have torn.
    """
    folder = checked_path(path)
    if kind is None:
        return ReadOnlyStore(folder)
    if not isinstance(kind, RecordKind):
        raise TypeError(f"a description is one of stores.records, such as KeyValue, not {type(kind).__name__}")
    return kind.view(ReadOnlyStore(folder, kind))
