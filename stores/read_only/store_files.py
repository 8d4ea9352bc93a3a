"""The files of a store that are open for reads, and the newest commit in them.

A process that opens, writes, removes or replaces the store is never in the way of these reads, nor they in its way. An
engine reads live files, or it reads files that no process changes and looks afterwards whether that was true. Only an
engine that can do neither keeps the store's lock, shared, so that no process opens the store meanwhile.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock, RLock

from stores.engines.engine import Engine, EngineSnapshot, Scan, UnwritableError
from stores.engines.families import FAMILIES, split_or_whole
from stores.engines.snapshots import copied
from stores.errors import StoreCorruptedError, StoreError, StoreIncompatibleError, StoreUnavailableError
from stores.files.creation import LOCK_FILE
from stores.files.identity import IDENTITY_FILE
from stores.files.locks import take_shared
from stores.files.open_probe import probe_open
from stores.files.plain_files import translated_system_errors
from stores.ordered import ScanRange
from stores.process import never_free, watch
from stores.read_only.held_store import DiskStore, check_is_store, held

TRIES_MAX = 20
PAUSE_S = 0.25
"""Between two looks at a store whose process is in the middle of a large commit."""
_OPENINGS = 5


class StoreFiles:
    """The open files of ``store``. ``lock`` is a descriptor of its lock, if that is kept. For any thread."""

    def __init__(self, store: DiskStore, engine: Engine, lock: int | None = None) -> None:
        self.store, self.engine = store, engine
        self._file_lock = lock
        self._identity: tuple[int, ...] | None = _identity_of(store.path)
        self._families = engine.meta().get(FAMILIES)
        self._whole = split_or_whole(engine)
        self._refreshing = Lock()
        self._users = 0
        """The number of snapshots and readers that use the files, if they are shared."""
        watch(self, StoreFiles._disown)

    @property
    def is_split(self) -> bool:
        """True if two data families are in use."""
        return self._whole is not self.engine

    def approximate_num_entries(self) -> int:
        """Return the approximate number of committed keys."""
        return self._whole.approximate_num_entries()

    def is_current(self) -> bool:
        """Return whether the files are still those of the store. If not, open them again.

        Raises: StoreUnavailableError if the store was removed.
        """
        if self._file_lock is not None:
            return True
        with translated_system_errors(self.store.path):
            return _identity_of(self.store.path) == self._identity and self.engine.is_current()

    def is_replaced(self) -> bool:
        """Return whether the files are no longer those of a store."""
        try:
            return not self.is_current()
        except StoreError:
            return True

    def committed(self) -> EngineSnapshot:
        """Return a snapshot of the newest commit, and wait for the end of a large one. It is closed before the files.

        Raises: StoreUnavailableError if a commit is incomplete, or files are no longer current; StoreCorruptedError.
        """
        is_used = self.store.used_by is not None
        for attempt in range(TRIES_MAX if is_used else 1):
            time.sleep(PAUSE_S if attempt else 0)
            snapshot = self._newest()
            try:
                if self._is_whole(snapshot):
                    return snapshot
            except BaseException:
                snapshot.close()
                raise
            snapshot.close()
        advice = (
            "try again when it is done" if is_used else f"open it as {self.store.identity.backend!r}, which ends it"
        )
        raise StoreUnavailableError(f"{self.store.path} is in the middle of a large commit: {advice}")

    def _is_whole(self, snapshot: EngineSnapshot) -> bool:
        """Return whether a snapshot has no part of a commit."""
        strategy, meta = self.store.backend.load_strategy(), snapshot.meta()
        if strategy.has_unfinished_commit(self.store.path, meta):
            return False
        if (key := strategy.large_commit_key) is None:
            return True
        # One whose file is gone may have been in the middle when the snapshot was taken.
        with self._refreshing:
            self.engine.refresh()
            return self.engine.meta().get(key) == meta.get(key)

    def _newest(self) -> EngineSnapshot:
        with self._refreshing:
            self.engine.refresh()
            snapshot = self._whole.snapshot() or copied(self._whole)
        if snapshot.meta().get(FAMILIES) != self._families:
            snapshot.close()
            # Open the files again.
            self._identity = None
            raise StoreUnavailableError(f"an upgrade of {self.store.path} has begun or ended: read it again")
        return _GuardedSnapshot(snapshot, self) if self.engine.reads_unguarded else snapshot

    def check_current(self) -> None:
        """Check that a read was not disturbed. Raises: StoreUnavailableError."""
        if not self.is_current():
            raise StoreUnavailableError(f"a process has opened {self.store.path} while it was read: read it again")

    def shared(self) -> StoreFiles:
        """Return these files for one more user, who gives them back once."""
        with _shared.lock:
            self._users += 1
            return self

    def give_back(self) -> None:
        """Close the files if this was their last user."""
        with _shared.lock:
            self._users -= 1
            if self._users:
                return
            if _shared.files.get(self.store.path) is self:
                del _shared.files[self.store.path]
            self.close()

    def close(self) -> None:
        """Close the files. Their snapshots are closed before."""
        try:
            self.engine.close()
        finally:
            if self._file_lock is not None:
                os.close(self._file_lock)

    def _disown(self) -> None:
        """Give up the files in the child of a fork: they belong to the parent, which continues to read them."""
        never_free(self)
        if self._file_lock is not None:
            # Otherwise the child would hold the parent's lock for as long as it lives.
            os.close(self._file_lock)


class _Shared:
    """The files that readers of this process have open, by path: LMDB opens an environment once in a process."""

    files: dict[Path, StoreFiles]

    def __init__(self) -> None:
        """Begin with none: also in the child of a fork, where another thread of the parent may have held the lock."""
        self.files, self.lock = {}, RLock()


_shared = _Shared()
os.register_at_fork(after_in_child=_shared.__init__)  # type: ignore[misc]


def shared_files(path: Path) -> StoreFiles:
    """Return the files of the store in the folder ``path``, opened if no reader has them open. Give them back once.

    The path is without symbolic links, so that a store has one path.

    Raises: as ``open_files``.
    """
    with _shared.lock:
        files = _shared.files.get(path)
        if files is None or files.is_replaced():
            files = _shared.files[path] = open_files(path)
        return files.shared()


def files_of(store: DiskStore) -> StoreFiles:
    """Open the files of ``store``, which is held until they are closed: a closed store is read without any change.

    Raises: as ``open_files``.
    """
    _check(store)
    return StoreFiles(store, _opened(store, live=store.used_by is not None))


def open_files(path: Path) -> StoreFiles:
    """Open the files of the store in the folder ``path``. It is held only while that is done, if that is possible.

    Raises: StoreLockedError if a process has it open and the engine can't read the files meanwhile;
    StoreCorruptedError; StoreTooNewError; StoreIncompatibleError if it is no store; StoreUnavailableError, also if it
    is being made or removed; ConfigError for a backend that is not installed.
    """
    for left in reversed(range(_OPENINGS)):
        try:
            with held(path) as store:
                return _open(store)
        except (StoreCorruptedError, StoreIncompatibleError, StoreUnavailableError):
            with translated_system_errors(path):
                # Another process may have opened, made or removed the store meanwhile.
                check_is_store(path)
            if not left or store_is_at_rest(path):
                raise
        time.sleep(PAUSE_S / _OPENINGS)
    raise AssertionError("the last attempt raises")


def store_is_at_rest(path: Path) -> bool:
    """Return True if no process has the store open."""
    with suppress(StoreError), held(path) as store:
        return store.used_by is None
    return False


def _open(store: DiskStore) -> StoreFiles:
    _check(store)
    if store.backend.load_engine().reads_live:
        try:
            return StoreFiles(store, _opened(store, live=True))
        except UnwritableError:
            if store.used_by is not None:
                raise
    lock = take_shared(store.path / LOCK_FILE)
    try:
        return StoreFiles(store, _opened(store, live=False), lock)
    except BaseException:
        os.close(lock)
        raise


def _check(store: DiskStore) -> None:
    engine = store.backend.load_engine()
    if store.used_by is None or not engine.reads_live:
        store.check_at_rest()
        probe_open(engine, store.data, engine.options)


def _opened(store: DiskStore, *, live: bool) -> Engine:
    with translated_system_errors(store.data):
        return store.backend.load_engine().open_read_only(store.data, live=live)


def _identity_of(path: Path) -> tuple[int, int, int]:
    """Return what changes when a store is made, migrated or removed. Raises: OSError; StoreUnavailableError."""
    try:
        file = os.stat(path / IDENTITY_FILE)
    except FileNotFoundError as error:
        raise StoreUnavailableError(f"the store in {path} was removed, or is being made: there is no data") from error
    return file.st_dev, file.st_ino, file.st_ctime_ns


class _GuardedSnapshot(EngineSnapshot):
    """A snapshot of files that no process changes, which is checked after each read."""

    def __init__(self, below: EngineSnapshot, files: StoreFiles) -> None:
        self._below, self._files, self._meta = below, files, below.meta()
        files.check_current()

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        try:
            return self._below.get(key, family)
        finally:
            self._files.check_current()

    def scan(self, bounds: ScanRange, *, reverse: bool = False) -> Scan:
        return _GuardedScan(self._below.scan(bounds, reverse=reverse), self._files)

    def close(self) -> None:
        self._below.close()


class _GuardedScan(Scan):
    def __init__(self, below: Scan, files: StoreFiles) -> None:
        self._below, self._files = below, files

    def fetch(self) -> list[tuple[bytes, bytes]]:
        try:
            return self._below.fetch()
        finally:
            self._files.check_current()

    def close(self) -> None:
        self._below.close()
