"""An LMDB environment: its opening, with checks before LMDB maps its file, its databases, its memory map, its errors.

Data and meta entries are two named databases, and the second data family a third one. Their names record whether values
have checksums, so that this stays the same for a store.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, NamedTuple, cast

import lmdb

from stores.engines.engine import UnwritableError, take
from stores.engines.lmdb.file import (
    DATA_FILE,
    LOCK_FILE,
    are_doubtful,
    check_length,
    check_structure,
    database_bytes,
    reserve_lock_file,
)
from stores.engines.lmdb.meta_pages import Checksums, check_meta_pages, keep_meta_pages
from stores.errors import (
    CommitFailedError,
    StoreCorruptedError,
    StoreError,
    StoreUnavailableError,
    damaged,
    must_reopen,
)
from stores.files.plain_files import sync_folder, sync_tree
from stores.interface import Durability
from stores.process import descriptors_lacking

_NAMES = {True: (b"data.crc32", b"meta.crc32"), False: (b"data", b"meta")}
"""The names of the databases of data and meta entries, with and without checksums."""
_SECOND_NAMES = {True: b"records.crc32", False: b"records"}
"""The database of the second data family, once there is one."""
_DATABASES_MAX = 3
_GROWTH_BYTES = 4 << 30
"""The bytes by which live files may grow until their reader must open them again: address space, and no memory."""
_PIECE_RECORDS = 16_384
"""The most records that ``repack`` writes in a transaction: LMDB keeps its pages in memory."""
_DAMAGES = (
    lmdb.InvalidError,
    lmdb.CorruptedError,
    lmdb.VersionMismatchError,
    lmdb.PageNotFoundError,
    lmdb.BadTxnError,
)
"""The errors of LMDB for a damaged file that is opened."""


class Environment(NamedTuple):
    """An open environment. It belongs to the engine that is made with it."""

    env: Any
    databases: list[Any]
    """The databases of data and of meta entries."""
    names: Set[bytes]
    """The names of all databases that were there."""
    checksums: bool
    """True if the values have checksums."""
    meta_pages: Checksums

    @property
    def second_name(self) -> bytes:
        """The name of the database of the second data family."""
        return _SECOND_NAMES[self.checksums]


@contextmanager
def environment_to_write(path: Path, durability: Durability, options: Mapping[str, object]) -> Iterator[Environment]:
    """Open the environment in the folder ``path``, made if it has none. An error in the block closes it again.

    Raises: StoreError.
    """
    with _opening(path):
        num_bytes = database_bytes(path)
        new = num_bytes is None
        size = max(cast(int, options["map_size_bytes"]), 2 * (num_bytes or 0))
        checked = check_meta_pages(path)
        if checked.check_structure:
            # Before LMDB maps the file with the size in its meta pages.
            check_structure(path)
        reserve_lock_file(path, cast(int, options["max_readers"]))
        env = lmdb.open(
            str(path),
            map_size=size,
            max_dbs=_DATABASES_MAX,
            max_readers=cast(int, options["max_readers"]),
            sync=durability is Durability.DISK,
            metasync=True,
            writemap=False,
            max_spare_txns=4,
        )
        meta_pages: Checksums | None = None
        try:
            check_length(env, path)
            names = frozenset() if new else _database_names(env)
            checksums = bool(options["checksums"]) if new else _has_checksums(names, path)
            page_bytes = int(env.stat()["psize"])
            meta_pages = Checksums(path, page_bytes)
            # In a transaction that writes: the handles of one that reads end with it.
            with env.begin(write=True) as txn:
                databases = [env.open_db(name, txn, create=new) for name in _NAMES[checksums]]
            yield Environment(env, databases, names, checksums, meta_pages)
            if checked.complete:
                meta_pages.complete()
            if durability is Durability.DISK and not new:
                keep_meta_pages(path, page_bytes)
        except BaseException:
            env.close()
            if meta_pages is not None:
                meta_pages.close()
            raise


@contextmanager
def environment_to_read(path: Path, *, live: bool) -> Iterator[Environment]:
    """Open the environment in the folder ``path``; ``live`` if a process may write to it. An error closes it again.

    Raises: StoreError; UnwritableError.
    """
    if live and not os.access(path / LOCK_FILE, os.W_OK, effective_ids=True):
        raise UnwritableError(
            f"{path / LOCK_FILE} can't be written, which each reader of LMDB does beside a process that writes: make "
            "it writable for the reader, or read a backup"
        )
    with _opening(path):
        num_bytes = database_bytes(path)
        if num_bytes is None:
            raise damaged(f"{path} has no database")
        if not live and check_meta_pages(path).check_structure:
            check_structure(path)
        # A lock file says which pages this process reads. It is not needed if no process writes.
        room_bytes = max(num_bytes, _GROWTH_BYTES if live else 0)
        env = lmdb.open(
            str(path), map_size=num_bytes + room_bytes, max_dbs=_DATABASES_MAX, readonly=True, create=False, lock=live
        )
        try:
            check_length(env, path)
            names = _database_names(env)
            checksums = _has_checksums(names, path)
            meta_pages = Checksums(path, int(env.stat()["psize"]), writable=False)
            databases = [env.open_db(name, create=False) for name in _NAMES[checksums]]
            yield Environment(env, databases, names, checksums, meta_pages)
        except BaseException:
            env.close()
            raise


def repack(env: Any, folder: Path) -> None:
    """Write all records of ``env`` in order to a new environment in ``folder``, so that its pages are full.

    A copy by LMDB leaves out free pages only. After puts in random order its other pages are two thirds full (Yao, "On
    random 2-3 trees", 1978). Raises: StoreCorruptedError; lmdb.Error; OSError.
    """
    used_bytes = (int(env.info()["last_pgno"]) + 1) * int(env.stat()["psize"])
    size = 2 * used_bytes + _GROWTH_BYTES
    copy = lmdb.open(str(folder), map_size=size, max_dbs=_DATABASES_MAX, sync=False, lock=False)
    try:
        for name in sorted(_database_names(env)):
            source, target = env.open_db(name, create=False), copy.open_db(name)
            with env.begin(source, buffers=True) as reading:
                records, rest = reading.cursor().iternext(), int(reading.stat(source)["entries"])
                at_end = False
                while not at_end:
                    piece, at_end = take(records, _PIECE_RECORDS)
                    with copy.begin(target, write=True) as writing:
                        _, num_added = writing.cursor().putmulti(piece, append=True)
                    rest -= num_added
                if rest:
                    raise damaged(f"{env.path()} has other records than LMDB has counted")
    finally:
        copy.close()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Return a new folder for a block that writes an environment there, which then replaces the one in ``path``.

    Raises: StoreCorruptedError, StoreUnavailableError, for errors of LMDB and the system in the block.
    """
    fresh = path.with_name(path.name + ".flush")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        yield fresh
        sync_tree(fresh)
        os.replace(fresh / DATA_FILE, path / DATA_FILE)
        sync_folder(path)
    except lmdb.Error as error:
        translated = reading_error(error)
        if isinstance(translated, StoreCorruptedError):
            raise translated from error
        raise StoreUnavailableError(f"{path} can't be compacted: {error}. Make room there") from error
    except OSError as error:
        raise StoreUnavailableError(f"{path} can't be compacted: {error.strerror}. Make room there") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def is_doubtful(path: Path) -> bool:
    """Return whether opening the environment may end the process, or keep it busy for ever. Raises: OSError."""
    return are_doubtful(path, {meta for _, meta in _NAMES.values()})


@contextmanager
def _opening(path: Path) -> Iterator[None]:
    try:
        yield
    except (lmdb.Error, OSError) as error:
        raise _opening_error(error, path) from error


def _opening_error(error: Exception, path: Path) -> StoreError:
    if isinstance(error, _DAMAGES):
        return damage(error, path)
    if "already open in this process" in str(error):
        return StoreUnavailableError(
            f"{path} is open in this process, or was when it was forked: read by read_only() of the store that is "
            "open, or in a process that is started with multiprocessing's 'spawn'"
        )
    if os.strerror(errno.EAGAIN) in str(error):
        return StoreUnavailableError(
            f"LMDB can't open {path}: {error}. It knows processes by their PID: another one with this PID may have "
            "it open in another container. Let them share a PID namespace (shareProcessNamespace in Kubernetes)"
        )
    advice = descriptors_lacking(str(error)) or "Correct the cause and open the store again"
    return StoreUnavailableError(f"LMDB can't open {path}: {error}. {advice}")


def _database_names(env: Any) -> Set[bytes]:
    with env.begin() as txn:
        return {bytes(name) for name in txn.cursor().iternext(values=False)}


def _has_checksums(names: Set[bytes], path: Path) -> bool:
    """Return whether the store was created with checksums. Raises: StoreCorruptedError for unknown databases."""
    for checksums, expected in _NAMES.items():
        if names - {_SECOND_NAMES[checksums]} == set(expected):
            return checksums
    raise damaged(f"{path} contains the databases {sorted(names)}, which are not those of a store")


ROOM_MAX_BYTES = 64 << 30
ROOM_MIN_BYTES = 4 << 30
_RESERVED_MAX_BYTES = 64 << 40
"""The address space that the maps of a process share: each takes a ``_SHARE``-th of the rest."""
_SHARE = 1024
_DISK_LEFT_BYTES = 1 << 20


def room_bytes(reserved_bytes: int) -> int:
    """Return the room for a transaction of one more store in a process whose maps take ``reserved_bytes``."""
    rest_bytes = max(0, _RESERVED_MAX_BYTES - reserved_bytes)
    return max(ROOM_MIN_BYTES, min(ROOM_MAX_BYTES, rest_bytes // _SHARE))


class MemoryMap:
    """The map of one environment. ``release`` ends all read transactions before the map is resized.

    A map takes address space, but no memory and no disk. A process has 128 TiB of address space. A map can only be
    resized between transactions. An ordinary write that finds the map full is repeated in a map of twice the size. A
    transaction of a strategy can't be repeated: its room is reserved before it begins.

    This room is for a copy of every used page, and for new pages. New pages get up to ``ROOM_MAX_BYTES`` in a process
    with few stores, less in one with many, and at least half of ``ROOM_MIN_BYTES``, if the system has the address
    space. Pages are at least half full of records; a value larger than some 2,000 bytes takes whole pages. So one
    transaction can change all data, and add 1 GiB of small records. A larger one fails (``CommitFailedError``). It
    succeeds after the store is opened with a larger ``map_size_bytes``, or in several commits.

    Its methods are called while no write transaction is open and no transaction can be opened.
    """

    _reserved_bytes: ClassVar[int] = 0
    """The address space of all maps of the process."""
    _reserved_lock: ClassVar[Lock] = Lock()

    def __init__(self, env: Any, page_bytes: int, release: Callable[[], None]) -> None:
        self._env, self._page_bytes, self._release = env, page_bytes, release
        self._size = 0
        self._room_bytes = -1
        self._count(int(env.info()["map_size"]))

    def grow(self, cause: lmdb.Error) -> None:
        """Double the map after a write has found it full. Raises: CommitFailedError, also if the disk is full."""
        path, size = Path(self._env.path()), 2 * self._size
        try:
            free = shutil.disk_usage(path).free
        except OSError as error:
            raise CommitFailedError(f"{path}: {error.strerror}. Correct the cause and commit again") from error
        if free < _DISK_LEFT_BYTES:
            raise CommitFailedError(
                f"the disk of {path} is full ({free:,} bytes left): make room and commit again"
            ) from cause
        try:
            self._resize(size)
        except (lmdb.Error, MemoryError, OSError) as error:
            raise CommitFailedError(
                f"LMDB can't grow the map of {path} to {size:,} bytes: {error}. Free memory or disk space, and commit "
                "again"
            ) from error

    def reserve(self) -> None:
        """Make room for a transaction, as described for the class; less if the system gives less."""
        used_bytes = (int(self._env.info()["last_pgno"]) + 1) * self._page_bytes
        if self._room_bytes < 0:
            self._room_bytes = room_bytes(MemoryMap._reserved_bytes)
        size = 2 * used_bytes + self._room_bytes
        # Not for every transaction: a resize detaches all open scans.
        if self._size - 2 * used_bytes >= self._room_bytes // 2:
            return
        while size > self._size:
            try:
                self._resize(size)
            except (lmdb.Error, MemoryError, OSError):
                self._room_bytes //= 2
                size = used_bytes + (size - used_bytes) // 2
            else:
                return

    def close(self) -> None:
        """Count the address space as free. The environment is closed."""
        self._count(0)

    def _resize(self, size: int) -> None:
        # If LMDB's own resize fails, it has no map, and a read crashes the process. So try a map of this size first.
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()
        self._release()
        self._env.set_mapsize(size)
        self._count(size)

    def _count(self, size: int) -> None:
        with MemoryMap._reserved_lock:
            MemoryMap._reserved_bytes += size - self._size
        self._size = size


def damage(error: Exception, where: object) -> StoreError:
    return StoreCorruptedError(f"LMDB refuses {where}: {error}. Wipe the store and restore it from its changelog")


def reading_error(error: Exception) -> StoreError:
    # LMDB marks a read transaction as bad after it has found a damaged page.
    bad = lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.PanicError | lmdb.InvalidError | lmdb.BadTxnError
    if isinstance(error, bad):
        return damage(error, "the database")
    if isinstance(error, lmdb.ReadersFullError):
        return StoreUnavailableError(
            f"LMDB has no reader slot left: close iterators, or open the store with a larger max_readers ({error})"
        )
    return StoreUnavailableError(f"LMDB can't read: {error}. Check the disk and try again")


def writing_error(error: Exception) -> StoreError:
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError):
        return damage(error, "the database")
    # After a failed write of its meta page LMDB refuses everything. A failed sync must not be repeated: the kernel may
    # have dropped the pending data and marked its pages clean.
    if isinstance(error, lmdb.PanicError) or os.strerror(errno.EIO) in str(error):
        return must_reopen(f"LMDB can't write: {error}")
    return CommitFailedError(f"LMDB can't write: {error}. Check the disk, and commit again")
