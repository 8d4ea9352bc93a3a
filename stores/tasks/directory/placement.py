"""The stores of a state directory, from a listing of its folders: their places now, and in a topology or a layout.

The right place of a store in a topology differs from its present one by the sub-topology's number alone. It is found by
the store's name. No store is opened. Source: KIP-816, "Implementation Details", "Alternative 1".
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stores.errors import ConfigError, StoreIncompatibleError
from stores.tasks.directory.directory_layout import DirectoryLayout, read_layout
from stores.tasks.directory.names import check_stores
from stores.tasks.directory.state_directory import StateDirectory, last_used
from stores.tasks.directory.store_places import Place, is_taken, own_engines, own_stores, parts, places
from stores.tasks.identifier import Home, StorePartition, TaskId
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


def check_topology(topology: object) -> None:
    """Check that ``topology`` is one. Raises: TypeError."""
    if not isinstance(topology, Topology):
        raise TypeError(f"a topology is a Topology, not {type(topology).__name__}")


def stores_in_tasks(state: StateDirectory) -> list[Located]:
    """Return the stores in the folders of tasks, in order. Raises: OSError."""
    return [
        Located(task_id, place.engine, place.store)
        for task_id in state.tasks()
        for place in places(state.folder(task_id))
    ]


def stores_alone(state: StateDirectory) -> list[Located]:
    """Return the stores in folders of their own, in order. Raises: OSError."""
    return [Located(home, engine, home.store) for home, engine in own_stores(state.path)]


def place_stores(state: StateDirectory, topology: Topology) -> Placement:
    """Compare all stores with ``topology``. Raises: OSError; StoreCorruptedError if the layout's note is damaged."""
    found = stores_in_tasks(state)
    present = {(located.home, located.store) for located in found}
    doubles: list[Move] = []
    unnamed: list[Located] = []
    wanted: defaultdict[tuple[Home, str], list[Move]] = defaultdict(list)
    for located in found:
        number = topology.subtopology_of(located.store)
        if number is None:
            unnamed.append(located)
            continue
        target = TaskId(number, located.home.partition)
        if target != located.home:
            move = located.moved_to(target)
            has_rival = (target, located.store) in present or is_taken(move.path(state.path, target))
            (doubles if has_rival else wanted[target, located.store]).append(move)
    if read_layout(state.path) is DirectoryLayout.STORE_PARTITION:
        # In this layout no store is misplaced.
        unnamed += [located for located in stores_alone(state) if topology.subtopology_of(located.store) is None]
    moves = []
    for rivals in wanted.values():
        if len(rivals) > 1:
            rivals.sort(key=lambda move: max(map(last_used, parts(move.path(state.path, move.source))), default=0.0))
            doubles += rivals[:-1]
        moves.append(rivals[-1])
    return Placement(tuple(sorted(moves, key=_order)), tuple(sorted(doubles, key=_order)), tuple(unnamed))


def place_in_layout(state: StateDirectory, layout: DirectoryLayout, topology: Topology | None) -> Placement:
    """Return the moves to ``layout``; for ``task``, ``topology`` names the task of each store.

    Raises: ConfigError; StoreIncompatibleError if two stores would get one place; OSError.
    """
    if layout is DirectoryLayout.STORE_PARTITION:
        found = stores_in_tasks(state)
        check_stores({located.store for located in (*found, *stores_alone(state))})
        moves = [located.moved_to(StorePartition(located.store, located.home.partition)) for located in found]
    else:
        moves = [located.moved_to(_task_of(state, located, topology)) for located in stores_alone(state)]
    taken: dict[tuple[str, str], Path] = {}
    for move in moves:
        source, target = move.path(state.path, move.source), move.path(state.path, move.target)
        other = taken.setdefault((move.store, str(move.target)), source)
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
