"""The stores of a state directory, from a listing of its folders and files: their places and their entries.

The right place of a store in a topology differs from its present one by the sub-topology's number alone. It is found by
the store's name. Its entries are its changelog offset and its origin. No store is opened. Source: KIP-816,
"Implementation Details", "Alternative 1".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from stores.contract.arguments import check_type
from stores.errors import ConfigError, StoreIncompatibleError
from stores.files.plain_files import translated_system_errors
from stores.files.store_directory import checked_path
from stores.interface import TopicPartition
from stores.tasks.directory.entry_files import CheckpointFile, Origin, OriginFile
from stores.tasks.directory.state_directory import CHECKPOINT_FILE, ORIGIN_FILE, StateDirectory, last_used
from stores.tasks.directory.store_places import (
    DirectoryLayout,
    Place,
    is_taken,
    own_engines,
    own_folders,
    parts,
    places,
    read_layout,
)
from stores.tasks.identifier import Home, StorePartition, TaskId, check_stores
from stores.tasks.topology import Topology


class Located(NamedTuple):
    """A store, and the owner of its folder."""

    home: Home
    engine: str
    store: str

    def path(self, state: Path) -> Path:
        """Return the path of the store in the state directory ``state``."""
        folder = state / str(self.home)
        if isinstance(self.home, TaskId):
            return Place(self.engine, self.store).within(folder)
        return folder / self.engine

    def moved_to(self, target: Home) -> Move:
        """Return the move of the store to the folder of ``target``."""
        return Move(self.store, self.engine, self.home, target)


class Move(NamedTuple):
    """A store, the task that has it, and the task that it belongs to; either may be a folder of its own instead."""

    store: str
    engine: str
    source: Home
    target: Home

    def path(self, state: Path, home: Home) -> Path:
        """Return the path of the store in the folder of ``home``, one of the two."""
        return Located(home, self.engine, self.store).path(state)


@dataclass(frozen=True)
class Placement:
    """The result of a search, in order."""

    moves: tuple[Move, ...]
    """Stores whose right place is free."""
    doubles: tuple[Move, ...]
    """Stores whose task already has a store of this name, or gets one that was used more recently."""
    unnamed: tuple[Located, ...]
    """Stores that the topology does not name."""

    @property
    def kept(self) -> list[Located]:
        """The stores that no task opens. They are kept until ``clean_stores`` removes them."""
        return [*self.unnamed, *(Located(move.source, move.engine, move.store) for move in self.doubles)]


def stores_in_tasks(state: StateDirectory) -> list[Located]:
    """Return the stores in the folders of tasks, in order. Raises: OSError."""
    return [
        Located(task_id, place.engine, place.store)
        for task_id in state.tasks()
        for place in places(state.folder(task_id))
    ]


def stores_alone(state: StateDirectory) -> list[Located]:
    """Return the stores in folders of their own, in order. Raises: OSError."""
    return [
        Located(home, engine, home.store) for home, folder in own_folders(state.path) for engine in own_engines(folder)
    ]


def place_stores(state: StateDirectory, topology: Topology) -> Placement:
    """Compare all stores with ``topology``. Raises: OSError; StoreCorruptedError if the layout's note is damaged."""
    stores = stores_in_tasks(state)
    present = {(located.home, located.store) for located in stores}
    doubles: list[Move] = []
    unnamed: list[Located] = []
    candidates: defaultdict[tuple[Home, str], list[Move]] = defaultdict(list)
    for located in stores:
        number = topology.subtopology_of(located.store)
        if number is None:
            unnamed.append(located)
            continue
        target = TaskId(number, located.home.partition)
        if target != located.home:
            move = located.moved_to(target)
            has_rival = (target, located.store) in present or is_taken(move.path(state.path, target))
            (doubles if has_rival else candidates[target, located.store]).append(move)
    if read_layout(state.path) is DirectoryLayout.STORE_PARTITION:
        # In this layout no store is misplaced.
        unnamed += [located for located in stores_alone(state) if topology.subtopology_of(located.store) is None]
    moves = []
    for rivals in candidates.values():
        if len(rivals) > 1:
            rivals.sort(key=lambda move: max(map(last_used, parts(move.path(state.path, move.source))), default=0.0))
            doubles += rivals[:-1]
        moves.append(rivals[-1])
    return Placement(tuple(sorted(moves, key=_order)), tuple(sorted(doubles, key=_order)), tuple(unnamed))


def place_in_layout(state: StateDirectory, layout: DirectoryLayout, topology: Topology | None) -> Placement:
    """Return the moves to ``layout``, to ``task`` by ``topology``. Raises: ConfigError, StoreIncompatibleError."""
    if layout is DirectoryLayout.STORE_PARTITION:
        stores = stores_in_tasks(state)
        check_stores({located.store for located in (*stores, *stores_alone(state))})
        moves = [located.moved_to(StorePartition(located.store, located.home.partition)) for located in stores]
    else:
        moves = [located.moved_to(_task_of(state, located, topology)) for located in stores_alone(state)]
    sources: dict[tuple[str, str], Path] = {}
    for move in moves:
        source, target = move.path(state.path, move.source), move.path(state.path, move.target)
        other = sources.setdefault((move.store, str(move.target)), source)
        if other == source and is_taken(target):
            other = target
        if other == source and isinstance(move.target, StorePartition):
            other = next((target.with_name(engine) for engine in own_engines(target.parent)), source)
        if other != source:
            raise StoreIncompatibleError(
                f"both {source} and {other} hold the store {move.store!r} of partition {move.target.partition}: remove "
                "one of them, and start again"
            )
    return Placement(tuple(moves), (), ())


def _task_of(state: StateDirectory, located: Located, topology: Topology | None) -> TaskId:
    number = None if topology is None else topology.subtopology_of(located.store)
    if number is None:
        path = state.path / str(located.home)
        raise ConfigError(
            f"{path} can't be moved to its task without a topology: pass one"
            if topology is None
            else f"the topology does not name the store in {path}: name it, or remove the folder"
        )
    return TaskId(number, located.home.partition)


def _order(move: Move) -> tuple[Home, str, str]:
    return move.source, move.store, move.engine


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
    check_type(topology, Topology, "a topology is a Topology")
    state = StateDirectory(checked_path(state_dir))
    offsets: defaultdict[TaskId, dict[str, dict[TopicPartition, int]]] = defaultdict(dict)
    with translated_system_errors(state.path):
        for home, _, store in (*stores_in_tasks(state), *stores_alone(state)):
            number = topology.subtopology_of(store)
            if number is None:
                continue
            entries = StoreEntries(state.path, home)
            offsets[TaskId(number, home.partition)].setdefault(store, {}).update(
                (partition, offset)
                for partition, offset in entries.offsets().items()
                if entries.owners(partition, topology.stores, application_id) == [store]
            )
    return {task_id: dict(sorted(stores.items())) for task_id, stores in sorted(offsets.items())}
