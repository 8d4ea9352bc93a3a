"""Relocation: stores follow their sub-topologies when a new topology numbers these otherwise.

    .relocating      held (flock) while stores are sought and moved; names the process
    .relocation      the journal, while stores are on their way (see ``stores.tasks.relocation_journal``)
    .topology        which topology the directory is used with (see ``stores.tasks.topology_lock``)

A store's files are renamed, with its folder, and never read or copied. Its changelog topic does not depend on the
sub-topology, so it goes on at its offset. Stores that the topology does not name stay, until they are cleaned away.

Source: KIP-816.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from stores.creation import LOCK_FILE as STORE_LOCK_FILE
from stores.directory import checked_path
from stores.errors import StoreIncompatibleError, StoreMisplacedError, StoreUnavailableError
from stores.files import make_folder, system_errors_told
from stores.locks import HeldLock, take, take_in_time
from stores.tasks.directory_layout import JOURNAL_FILE
from stores.tasks.identifier import TaskId
from stores.tasks.layout import bring_in, parts
from stores.tasks.placement import Move, Placement, place_stores
from stores.tasks.relocation_journal import RELOCATING_FILE, Journal, planned
from stores.tasks.state_directory import LOCK_FILE, StateDirectory
from stores.tasks.topology import Topology
from stores.tasks.topology_lock import TopologyLock
from stores.tasks.unnamed_stores import note_kept

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Relocation:
    """What a relocation did, or would do: for each store where it was and where it is now."""

    completed: tuple[tuple[str, Path, Path], ...]
    """The stores of an earlier relocation that was cut short; done first."""
    moved: tuple[tuple[str, Path, Path], ...]
    doubles: tuple[tuple[str, Path, Path], ...]
    """Stores that stay where they are, because there is one of the name where they belong."""
    unnamed: tuple[tuple[str, Path], ...]
    """Stores that the topology does not name, which stay."""


def relocate(
    state_dir: str | PathLike[str], topology: Topology, *, application_id: str | None = None, dry_run: bool = False
) -> Relocation:
    """Move the stores of the state directory that lie under another sub-topology's number than ``topology`` says.

    An existing store is never overwritten. With ``dry_run`` nothing is changed. A call that was cut short is completed
    by the next, or by the next task that opens there. ``application_id`` is only needed where the ends of its stores'
    names are alike: see ``planned``.

    Raises: TypeError, ConfigError; StoreLockedError, before anything is moved, where a task that has or gets such a
    store is open, such a store itself, or any task with another topology; StoreUnavailableError where there is no such
    directory, and where the disk refuses: then the next call completes it; StoreCorruptedError for a damaged journal.
    """
    state = _checked(state_dir, topology)
    with system_errors_told(state.path):
        if not state.path.is_dir():
            raise StoreUnavailableError(f"{state.path} is no state directory: there is no such folder")
        if dry_run:
            return _told(state, Journal.read(state.path), place_stores(state, topology))
        with relocating(state) as completed:
            lock = TopologyLock.take(state, topology)
            try:
                return _relocate(state, topology, application_id, completed)
            finally:
                lock.release()


def admit(
    state: StateDirectory, topology: Topology | None, application_id: str, *, automatic: bool
) -> TopologyLock | None:
    """Bring the stores of all tasks where ``topology`` has them, before one of the tasks opens.

    A relocation that was cut short is completed in any case. Returns the lock to release when the task closes; None
    without a topology. Raises: as ``relocate``; StoreMisplacedError, unless ``automatic``, where a store lies in the
    wrong place.
    """
    with system_errors_told(state.path):
        if topology is not None and not is_pending(state):
            lock = TopologyLock.held(state, topology)
            if lock is not None:
                # All was looked through when this process took it.
                return lock
        elif topology is None:
            if is_pending(state):
                with relocating(state):
                    pass
            return None
        make_folder(state.path, 0o700)
        with relocating(state) as completed:
            lock = TopologyLock.take(state, topology)
            try:
                if automatic:
                    _relocate(state, topology, application_id, completed)
                else:
                    _refuse(state, place_stores(state, topology))
            except BaseException:
                lock.release()
                raise
            return lock


def is_pending(state: StateDirectory) -> bool:
    """Whether stores are on their way, or a relocation was cut short."""
    return os.path.lexists(state.path / JOURNAL_FILE)


@contextmanager
def relocating(state: StateDirectory) -> Iterator[Journal | None]:
    """Hold the lock of relocations, having completed what an earlier one has left; yields its journal."""
    lock = take_in_time(state.path / RELOCATING_FILE)
    try:
        journal = Journal.read(state.path)
        if journal is not None:
            with locked(state, journal.moves):
                journal.carry_out(state.path)
            _log.info("completed a relocation of %d stores in %s", len(journal.moves), state.path)
        yield journal
    finally:
        os.close(lock)


def _relocate(
    state: StateDirectory, topology: Topology, application_id: str | None, completed: Journal | None
) -> Relocation:
    found = place_stores(state, topology)
    while found.moves:
        with locked(state, found.moves):
            check_devices(state, found.moves)
            _bring_in(state, found.moves)
            # Until all was locked somebody may have made or removed something.
            again = place_stores(state, topology)
            if again.moves == found.moves:
                journal = planned(state.path, found.moves, topology.stores, application_id)
                journal.write(state.path)
                journal.carry_out(state.path)
                _log.info("moved %d stores of %s to the tasks that have them now", len(found.moves), state.path)
                found = again
                break
            found = again
    note_kept(state, found.kept)
    for task_id, place in found.kept:
        _log.warning(
            "%s is not used: %s. It is kept, and removed by clean() after the delay",
            place.within(state.folder(task_id)),
            "no sub-topology has a store of that name"
            if topology.subtopology_of(place.store) is None
            else "its task has another store of that name",
        )
    return _told(state, completed, found)


def _bring_in(state: StateDirectory, moves: tuple[Move, ...]) -> None:
    """Bring stores of an earlier release's layout to the present one, in the tasks of ``moves``, which are locked."""
    for task_id in _tasks(moves):
        # What can't be brought in its own task will say when it opens.
        with suppress(StoreIncompatibleError):
            bring_in(state.folder(task_id), {})


@contextmanager
def locked(state: StateDirectory, moves: Iterable[Move], others: Iterable[TaskId] = ()) -> Iterator[None]:
    """Hold the locks of the tasks that give or get a store, of ``others``, and of the stores.

    Raises: StoreLockedError; OSError.
    """
    with ExitStack() as held:
        tasks = sorted({*_tasks(moves), *others})
        missing = {task_id for task_id in tasks if not state.folder(task_id).is_dir()}
        for task_id in tasks:
            if task_id not in missing:
                _hold(held, state.folder(task_id) / LOCK_FILE)
        for move in moves:
            for part in parts(move.path(state.path, move.source)):
                if (part / STORE_LOCK_FILE).is_file():
                    _hold(held, part / STORE_LOCK_FILE)
        # Last: nobody has them, and where anything is refused none is made.
        for task_id in sorted(missing):
            make_folder(state.folder(task_id), 0o700)
            _hold(held, state.folder(task_id) / LOCK_FILE)
        yield


def _hold(held: ExitStack, file: Path) -> None:
    # Without a descriptor each: there may be thousands.
    held.callback(HeldLock(take(file)).close)


def _tasks(moves: Iterable[Move]) -> list[TaskId]:
    homes = {home for move in moves for home in (move.source, move.target)}
    return sorted(home for home in homes if isinstance(home, TaskId))


def check_devices(state: StateDirectory, moves: Iterable[Move]) -> None:
    """Raises: StoreUnavailableError where a store can't be renamed, because its task's folder is a mounted disk."""
    for move in moves:
        source = move.path(state.path, move.source)
        target = next(folder for folder in move.path(state.path, move.target).parents if folder.exists())
        if source.parent.stat().st_dev != target.stat().st_dev:
            raise StoreUnavailableError(
                f"{source} belongs in {target}, which is on another file system: move it by hand, and start again"
            )


def _refuse(state: StateDirectory, found: Placement) -> None:
    misplaced = [*moves_told(state, found.moves), *moves_told(state, found.doubles)]
    if misplaced:
        listed = "; ".join(f"{store!r} is in {source} and belongs in {target}" for store, source, target in misplaced)
        raise StoreMisplacedError(
            f"{len(misplaced)} stores lie in the wrong place, and automatic.state.relocation is false: {listed}. Set "
            "it to true, or run python -m stores.relocate",
            misplaced,
        )


def _told(state: StateDirectory, completed: Journal | None, found: Placement) -> Relocation:
    return Relocation(
        () if completed is None else moves_told(state, completed.moves),
        moves_told(state, found.moves),
        moves_told(state, found.doubles),
        tuple((place.store, place.within(state.folder(task_id))) for task_id, place in found.unnamed),
    )


def moves_told(state: StateDirectory, moves: Iterable[Move]) -> tuple[tuple[str, Path, Path], ...]:
    """For each store where it was and where it goes."""
    return tuple((move.store, move.path(state.path, move.source), move.path(state.path, move.target)) for move in moves)


def _checked(state_dir: str | PathLike[str], topology: Topology) -> StateDirectory:
    if not isinstance(topology, Topology):
        raise TypeError(f"a topology is a Topology, not {type(topology).__name__}")
    return StateDirectory(checked_path(state_dir))
