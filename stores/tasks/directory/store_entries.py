"""The entries of stores in the files of their folders, a task's or their own: changelog offsets and origins.

No store is opened. Source: KIP-816, "Alternative 1".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path

from stores.files.plain_files import translated_system_errors
from stores.files.store_directory import checked_path
from stores.interface import TopicPartition
from stores.tasks.directory.checkpoint_file import CheckpointFile
from stores.tasks.directory.origin_file import Origin, OriginFile
from stores.tasks.directory.placement import check_topology, stores_alone, stores_in_tasks
from stores.tasks.directory.state_directory import CHECKPOINT_FILE, ORIGIN_FILE, StateDirectory
from stores.tasks.directory.store_places import places
from stores.tasks.identifier import Home, StorePartition, TaskId
from stores.tasks.topology import Topology


class StoreEntries:
    """The entries in the folder of ``home``, which need not exist, in the state directory ``state``."""

    def __init__(self, state: Path, home: Home) -> None:
        self.home = home
        self.folder = state / str(home)
        self._checkpoint = CheckpointFile(self.folder / CHECKPOINT_FILE)
        self._origins = OriginFile(self.folder / ORIGIN_FILE)

    def stores(self) -> set[str]:
        """Return the names of the stores in the folder. Raises: OSError."""
        home = self.home
        return {home.store} if isinstance(home, StorePartition) else {place.store for place in places(self.folder)}

    def offsets(self) -> dict[TopicPartition, int]:
        """Return the offsets; none if their file is damaged, as a task reads it."""
        return self._checkpoint.known()

    def origins(self) -> dict[str, Origin]:
        """Return the origins of the stores that have one; AT_LEAST_ONCE for each if their file is damaged."""
        return self._origins.read(self.stores()) if self.folder.is_dir() else {}

    def owners(self, partition: TopicPartition, known: Collection[str], application_id: str | None) -> list[str]:
        """Return the stores whose changelog ``partition`` may be, among ``known`` and those in the folder."""
        if partition.partition != self.home.partition:
            return []
        if isinstance(self.home, StorePartition):
            return [self.home.store]
        return owners(partition.topic, self.stores().union(known), application_id)

    def remove(self, partitions: Collection[TopicPartition], stores: Collection[str]) -> None:
        """Remove the offsets of ``partitions`` and the origins of ``stores``."""
        offsets = self.offsets()
        if not offsets.keys().isdisjoint(partitions):
            self._checkpoint.write({key: offset for key, offset in offsets.items() if key not in partitions})
        origins = self._origins.read(self.stores())
        if not origins.keys().isdisjoint(stores):
            self._origins.write({store: origin for store, origin in origins.items() if store not in stores})

    def add(self, offsets: Mapping[TopicPartition, int], origins: Mapping[str, Origin]) -> None:
        """Add entries, in place of others of the same partitions and stores."""
        if offsets:
            self._checkpoint.write({**self.offsets(), **offsets})
        if origins:
            self._origins.write({**self._origins.read(self.stores() - origins.keys()), **origins})


def owners(topic: str, known: set[str], application_id: str | None) -> list[str]:
    """Return the stores among ``known`` whose changelog the topic may be: APPLICATION-STORE-changelog."""
    name = topic.removesuffix("-changelog")
    if name == topic:
        return []
    if application_id is not None:
        store = name.removeprefix(f"{application_id}-")
        return [store] if store != name and store in known else []
    dashes = [place for place, letter in enumerate(name) if letter == "-" and place]
    return [store for place in dashes if (store := name[place + 1 :]) in known]


def stored_offsets(
    state_dir: str | PathLike[str], topology: Topology, *, application_id: str | None = None
) -> dict[TaskId, dict[str, dict[TopicPartition, int]]]:
    """Return the known changelog offset of each local store, by task of ``topology``, in order, and by store.

    It serves to assign tasks to machines. It finds stores in either layout, and where an earlier topology has left
    them. Stores that ``topology`` does not name are left out. A store without a known offset has an empty entry.
    ``offset_sum`` of a task's offsets is the progress of its copy. Offsets are those of the tasks' last opening, or
    closing, if that was later. ``application_id`` is as for ``relocate``.

    Raises: TypeError; StoreUnavailableError.
    """
    check_topology(topology)
    state = StateDirectory(checked_path(state_dir))
    found: defaultdict[TaskId, dict[str, dict[TopicPartition, int]]] = defaultdict(dict)
    with translated_system_errors(state.path):
        for home, _, store in (*stores_in_tasks(state), *stores_alone(state)):
            number = topology.subtopology_of(store)
            if number is None:
                continue
            entries = StoreEntries(state.path, home)
            found[TaskId(number, home.partition)].setdefault(store, {}).update(
                (partition, offset)
                for partition, offset in entries.offsets().items()
                if entries.owners(partition, topology.stores, application_id) == [store]
            )
    return {task_id: dict(sorted(stores.items())) for task_id, stores in sorted(found.items())}
