"""Changing the layout of a state directory, in either direction: one rename for each store, under the same journal.

Source: KIP-816, "Alternative 1", "Migration".
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path

from stores.errors import ConfigError, StoreIncompatibleError, StoreUnavailableError
from stores.files.plain_files import translated_system_errors
from stores.files.store_directory import checked_path
from stores.tasks.directory.directory_layout import JOURNAL_FILE, DirectoryLayout
from stores.tasks.directory.names import check_stores
from stores.tasks.directory.placement import Move
from stores.tasks.directory.relocation import Relocation, check_devices, locked, moved_paths, relocating
from stores.tasks.directory.relocation_journal import Journal, planned
from stores.tasks.directory.state_directory import StateDirectory
from stores.tasks.directory.store_places import is_taken, own_engines, own_stores, places
from stores.tasks.identifier import StorePartition, TaskId
from stores.tasks.topology import Topology


def change_layout(
    state_dir: str | PathLike[str],
    layout: DirectoryLayout | str,
    *,
    topology: Topology | None = None,
    application_id: str | None = None,
    dry_run: bool = False,
) -> Relocation:
    """Move all stores of the state directory to their places in ``layout``, and note the layout there for the tasks.

    For a change back to ``task``, the ``topology`` names the task of each store. With ``dry_run`` nothing is changed.
    An interrupted call is completed by the next one, or by the next task that opens there. ``application_id`` is as for
    ``relocate``.

    Raises: TypeError; ConfigError for an unknown layout, for a topology that is missing or does not name a store, and
    for an invalid name of a store; StoreLockedError if a task or a store is open; StoreIncompatibleError if two stores
    would get one place; StoreCorruptedError for a damaged journal; StoreUnavailableError if there is no such directory,
    and on a disk error. All of these but the last are raised before anything is moved. After a disk error the next call
    completes the change.
    """
    if topology is not None and not isinstance(topology, Topology):
        raise TypeError(f"a topology is a Topology, not {type(topology).__name__}")
    try:
        wanted = DirectoryLayout(layout)
    except ValueError as error:
        raise ConfigError(f"{layout!r} is not a layout: use {', '.join(DirectoryLayout)}") from error
    state = StateDirectory(checked_path(state_dir))
    with translated_system_errors(state.path):
        if not state.path.is_dir():
            raise StoreUnavailableError(f"{state.path} does not exist: name an existing state directory")
        if dry_run:
            pending = Journal.read(state.path)
            return _report(state, pending, _moves(state, wanted, topology))
        with relocating(state) as completed:
            moves = _moves(state, wanted, topology)
            # A journal without moves: no task opens as long as it is there.
            Journal(()).write(state.path)
            try:
                with locked(state, moves, state.tasks()):
                    journal = _prepared(state, wanted, topology, application_id)
                    journal.write(state.path)
                    journal.carry_out(state.path)
            except BaseException:
                _drop_barrier(state.path)
                raise
            return _report(state, completed, list(journal.moves))


def _prepared(
    state: StateDirectory, wanted: DirectoryLayout, topology: Topology | None, application_id: str | None
) -> Journal:
    """Return the journal of the change. All tasks are locked."""
    moves = _moves(state, wanted, topology)
    check_devices(state, moves)
    known = {move.store for move in moves}
    return replace(planned(state.path, moves, known, application_id), layout=wanted)


def _drop_barrier(state: Path) -> None:
    """Remove the journal, unless it has moves or a layout: then the next call carries it out."""
    with suppress(Exception):
        journal = Journal.read(state)
        if journal is not None and not journal.moves and journal.layout is None:
            (state / JOURNAL_FILE).unlink()


def _moves(state: StateDirectory, wanted: DirectoryLayout, topology: Topology | None) -> list[Move]:
    """Return the moves to the layout ``wanted``. Raises: ConfigError, StoreIncompatibleError; OSError."""
    if wanted is DirectoryLayout.STORE_PARTITION:
        moves = [
            Move(place.store, place.engine, task_id, StorePartition(place.store, task_id.partition))
            for task_id in state.tasks()
            for place in places(state.folder(task_id))
        ]
        check_stores({move.store for move in moves} | {home.store for home, _ in own_stores(state.path)})
    else:
        moves = [
            Move(home.store, engine, home, TaskId(_number(state, home, topology), home.partition))
            for home, engine in own_stores(state.path)
        ]
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
    return moves


def _number(state: StateDirectory, home: StorePartition, topology: Topology | None) -> int:
    number = None if topology is None else topology.subtopology_of(home.store)
    if number is None:
        path = state.path / str(home)
        raise ConfigError(
            f"{path} can't be moved to its task without a topology: pass one"
            if topology is None
            else f"the topology does not name the store in {path}: name it, or remove the folder"
        )
    return number


def _report(state: StateDirectory, completed: Journal | None, moves: list[Move]) -> Relocation:
    return Relocation(
        () if completed is None else moved_paths(state, completed.moves), moved_paths(state, moves), (), ()
    )
