"""Search for stores in the folder of another sub-topology than the one that a topology gives them.

The right place of a store differs from its present one by the sub-topology's number alone. It is found by the store's
name, from a listing of the folders; no store is opened. Source: KIP-816, "Implementation Details".
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stores.tasks.directory.directory_layout import DirectoryLayout, read_layout
from stores.tasks.directory.state_directory import StateDirectory, last_used
from stores.tasks.directory.store_places import Place, is_taken, own_stores, parts, places
from stores.tasks.identifier import Home, TaskId
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


def place_stores(state: StateDirectory, topology: Topology) -> Placement:
    """Compare all stores with ``topology``. Raises: OSError; StoreCorruptedError if the layout's note is damaged."""
    found = {task_id: places(state.folder(task_id)) for task_id in state.tasks()}
    present = {(task_id, place.store) for task_id, stores in found.items() for place in stores}
    doubles: list[Move] = []
    unnamed: list[Located] = []
    wanted: defaultdict[tuple[TaskId, str], list[Move]] = defaultdict(list)
    for task_id, stores in found.items():
        for place in stores:
            number = topology.subtopology_of(place.store)
            if number is None:
                unnamed.append(Located(task_id, place.engine, place.store))
            elif number != task_id.subtopology:
                target = TaskId(number, task_id.partition)
                move = Move(place.store, place.engine, task_id, target)
                has_rival = (target, place.store) in present or is_taken(move.path(state.path, target))
                (doubles if has_rival else wanted[target, place.store]).append(move)
    if read_layout(state.path) is DirectoryLayout.STORE_PARTITION:
        # In this layout no store is misplaced.
        own = (Located(home, engine, home.store) for home, engine in own_stores(state.path))
        unnamed += [located for located in own if topology.subtopology_of(located.store) is None]
    moves = []
    for rivals in wanted.values():
        if len(rivals) > 1:
            rivals.sort(key=lambda move: max(map(last_used, parts(move.path(state.path, move.source))), default=0.0))
            doubles += rivals[:-1]
        moves.append(rivals[-1])
    return Placement(tuple(sorted(moves, key=_order)), tuple(sorted(doubles, key=_order)), tuple(unnamed))


def _order(move: Move) -> tuple[Home, str, str]:
    return move.source, move.store, move.engine
