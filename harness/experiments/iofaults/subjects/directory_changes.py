"""A checkpoint file, and state directories that change: tasks come and go, stores move, the layout is changed.

The stores have the files of a store, but no data: each key of the state is an offset of a changelog. The changes:

* tasks: every sixth commit creates the folder of another task, and removes the folder before it;
* relocation: every sixth commit gives the sub-topology of two stores another number. They move from their task into two
  tasks, and then into one again, with their offsets of the checkpoint file;
* layout: every third commit moves the stores to the other layout. In the layout ``task`` one checkpoint file has the
  offsets of both stores; in ``store-partition`` each has its own. A commit changes only the first store's offsets, so
  it writes one file in either layout.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from zlib import crc32

from harness.experiments.iofaults.subjects.subject import COMMITS, Subject
from harness.experiments.iofaults.workload import IoChange, State
from stores.errors import StoreCorruptedError, TaskCorruptedError
from stores.files.creation import create, is_complete, is_store, wipe
from stores.files.identity import read_identity
from stores.files.locks import take
from stores.files.plain_files import make_folder, translated_system_errors
from stores.interface import Durability, TopicPartition
from stores.tasks import DirectoryLayout, StateDirectory, Subtopology, TaskId, Topology, change_layout, relocate
from stores.tasks.directory.entry_files import CheckpointFile, Origin, OriginFile
from stores.tasks.directory.relocation import is_pending, relocating
from stores.tasks.directory.store_places import places, read_layout
from stores.tasks.identifier import StorePartition

_ENGINE = "lmdb"
_STORE = "counts"
_PROCESS = TopicPartition("process", 0)
"""The partition whose offset is derived from the directory's ID at the time of the commit."""
_AT_ONCE_S = -1.0
_TASK_EVERY = 6
_MOVED = ("left", "right")
_MOVE_EVERY = 6
_CHANGING, _SAME = _STORES = "changing", "same"
_TOPOLOGY = Topology({0: Subtopology(_STORES)})
_TASK = TaskId(0, 0)
_LAYOUT_EVERY = 3
_SAME_OFFSETS = {TopicPartition("always-same-changelog", 0): 7}


class CheckpointSubject(Subject):
    """The checkpoint file: each key is a topic, and the checksum of its value an offset."""

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level)
        self._file = CheckpointFile(self.path)
        self._staged: State = {}

    def open(self) -> int | None:
        return self._file.read().get(COMMITS, 0)

    def stage(self, made: Sequence[IoChange], after: State) -> None:
        self._staged = after

    def commit(self, number: int) -> None:
        self.write({**self._offsets_of(self._staged), COMMITS: number})

    def add(self, pairs: State, number: int) -> None:
        self.write({**self.offsets(), **self._offsets_of(pairs), COMMITS: number})

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        return self.state_of(self.offsets())

    def state_of(self, offsets: dict[TopicPartition, int]) -> tuple[dict[bytes, bytes], int | None, int | None]:
        """Return the offsets as a state, with the number of the commit."""
        number = offsets.pop(COMMITS, None)
        return {topic.encode(): b"%d" % offset for (topic, _), offset in offsets.items()}, number, number

    def write(self, offsets: dict[TopicPartition, int]) -> None:
        """IoChange the directory if that is due, and write the offsets."""
        self._file.write(offsets)

    def offsets(self) -> dict[TopicPartition, int]:
        """Return the offsets that belong to stores. Raises: TaskCorruptedError if a task would use none of them."""
        return self._file.read()

    def wipe(self) -> None:
        self.path.unlink(missing_ok=True)

    def _offsets_of(self, state: State) -> dict[TopicPartition, int]:
        return {TopicPartition(key.decode(), 0): int(value) for key, value in self.expected(state).items()}

    @staticmethod
    def expected(state: State) -> State:
        return {key: b"%d" % crc32(value) for key, value in state.items()}


class DirectorySubject(CheckpointSubject):
    """A state directory whose checkpoint files have the offsets."""

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level)
        self._state = StateDirectory(self.path)

    def wipe(self) -> None:
        with translated_system_errors(self.path):
            shutil.rmtree(self.path)


class TasksSubject(DirectorySubject):
    """A task has a store's folder without data, then a checkpoint file, which commits replace until the next task.

    Folders are complete or do not exist, except the last one, which may be half created. The directory's ID never
    changes after it was returned.
    """

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level)
        self._may_be_anothers = False

    def open(self) -> int | None:
        for task_id in self._state.tasks():
            # The owner of the lock is dead.
            self._state.lock(task_id, self).release()
        return self.read()[1] or 0

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        offsets = self.offsets()
        process = offsets.pop(_PROCESS, None)
        state, number, _ = self.state_of(offsets)
        for task_id in self._state.tasks():
            if number is not None and task_id < _task_of(number) and self._is_half(task_id):
                state[b"half of task %d" % task_id.partition] = b"is left"
        if process is not None and process != self._process() and not self._may_be_anothers:
            state[b"another process"] = b"has it"
        return state, number, number

    def verify(self) -> None:
        # After corruption at rest an unreadable ID is replaced by a new one. No state depends on the ID, and a process
        # with another ID is still assigned tasks.
        self._may_be_anothers = True

    def write(self, offsets: dict[TopicPartition, int]) -> None:
        task_id = _task_of(offsets[COMMITS])
        lock = self._state.lock(task_id, self)
        try:
            if not is_complete(self._store(task_id)):
                _make_store(self._store(task_id))
            self._checkpoint(task_id).write({**offsets, _PROCESS: self._process()})
            if len(self._state.tasks()) > 1:
                self._state.clean(_AT_ONCE_S)
        finally:
            lock.release()

    def _process(self) -> int:
        """Return the part of the directory's ID that fits into an offset."""
        return self._state.process_id().int % 2**31

    def offsets(self) -> dict[TopicPartition, int]:
        """Return the offsets in the checkpoint file of the last task that is complete."""
        tasks = self._state.tasks()
        for task_id in reversed(tasks):
            if self._is_whole(task_id):
                return self._checkpoint(task_id).read()
        if any(task_id > _task_of(0) and self._has_store(task_id) for task_id in tasks):
            # A task's folder is removed after the next one has a checkpoint. So no offset belongs to the store of the
            # next task any more, and a task would restore that store.
            raise TaskCorruptedError(f"no store in {self.path} has an offset that belongs to it")
        return {}

    def _is_half(self, task_id: TaskId) -> bool:
        try:
            return not self._is_whole(task_id)
        except StoreCorruptedError:
            return True

    def _is_whole(self, task_id: TaskId) -> bool:
        return self._has_store(task_id) and bool(self._checkpoint(task_id).read())

    def _has_store(self, task_id: TaskId) -> bool:
        store = self._store(task_id)
        if not is_complete(store):
            return False
        # Opening a store reads its identity first.
        read_identity(store)
        return True

    def _store(self, task_id: TaskId) -> Path:
        return self._state.store_folder(task_id, _ENGINE, _STORE)

    def _checkpoint(self, task_id: TaskId) -> CheckpointFile:
        return CheckpointFile(self._state.folder(task_id) / ".checkpoint")


class RelocationSubject(DirectorySubject):
    """Each key is an offset of one of two stores. They have the files of a store, but no data.

    An offset counts where its store is. With an offset but no store, a task would continue from data that it lacks.
    """

    def open(self) -> int | None:
        with translated_system_errors(self.path):
            if self.path.exists():
                # A task does this when it opens, with any topology.
                with relocating(self._state):
                    pass
        return self.read()[1] or 0

    def write(self, offsets: dict[TopicPartition, int]) -> None:
        number = offsets[COMMITS] // _MOVE_EVERY
        here = TaskId(number, 0)
        with translated_system_errors(self.path):
            make_folder(self.path)
        left, right = _MOVED
        relocate(self.path, Topology({number: Subtopology((left,)), number + 1: Subtopology((right,))}))
        relocate(self.path, Topology({number: Subtopology(_MOVED)}))
        lock = self._state.lock(here, self)
        try:
            for name in _MOVED:
                store = self._state.store_folder(here, _ENGINE, name)
                if not is_complete(store):
                    _make_store(store)
            logged = {TopicPartition(_logged(topic), 0): offset for (topic, _), offset in offsets.items()}
            CheckpointFile(self._state.folder(here) / ".checkpoint").write(logged)
        finally:
            lock.release()

    def offsets(self) -> dict[TopicPartition, int]:
        """Return the offsets of both stores, in any task."""
        offsets = {}
        has_moved = False
        for task_id in self._state.tasks():
            folder = self._state.folder(task_id)
            with translated_system_errors(folder):
                stores = {place.store for place in places(folder) if is_complete(place.within(folder))}
            for name in stores:
                # Opening a store reads its identity first.
                read_identity(self._state.store_folder(task_id, _ENGINE, name))
            has_moved = has_moved or (bool(stores) and task_id.subtopology > 0)
            for (topic, _), offset in CheckpointFile(folder / ".checkpoint").read().items():
                key, store, _ = topic.rsplit("-", 2)
                if store not in stores:
                    raise TaskCorruptedError(f"{folder} has an offset of the store {store!r}, which is not there")
                offsets[TopicPartition(key, 0)] = offset
        if has_moved and not offsets:
            # A task restores a store that has no offset.
            raise TaskCorruptedError(f"no store in {self.path} has an offset that belongs to it")
        return offsets


class LayoutChangeSubject(RelocationSubject):
    """Each key is an offset of the store ``changing``; ``same`` has one offset, which must move with it unchanged.

    It is read as a task reads it: a store at the place of the other layout does not count.
    """

    def write(self, offsets: dict[TopicPartition, int]) -> None:
        layout = (DirectoryLayout.TASK, DirectoryLayout.STORE_PARTITION)[offsets[COMMITS] // _LAYOUT_EVERY % 2]
        with translated_system_errors(self.path):
            make_folder(self.path)
        if is_pending(self._state) or read_layout(self.path) is not layout:
            change_layout(self.path, layout, topology=_TOPOLOGY)
        with ExitStack() as locks:
            locks.callback(self._state.lock(_TASK, self).release)
            if layout is DirectoryLayout.STORE_PARTITION:
                for name in _STORES:
                    locks.callback(self._state.lock_own(StorePartition(name, 0), self).release)
            for name in _STORES:
                store = self._state.store_folder(_TASK, _ENGINE, name, layout)
                if not is_complete(store):
                    _make_store(store)
            for folder, names in self._homes(layout).items():
                origins, clean = OriginFile(folder / ".origin"), dict.fromkeys(names, Origin.CLEAN)
                if offsets[COMMITS] > 1 and origins.read(names) != clean:
                    # From the second commit on: it shows that there must be offsets.
                    origins.write(clean)
                file, new = CheckpointFile(folder / ".checkpoint"), dict(_SAME_OFFSETS if _SAME in names else {})
                if _CHANGING in names:
                    new |= {TopicPartition(f"{key}-{_CHANGING}-changelog", 0): at for (key, _), at in offsets.items()}
                if file.read() != new:
                    file.write(new)

    def offsets(self) -> dict[TopicPartition, int]:
        layout = read_layout(self.path)
        (other,) = set(DirectoryLayout) - {layout}
        with translated_system_errors(self.path):
            for name in _STORES:
                store = self._state.store_folder(_TASK, _ENGINE, name, other)
                if store.is_dir() and is_store(store):
                    raise TaskCorruptedError(f"{store} is not where the layout {layout} has it")
            if any((folder / ".checkpoint").exists() for folder in self._homes(other)):
                raise TaskCorruptedError(f"the layout is {layout}, and there are offsets as {other} has them")
            logged: dict[TopicPartition, int] = {}
            unclean = []
            for folder, names in self._homes(layout).items():
                here = self._read(folder, names, layout)
                clean = OriginFile(folder / ".origin").read(names) == dict.fromkeys(names, Origin.CLEAN)
                if clean and not here:
                    # A task restores a store that has no offset.
                    raise TaskCorruptedError(f"{folder} has no offset of its stores")
                unclean += [folder] if here and not clean else []
                logged |= here
        same = {partition: logged.pop(partition) for partition in list(logged) if partition in _SAME_OFFSETS}
        if logged and same != _SAME_OFFSETS:
            raise TaskCorruptedError(f"the store {_SAME!r} has no offset any more")
        offsets = {TopicPartition(topic.rsplit("-", 2)[0], 0): offset for (topic, _), offset in logged.items()}
        if unclean and offsets.get(COMMITS) != 1:
            raise TaskCorruptedError(f"{unclean[0]} does not say that its stores were closed cleanly")
        return offsets

    def _read(self, folder: Path, names: tuple[str, ...], layout: DirectoryLayout) -> dict[TopicPartition, int]:
        """Return the offsets in one folder. Each must belong to a store that exists there."""
        offsets = CheckpointFile(folder / ".checkpoint").read()
        for name in {topic.rsplit("-", 2)[1] for topic, _ in offsets}:
            store = self._state.store_folder(_TASK, _ENGINE, name, layout)
            if name not in names or not is_complete(store):
                raise TaskCorruptedError(f"{folder} has an offset of the store {name!r}, which is not there")
            # Opening a store reads its identity first.
            read_identity(store)
        return offsets

    def _homes(self, layout: DirectoryLayout) -> dict[Path, tuple[str, ...]]:
        """Return the stores by the folder with their entries; the store that changes comes last."""
        homes: dict[Path, tuple[str, ...]] = {}
        for name in reversed(_STORES):
            folder = self._state.home(_TASK, name, layout)
            homes[folder] = (*homes.get(folder, ()), name)
        return homes


def _task_of(number: int) -> TaskId:
    return TaskId(0, number // _TASK_EVERY)


def _logged(key: str) -> str:
    """Return the changelog topic of the store to which the key belongs."""
    return f"{key}-{_MOVED[crc32(key.encode()) % 2]}-changelog"


def _make_store(store: Path) -> None:
    """Create a folder that has the files of a store of the engine, but no data."""
    wipe(store)
    with translated_system_errors(store):
        make_folder(store)
        lock = take(store / "lock")
        try:
            create(store, "made up", lambda folder: (folder / "data").mkdir())
        finally:
            os.close(lock)
