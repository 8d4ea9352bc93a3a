"""A task's store whose format is upgraded in place at each opening: a new store is built beside it, and swapped.

The values of a format begin with its number, which the store keeps as a mark. The new store is built from a changelog
that has the old store's records, all of them at the offset of its last commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from harness.experiments.iofaults.subjects.subject import COMMITS, NAME, StoreSubject
from harness.experiments.iofaults.workload import Change, State
from stores.changelog.interface import Record
from stores.changelog.memory import MemoryChangelog
from stores.config import StoreConfig
from stores.errors import OffsetOutOfRangeError, StoreCorruptedError
from stores.files.creation import is_complete
from stores.files.plain_files import translated_system_errors
from stores.interface import TopicPartition
from stores.registry import open_store
from stores.settings.upgrade import Upgrade, UpgradeMode
from stores.tasks.directory.checkpoint_file import CheckpointFile
from stores.tasks.stores.conversion import version_headers
from stores.tasks.stores.swap import complete
from stores.tasks.stores.task_store import TaskStore
from stores.tasks.stores.upgrading import kept_version


class UpgradeSubject(StoreSubject):
    """The store is closed, opened again and upgraded after the fifth commit and every ninth after it."""

    REOPENED_FROM = 5

    _version = 0

    def open(self) -> int | None:
        complete(self.path)
        with translated_system_errors(self.path):
            is_there = is_complete(self.path)
        kept, number, version = self._left() if is_there else ({}, 0, 0)
        self._version = version + 1
        config = StoreConfig(
            self._backend.name,
            self.level,
            options=self._options,
            upgrade=Upgrade(self._version, _restamped),
            upgrade_mode=UpgradeMode.IN_PLACE,
        )
        checkpoint = CheckpointFile(self.path.with_name(".checkpoint"))
        log = _Log(kept, number, version)
        opened = TaskStore(NAME, self.path, config, COMMITS, log, checkpoint, exactly_once=True)
        self._take(opened, None)
        if opened.counters.wipe_total:
            # A task would restore it from a changelog now, but here is none.
            self.close()
            raise StoreCorruptedError(f"the store in {self.path} could not be trusted, and was wiped")
        if number:
            opened.restore({COMMITS: number}, None)
        return opened.offset or 0

    def stage(self, made: Sequence[Change], after: State) -> None:
        self.reopen_where_due()
        stamp = bytes([self._version])
        super().stage(
            [change if change.value is None else change._replace(value=stamp + change.value) for change in made], after
        )

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        state, offset, position = super().read()
        stamp = bytes([self._version])
        return (
            {
                key: value[1:] if value.startswith(stamp) else b"of another format: " + value
                for key, value in state.items()
            },
            offset,
            position,
        )

    def restore(self, state: State, number: int) -> None:
        stamp = bytes([self._version])
        super().restore({key: stamp + value for key, value in state.items()}, number)

    def _left(self) -> tuple[dict[bytes, bytes], int, int]:
        """Return the store's pairs, the number of its last commit, and its format."""
        with (
            open_store(self._backend.name, self.path, durability=self.level, options=self._options) as store,
            store.all() as pairs,
        ):
            return dict(pairs), store.committed_offset(COMMITS) or 0, kept_version(store)


class _Log(MemoryChangelog):
    """A changelog with ``pairs`` of the format ``version``, all at the offset ``number``."""

    def __init__(self, pairs: Mapping[bytes, bytes], number: int, version: int) -> None:
        super().__init__()
        self._pairs, self._number, self._headers = pairs, number, version_headers(version)

    def read(self, partition: TopicPartition, from_offset: int = 0) -> Iterator[Record]:
        if from_offset > self.end_offset(partition):
            raise OffsetOutOfRangeError(f"offset {from_offset} is behind the end of the changelog")
        kept = self._pairs if from_offset <= self._number else {}
        return (Record(self._number, key, value, -1, self._headers) for key, value in kept.items())

    def start_offset(self, partition: TopicPartition) -> int:
        return 0

    def end_offset(self, partition: TopicPartition) -> int:
        return self._number + 1 if self._number else 0


def _restamped(record: Record, version: int) -> Iterable[tuple[bytes, bytes | None]]:
    assert record.key is not None
    assert record.value is not None
    return ((record.key, bytes([version + 1]) + record.value[1:]),)
