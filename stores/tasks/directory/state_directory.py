"""The state directory of an application on this machine: a folder for each task, used by one owner at a time.

    0_3/                 a task's folder, for its user alone (mode 0700)
        .lock            held (flock) while the task is open; names the process
        .checkpoint      offsets of its stores, as of its last opening or closing
        .origin          the guarantee under which stores that do not isolate uncommitted writes were written
        ENGINE/NAME/     a store (see ``stores.tasks.directory.store_places``)
        NAME.position    a file of Kafka Streams, until the offset import of the store
    0_3.removed/         the rest of a folder whose removal was interrupted
    counts/3/            in the layout ``store-partition``: the folder of a store and its partition, with its own files
        .lock            held (flock) while a task has the store open
    counts/3.removed/    the rest of a store's folder whose removal was interrupted
    .cleaning            held while a process removes folders
    kafka-streams-process-metadata
                         the process ID (``process_id``); ``.process`` is held while it is created

Source: Kafka Streams, ``StateDirectory``; KIP-1259 for the age at which a folder is removed.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from stat import S_IMODE
from uuid import UUID, uuid4

from stores.errors import StoreIncompatibleError, StoreLockedError
from stores.failpoints import Part, declare, reach
from stores.files.creation import foreign_names, is_store, is_unused
from stores.files.locks import take, take_in_time
from stores.files.plain_files import (
    StrangeFileError,
    make_folder,
    read_json,
    replace_file,
    sync_folder,
    translated_system_errors,
)
from stores.interface import TopicPartition
from stores.registry import backend_named
from stores.tasks.directory.entry_files import CheckpointFile
from stores.tasks.directory.store_places import (
    JOURNAL_FILE,
    RELOCATING_FILE,
    SWAP_END,
    DirectoryLayout,
    is_of_engine,
    is_own_engine,
    own_folders,
    read_layout,
)
from stores.tasks.directory.task_lock import TaskLock
from stores.tasks.identifier import Home, StorePartition, TaskId, check_engine

PROCESS_FILE = "kafka-streams-process-metadata"
_PROCESS_LOCK_FILE = ".process"
_FIELD = "processId"

_log = logging.getLogger(__name__)


def _read_process_id(file: Path) -> UUID | None:
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        content = read_json(file)
        return UUID(content[_FIELD]) if isinstance(content, dict) else None
    return None


OFFSET_SUM_MAX = 2**63 - 1
"""The upper bound of sums. Source: Kafka Streams, ``TaskManager.sumOfChangelogOffsets``."""


def offset_sum(offsets: Mapping[TopicPartition, int | None]) -> int:
    """Return the sum of the changelog offsets of a task's stores, 0 to ``OFFSET_SUM_MAX``. Unknown ones count as 0.

    Source: KIP-441, "Computing the most-caught-up instances"; KIP-892, "Offsets for Consumer Rebalances".
    """
    positions = (offset for offset in offsets.values() if offset is not None and offset >= 0)
    return min(sum(positions), OFFSET_SUM_MAX)


def most_caught_up_first(sums: Mapping[str, int]) -> list[str]:
    """Return the names of the instances that have a copy, the most caught-up first; equals are in order of names."""
    return sorted(sums, key=lambda instance: (-sums[instance], instance))


CHECKPOINT_FILE, ORIGIN_FILE, LOCK_FILE = ".checkpoint", ".origin", ".lock"
_REMOVED = ".removed"
_FILES = (LOCK_FILE, *(file + end for file in (CHECKPOINT_FILE, ORIGIN_FILE) for end in ("", ".new")))

REMOVING = declare(
    "state_directory.removing",
    "the folder of a task or store has lost its name, and is there still",
    part=Part.CHANGE,
)


class Watch:
    """Folders as one process has seen them: unused are those that stay the same for ``delay_s`` of ``now_s``."""

    def __init__(self, delay_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._delay_s, self._now_s = delay_s, now_s
        self._seen: dict[Path, tuple[float, float]] = {}

    def is_unused(self, folder: Path, used: float) -> bool:
        """Return True if ``used``, the last change of the folder, is the same for long enough."""
        now_s = self._now_s()
        last, since_s = self._seen.setdefault(folder, (used, now_s))
        if last != used:
            self._seen[folder] = used, now_s
            return False
        return now_s - since_s >= self._delay_s


IsUnused = Callable[[Path, float], bool]
"""Decides by a folder and the time of its last change whether it may be removed."""


def unused_by(older_than: float | Watch) -> IsUnused:
    """Return the decision by an age in seconds, which trusts the system's time, or by a ``Watch``."""
    if isinstance(older_than, Watch):
        return older_than.is_unused
    oldest = time.time() - older_than
    return lambda folder, used: used <= oldest


class StateDirectory:
    """The state directory ``path``, created when a task is first locked. Tasks of one application share it.

    For any thread. Raises, all methods: StoreUnavailableError on a disk error.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"

    def folder(self, task_id: TaskId) -> Path:
        """Return the folder of the task's stores. Raises: TypeError unless ``task_id`` is a TaskId."""
        if not isinstance(task_id, TaskId):
            raise TypeError(f"a task's id is a TaskId, not {type(task_id).__name__}")
        return self.path / str(task_id)

    def home(self, task_id: TaskId, name: str, layout: DirectoryLayout) -> Path:
        """Return the folder whose files have the entries of the task's store ``name``. Raises: ConfigError."""
        if layout is DirectoryLayout.STORE_PARTITION:
            return self.path / str(StorePartition(name, task_id.partition))
        return self.folder(task_id)

    def store_folder(self, task_id: TaskId, backend: str, name: str, layout: DirectoryLayout | None = None) -> Path:
        """Return the folder of a store, by default in the present layout. Raises: ConfigError, StoreCorruptedError."""
        layout = read_layout(self.path) if layout is None else layout
        folder = self.home(task_id, name, layout) / check_engine(backend_named(backend).engine)
        return folder / name if layout is DirectoryLayout.TASK else folder

    def tasks(self) -> list[TaskId]:
        """Return the tasks that have a folder here, in order."""
        with translated_system_errors(self.path):
            entries = list(self.path.iterdir()) if self.path.exists() else []
            return sorted(
                TaskId.parse(entry.name)
                for entry in entries
                if _is_task(entry.name) and entry.is_dir() and not entry.is_symlink()
            )

    def lock(self, task_id: TaskId, owner: object) -> TaskLock:
        """Lock the task's folder, which is created if it does not exist. ``release`` of the result unlocks it.

        ``owner`` may take the lock repeatedly, and releases it as often. The system releases the locks of a process
        that ends. Raises: StoreLockedError if another owner has the lock, in this process or another.
        """
        return self._lock(self.folder(task_id), owner)

    def lock_own(self, home: StorePartition, owner: object) -> TaskLock:
        """Lock the own folder of a store in the layout ``store-partition``, as ``lock`` does for a task's."""
        return self._lock(self.path / str(home), owner)

    def _lock(self, folder: Path, owner: object) -> TaskLock:
        with translated_system_errors(folder):
            while True:
                self._make()
                try:
                    make_folder(folder, 0o700)
                    lock = TaskLock.take(folder / LOCK_FILE, owner)
                except FileNotFoundError:
                    # A clean-up has removed the folder meanwhile.
                    continue
                if S_IMODE(folder.stat().st_mode) & 0o077:
                    folder.chmod(0o700)
                return lock

    def process_id(self) -> UUID:
        """Return the process ID of the directory: the same for every process that uses it, also after restarts.

        It is created at the first call, or if its file is damaged. The directory is created if it does not exist. To
        assign tasks to processes, call ``most_caught_up_first`` with the offset sums by process ID. Its file is JSON,
        with the name and the format of Kafka Streams, so that a directory of Kafka Streams keeps its ID.

        Raises: StoreLockedError if another process has held the lock for half a minute.
        Source: Kafka Streams, ``StateDirectory.initializeProcessId``; KIP-441, which assigns tasks by the process ID.
        """
        file = self.path / PROCESS_FILE
        with translated_system_errors(self.path):
            self._make()
            while True:
                process = _read_process_id(file)
                if process is not None:
                    # The process that created it may have been killed before its name was synced.
                    sync_folder(self.path)
                    return process
                lock = take_in_time(self.path / _PROCESS_LOCK_FILE)
                try:
                    if _read_process_id(file) is None:
                        if os.path.lexists(file):
                            _log.warning("%s can't be read: the state directory gets another process ID", file)
                        replace_file(file, json.dumps({_FIELD: str(uuid4())}))
                finally:
                    os.close(lock)

    def clean(self, older_than: float | Watch, spared: Collection[Home] = ()) -> list[Home]:
        """Remove the folders of tasks that were not used for so many seconds, or by a ``Watch``; return their owners.

        In the layout ``store-partition`` this includes folders of single stores, unless another process relocates
        stores. A folder stays untouched if it is ``spared`` or locked, or if it has a locked store or foreign files. A
        removal begins with a rename, so that nobody finds half a folder. Nothing is done while another process cleans.

        Raises: StoreCorruptedError if the directory's note of its layout is damaged; then nothing is removed.
        """
        with translated_system_errors(self.path), ExitStack() as locks:
            if not self.path.exists():
                return []
            try:
                _hold(locks, self.path / ".cleaning")
            except StoreLockedError:
                return []
            for entry in self.path.iterdir():
                if entry.name.endswith(_REMOVED) and _is_task(entry.name.removesuffix(_REMOVED)) and _is_left(entry):
                    shutil.rmtree(entry)
            is_unused = unused_by(older_than)
            own = self._clean_own(is_unused, spared)
            tasks = [task_id for task_id in self.tasks() if task_id not in spared]
            return [*(task_id for task_id in tasks if self._removed(self.folder(task_id), is_unused)), *own]

    def offsets(self, task_id: TaskId) -> dict[TopicPartition, int]:
        """Return the known changelog offsets of the task's stores. No store is opened.

        They are those of the task's last opening, or closing, if that was later. Empty if nothing is known.
        Raises: StoreIncompatibleError in the layout ``store-partition``: use ``stored_offsets`` there.
        Source: KIP-892, "Offsets for Consumer Rebalances".
        """
        if read_layout(self.path) is DirectoryLayout.STORE_PARTITION:
            raise StoreIncompatibleError(
                f"{self.path} has the layout store-partition, which does not name the task of a store: call "
                "stored_offsets() with the topology"
            )
        return CheckpointFile(self.folder(task_id) / CHECKPOINT_FILE).known()

    def offset_sums(
        self, running: Mapping[TaskId, Mapping[TopicPartition, int | None]] | None = None
    ) -> dict[TaskId, int]:
        """Return the offset sum of this machine's copy of each task: the higher, the less is to be restored.

        ``running`` has the offsets of the tasks that are open here; no file of theirs is read.
        """
        offsets = running or {}
        return {
            task_id: offset_sum(offsets[task_id] if task_id in offsets else self.offsets(task_id))
            for task_id in sorted({*self.tasks(), *offsets})
        }

    def _make(self) -> None:
        if not self.path.exists():
            make_folder(self.path, 0o700)

    def _clean_own(self, is_unused: IsUnused, spared: Collection[Home]) -> list[StorePartition]:
        """Remove folders of single stores, if the layout has them."""
        if read_layout(self.path) is not DirectoryLayout.STORE_PARTITION:
            return []
        remains = [folder for _, folder in own_folders(self.path, _REMOVED) if _is_left(folder)]
        doomed: dict[StorePartition, Path] = {}
        with ExitStack() as locks:
            try:
                locks.callback(os.close, take(self.path / RELOCATING_FILE))
            except StoreLockedError:
                return []
            if os.path.lexists(self.path / JOURNAL_FILE):
                return []
            for home, folder in own_folders(self.path):
                is_ours = all(is_own_engine(entry) for entry in folder.iterdir() if entry.is_dir())
                renamed = None if home in spared or not is_ours else self._renamed(folder, is_unused)
                if renamed is not None:
                    doomed[home] = renamed
        # A removal may take long, and tasks that open wait for the lock.
        for folder in (*remains, *doomed.values()):
            shutil.rmtree(folder)
            with suppress(OSError):
                folder.parent.rmdir()
        return list(doomed)

    def _removed(self, folder: Path, is_unused: IsUnused) -> bool:
        doomed = self._renamed(folder, is_unused)
        if doomed is not None:
            shutil.rmtree(doomed)
        return doomed is not None

    def _renamed(self, folder: Path, is_unused: IsUnused) -> Path | None:
        """Rename a folder that is to be removed; return its new path, or None if it must stay."""
        try:
            if not is_unused(folder, last_used(folder)) or not all(map(_is_ours, folder.iterdir())):
                return None
            with ExitStack() as locks:
                _hold(locks, folder / LOCK_FILE)
                for store in _store_folders(folder):
                    if (store / "lock").is_file():
                        _hold(locks, store / "lock")
                # A task may have used the folder before it was locked here.
                if not is_unused(folder, last_used(folder)):
                    return None
                doomed = folder.with_name(folder.name + _REMOVED)
                if os.path.lexists(doomed):
                    # This is foreign: the rest of an interrupted removal was removed before.
                    return None
                folder.rename(doomed)
                sync_folder(folder.parent)
                reach(REMOVING)
        except (StoreLockedError, FileNotFoundError, StrangeFileError):
            # A file that disappears shows that a process uses the folder.
            return None
        return doomed


def _hold(held: ExitStack, file: Path) -> None:
    """Lock ``file`` until ``held`` ends, without a note in it: a clean-up must not count as a use."""
    held.callback(os.close, take(file, note=False))


def _is_task(name: str) -> bool:
    try:
        TaskId.parse(name)
    except ValueError:
        return False
    return True


def _is_ours(entry: Path) -> bool:
    """Return whether an entry of the folder of a task, or of a store, belongs to the library."""
    if entry.is_symlink():
        return False
    if entry.is_dir():
        return (_is_store_alone(entry) and is_own_engine(entry)) or all(map(_is_of_store, entry.iterdir()))
    return entry.name in _FILES or entry.name.removesuffix(".new").endswith((".position", SWAP_END))


def _is_of_store(entry: Path) -> bool:
    """Return whether an entry of an engine's folder is a store's folder or the note of a swap."""
    if entry.is_dir() or entry.is_symlink():
        return _is_store_alone(entry) and is_of_engine(entry)
    return entry.name.removesuffix(".new").endswith(SWAP_END)


def _is_store_alone(entry: Path) -> bool:
    """Return whether an entry is a store's folder, complete or just begun, without foreign files."""
    if entry.is_symlink() or not entry.is_dir():
        return False
    return not foreign_names(entry) and (is_store(entry) or _was_begun(entry))


def _store_folders(folder: Path) -> list[Path]:
    """Return the folders that may be stores: those of a store's own folder, and those below the engines of a task."""
    entries = [entry for entry in folder.iterdir() if entry.is_dir()]
    return [*entries, *(store for entry in entries for store in entry.iterdir() if store.is_dir())]


def _was_begun(folder: Path) -> bool:
    """Return whether the creation of a store has just begun: the folder is empty, or has a private lock file only."""
    lock = folder / "lock"
    return is_unused(folder) and (not lock.exists() or not S_IMODE(lock.lstat().st_mode) & 0o077)


def _is_left(folder: Path) -> bool:
    """Return whether the folder may be the rest of an interrupted removal: it only has files of the library."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    return all(
        _is_left_of_stores(entry) if entry.is_dir() and not entry.is_symlink() else _is_ours(entry)
        for entry in folder.iterdir()
    )


def _is_left_of_stores(entry: Path) -> bool:
    """Return whether a folder is the rest of a store, or an engine's folder with only such entries."""
    return not foreign_names(entry) or all(
        not foreign_names(store) if store.is_dir() and not store.is_symlink() else _is_of_store(store)
        for store in entry.iterdir()
    )


def last_used(folder: Path, *, lock: str = LOCK_FILE) -> float:
    """Return the time of the last change of a file in ``folder``; without other files, that of its file ``lock``."""
    times = [
        Path(inside, name).lstat().st_mtime
        for inside, _, names in os.walk(folder)
        for name in names
        if Path(inside, name) != folder / lock
    ]
    lock_file = folder / lock
    return max(times, default=(lock_file if lock_file.exists() else folder).stat().st_mtime)
