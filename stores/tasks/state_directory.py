"""The state directory of an application on this machine: a folder for each task, whose owner alone works in it.

    0_3/                 a task's folder, for its user alone (mode 0700)
        .lock            held (flock) while the task is open; names the process
        .checkpoint      offsets of its stores, as of its last opening or closing
        .origin          under which guarantee stores were written that keep no uncommitted writes apart
        ENGINE/NAME/     a store (see ``stores.tasks.layout``)
        NAME.position    a file of Kafka's, until the store is adopted
    0_3.removed/         what is left of a folder whose removal was cut short
    .cleaning            held while somebody removes folders
    kafka-streams-process-metadata
                         whose directory it is (``stores.tasks.process_file``); ``.process`` is held while it is made

Source: Kafka Streams, ``StateDirectory``; KIP-1259 for the age at which a folder is removed.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from stat import S_IMODE
from uuid import UUID

from stores.creation import foreign_names, is_store, is_vacant
from stores.errors import StoreCorruptedError, StoreIncompatibleError, StoreLockedError
from stores.failpoints import declare, reach
from stores.files import StrangeFileError, make_folder, sync_folder, system_errors_told
from stores.interface import TopicPartition
from stores.locks import take
from stores.registry import backend_named
from stores.tasks.checkpoint import CheckpointFile
from stores.tasks.directory_layout import DirectoryLayout, read_layout
from stores.tasks.identifier import StorePartition, TaskId
from stores.tasks.names import check_engine
from stores.tasks.offset_sum import offset_sum
from stores.tasks.process_file import process_id
from stores.tasks.swap import SWAP_END
from stores.tasks.task_lock import TaskLock

CHECKPOINT_FILE, ORIGIN_FILE, LOCK_FILE = ".checkpoint", ".origin", ".lock"
_REMOVED = ".removed"
_FILES = (LOCK_FILE, *(file + end for file in (CHECKPOINT_FILE, ORIGIN_FILE) for end in ("", ".new")))

REMOVING = declare("state_directory.removing", "a task's folder has lost its name, and is there still")


class StateDirectory:
    """The folder ``path``, made when a task is first locked; tasks of one application share it. For any thread.

    Raises, all methods: StoreUnavailableError where the disk refuses.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def folder(self, task_id: TaskId) -> Path:
        """The folder of the task's stores. Raises: TypeError unless ``task_id`` is a TaskId."""
        if not isinstance(task_id, TaskId):
            raise TypeError(f"a task's id is a TaskId, not {type(task_id).__name__}")
        return self.path / str(task_id)

    def home(self, task_id: TaskId, name: str, layout: DirectoryLayout) -> Path:
        """The folder in which the task's store ``name`` has its entries. Raises: ConfigError."""
        if layout is DirectoryLayout.STORE_PARTITION:
            return self.path / str(StorePartition(name, task_id.partition))
        return self.folder(task_id)

    def store_folder(self, task_id: TaskId, backend: str, name: str, layout: DirectoryLayout | None = None) -> Path:
        """The folder of the task's store ``name``, kept by the backend called ``backend``.

        ``layout`` is the directory's own unless it is given. Raises: ConfigError; StoreCorruptedError where the
        directory's note of its layout is damaged.
        """
        layout = read_layout(self.path) if layout is None else layout
        folder = self.home(task_id, name, layout) / check_engine(backend_named(backend).engine)
        return folder / name if layout is DirectoryLayout.TASK else folder

    def tasks(self) -> list[TaskId]:
        """The tasks that have a folder here, in order."""
        with system_errors_told(self.path):
            found = list(self.path.iterdir()) if self.path.exists() else []
            return sorted(
                TaskId.parse(entry.name)
                for entry in found
                if _is_task(entry.name) and entry.is_dir() and not entry.is_symlink()
            )

    def lock(self, task_id: TaskId, owner: object) -> TaskLock:
        """Take the task's folder, making it where there is none, until ``release`` of what is returned.

        ``owner`` may take it again, and then has to release it as often; nobody else can, here or in another process.
        What a process that has ended held is free. Raises: StoreLockedError where another owner has it.
        """
        folder = self.folder(task_id)
        with system_errors_told(folder):
            while True:
                self._make()
                make_folder(folder, 0o700)
                try:
                    lock = TaskLock.take(folder / LOCK_FILE, owner)
                except FileNotFoundError:
                    # Whoever cleans up was faster, and has taken the folder away.
                    continue
                if S_IMODE(folder.stat().st_mode) & 0o077:
                    folder.chmod(0o700)
                return lock

    def process_id(self) -> UUID:
        """Whose directory this is: the same id for every process that uses it, now and after restarts.

        Drawn at the first call, or where the file that holds it is damaged; the directory is made where there is none.
        For who assigns tasks to processes: ``freshest_first`` of the offset sums by this id.
        """
        with system_errors_told(self.path):
            self._make()
            return process_id(self.path)

    def clean(self, older_than_s: float) -> list[TaskId]:
        """Remove the folders of tasks that were not used for ``older_than_s`` seconds; returns whose they were.

        A folder that is locked, or in which anything is locked or not the library's, stays, whole. One that is removed
        goes in one step, so that no half of it is ever found. Nothing is done where another process is at it already.
        Stores in folders of their own (the layout ``store-partition``) stay.
        """
        with system_errors_told(self.path), ExitStack() as held:
            if not self.path.exists():
                return []
            try:
                _hold(held, self.path / ".cleaning")
            except StoreLockedError:
                return []
            for entry in self.path.iterdir():
                if entry.name.endswith(_REMOVED) and _is_task(entry.name.removesuffix(_REMOVED)) and _is_left(entry):
                    shutil.rmtree(entry)
            oldest = time.time() - older_than_s
            return [task_id for task_id in self.tasks() if self._removed(self.folder(task_id), oldest)]

    def offsets(self, task_id: TaskId) -> dict[TopicPartition, int]:
        """The changelog offsets that the task's stores are known to be at, without opening any of them.

        As of the task's last opening, or closing, if that was later. Empty where nothing is known.
        Raises: StoreIncompatibleError in the layout ``store-partition``, where ``stored_offsets`` finds them.
        Source: KIP-892, "Offsets for Consumer Rebalances".
        """
        if read_layout(self.path) is DirectoryLayout.STORE_PARTITION:
            raise StoreIncompatibleError(
                f"{self.path} has the layout store-partition, which does not say which task has a store: ask "
                "stored_offsets() with the topology"
            )
        try:
            return CheckpointFile(self.folder(task_id) / CHECKPOINT_FILE).read()
        except StoreCorruptedError:
            return {}

    def offset_sums(
        self, running: Mapping[TaskId, Mapping[TopicPartition, int | None]] | None = None
    ) -> dict[TaskId, int]:
        """How far this machine's copy of each task is: the higher, the less of it would have to be restored.

        ``running`` holds the offsets of tasks that are open here: of these no file is read.
        """
        known = running or {}
        return {
            task_id: offset_sum(known[task_id] if task_id in known else self.offsets(task_id))
            for task_id in sorted({*self.tasks(), *known})
        }

    def _make(self) -> None:
        if not self.path.exists():
            make_folder(self.path, 0o700)

    def _removed(self, folder: Path, oldest: float) -> bool:
        try:
            if last_used(folder) > oldest or not all(map(_is_ours, folder.iterdir())):
                return False
            with ExitStack() as held:
                _hold(held, folder / LOCK_FILE)
                for store in _store_folders(folder):
                    if (store / "lock").is_file():
                        _hold(held, store / "lock")
                # Until it was locked somebody may have come and gone.
                if last_used(folder) > oldest:
                    return False
                doomed = folder.with_name(folder.name + _REMOVED)
                if os.path.lexists(doomed):
                    # Of somebody else: what a removal has left was removed before.
                    return False
                folder.rename(doomed)
                sync_folder(self.path)
                reach(REMOVING)
        except (StoreLockedError, FileNotFoundError, StrangeFileError):
            # Where a file goes away meanwhile, somebody is at work.
            return False
        shutil.rmtree(doomed)
        return True


def _hold(held: ExitStack, file: Path) -> None:
    """Lock ``file`` until ``held`` ends, and leave no trace of it: who only looks does not use."""
    held.callback(os.close, take(file, note=False))


def _is_task(name: str) -> bool:
    try:
        TaskId.parse(name)
    except ValueError:
        return False
    return True


def _is_ours(entry: Path) -> bool:
    """Whether something in a task's folder is the library's own."""
    if entry.is_symlink():
        return False
    if entry.is_dir():
        return _is_store_alone(entry) or all(map(_is_of_store, entry.iterdir()))
    return entry.name in _FILES or entry.name.removesuffix(".new").endswith((".position", SWAP_END))


def _is_of_store(entry: Path) -> bool:
    """Whether it is a store's folder in that of its engine, or the note of a swap beside one."""
    if entry.is_dir() or entry.is_symlink():
        return _is_store_alone(entry)
    return entry.name.removesuffix(".new").endswith(SWAP_END)


def _is_store_alone(entry: Path) -> bool:
    """Whether it is a store's folder without anything foreign in it: a store's own, or its engine's has it."""
    if entry.is_symlink() or not entry.is_dir():
        return False
    return not foreign_names(entry) and (is_store(entry) or _was_begun(entry))


def _store_folders(folder: Path) -> list[Path]:
    """The folders of a task's stores: below those of their engines, and of earlier releases beside them."""
    entries = [entry for entry in folder.iterdir() if entry.is_dir()]
    return [*entries, *(store for entry in entries for store in entry.iterdir() if store.is_dir())]


def _was_begun(folder: Path) -> bool:
    """Whether a creation of a store has only begun there: the folder is empty, or has a lock file as private as
    ours."""
    lock = folder / "lock"
    return is_vacant(folder) and (not lock.exists() or not S_IMODE(lock.lstat().st_mode) & 0o077)


def _is_left(folder: Path) -> bool:
    """Whether an interrupted removal has left the folder: it only has files that the library makes there."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    return all(
        _is_left_of_stores(entry) if entry.is_dir() and not entry.is_symlink() else _is_ours(entry)
        for entry in folder.iterdir()
    )


def _is_left_of_stores(entry: Path) -> bool:
    """Whether it is what is left of a store, or a folder of an engine that only has such."""
    return not foreign_names(entry) or all(
        not foreign_names(store) if store.is_dir() and not store.is_symlink() else _is_of_store(store)
        for store in entry.iterdir()
    )


def last_used(folder: Path) -> float:
    """When a file in there was last changed; of what has no files but its lock, when that was taken."""
    times = [
        Path(inside, name).lstat().st_mtime
        for inside, _, names in os.walk(folder)
        for name in names
        if Path(inside, name) != folder / LOCK_FILE
    ]
    lock = folder / LOCK_FILE
    return max(times, default=(lock if lock.exists() else folder).stat().st_mtime)
