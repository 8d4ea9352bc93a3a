"""Relocation: stores follow their sub-topologies when a new topology gives these other numbers, or change their layout.

    .relocating      held (flock) while stores are searched and moved; names the process
    .relocation      the journal, while stores are moved (see ``stores.tasks.directory.relocation_journal``)
    .topology        the fingerprint of the topology that is in use

A store's folder is renamed; its files are never read or copied. Its changelog topic does not depend on the
sub-topology, so the store continues at its offset. Stores that the topology does not name stay until a clean-up.

All processes with open tasks in the directory must have the same topology: each has a shared lock on ``.topology``
(flock). A process with another topology needs the exclusive lock to write its own fingerprint. The system releases the
locks of a process that ends.

Source: KIP-816, "Non-goals" for the lock; its "Alternative 1", "Migration", for the layout.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path

from stores.contract.arguments import check_type
from stores.errors import ConfigError, StoreLockedError, StoreMisplacedError, StoreUnavailableError
from stores.files.creation import LOCK_FILE as STORE_LOCK_FILE
from stores.files.creation import remove_empty
from stores.files.locks import FileLock, take, take_in_time
from stores.files.plain_files import check_no_link, make_folder, open_plain, translated_system_errors
from stores.files.store_directory import checked_path
from stores.tasks.directory.placement import Move, Placement, place_in_layout, place_stores
from stores.tasks.directory.relocation_journal import Journal, planned
from stores.tasks.directory.state_directory import LOCK_FILE, StateDirectory
from stores.tasks.directory.store_places import (
    JOURNAL_FILE,
    RELOCATING_FILE,
    DirectoryLayout,
    is_streams_store,
    kept_from_streams,
    parts,
    relocate_command,
)
from stores.tasks.directory.task_lock import HeldLock, held_locks
from stores.tasks.directory.unnamed_stores import note_kept
from stores.tasks.identifier import TaskId
from stores.tasks.topology import Topology

_log = logging.getLogger(__name__)

TOPOLOGY_FILE = ".topology"
_BYTES_MAX = 128


@dataclass(frozen=True)
class Relocation:
    """The result of a relocation, or its plan: for each store its old and its new path."""

    completed: tuple[tuple[str, Path, Path], ...]
    """The stores of an earlier, interrupted relocation, which is completed first."""
    moved: tuple[tuple[str, Path, Path], ...]
    doubles: tuple[tuple[str, Path, Path], ...]
    """Stores that stay, because their right place has a store of the same name."""
    unnamed: tuple[tuple[str, Path], ...]
    """Stores that stay, because the topology does not name them."""


def relocate(
    state_dir: str | PathLike[str], topology: Topology, *, application_id: str | None = None, dry_run: bool = False
) -> Relocation:
    """Move the stores of the state directory that lie in the folder of another sub-topology than ``topology`` says.

    An existing store is never overwritten. With ``dry_run`` nothing is changed. An interrupted call is completed by the
    next one, or by the next task that opens there. ``application_id`` is only needed if one store's name is the end of
    another's: see ``planned``.

    Raises: TypeError, ConfigError; StoreLockedError, before anything is moved, if a store to be moved, one of the two
    tasks, or any task with another topology is open; StoreUnavailableError if there is no such directory, and on a disk
    error, after which the next call completes it; StoreCorruptedError for a damaged journal or note of the layout.
    """
    check_type(topology, Topology, "a topology is a Topology")
    with _existing(state_dir) as state:
        if dry_run:
            return _report(state, Journal.read(state.path), place_stores(state, topology))
        with relocating(state) as completed:
            lock = TopologyLock.take(state, topology)
            try:
                return _relocate(state, topology, application_id, completed)
            finally:
                lock.release()


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
    check_type(topology, Topology | None, "a topology is a Topology")
    try:
        target_layout = DirectoryLayout(layout)
    except ValueError as error:
        raise ConfigError(f"{layout!r} is not a layout: use {', '.join(DirectoryLayout)}") from error
    with _existing(state_dir) as state:
        if dry_run:
            pending = Journal.read(state.path)
            return _report(state, pending, place_in_layout(state, target_layout, topology))
        with relocating(state) as completed:
            placement = place_in_layout(state, target_layout, topology)
            # A journal without moves: no task opens as long as it is there.
            Journal(()).write(state.path)
            try:
                with locked(state, placement.moves, state.tasks()):
                    # Another process may have created or removed a store before all was locked.
                    placement = place_in_layout(state, target_layout, topology)
                    _check_devices(state, placement.moves)
                    _move(
                        state, placement.moves, {move.store for move in placement.moves}, application_id, target_layout
                    )
            except BaseException:
                _drop_barrier(state.path)
                raise
            return _report(state, completed, placement)


@contextmanager
def _existing(state_dir: str | PathLike[str]) -> Iterator[StateDirectory]:
    state = StateDirectory(checked_path(state_dir))
    with translated_system_errors(state.path):
        if not state.path.is_dir():
            raise StoreUnavailableError(f"{state.path} does not exist: name an existing state directory")
        yield state


def _drop_barrier(state: Path) -> None:
    """Remove the journal, unless it has moves or a layout: then the next call carries it out."""
    with suppress(Exception):
        journal = Journal.read(state)
        if journal is not None and not journal.moves and journal.layout is None:
            (state / JOURNAL_FILE).unlink()


def _move(
    state: StateDirectory,
    moves: Iterable[Move],
    known: Iterable[str],
    application_id: str | None,
    layout: DirectoryLayout | None = None,
) -> None:
    """Move stores, all of which and whose tasks are locked; ``layout`` is then that of the directory."""
    journal = replace(planned(state.path, moves, known, application_id), layout=layout)
    journal.write(state.path)
    journal.carry_out(state.path)


def admit(
    state: StateDirectory, topology: Topology | None, application_id: str, *, automatic: bool
) -> TopologyLock | None:
    """Bring the stores of all tasks to their places in ``topology``, before one of the tasks opens.

    An interrupted relocation is completed in any case. Return the lock to release when the task closes; None without a
    topology. Raises: as ``relocate``; StoreMisplacedError if a store lies in the wrong place, unless ``automatic``.
    """
    with translated_system_errors(state.path):
        if topology is not None and not is_pending(state):
            lock = TopologyLock.held(state, topology)
            if lock is not None:
                # The stores were checked when this process took the lock.
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
                    placement = place_stores(state, topology)
                    _refuse(state, placement)
                    _keep(state, topology, placement)
            except BaseException:
                lock.release()
                raise
            return lock


def is_pending(state: StateDirectory) -> bool:
    """Return whether a relocation is in progress or was interrupted."""
    return os.path.lexists(state.path / JOURNAL_FILE)


@contextmanager
def relocating(state: StateDirectory) -> Iterator[Journal | None]:
    """Hold the lock of relocations. First complete an interrupted one, and yield its journal; None if there is none."""
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
    placement = place_stores(state, topology)
    while placement.moves:
        # First: locking a task without a folder creates the folder.
        _check_devices(state, placement.moves)
        with locked(state, placement.moves):
            # Another process may have created or removed a store before all was locked.
            again = place_stores(state, topology)
            if again.moves == placement.moves:
                _move(state, placement.moves, topology.stores, application_id)
                _log.info("moved %d stores of %s to the tasks that have them now", len(placement.moves), state.path)
                placement = again
                break
            placement = again
    _keep(state, topology, placement)
    return _report(state, completed, placement)


def _keep(state: StateDirectory, topology: Topology, placement: Placement) -> None:
    """Note the stores that no task opens, and log them."""
    note_kept(state, placement.kept)
    for located in placement.kept:
        _log.warning(
            "%s is not used: %s. It is kept, and removed by clean() after the delay",
            located.path(state.path),
            "no sub-topology has a store of that name"
            if topology.subtopology_of(located.store) is None
            else "its task has another store of that name",
        )


@contextmanager
def locked(state: StateDirectory, moves: Collection[Move], others: Iterable[TaskId] = ()) -> Iterator[None]:
    """Hold the locks of all tasks and stores. Raises: StoreLockedError; StoreIncompatibleError at a link; OSError."""
    for move in moves:
        for home in (move.source, move.target):
            check_no_link(state.path, move.path(state.path, home).parent)
    with ExitStack() as locks:
        tasks = sorted({*_tasks(moves), *others})
        missing = {task_id for task_id in tasks if not state.folder(task_id).is_dir()}
        for task_id in tasks:
            if task_id not in missing:
                _hold(locks, state.folder(task_id) / LOCK_FILE)
        sources = [part for move in moves for part in parts(move.path(state.path, move.source))]
        for part in sources:
            if (part / STORE_LOCK_FILE).is_file():
                _hold(locks, part / STORE_LOCK_FILE)
        if of_streams := [part for part in sources if is_streams_store(part)]:
            locks.enter_context(kept_from_streams(*of_streams))
        # Last: folders that do not exist have no owner. If another lock is refused, none of them is created.
        for task_id in sorted(missing):
            make_folder(state.folder(task_id), 0o700)
            _hold(locks, state.folder(task_id) / LOCK_FILE)
        yield
    # Where a removed lock file is hidden as long as it is held, its folder could not be removed before.
    for task_id in tasks:
        remove_empty(state.folder(task_id))


def _hold(held: ExitStack, file: Path) -> None:
    # ``FileLock`` needs no open descriptor for each lock: there may be thousands.
    held.callback(FileLock(take(file)).close)


def _tasks(moves: Iterable[Move]) -> list[TaskId]:
    homes = {home for move in moves for home in (move.source, move.target)}
    return sorted(home for home in homes if isinstance(home, TaskId))


def _check_devices(state: StateDirectory, moves: Iterable[Move]) -> None:
    """Check that each store can be renamed. Raises: StoreUnavailableError if its task is on another file system."""
    for move in moves:
        source = move.path(state.path, move.source)
        target = next(folder for folder in move.path(state.path, move.target).parents if folder.exists())
        if source.parent.stat().st_dev != target.stat().st_dev:
            raise StoreUnavailableError(
                f"{source} belongs in {target}, which is on another file system: move the folder there, and start again"
            )


def _refuse(state: StateDirectory, placement: Placement) -> None:
    misplaced = [*_moved_paths(state, placement.moves), *_moved_paths(state, placement.doubles)]
    if misplaced:
        listed = "; ".join(f"{store!r} is in {source} and belongs in {target}" for store, source, target in misplaced)
        raise StoreMisplacedError(
            f"{len(misplaced)} stores are in the wrong place, and automatic.state.relocation is false: {listed}. Set "
            f"it to true, or run {relocate_command(state.path, '--topology FILE')}",
            misplaced,
        )


def _report(state: StateDirectory, completed: Journal | None, placement: Placement) -> Relocation:
    return Relocation(
        () if completed is None else _moved_paths(state, completed.moves),
        _moved_paths(state, placement.moves),
        _moved_paths(state, placement.doubles),
        tuple((located.store, located.path(state.path)) for located in placement.unnamed),
    )


def _moved_paths(state: StateDirectory, moves: Iterable[Move]) -> tuple[tuple[str, Path, Path], ...]:
    """Return the old and the new path of each store."""
    return tuple((move.store, move.path(state.path, move.source), move.path(state.path, move.target)) for move in moves)


class TopologyLock(HeldLock):
    """The lock of one state directory; its owner is the topology."""

    @classmethod
    def held(cls, state: StateDirectory, topology: Topology) -> TopologyLock | None:
        """Take the lock once more if this process has it for the same topology; otherwise return None."""
        with held_locks.guard:
            return cls.again(state.path.resolve(), topology.fingerprint)

    @classmethod
    def take(cls, state: StateDirectory, topology: Topology) -> TopologyLock:
        """Take the lock under that of relocations. Raises: StoreLockedError if another topology is in use; OSError."""
        again = cls.held(state, topology)
        if again is not None:
            return again
        path = state.path.resolve()
        descriptor = open_plain(path / TOPOLOGY_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            fingerprint = topology.fingerprint.encode()
            if os.pread(descriptor, _BYTES_MAX, 0) != fingerprint:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise StoreLockedError(
                        f"{state.path} is used with another topology{_holder(state)}: close its tasks there first"
                    ) from error
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, fingerprint, 0)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            with held_locks.guard:
                return cls(path, topology.fingerprint, partial(os.close, descriptor))
        except BaseException:
            os.close(descriptor)
            raise


def _holder(state: StateDirectory) -> str:
    """Return a note on an open task and its process, for a message: a shared lock does not name its holders."""
    for task_id in state.tasks():
        file = state.folder(task_id) / LOCK_FILE
        try:
            if file.is_file():
                os.close(take(file, note=False))
        except StoreLockedError as error:
            return f" ({str(error).split(':')[0]})"
    return ""
