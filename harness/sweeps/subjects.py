"""What is put to the sweeps: every persistent backend, and the library's own files that keep state beside them.

A subject makes the commits of the workload on something of the library and reads it back; it lives in a child of the
nursery only. Which states it must show is told by ``expected``, which no code of the library has a part in.
"""

from __future__ import annotations

import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from zlib import crc32

from harness.sweeps.workload import Change, State
from stores.changelog.interface import Producer
from stores.changelog.sqlite import SqliteChangelog
from stores.directory import wipe
from stores.errors import ChangelogError, CommitFailedError, ConfigError, StoreError
from stores.interface import Durability, IsolationLevel, KeyValueStore, TopicPartition
from stores.registry import backend_named, backends, open_store
from stores.tasks.checkpoint import CheckpointFile

COMMITS = TopicPartition("commits", 0)
"""Its offset is the number of the last commit; so is the position."""
CHECKPOINT, CHANGELOG = "checkpoint-file", "embedded-changelog"
PRESSURE: Mapping[str, object] = {
    "write_buffer_size_bytes": 64 << 10,
    "level_zero_file_num_compaction_trigger": 2,
    "wal_autocheckpoint_pages": 24,
    "staging_buffer_bytes": 12 << 10,
    "copy_part_bytes": 4 << 10,
    "map_size_bytes": 16 << 20,
    "block_cache_size_bytes": 1 << 20,
    "max_file_opening_threads": 1,
}
"""Options that make an engine or strategy which has them flush, compact, checkpoint and spill within a few commits."""
_PART_BYTES = 4 << 10
_NAME = "store"


class Subject(ABC):
    """One thing under test, below the folder ``root``, where it is made when it is first opened."""

    def __init__(self, root: Path, level: Durability) -> None:
        self.path = root / _NAME
        self.level = level

    @abstractmethod
    def open(self) -> int | None:
        """Open it, making it where there is none; the number of the commit it is at, None where it can't tell."""

    @abstractmethod
    def stage(self, made: Sequence[Change], after: State) -> None:
        """Begin a commit whose changes are ``made`` and lead to ``after``."""

    @abstractmethod
    def commit(self, number: int) -> None:
        """Make what is staged commit ``number``."""

    @abstractmethod
    def add(self, pairs: State, number: int) -> None:
        """Make commit ``number``, which adds ``pairs`` to what is there."""

    @abstractmethod
    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        """Everything committed, and the commit's number as its offset and as its position tell it."""

    @abstractmethod
    def close(self) -> None:
        """Close it; may be called more than once, and after it could not be opened."""

    @abstractmethod
    def wipe(self) -> None:
        """Remove it, as an error that called it corrupt asks for."""

    @abstractmethod
    def restore(self, state: State, number: int) -> None:
        """Fill the new, open one with ``state`` from its changelog."""

    def must_reopen(self, error: StoreError) -> bool:
        """Whether ``error`` of a commit asks to close and open again before going on."""
        return not isinstance(error, CommitFailedError) or error.reopen

    @staticmethod
    def expected(state: State) -> State:
        """What ``read`` must show where the workload's model says ``state``."""
        return state


class StoreSubject(Subject):
    """A store of a registered backend."""

    def __init__(self, root: Path, level: Durability, backend: str) -> None:
        super().__init__(root, level)
        self._backend = backend_named(backend)
        self._options = {name: value for name, value in PRESSURE.items() if name in self._backend.options}
        self._store: KeyValueStore | None = None

    @property
    def _open(self) -> KeyValueStore:
        assert self._store is not None
        return self._store

    def open(self) -> int | None:
        _copy_in_small_parts(self._backend.load_strategy().__module__)
        self._store = open_store(
            self._backend.name, self.path, name=_NAME, durability=self.level, options=self._options
        )
        if not self._store.manages_offsets:
            return None
        return self._store.committed_offset(COMMITS) or 0

    def stage(self, made: Sequence[Change], after: State) -> None:
        for change in made:
            if change.end is not None:
                self._open.delete_range(change.key, change.end)
            elif change.value is None:
                self._open.delete(change.key)
            else:
                self._open.put(change.key, change.value)

    def commit(self, number: int) -> None:
        self._open.advance_position(COMMITS, number)
        self._open.commit({COMMITS: number})

    def add(self, pairs: State, number: int) -> None:
        self.stage([Change(key, value) for key, value in pairs.items()], pairs)
        self.commit(number)

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        committed = self._open.read_only(IsolationLevel.READ_COMMITTED)
        with committed.all() as pairs:
            state = dict(pairs)
        for key, value in state.items():
            # Scans and lookups take different ways to the same pages; where they differ, no model is to fit.
            if committed.get(key) != value:
                state[key] = b"a scan and a lookup differ"
        position = self._open.position(IsolationLevel.READ_COMMITTED).get(COMMITS)
        return state, self._open.committed_offset(COMMITS), position

    def close(self) -> None:
        if self._store is not None:
            store, self._store = self._store, None
            store.close()

    def wipe(self) -> None:
        wipe(self.path)

    def restore(self, state: State, number: int) -> None:
        self._open.restore(list(state.items()), {COMMITS: number})


class CheckpointSubject(Subject):
    """A task's checkpoint file: each key is a topic, and the checksum of its value an offset."""

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level)
        self._file = CheckpointFile(self.path)
        self._staged: State = {}

    def open(self) -> int | None:
        return self._file.read().get(COMMITS, 0)

    def stage(self, made: Sequence[Change], after: State) -> None:
        self._staged = after

    def commit(self, number: int) -> None:
        self._file.write({**self._offsets(self._staged), COMMITS: number})

    def add(self, pairs: State, number: int) -> None:
        self._file.write({**self._file.read(), **self._offsets(pairs), COMMITS: number})

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        offsets = self._file.read()
        number = offsets.pop(COMMITS, None)
        return {topic.encode(): b"%d" % offset for (topic, _), offset in offsets.items()}, number, number

    def close(self) -> None:
        """Nothing is kept open."""

    def wipe(self) -> None:
        self.path.unlink(missing_ok=True)

    def restore(self, state: State, number: int) -> None:
        self.stage((), state)
        self.commit(number)

    def _offsets(self, state: State) -> dict[TopicPartition, int]:
        return {TopicPartition(key.decode(), 0): int(value) for key, value in self.expected(state).items()}

    @staticmethod
    def expected(state: State) -> State:
        return {key: b"%d" % crc32(value) for key, value in state.items()}


class ChangelogSubject(Subject):
    """The embedded changelog: each commit is a transaction of the records that lead from one state to the next."""

    _LOG = TopicPartition("log", 0)
    _GROUP = "victim"

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level)
        self._log: SqliteChangelog | None = None
        self._producer: Producer | None = None

    def open(self) -> int | None:
        self._log = SqliteChangelog(self.path, self.level)
        self._log.create_topic(self._LOG.topic)
        self._producer = self._log.producer("victim")
        return self._number()

    def stage(self, made: Sequence[Change], after: State) -> None:
        before = self.read()[0]
        keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        self._send({key: after.get(key) for key in keys})

    def _send(self, records: Mapping[bytes, bytes | None]) -> None:
        assert self._producer is not None
        self._producer.begin()
        for key, value in records.items():
            self._producer.send(self._LOG, key, value)

    def add(self, pairs: State, number: int) -> None:
        self._send(pairs)
        self.commit(number)

    def commit(self, number: int) -> None:
        assert self._producer is not None
        self._producer.send_offsets(self._GROUP, {COMMITS: number})
        self._producer.commit()

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        assert self._log is not None
        state: dict[bytes, bytes] = {}
        for record in self._log.read(self._LOG):
            assert record.key is not None
            if record.value is None:
                state.pop(record.key, None)
            else:
                state[record.key] = record.value
        return state, self._number(), self._number()

    def close(self) -> None:
        if self._log is not None:
            log, self._log = self._log, None
            log.close()

    def wipe(self) -> None:
        for file in self.path.parent.glob(f"{self.path.name}*"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()

    def restore(self, state: State, number: int) -> None:
        self.stage((), state)
        self.commit(number)

    def must_reopen(self, error: StoreError) -> bool:
        # After an error the outcome is read back by opening a new producer.
        return isinstance(error, ChangelogError) or super().must_reopen(error)

    def _number(self) -> int:
        assert self._log is not None
        return self._log.committed_offsets(self._GROUP).get(COMMITS, 0)


def subject(name: str, root: Path, level: str) -> Subject:
    """The subject called ``name``: a backend's name, ``checkpoint-file`` or ``embedded-changelog``."""
    if name == CHECKPOINT:
        return CheckpointSubject(root, Durability(level))
    if name == CHANGELOG:
        return ChangelogSubject(root, Durability(level))
    return StoreSubject(root, Durability(level), name)


def subjects() -> list[tuple[str, str]]:
    """Every subject there is, with each level of durability that it carries, in a fixed order."""
    carried = [
        (name, str(level))
        for name, backend in backends().items()
        if backend.persistent
        for level in Durability
        if level in backend.durabilities
    ]
    # The checkpoint file makes no difference between levels: it vouches for what power loss must not undo.
    return [*carried, (CHECKPOINT, "DISK"), (CHANGELOG, "PROCESS"), (CHANGELOG, "DISK")]


def shown(name: str, state: State) -> State:
    """What the subject called ``name`` must show where the workload's model says ``state``."""
    return CheckpointSubject.expected(state) if name == CHECKPOINT else Subject.expected(state)


def is_transactional(name: str) -> bool:
    """Whether the subject called ``name`` keeps uncommitted writes apart."""
    backend = backends().get(name)
    # The property is a constant of the class; there is no store to ask.
    return backend is None or bool(object.__new__(backend.load_strategy()).transactional)


def check_subject(name: str, level: str) -> None:
    """Raises: ConfigError where there is no such subject, or it does not carry the level."""
    if (name, level) not in subjects():
        if name not in (CHECKPOINT, CHANGELOG):
            backend_named(name)
        raise ConfigError(f"{name} is not swept at {level}; there is: {', '.join(map('@'.join, subjects()))}")


def _copy_in_small_parts(module: str) -> None:
    """Let a strategy that copies in parts make several of what a victim commits, which is little."""
    strategy = sys.modules[module]
    if hasattr(strategy, "_PART_BYTES"):
        setattr(strategy, "_PART_BYTES", _PART_BYTES)  # noqa: B010
