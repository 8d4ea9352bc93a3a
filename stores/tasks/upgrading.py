"""Building the store of a newer format beside the one of a task, from the changelog that both follow.

After a kill at any moment the next opening continues the new store at the offset that it has, or begins it again where
it has none. The task's own store is not touched before the swap.

Source: KIP-258, first draft, "In-Place Upgrade".
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stores.changelog.interface import Changelog
from stores.config import StoreConfig
from stores.creation import wipe
from stores.errors import (
    OffsetOutOfRangeError,
    StoreCorruptedError,
    StoreError,
    StoreIncompatibleError,
    StoreUnavailableError,
)
from stores.failpoints import declare, reach
from stores.files import system_errors_told
from stores.interface import KeyValueStore, TopicPartition
from stores.records.record_kind import RecordKind
from stores.tasks.conversion import Conversion
from stores.tasks.replay_bound import ReplayBound
from stores.tasks.restore import RestoreProgress, restore
from stores.tasks.swap import PREPARE_END, beside, swap
from stores.upgrade import Upgrade, UpgradeProgress

BEGUN = declare("upgrade.begun", "the new store is there, marked with its format, with nothing in it")
STEPPED = declare("upgrade.stepped", "the new store has come a step further")
CAUGHT_UP = declare("upgrade.caught_up", "the new store is at its changelog's end, and not synced yet")
FAILPOINTS = (BEGUN, STEPPED, CAUGHT_UP)
"""What building the new store reaches, in this order."""

VERSION_MARK = "format"
"""The mark of a store with the number of its format; a store of format 0 has none."""

Counted = Callable[[UpgradeProgress], None]


def kept_version(store: KeyValueStore) -> int:
    """The format of a store. Raises: StoreCorruptedError where its mark is no number."""
    kept = store.mark(VERSION_MARK) if store.keeps_marks else None
    if kept is None:
        return 0
    if not kept.isdigit():
        raise StoreCorruptedError(
            f"store {store.name!r} has the format {kept!r}, which is no number: wipe it and restore it"
        )
    return int(kept)


def keep_version(store: KeyValueStore, version: int) -> None:
    """Mark an empty store with its format. Raises: StoreIncompatibleError where it keeps no marks; as ``restore``."""
    if not store.keeps_marks:
        raise StoreIncompatibleError(
            f"store {store.name!r} ({store.backend}) can't be upgraded: its backend keeps no marks. Choose another one"
        )
    store.restore([], {}, None, {VERSION_MARK: b"%d" % version})


def files_bytes(path: Path) -> int:
    """What the files of the folder ``path`` take together; 0 where there is none. Raises: OSError."""
    sizes = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                sizes += Path(folder, name).lstat().st_size
    return sizes


class StoreBeside:
    """The store of the newer format that is built beside the one at ``path``. For the task's thread."""

    def __init__(
        self,
        name: str,
        path: Path,
        config: StoreConfig,
        partition: TopicPartition,
        changelog: Changelog,
        upgrade: Upgrade,
        records: RecordKind | None,
        counted: Counted,
    ) -> None:
        self.offset: int | None = None
        self._name, self._path = name, path
        self._folder = beside(path, PREPARE_END)
        # It is of no interest to readers, and what is committed to it is the changelog's already.
        self._config = replace(config, records=records, upgrade=None, upgrade_mode=None)
        self._partition, self._changelog = partition, changelog
        self._upgrade, self._counted = upgrade, counted
        self._bound = ReplayBound(config.restore_max_bytes)
        self._records = 0
        self._store: KeyValueStore | None = None

    def open(self) -> None:
        """Continue what an earlier process has built, or begin.

        Raises: StoreUnavailableError, before anything is written, where the disk has no room for a second store.
        """
        self._check_space()
        try:
            store = self._opened()
            resumable = store.manages_offsets and kept_version(store) == self._upgrade.to_version
            self.offset = store.committed_offset(self._partition) if resumable else None
            if self.offset is None:
                self._begin()
        except (StoreCorruptedError, StoreIncompatibleError):
            self._begin()

    def step(self, max_records: int | None = None) -> bool:
        """Write the next ``max_records`` of the changelog into the new store, None for all; return whether it is at the
        changelog's end.

        Raises: CommitFailedError, StoreUnavailableError; what the upgrade's functions raise.
        """
        store = self._store
        assert store is not None
        conversion = Conversion(store, self._config.records, self._upgrade)
        step = (store, self._changelog, self._partition)
        try:
            done = restore(*step, self.offset, {}, self._on_restore, self._bound, conversion, max_records=max_records)
        except OffsetOutOfRangeError:
            # What it lacks is not in the changelog any more, or the changelog is another one.
            self._begin()
            return False
        self._records += done.records
        if done.last_offset is not None:
            self.offset = done.last_offset
        reach(STEPPED)
        return max_records is None or done.records < max_records

    def swap(self) -> None:
        """Let the new store, which is at the changelog's end, take the place of the closed one at ``path``."""
        self.close()
        reach(CAUGHT_UP)
        swap(self._path)
        end = self._changelog.end_offset(self._partition)
        self._tell(-1 if self.offset is None else self.offset, end, self._records, swapped=True)

    def close(self) -> None:
        """Close the new store; what it has stays for the next opening."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def give_up(self) -> None:
        """Close the new store and remove it, as far as its disk lets it."""
        with suppress(StoreError):
            self.close()
        with suppress(StoreError):
            wipe(self._folder)

    def _opened(self) -> KeyValueStore:
        self._store = self._config.open(self._folder, name=self._name)
        self._bound.follow(self._store.persistence)
        if self._config.records is not None:
            self._config.records.prepare(self._store)
        return self._store

    def _begin(self) -> None:
        self.close()
        wipe(self._folder)
        self.offset = None
        keep_version(self._opened(), self._upgrade.to_version)
        reach(BEGUN)

    def _check_space(self) -> None:
        with system_errors_told(self._path):
            needed = files_bytes(self._path) - files_bytes(self._folder)
            free = shutil.disk_usage(self._path.parent).free
        if free < needed:
            raise StoreUnavailableError(
                f"the upgrade of {self._path} needs about {needed:,} bytes beside it, and its disk has {free:,} free: "
                "make room and open the task again. Nothing was changed"
            )

    def _on_restore(self, progress: RestoreProgress) -> None:
        self._tell(progress.offset, progress.to_offset, self._records + progress.records)

    def _tell(self, offset: int, to_offset: int, records: int, *, swapped: bool = False) -> None:
        progress = UpgradeProgress(self._name, self._upgrade.to_version, offset, to_offset, records, swapped)
        self._counted(progress)
        if self._upgrade.on_upgrade is not None:
            self._upgrade.on_upgrade(progress)
