"""The places of stores in a state directory, in its two layouts, and the names beside them.

    task              0_3/rocksdb/counts, 0_3/.checkpoint, 0_3/.origin
    store-partition   counts/3/rocksdb, counts/3/.checkpoint, counts/3/.origin; the folder 0_3 has the task's lock alone

The directory notes its layout, and its tasks follow it. In the second one no path depends on a sub-topology's number,
and the task that has the store open holds the lock on ``.lock`` in ``counts/3`` (flock). The file ``.state-layout``
notes the layout (JSON); without the file it is ``task``. During a change, the layout is the one that the journal of
relocations leads to. In a task's folder:

    0_3/rocksdb/counts            the store ``counts`` of the engine ``rocksdb``
    0_3/rocksdb/counts.prepare    its new store, and the other names of its replacement (``replacement``)
    0_3/counts.position           a position file of Kafka's, beside the engines' folders

What Kafka Streams has left there is recognized, locked and removed here:

    0_3/rocksdb/counts            a key-value store: RocksDB's files, without the files of a store of the library
    0_3/rocksdb/counts.former     the same, once a store of the library takes its place
    0_3/visits/visits.0           a segment of a window or session store, by the time at which it begins
    .lock                         the file that Kafka Streams locks. A folder of this name makes it refuse the directory

Nothing here opens a store. Links are never followed. Source: KIP-816, "Background", "Alternative 1"; Kafka Streams 4.1,
``StateDirectory``, ``RocksDBStore``, ``AbstractSegments``.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from stores.errors import ConfigError, StoreCorruptedError, StoreIncompatibleError, StoreLockedError
from stores.files.creation import is_store, is_unused
from stores.files.identity import read_identity
from stores.files.plain_files import (
    StrangeFileError,
    check_plain,
    open_plain,
    read_json,
    remove_durably,
    replace_file,
    sync_folder,
    translated_system_errors,
)
from stores.registry import backends, engines
from stores.tasks.identifier import StorePartition

PREPARE_END, FORMER_END, SWAP_END = ".prepare", ".former", ".swap"
ENDS = (PREPARE_END, FORMER_END, SWAP_END)
"""The endings of the names beside a store's folder."""


def beside(path: Path, end: str) -> Path:
    """Return the path beside the store at ``path`` with the ending ``end``."""
    return path.with_name(path.name + end)


class StreamsFolder(NamedTuple):
    """The folder of a store that Kafka Streams has left, and its databases: that folder itself, or its segments."""

    path: Path
    databases: tuple[Path, ...]

    @property
    def is_segmented(self) -> bool:
        """True for a window or session store."""
        return self.databases != (self.path,)

    def remove(self) -> None:
        """Remove RocksDB's files, and the folder unless it has others. It can be repeated. Raises: OSError."""
        for database in self.databases:
            remove_streams_store(database)
        if self.is_segmented:
            with suppress(OSError):
                self.path.rmdir()
            sync_folder(self.path.parent)


class Place(NamedTuple):
    """The place of a store in its task's folder."""

    engine: str
    store: str

    def within(self, folder: Path) -> Path:
        """Return the path of the store in the task's folder ``folder``."""
        return folder / self.engine / self.store


def places(folder: Path) -> list[Place]:
    """Return the stores in a task's folder, in order: those of engines, not copies that someone keeps."""
    return sorted(
        {
            Place(engine.name, _store_of(store.name))
            for engine in _folders(folder)
            for store in _folders(Path(engine.path))
            if is_of_engine(Path(store.path))
        }
    )


def parts(path: Path) -> list[Path]:
    """Return the existing parts of the store at ``path``: its folder, and those of an upgrade beside it. No links."""
    return [part for part in _names(path) if os.path.lexists(part) and not part.is_symlink()]


def is_taken(path: Path) -> bool:
    """Return whether a name of a store at ``path``, or of an upgrade beside it, is taken, even by a link."""
    return any(map(os.path.lexists, _names(path)))


def own_engines(folder: Path) -> list[str]:
    """Return the engines that have a store in a store's own folder (``store-partition``), in order. Raises: OSError."""
    return sorted({_store_of(entry.name) for entry in _folders(folder) if is_own_engine(Path(entry.path))})


def is_own_engine(path: Path) -> bool:
    """Return whether ``path``, in a store's own folder, is the store of an engine, as ``is_of_engine``."""
    name = path.name
    return name in engines() or (_store_of(name) in engines() and is_store(path)) or _is_of_uninstalled(path)


def is_of_engine(path: Path) -> bool:
    """Return whether a store's folder is that of an engine, perhaps one that is not installed, and no copy of it."""
    return path.parent.name in engines() or _is_of_uninstalled(path)


def check_engine_of(name: str, path: Path) -> None:
    """Check that no other engine has the store ``name`` beside ``path``. Raises: StoreIncompatibleError; OSError."""
    for engine in own_engines(path.parent):
        other = path.with_name(engine)
        # The store of the other engine takes over one of Kafka Streams.
        if other != path and not (other.is_dir() and is_unused(other)) and not is_streams_store(other):
            raise _other_engine(other, name, engine, path.name)


def check_engines(folder: Path, chosen: Mapping[str, str]) -> None:
    """Check that no store of ``chosen`` (engine by name) has another engine. Raises: StoreIncompatibleError."""
    for place in places(folder):
        engine = chosen.get(place.store)
        path = place.within(folder)
        if engine is None or place.engine == engine or (path.is_dir() and is_unused(path)):
            continue
        # The store of the other engine takes over one of Kafka Streams.
        if not is_streams_store(path):
            raise _other_engine(path, place.store, place.engine, engine)


def _other_engine(path: Path, store: str, present: str, chosen: str) -> StoreIncompatibleError:
    # A replacement that was interrupted may have left its new store alone.
    part = next(iter(parts(path)), path)
    return StoreIncompatibleError(
        f"{part} contains the store {store!r} of the engine {present}, and its configuration names {chosen}: "
        f"configure {present} for it, or remove {part} to restore it from its changelog"
    )


def _folders(folder: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        yield from (entry for entry in entries if entry.is_dir(follow_symlinks=False))


def _sorted_folders(folder: Path) -> list[Path]:
    return sorted(Path(entry.path) for entry in _folders(folder))


def _is_of_uninstalled(path: Path) -> bool:
    """Return whether ``path`` is a store of the library whose backend is not installed."""
    with suppress(StoreCorruptedError, FileNotFoundError):
        return is_store(path) and read_identity(path).backend not in backends()
    return False


def _names(path: Path) -> list[Path]:
    return [path, *(beside(path, end) for end in ENDS)]


def _store_of(name: str) -> str:
    """Return the name of the store to which the folder ``name`` belongs: it may be one of an upgrade beside it."""
    return next((name.removesuffix(end) for end in ENDS if name.endswith(end)), name)


def own_folders(state: Path, end: str = "") -> Iterator[tuple[StorePartition, Path]]:
    """Yield the folders ``STORE/PARTITION`` whose names end in ``end``, in order, without links. Raises: OSError."""
    for folder in _sorted_folders(state):
        for entry in _sorted_folders(folder):
            if entry.name.endswith(end):
                with suppress(ValueError, ConfigError):
                    yield StorePartition.parse(f"{folder.name}/{entry.name.removesuffix(end)}"), entry


ENGINE_FOLDER = "rocksdb"
"""The folder of key-value stores in a task's folder. Source: ``RocksDBStore.DB_FILE_DIR``."""
_CURRENT = "CURRENT"
_OWN = re.compile(
    r"IDENTITY|LOCK|LOG(\.old\.\d+)?|MANIFEST-\d+|OPTIONS-\d+|\d+\.(sst|log|blob)|(OPTIONS-)?\d+\.dbtmp|\.position"
)
"""RocksDB's files besides CURRENT, and the position file of a store."""


def left_by_streams(path: Path, segments: Path | None = None) -> StreamsFolder | None:
    """Return what Kafka Streams has left: the database ``path``, or the segments in the folder ``segments``.

    None if there is neither. A segment may have lost its file CURRENT. Raises: OSError.
    """
    if is_streams_store(path):
        return StreamsFolder(path, (path,))
    folders = () if segments is None else segment_folders(segments)
    return StreamsFolder(segments, folders) if segments and any(map(is_streams_store, folders)) else None


def segment_folders(path: Path) -> tuple[Path, ...]:
    """Return the folders in ``path`` with names of segments, in the order of their times. No links. Raises: OSError."""
    entries = [] if path.is_symlink() else _sorted_folders(path)
    name = re.compile(re.escape(path.name) + r"\.[0-9]{1,19}")
    folders = [entry for entry in entries if name.fullmatch(entry.name) and not is_store(entry)]
    return tuple(sorted(folders, key=segment_start_ms))


def segment_start_ms(path: Path) -> int:
    """Return the time at which the segment with this folder begins."""
    return int(path.name.rpartition(".")[2])


def is_streams_store(path: Path) -> bool:
    """Return whether ``path`` has RocksDB's files, no store of the library, and no link. Raises: OSError."""
    return not path.is_symlink() and not path.parent.is_symlink() and (path / _CURRENT).is_file() and not is_store(path)


@contextmanager
def kept_from_streams(*databases: Path) -> Iterator[None]:
    """Keep Kafka Streams from opening the databases of a store, or any in its state directory, during the block.

    Its locks are record locks, which those of this library neither hold nor respect. Raises: StoreLockedError if a
    process has the store or the state directory open; StrangeFileError if something else than a file has the name of
    one of RocksDB's; OSError.
    """
    for path in databases:
        for file in (*_own_files(path), path / _CURRENT):
            check_plain(file, folder=False)
    with ExitStack() as locks:
        _lock_directory(locks, _streams_lock(databases[0]))
        for path in databases:
            with suppress(FileNotFoundError):
                locks.callback(os.close, _locked(path / "LOCK"))
        yield


def shut_out_streams(database: Path) -> None:
    """Make Kafka Streams refuse the state directory of ``database`` from now on. Call it within ``kept_from_streams``.

    It would take the offsets in the checkpoint file for those of its own stores, which are gone. Its lock file becomes
    a folder, which it can't lock. Durable on return. Raises: StoreLockedError if it has just come; OSError.
    Source: Kafka Streams, ``StateDirectory.lockStateDirectory``.
    """
    lock = _streams_lock(database)
    if _is_folder(lock):
        return
    with ExitStack() as locks:
        # Again: a process has one lock on a file, which a takeover on another thread has released when it ended.
        _lock_directory(locks, lock)
        # A task on another thread may do the same.
        with suppress(FileNotFoundError, IsADirectoryError):
            lock.unlink()
        try:
            lock.mkdir(0o700)
        except FileExistsError:
            if not _is_folder(lock):
                raise _open_elsewhere(lock.parent) from None
        sync_folder(lock.parent)


def _lock_directory(locks: ExitStack, lock: Path) -> None:
    """Add the lock on the lock file of a state directory, if there is one that is no folder."""
    try:
        locks.callback(os.close, _locked(lock))
    except FileNotFoundError:
        pass
    except StrangeFileError:
        if not _is_folder(lock):
            raise


def _streams_lock(database: Path) -> Path:
    """Return the lock file of the state directory, in which a store is at ``TASK/FOLDER/DATABASE``."""
    return database.parents[2] / ".lock"


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def remove_streams_store(path: Path) -> None:
    """Remove RocksDB's files, CURRENT last so that it can be repeated, and the folder unless it has others."""
    for file in _own_files(path):
        file.unlink()
    sync_folder(path)
    (path / _CURRENT).unlink(missing_ok=True)
    with suppress(OSError):
        path.rmdir()
    sync_folder(path.parent)


def streams_foreign_names(path: Path) -> list[str]:
    """Return the names in the folder ``path`` that are not RocksDB's, in order. Raises: OSError."""
    return sorted(name for name in os.listdir(path) if name != _CURRENT and not _OWN.fullmatch(name))


def _own_files(path: Path) -> list[Path]:
    """Return the paths of RocksDB's files in the folder ``path``, without CURRENT. Raises: OSError."""
    return [path / name for name in os.listdir(path) if _OWN.fullmatch(name)]


def _locked(file: Path) -> int:
    """Return a descriptor of ``file``, locked against Java's ``FileLock`` and RocksDB until it is closed."""
    descriptor = open_plain(file, os.O_RDONLY)
    try:
        # Shared: tasks of other processes may take over other stores of the state directory meanwhile.
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        os.close(descriptor)
        raise _open_elsewhere(file.parent) from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open_elsewhere(path: Path) -> StoreLockedError:
    return StoreLockedError(
        f"{path} is open in another process, such as Kafka Streams: close it there, and open the task again. Nothing "
        "of it was changed"
    )


LAYOUT_FILE, JOURNAL_FILE, RELOCATING_FILE = ".state-layout", ".relocation", ".relocating"
_BYTES_MAX = 1 << 10
JOURNAL_BYTES_MAX = 256 << 20
"""Enough for some hundred thousand stores."""


RELOCATE = "python -P -m stores.relocate"
"""The command that moves stores by hand. With ``-P`` Python imports nothing from the working folder."""


def relocate_command(state: Path, options: str) -> str:
    """Return the command for the state directory ``state``, quoted for a shell."""
    return f"{RELOCATE} {shlex.quote(str(state))} {options}"


class DirectoryLayout(StrEnum):
    """The place of the stores in a state directory, and of their checkpoint and origin files."""

    TASK = "task"
    """Below their task's folder. The default."""
    STORE_PARTITION = "store-partition"
    """In folders of their own, which do not depend on the topology's numbers."""


def read_layout(state: Path) -> DirectoryLayout:
    """Return the layout of a state directory, if there is one. Raises: StoreCorruptedError, StoreUnavailableError."""
    with translated_system_errors(state):
        try:
            # A damaged journal is reported when a task is opened.
            with suppress(KeyError, TypeError, ValueError, StrangeFileError):
                journal: Any = read_json(state / JOURNAL_FILE, JOURNAL_BYTES_MAX)
                return DirectoryLayout(journal["layout"])
        except FileNotFoundError:
            pass
        file = state / LAYOUT_FILE
        try:
            content: Any = read_json(file, _BYTES_MAX)
            return DirectoryLayout(content["layout"])
        except FileNotFoundError:
            return DirectoryLayout.TASK
        except (KeyError, TypeError, ValueError, StrangeFileError) as error:
            raise StoreCorruptedError(
                f"{file} is damaged. It names the layout of the state directory: remove it, and run "
                f"{relocate_command(state, '--layout LAYOUT')} with the layout that the stores have"
            ) from error


def write_layout(state: Path, layout: DirectoryLayout) -> None:
    """Note the layout of the state directory ``state``; durable on return. Raises: OSError."""
    file = state / LAYOUT_FILE
    if layout is not DirectoryLayout.TASK:
        replace_file(file, json.dumps({"layout": layout}) + "\n")
    else:
        remove_durably(file)
