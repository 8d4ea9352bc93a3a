"""Stores that Kafka Streams has left in a task's folder: how they are recognized, locked and removed.

    0_3/rocksdb/counts          a key-value store: RocksDB's files, without the files of a store of the library
    0_3/rocksdb/counts.former   the same, once a store of the library takes its place
    0_3/visits/visits.0         a segment of a window or session store

Source: Kafka Streams 4.1, ``RocksDBStore``, ``AbstractSegments``, ``StateDirectory``.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from stores.errors import StoreLockedError
from stores.files.creation import is_store
from stores.files.plain_files import check_plain, open_plain, sync_folder

ENGINE_FOLDER = "rocksdb"
"""The folder of key-value stores in a task's folder. Source: ``RocksDBStore.DB_FILE_DIR``."""
_CURRENT = "CURRENT"
_OWN = re.compile(
    r"IDENTITY|LOCK|LOG(\.old\.\d+)?|MANIFEST-\d+|OPTIONS-\d+|\d+\.(sst|log|blob)|(OPTIONS-)?\d+\.dbtmp|\.position"
)
"""RocksDB's files besides CURRENT, and the position file of a store."""


def is_streams_store(path: Path) -> bool:
    """Return whether ``path`` is a folder with RocksDB's files that is no store of the library, and not behind a link.

    Raises: OSError.
    """
    return not path.is_symlink() and not path.parent.is_symlink() and (path / _CURRENT).is_file() and not is_store(path)


@contextmanager
def kept_from_streams(path: Path) -> Iterator[None]:
    """Keep Kafka Streams from opening the store at ``path``, or any in its state directory, during the block.

    Its locks are record locks, which those of this library neither hold nor respect. Raises: StoreLockedError if a
    process has the store or the state directory open; StrangeFileError if something else than a file has the name of
    one of RocksDB's; OSError.
    """
    for file in (*_own_files(path), path / _CURRENT):
        check_plain(file, folder=False)
    with ExitStack() as held:
        for file in (path.parents[2] / ".lock", path / "LOCK"):
            with suppress(FileNotFoundError):
                held.callback(os.close, _locked(file))
        yield


def remove_streams_store(path: Path) -> None:
    """Remove RocksDB's files from the folder ``path``, and the folder unless it has others. Raises: OSError.

    The file by which the folder is recognized is removed last. So an interrupted removal can be repeated.
    """
    for file in _own_files(path):
        file.unlink()
    sync_folder(path)
    (path / _CURRENT).unlink()
    with suppress(OSError):
        path.rmdir()
    sync_folder(path.parent)


def _own_files(path: Path) -> list[Path]:
    """Return the paths of RocksDB's files in the folder ``path``, without CURRENT. Raises: OSError."""
    with os.scandir(path) as entries:
        return [Path(entry.path) for entry in entries if _OWN.fullmatch(entry.name)]


def _locked(file: Path) -> int:
    """Return a descriptor of ``file``, locked against Java's ``FileLock`` and RocksDB until it is closed."""
    descriptor = open_plain(file, os.O_RDONLY)
    try:
        # Shared: tasks of other processes may take over other stores of the state directory meanwhile.
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        os.close(descriptor)
        raise StoreLockedError(
            f"{file.parent} is open in another process, such as Kafka Streams: close it there, and open the task "
            "again. Nothing of it was changed"
        ) from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
