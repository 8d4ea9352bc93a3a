"""The interface of a subject of fault injection, and the usual subject: a store of a registered backend.

A subject makes the workload's commits, and can be read back. It is used only in children of the fork server.
``expected`` returns the states that it must show, without any code of the library.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from harness.experiments.iofaults.workload import (
    NUMBER_KEY,
    PASSING_KINDS,
    IoChange,
    State,
    passing_changes,
    passing_place,
    with_passing,
)
from harness.typed_maps import PLAIN, as_map, record_kind, view_as_map
from stores.errors import CommitFailedError, StoreCorruptedError, StoreError
from stores.files.creation import wipe
from stores.files.identity import read_identity
from stores.interface import Durability, IsolationLevel, KeyValueStore, TopicPartition
from stores.records import TypedStore
from stores.registry import backend_named, open_store

_BESIDE = (".new", ".wiped", ".tmp")
"""Endings of names that a library may take for its own."""
_LETTER = b"not the library's"


class Neighbours:
    """Foreign files and folders around ``path``, created by ``place``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._placed: list[Path] = []

    def place(self, *, inside: bool = False) -> None:
        """Create them; with ``inside``, create a file in the folder ``path`` too."""
        folders = [self._path.with_name(f"{self._path.name}{end}") for end in _BESIDE]
        for folder in folders:
            folder.mkdir(exist_ok=True)
        self._placed = [folder / "letter" for folder in folders]
        if inside:
            self._placed.append(self._path / "letter")
        for file in self._placed:
            file.write_bytes(_LETTER)

    def check(self) -> None:
        """Raise AssertionError if a placed file is gone or has changed."""
        for file in self._placed:
            if not file.is_file() or file.read_bytes() != _LETTER:
                raise AssertionError(f"{file} is a foreign file, and was removed")


COMMITS = TopicPartition("commits", 0)
"""The partition whose offset and position are the number of the last commit."""
NAME = "store"


class Subject(ABC):
    """One thing under test, below the folder ``root``. The first opening creates it."""

    def __init__(self, root: Path, level: Durability) -> None:
        self.path = root / NAME
        self.level = level
        self.closing = ExitStack()
        """It closes what an opening has opened, the last first."""

    @abstractmethod
    def open(self) -> int | None:
        """Open or create it. Return the number of its last commit, or None if it cannot report that."""

    @abstractmethod
    def stage(self, made: Sequence[IoChange], after: State) -> None:
        """Begin a commit with the changes ``made``, after which the state is ``after``."""

    @abstractmethod
    def commit(self, number: int) -> None:
        """Commit the staged changes as commit ``number``."""

    def add(self, pairs: State, number: int) -> None:
        """Make commit ``number``, which adds ``pairs`` to the state."""
        self.stage([IoChange(key, value) for key, value in pairs.items()], {**self.read()[0], **pairs})
        self.commit(number)

    @abstractmethod
    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        """Return the committed state, and the commit's number from the offset and from the position."""

    def verify(self) -> None:
        """Check for corruption that reading need not detect."""

    def close(self) -> None:
        """Close it. This may be called more than once, and after an opening that failed."""
        self.closing.close()

    @abstractmethod
    def wipe(self) -> None:
        """Remove it, as an error that reports corruption asks for."""

    def restore(self, state: State, number: int) -> None:
        """Fill the new, open subject with ``state``, as from its changelog: by default in one commit."""
        self.stage([IoChange(key, value) for key, value in state.items()], state)
        self.commit(number)

    def must_reopen(self, error: StoreError) -> bool:
        """Return True if ``error`` of a commit asks to close and open the subject before the next commit."""
        return not isinstance(error, CommitFailedError) or error.reopen

    @staticmethod
    def expected(state: State) -> State:
        """Return the state that ``read`` must show for the workload's ``state``."""
        return state


PRESSURE: Mapping[str, object] = {
    "write_buffer_size_bytes": 64 << 10,
    "level_zero_file_num_compaction_trigger": 2,
    "wal_autocheckpoint_pages": 24,
    "staging_buffer_bytes": 12 << 10,
    "copy_part_bytes": 8 << 10,
    "ingested_file_bytes": 8 << 10,
    "map_size_bytes": 16 << 20,
    "block_cache_size_bytes": 1 << 20,
    "max_file_opening_threads": 1,
    "max_background_jobs": 2,
}
"""Options that make the engines and strategies that have them flush, compact, checkpoint and spill in a few commits."""
_SPILLS = "staging_buffer_bytes"
"""The option that is left out at every second opening, so that the same commits are made without a spill too."""


def _has_identity(path: Path) -> bool:
    """Return True if the folder ``path`` has the identity file of a store."""
    try:
        read_identity(path)
    except (OSError, StoreCorruptedError):
        return False
    return True


def under_pressure(backend: str) -> dict[str, object]:
    """Return the options of ``PRESSURE`` that a backend has."""
    options = backend_named(backend).options
    return {name: value for name, value in PRESSURE.items() if name in options}


class StoreSubject(Subject):
    """The store, with options that put it under pressure. It spills after the first opening, not after the second.

    A typed store, of the kind ``records``, makes the same changes through a map.
    """

    _store: KeyValueStore

    def __init__(self, root: Path, level: Durability, backend: str, records: str = PLAIN) -> None:
        super().__init__(root, level)
        self._records = records
        self._typed: TypedStore | None = None
        self._backend = backend_named(backend)
        self._options = under_pressure(backend)
        self._openings = 0
        self._neighbours = Neighbours(self.path)

    def use(self, store: KeyValueStore) -> None:
        """Work on ``store``, which is open, until it is closed."""
        self._store = store
        self.closing.callback(store.close)

    def open(self) -> int | None:
        self._openings += 1
        options = {name: value for name, value in self._options.items() if name != _SPILLS or self._openings % 2}
        self.use(open_store(self._backend.name, self.path, name=NAME, durability=self.level, options=options))
        kind = record_kind(self._records)
        self._typed = None if kind is None else kind.over(self._store)
        if not self._store.manages_offsets:
            return None
        return self._store.committed_offset(COMMITS) or 0

    def stage(self, made: Sequence[IoChange], after: State) -> None:
        if self._passes and NUMBER_KEY in after:
            made = [*made, *(IoChange(key, value) for key, value in passing_changes(int(after[NUMBER_KEY])).items())]
        store = as_map(self._records, self._typed or self._store, passing_place)
        for change in made:
            if change.end is not None:
                store.delete_range(change.key, change.end)
            elif change.value is None:
                store.delete(change.key)
            else:
                store.put(change.key, change.value)

    def commit(self, number: int) -> None:
        self._store.advance_position(COMMITS, number)
        (self._typed or self._store).commit({COMMITS: number})

    def add(self, pairs: State, number: int) -> None:
        self.stage([IoChange(key, value) for key, value in pairs.items()], pairs)
        self.commit(number)

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        committed = view_as_map(self._records, self._store.read_only(IsolationLevel.READ_COMMITTED), passing_place)
        with committed.all() as pairs:
            state = dict(pairs)
        for key, value in state.items():
            # Scans and lookups read the same pages in different ways. If they differ, make a state that equals no
            # model.
            if committed.get(key) != value:
                state[key] = b"a scan and a lookup differ"
        position = self._store.position(IsolationLevel.READ_COMMITTED).get(COMMITS)
        return state, self._store.committed_offset(COMMITS), position

    def verify(self) -> None:
        self._store.verify()

    def wipe(self) -> None:
        # A folder without an identity, but with foreign files, may not be a store: wiping refuses it.
        self._neighbours.place(inside=_has_identity(self.path))
        wipe(self.path)
        self._neighbours.check()

    def restore(self, state: State, number: int) -> None:
        self._neighbours.check()
        if self._typed is None:
            self._store.restore(list(state.items()), {COMMITS: number})
            return
        whole = with_passing(state) if self._passes else state
        self.stage([IoChange(key, value) for key, value in whole.items()], {})
        self.commit(number)

    @property
    def _passes(self) -> bool:
        return self._records in PASSING_KINDS
