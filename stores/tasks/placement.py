"""Which stores of a state directory lie under another sub-topology's number than a topology gives them.

A store's right place differs from its present one in nothing but that number. It is found by the store's name, in one
listing; no store is opened. Source: KIP-816, "Implementation Details".
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stores.tasks.identifier import Home, TaskId
from stores.tasks.layout import Place, is_taken, parts, places
from stores.tasks.state_directory import StateDirectory, last_used
from stores.tasks.topology import Topology


class Move(NamedTuple):
    """A store, the task that has it, and the task that it belongs to; either may be a folder of its own instead."""

    store: str
    engine: str | None
    """None where it lies as an earlier release has made it."""
    source: Home
    target: Home

    def path(self, state: Path, home: Home) -> Path:
        """Where the store lies in the folder of ``home``, one of the two."""
        if isinstance(home, TaskId):
            return Place(self.engine, self.store).within(state / str(home))
        return state / str(home) / (self.engine or "")


@dataclass(frozen=True)
class Placement:
    """What a listing has found, in order."""

    moves: tuple[Move, ...]
    """Stores whose right place is free."""
    doubles: tuple[Move, ...]
    """Stores whose task has another one of the name, or gets a more recent one."""
    unnamed: tuple[tuple[TaskId, Place], ...]
    """Stores that the topology does not name."""

    @property
    def kept(self) -> list[tuple[TaskId, Place]]:
        """The stores that no task opens: they stay for a while."""
        doubles = [
            (move.source, Place(move.engine, move.store)) for move in self.doubles if isinstance(move.source, TaskId)
        ]
        return [*self.unnamed, *doubles]


def place_stores(state: StateDirectory, topology: Topology) -> Placement:
    """Compare the stores of all tasks with ``topology``. Raises: OSError."""
    found = {task_id: places(state.folder(task_id), topology.stores) for task_id in state.tasks()}
    present = {(task_id, place.store) for task_id, stores in found.items() for place in stores}
    doubles: list[Move] = []
    unnamed: list[tuple[TaskId, Place]] = []
    wanted: defaultdict[tuple[TaskId, str], list[Move]] = defaultdict(list)
    for task_id, stores in found.items():
        for place in stores:
            number = topology.subtopology_of(place.store)
            if number is None:
                unnamed.append((task_id, place))
            elif number != task_id.subtopology:
                target = TaskId(number, task_id.partition)
                move = Move(place.store, place.engine, task_id, target)
                has_rival = (target, place.store) in present or is_taken(move.path(state.path, target))
                (doubles if has_rival else wanted[target, place.store]).append(move)
    moves = []
    for rivals in wanted.values():
        if len(rivals) > 1:
            rivals.sort(key=lambda move: max(map(last_used, parts(move.path(state.path, move.source))), default=0.0))
            doubles += rivals[:-1]
        moves.append(rivals[-1])
    return Placement(tuple(sorted(moves, key=_order)), tuple(sorted(doubles, key=_order)), tuple(unnamed))


def _order(move: Move) -> tuple[Home, str, str]:
    return move.source, move.store, move.engine or ""
