"""Stores that change: some commits are followed by a close, a change and an opening. A fault strikes in any of them.

After the fault the store is the one before the change or the one after it. The changes:

* an offset import: the state is copied into a new folder, where it looks as a store without offsets leaves it when it
  is closed. The new store is opened in place of the old one, and imports its offset from the checkpoint file;
* a lazy upgrade: a plain store is opened as a timestamped store, and each commit upgrades some of its records by
  lookups, beside those that it writes. The store is split into an old and a new part for some openings, and in one
  part again after its last old record has gone;
* an upgrade: a new store of the next format is built beside the old one, and swapped. It is built from a changelog that
  has the old store's records, all of them at the offset of its last commit.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, cast

from harness.experiments.iofaults.subjects.subject import COMMITS, NAME, StoreSubject
from harness.experiments.iofaults.workload import IoChange, State
from stores.changelog.interface import Changelog, Record
from stores.changelog.memory import MemoryChangelog
from stores.config import StoreConfig
from stores.errors import CommitFailedError, OffsetOutOfRangeError, StoreCorruptedError, StoreUnavailableError
from stores.files.creation import is_complete
from stores.files.plain_files import make_folder, sync_folder, translated_system_errors
from stores.interface import Durability, IsolationLevel, TopicPartition
from stores.records import BYTES, TimestampedKeyValue
from stores.records.timestamped import TimestampedKeyValueStore
from stores.registry import Backend, backend_named, backends, open_store
from stores.settings import Upgrade, UpgradeMode
from stores.tasks.directory.entry_files import CheckpointFile, Origin
from stores.tasks.directory.replacement import complete
from stores.tasks.directory.task_files import StorePlan
from stores.tasks.stores.log_format import version_headers
from stores.tasks.stores.store_format import kept_version
from stores.tasks.stores.task_store import TaskStore

IMPORTS: Mapping[str, tuple[str, str]] = {
    "offset-import": ("lmdb-indexed-batch", "lmdb-direct"),
    "offset-import-rocksdb": ("rocksdb-indexed-batch", "rocksdb-direct"),
}
"""By the subject's name: the backend that imports the offset, and the backend that keeps no offsets."""
BACKENDS: Mapping[Durability, str] = {
    Durability.CHANGELOG: "rocksdb-indexed-batch",
    Durability.PROCESS: "sqlite-indexed-batch",
    Durability.DISK: "lmdb-indexed-batch",
}
"""One backend of each engine on disk. DISK, where most trials run, has the fastest."""
_ANY_DIRECT = "rocksdb-direct"
"""The source of the strategy ``direct``, for a backend without offsets on an engine that has none registered."""
_CHANGES_EVERY = 9
_TIMESTAMPED = TimestampedKeyValue(BYTES, BYTES)
_PLAIN_COMMITS = 4
_MOVED_PER_COMMIT = 6


class ChangeSubject(StoreSubject):
    """The store changes after the commit ``FIRST`` and each ninth after it.

    It does so in the next call of ``stage``, so that an error of the change is not taken for an error of the commit.
    """

    FIRST: ClassVar[int] = 5

    def __init__(self, root: Path, level: Durability, backend: str) -> None:
        super().__init__(root, level, backend)
        self._changes_at: int | None = None

    def stage(self, made: Sequence[IoChange], after: State) -> None:
        number, self._changes_at = self._changes_at, None
        if number is not None:
            self.change(number)
        self.put(made, after)

    def put(self, made: Sequence[IoChange], after: State) -> None:
        """Stage the changes ``made`` in the store as it is now."""
        super().stage(made, after)

    def commit(self, number: int) -> None:
        super().commit(number)
        if number % _CHANGES_EVERY == self.FIRST:
            self._changes_at = number

    def change(self, number: int) -> None:
        """Close the store, which is at commit ``number``, and open it again."""
        self.close()
        self.open()

    def open_as_a_task(
        self, path: Path, config: StoreConfig, changelog: Changelog, checkpoint: CheckpointFile, offset: int | None
    ) -> TaskStore:
        """Open the store with its offset in the checkpoint file, as a task does. Close it if that fails."""
        store = TaskStore(StorePlan(NAME, path, config, COMMITS, changelog, checkpoint), exactly_once=True)
        try:
            store.open(offset, Origin.CLEAN)
        except BaseException:
            store.close()
            raise
        self.use(store.store)
        if store.counters.wipe_total:
            # A task would restore it from a changelog now, but here is none.
            self.close()
            raise StoreCorruptedError(f"the store in {path} could not be trusted, and was wiped")
        return store


class OffsetImportSubject(ChangeSubject):
    """The folders are named by the number of the commit that they were made at; the highest number counts."""

    def __init__(self, root: Path, level: Durability, backend: str, left_by: str) -> None:
        super().__init__(root, level, backend)
        self._left_by = left_by
        direct = backend_named(_ANY_DIRECT).load_strategy
        registry = cast(dict[str, Backend], backends())
        registry.setdefault(left_by, Backend(left_by, self._backend.load_engine, direct))
        # Keep only the options that both backends accept.
        self._options = {name: value for name, value in self._options.items() if name in registry[left_by].options}

    def open(self) -> int | None:
        with translated_system_errors(self.path):
            make_folder(self.path)
            folders = [entry for entry in self.path.iterdir() if entry.name.isdecimal()]
            folder = max(folders, default=self.path / "000")
            make_folder(folder)
        checkpoint = CheckpointFile(folder / ".checkpoint")
        config = StoreConfig(self._backend.name, self.level, options=self._options)
        offset = checkpoint.read().get(COMMITS)
        return self.open_as_a_task(folder / NAME, config, _SameLog(), checkpoint, offset).offset or 0

    def change(self, number: int) -> None:
        state = self.read()[0]
        self.close()
        self._leave(state, number)
        self.open()

    def wipe(self) -> None:
        with translated_system_errors(self.path):
            shutil.rmtree(self.path)

    def _leave(self, state: State, number: int) -> None:
        """Create a folder as a store without offsets leaves it, and rename it to its place in one step."""
        folder = self.path / f"{number:03}"
        new = folder.with_suffix(".new")
        try:
            with translated_system_errors(new):
                shutil.rmtree(new, ignore_errors=True)
                make_folder(new)
                with open_store(self._left_by, new / NAME, durability=self.level, options=self._options) as store:
                    store.restore(list(state.items()), {})
                for name in (".checkpoint", f"{NAME}.position"):
                    CheckpointFile(new / name).write({COMMITS: number})
                new.rename(folder)
                sync_folder(self.path)
        except CommitFailedError as error:
            raise StoreUnavailableError(f"{new} could not be made: {error}") from error


class LazyUpgradeSubject(ChangeSubject):
    """The store is plain up to its fourth commit, and timestamped afterwards."""

    FIRST = _PLAIN_COMMITS

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level, BACKENDS[level])
        self._timed: TimestampedKeyValueStore[bytes, bytes] | None = None

    def open(self) -> int | None:
        offset = super().open()
        reached = self._store.committed_offset(COMMITS) or 0
        self._timed = _TIMESTAMPED.over(self._store) if reached >= _PLAIN_COMMITS else None
        return offset

    def put(self, made: Sequence[IoChange], after: State) -> None:
        timed = self._timed
        if timed is None:
            super().put(made, after)
            return
        for change in made:
            if change.end is not None:
                timed.delete_range(change.key, change.end)
            elif change.value is None:
                timed.delete(change.key)
            else:
                timed.put(change.key, change.value, 1)
        with timed.all() as pairs:
            old = [key for key, timestamped in pairs if timestamped.timestamp_ms < 0]
        for key in old[:_MOVED_PER_COMMIT]:
            timed.get(key)

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        if self._timed is None:
            return super().read()
        committed = self._timed.read_only(IsolationLevel.READ_COMMITTED)
        with committed.all() as pairs:
            state = {key: timestamped.value for key, timestamped in pairs}
        for key, value in state.items():
            timestamped = committed.get(key)
            if timestamped is None or timestamped.value != value:
                state[key] = b"a scan and a lookup differ"
        position = self._store.position(IsolationLevel.READ_COMMITTED).get(COMMITS)
        return state, self._store.committed_offset(COMMITS), position

    def close(self) -> None:
        self._timed = None
        super().close()


class UpgradeSubject(ChangeSubject):
    """Each opening upgrades the store to the next format, whose number its values begin with."""

    _version = 0

    def open(self) -> int | None:
        complete(self.path)
        with translated_system_errors(self.path):
            is_there = is_complete(self.path)
        pairs, number, version = self._left() if is_there else ({}, 0, 0)
        self._version = version + 1
        config = StoreConfig(
            self._backend.name,
            self.level,
            options=self._options,
            upgrade=upgrade_to(self._version),
            upgrade_mode=UpgradeMode.IN_PLACE,
        )
        checkpoint = CheckpointFile(self.path.with_name(".checkpoint"))
        store = self.open_as_a_task(self.path, config, _Log(pairs, number, version), checkpoint, None)
        if number:
            store.restore({COMMITS: number}, None)
        return store.offset or 0

    def put(self, made: Sequence[IoChange], after: State) -> None:
        super().put(stamped(made, self._version), after)

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        state, offset, position = super().read()
        return unstamped(state, self._version), offset, position

    def restore(self, state: State, number: int) -> None:
        super().restore({key: bytes([self._version]) + value for key, value in state.items()}, number)

    def _left(self) -> tuple[dict[bytes, bytes], int, int]:
        """Return the store's pairs, the number of its last commit, and its format."""
        with (
            open_store(self._backend.name, self.path, durability=self.level, options=self._options) as store,
            store.all() as pairs,
        ):
            return dict(pairs), store.committed_offset(COMMITS) or 0, kept_version(store)


class _SameLog(MemoryChangelog):
    """A changelog of which each opening makes a new object; for a store it stays the same one."""

    def topic_id(self, topic: str) -> str:
        return "the same"


class _Log(_SameLog):
    """A changelog with ``pairs`` of the format ``version``, all at the offset ``number``."""

    def __init__(self, pairs: Mapping[bytes, bytes], number: int, version: int) -> None:
        super().__init__()
        self._pairs, self._number, self._headers = pairs, number, version_headers(version)

    def read(self, partition: TopicPartition, from_offset: int = 0) -> Iterator[Record]:
        if from_offset > self.end_offset(partition):
            raise OffsetOutOfRangeError(f"offset {from_offset} is behind the end of the changelog")
        pairs = self._pairs if from_offset <= self._number else {}
        return (Record(self._number, key, value, -1, self._headers) for key, value in pairs.items())

    def start_offset(self, partition: TopicPartition) -> int:
        return 0

    def end_offset(self, partition: TopicPartition) -> int:
        return self._number + 1 if self._number else 0

    def written_end(self, partition: TopicPartition) -> int:
        return self.end_offset(partition)

    def await_decided(self, partition: TopicPartition) -> None:
        """Return at once: it has no transactions."""


def stamped(changes: Sequence[IoChange], version: int) -> list[IoChange]:
    """Return the changes with values in the format ``version``: its number comes first."""
    stamp = bytes([version])
    return [each if each.value is None else each._replace(value=stamp + each.value) for each in changes]


def unstamped(state: State, version: int) -> dict[bytes, bytes]:
    """Return the state without the format's number; a value of another format becomes one of no model."""
    stamp = bytes([version])
    return {
        key: value[1:] if value.startswith(stamp) else b"of another format: " + value for key, value in state.items()
    }


def upgrade_to(version: int) -> Upgrade:
    """Return the upgrade from the format before ``version``."""

    def convert(record: Record, _: int) -> Iterable[tuple[bytes, bytes | None]]:
        assert record.key is not None
        return ((record.key, None if record.value is None else bytes([version]) + record.value[1:]),)

    return Upgrade(version, convert)
