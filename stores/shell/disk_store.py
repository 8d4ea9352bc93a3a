"""A store on disk that is read without being opened: nothing in its folder is changed, and nothing is recovered."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from stores import position
from stores.contract import marks
from stores.engines.engine import Engine, Scan
from stores.errors import StoreIncompatibleError, StoreLockedError, StoreUnavailableError
from stores.files.creation import LOCK_FILE, check_parts, is_store, is_unfinished
from stores.files.identity import FILE as IDENTITY_FILE
from stores.files.identity import Identity, checked_identity, read_identity
from stores.files.locks import take_shared
from stores.files.open_mark import FILE as MARK_FILE
from stores.files.open_mark import boot_id, check_not_torn, read_mark
from stores.files.open_probe import probe_open
from stores.files.plain_files import translated_system_errors
from stores.interface import Position, TopicPartition
from stores.ordered.ranges import WHOLE
from stores.registry import Backend, backend_named
from stores.shell.sqlite_files import is_changelog

_DEPTHS = ("*", "*/*", "*/*/*")
_STORES_SHOWN = 5
Pairs = Iterator[tuple[bytes, bytes]]


@dataclass(frozen=True)
class DiskStore:
    """A store's folder, which no process opens or removes while it is held, unless one has it open already."""

    path: Path
    identity: Identity
    backend: Backend
    used_by: StoreLockedError | None
    """The error that names the process which has the store open, if there is one."""

    @property
    def data(self) -> Path:
        """The engine's folder."""
        return self.path / "data"

    @property
    def is_clean(self) -> bool:
        """True if the last process that had the store open has closed it."""
        return not (self.path / MARK_FILE).exists()

    def check_at_rest(self) -> None:
        """Check that no process has the store open, and that power loss has not torn it.

        Raises: StoreLockedError, which names the process; StoreCorruptedError.
        """
        if self.used_by is not None:
            raise self.used_by
        with translated_system_errors(self.path):
            if self.is_clean:
                self.backend.load_engine().check_closed(self.data)
                return
            if (mark := read_mark(self.path)) is not None:
                check_not_torn(self.path, mark, boot_id())


@dataclass(frozen=True)
class Reading:
    """The committed data of a store. Offsets, positions and marks are those of the same commit as ``pairs``."""

    engine: Engine
    offsets: dict[TopicPartition, int]
    position: Position
    marks: dict[str, bytes]
    pairs: tuple[Pairs, ...]
    """All records in key order, per data family."""


@contextmanager
def held(path: Path) -> Iterator[DiskStore]:
    """Hold the store in the folder ``path``.

    Raises: StoreUnavailableError, StoreIncompatibleError if there is none; StoreCorruptedError; StoreTooNewError;
    ConfigError for a backend of a package that is not installed.
    """
    with translated_system_errors(path):
        _check_is_store(path)
        check_parts(path)
        identity = checked_identity(path, read_identity(path).backend)
        backend = backend_named(identity.backend)
        lock, used_by = None, None
        try:
            lock = take_shared(path / LOCK_FILE)
        except FileNotFoundError:
            pass
        except StoreLockedError as error:
            used_by = error
    try:
        yield DiskStore(path, identity, backend, used_by)
    finally:
        if lock is not None:
            os.close(lock)


@contextmanager
def reading(store: DiskStore) -> Iterator[Reading]:
    """Read the committed data of ``store``.

    Raises: StoreLockedError if a process has it open and the engine's files can't be read meanwhile;
    StoreUnavailableError if a commit is incomplete; StoreCorruptedError.
    """
    engine = store.backend.load_engine()
    live = store.used_by is not None
    if not live or not engine.reads_live:
        store.check_at_rest()
    if not live:
        probe_open(engine, store.data, engine.options)
    opened = engine.open_read_only(store.data, live=live)
    try:
        # The entries before and after the scans began are the same, so they are those of the scans' commit.
        meta = None
        scans: list[Scan] = []
        while (newest := opened.meta()) != meta:
            for scan in scans:
                scan.close()
            meta = newest
            scans = opened.scans([WHOLE._replace(family=family) for family in range(opened.num_families)])
        assert meta is not None
        if store.backend.load_strategy().has_unfinished_commit(store.path, meta):
            raise StoreUnavailableError(
                f"{store.path} is in the middle of a large commit: "
                + (
                    "try again when it is done"
                    if live
                    else f"open it as {store.identity.backend!r}, which completes it"
                )
            )

        def pairs(number: int) -> Pairs:
            with closing(scans[number]) as scan:
                while chunk := scan.fetch():
                    yield from chunk

        yield Reading(
            opened,
            position.decode(position.OFFSET, meta),
            position.decode(position.POSITION, meta),
            marks.decode(meta),
            tuple(pairs(number) for number in range(len(scans))),
        )
        for scan in scans:
            scan.close()
    finally:
        opened.close()


def _check_is_store(path: Path) -> None:
    if not path.exists():
        raise StoreUnavailableError(f"{path} does not exist: name the folder of a store")
    if not path.is_dir():
        what = "the file of a changelog, which only inspect and dump read" if is_changelog(path) else "a file"
        raise StoreIncompatibleError(f"{path} is {what}: name the folder of a store")
    if is_unfinished(path):
        raise StoreUnavailableError(f"the store in {path} was never complete, or is being removed: there is no data")
    if not is_store(path):
        inner = sorted({file.parent for depth in _DEPTHS for file in path.glob(f"{depth}/{IDENTITY_FILE}")})
        there = f". There are stores below it: {', '.join(map(str, inner[:_STORES_SHOWN]))}" if inner else ""
        raise StoreIncompatibleError(f"{path} is not a store's folder: name the folder of a store{there}")
