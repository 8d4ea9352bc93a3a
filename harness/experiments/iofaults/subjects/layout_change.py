"""A state directory that changes its layout: every third commit moves its stores to the other layout.

In the layout ``task`` one checkpoint file has the offsets of both stores; in ``store-partition`` each has its own. A
commit changes only the first store's offsets, so it writes one file in either layout.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from harness.experiments.iofaults.subjects.relocation import RelocationSubject, make_store
from harness.experiments.iofaults.subjects.subject import COMMITS
from stores.errors import TaskCorruptedError
from stores.files.creation import is_complete, is_store
from stores.files.identity import read_identity
from stores.files.plain_files import make_folder, translated_system_errors
from stores.interface import TopicPartition
from stores.tasks import DirectoryLayout, Subtopology, TaskId, Topology, change_layout
from stores.tasks.directory.checkpoint_file import CheckpointFile
from stores.tasks.directory.directory_layout import read_layout
from stores.tasks.directory.origin_file import Origin, OriginFile
from stores.tasks.directory.relocation import is_pending
from stores.tasks.identifier import StorePartition

_CHANGING, _SAME = _STORES = "changing", "same"
_TOPOLOGY = Topology({0: Subtopology(_STORES)})
_TASK = TaskId(0, 0)
_ENGINE = "lmdb"
_CHANGE_EVERY = 3
_SAME_OFFSETS = {TopicPartition("always-same-changelog", 0): 7}


class LayoutChangeSubject(RelocationSubject):
    """Each key is an offset of the store ``changing``; ``same`` has one offset, which must move with it unchanged.

    It is read as a task reads it: a store at the place of the other layout does not count.
    """

    def _commit(self, offsets: dict[TopicPartition, int]) -> None:
        wanted = (DirectoryLayout.TASK, DirectoryLayout.STORE_PARTITION)[offsets[COMMITS] // _CHANGE_EVERY % 2]
        with translated_system_errors(self.path):
            make_folder(self.path)
        if is_pending(self._state) or read_layout(self.path) is not wanted:
            change_layout(self.path, wanted, topology=_TOPOLOGY)
        with ExitStack() as held:
            held.callback(self._state.lock(_TASK, self).release)
            if wanted is DirectoryLayout.STORE_PARTITION:
                for name in _STORES:
                    held.callback(self._state.lock_own(StorePartition(name, 0), self).release)
            for name in _STORES:
                store = self._state.store_folder(_TASK, _ENGINE, name, wanted)
                if not is_complete(store):
                    make_store(store)
            for folder, names in self._homes(wanted).items():
                origins, told = OriginFile(folder / ".origin"), dict.fromkeys(names, Origin.CLEAN)
                if offsets[COMMITS] > 1 and origins.read(names) != told:
                    # From the second commit on: it shows that there must be offsets.
                    origins.write(told)
                file, new = CheckpointFile(folder / ".checkpoint"), dict(_SAME_OFFSETS if _SAME in names else {})
                if _CHANGING in names:
                    new |= {TopicPartition(f"{key}-{_CHANGING}-changelog", 0): at for (key, _), at in offsets.items()}
                if file.read() != new:
                    file.write(new)

    def _found(self) -> dict[TopicPartition, int]:
        layout = read_layout(self.path)
        (other,) = set(DirectoryLayout) - {layout}
        with translated_system_errors(self.path):
            for name in _STORES:
                store = self._state.store_folder(_TASK, _ENGINE, name, other)
                if store.is_dir() and is_store(store):
                    raise TaskCorruptedError(f"{store} is not where the layout {layout} has it")
            if any((folder / ".checkpoint").exists() for folder in self._homes(other)):
                raise TaskCorruptedError(f"the layout is {layout}, and there are offsets as {other} has them")
            found: dict[TopicPartition, int] = {}
            unclean = []
            for folder, names in self._homes(layout).items():
                here = self._read(folder, names, layout)
                clean = OriginFile(folder / ".origin").read(names) == dict.fromkeys(names, Origin.CLEAN)
                if clean and not here:
                    # A task restores a store that has no offset.
                    raise TaskCorruptedError(f"{folder} has no offset of its stores")
                unclean += [folder] if here and not clean else []
                found |= here
        same = {partition: found.pop(partition) for partition in list(found) if partition in _SAME_OFFSETS}
        if found and same != _SAME_OFFSETS:
            raise TaskCorruptedError(f"the store {_SAME!r} has no offset any more")
        offsets = {TopicPartition(topic.rsplit("-", 2)[0], 0): offset for (topic, _), offset in found.items()}
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
