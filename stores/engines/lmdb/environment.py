"""The opening of an LMDB environment: the checks before LMDB maps its file, and the databases in it.

Data and meta entries are two named databases, and the second data family a third one. Their names record whether values
have checksums, so that this stays the same for a store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import lmdb

from stores.engines.lmdb.errors import damage
from stores.engines.lmdb.file import are_doubtful, check_length, check_structure, database_bytes, reserve_lock_file
from stores.engines.lmdb.meta_pages import Checksums, check_meta_pages, keep_meta_pages
from stores.errors import StoreError, StoreUnavailableError, damaged
from stores.interface import Durability
from stores.process import descriptors_lacking

_NAMES = {True: (b"data.crc32", b"meta.crc32"), False: (b"data", b"meta")}
"""The names of the databases of data and meta entries, with and without checksums."""
_SECOND_NAMES = {True: b"records.crc32", False: b"records"}
"""The database of the second data family, once there is one."""
_DATABASES_MAX = 3
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

    Raises: StoreError.
    """
    with _opening(path):
        num_bytes = database_bytes(path)
        if num_bytes is None:
            raise damaged(f"{path} has no database")
        if not live and check_meta_pages(path).check_structure:
            check_structure(path)
        # A lock file says which pages this process reads. It is not needed if no process writes.
        env = lmdb.open(
            str(path), map_size=2 * num_bytes, max_dbs=_DATABASES_MAX, readonly=True, create=False, lock=live
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
