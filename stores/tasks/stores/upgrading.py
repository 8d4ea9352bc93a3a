"""Building a store of a newer format beside the task's store, from the changelog of both.

After a kill at any moment the next opening continues the new store at its committed offset, or starts over if it has
none. The task's own store is not changed before the swap.

Source: KIP-258, first draft, "In-Place Upgrade".
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stores.errors import (
    OffsetOutOfRangeError,
    StoreCorruptedError,
    StoreError,
    StoreIncompatibleError,
    StoreUnavailableError,
)
from stores.failpoints import Part, declare, reach
from stores.files.creation import wipe
from stores.files.plain_files import translated_system_errors
from stores.interface import KeyValueStore
from stores.records.record_kind import RecordKind
from stores.settings import Upgrade, UpgradeProgress
from stores.tasks.directory.replacement import replace_store
from stores.tasks.directory.store_places import PREPARE_END, beside
from stores.tasks.directory.task_files import StorePlan
from stores.tasks.stores.conversion import Conversion
from stores.tasks.stores.log_follower import LogFollower, RestoreProgress, restore

BEGUN = declare("upgrade.begun", "the new store is there, marked with its format, with nothing in it", part=Part.CHANGE)
STEPPED = declare("upgrade.stepped", "the new store has come a step further", part=Part.CHANGE)
CAUGHT_UP = declare(
    "upgrade.caught_up", "the new store is at its changelog's end, and not synced yet", part=Part.CHANGE
)
FAILPOINTS = (BEGUN, STEPPED, CAUGHT_UP)
"""The failpoints of building the new store, in this order."""

VERSION_MARK = "format"
"""The mark of a store with the number of its format; a store of format 0 has none."""

Counted = Callable[[UpgradeProgress], None]


def kept_version(store: KeyValueStore) -> int:
    """Return the format of a store. Raises: StoreCorruptedError if its mark is no number."""
    kept = store.mark(VERSION_MARK) if store.keeps_marks else None
    if kept is None:
        return 0
    if not kept.isdigit():
        raise StoreCorruptedError(
            f"store {store.name!r} has the format {kept!r}, which is not a number: wipe the store and restore it from "
            "its changelog"
        )
    return int(kept)


def keep_version(store: KeyValueStore, version: int) -> None:
    """Mark an empty store with its format. Raises: StoreIncompatibleError if it keeps no marks; as ``restore``."""
    if not store.keeps_marks:
        raise StoreIncompatibleError(
            f"store {store.name!r} ({store.backend}) can't be upgraded: its backend keeps no marks. Choose another one"
        )
    store.restore([], {}, None, {VERSION_MARK: b"%d" % version})


def files_bytes(path: Path) -> int:
    """Return the size of all files below the folder ``path``; 0 if it does not exist. Raises: OSError."""
    sizes = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                sizes += Path(folder, name).lstat().st_size
    return sizes


ROOM_FACTOR, ROOM_BYTES = 2, 8 << 20
"""While it is built, a store takes up to twice the room of a complete one, and the WAL of one piece in addition.
Measured: docs/upgrades.md."""


def room_needed_bytes(path: Path, folder: Path) -> int:
    """Return an estimate of the bytes that the new store in ``folder`` still needs; it replaces the one at ``path``.

    Raises: OSError.
    """
    return ROOM_FACTOR * files_bytes(path) + ROOM_BYTES - files_bytes(folder)


class StoreBeside(LogFollower):
    """The store of the newer format that is built beside the one of ``plan``. For the task's thread."""

    _wiped_after = (StoreCorruptedError, StoreIncompatibleError)

    def __init__(self, plan: StorePlan, upgrade: Upgrade, records: RecordKind | None, counted: Counted) -> None:
        # The new store has no readers, and all its data is committed in the changelog.
        config = replace(plan.config, records=records, upgrade=None, upgrade_mode=None)
        super().__init__(plan.name, beside(plan.path, PREPARE_END), config)
        self.offset: int | None = None
        self._place = plan.path
        self._partition, self._changelog = plan.partition, plan.changelog
        self._upgrade, self._counted = upgrade, counted
        self._records = 0
        self._has_room = False

    def open(self) -> None:
        """Continue the new store of an earlier process, or create one.

        Raises: StoreUnavailableError, before anything is written, if the disk has no room for another store.
        """
        self._check_space()
        self._has_room = True
        self.open_or_wipe()

    def _misfit(self) -> str | None:
        resumable = self.store.manages_offsets and kept_version(self.store) == self._upgrade.to_version
        self.offset = self.store.committed_offset(self._partition) if resumable else None
        return "it has no offset of this upgrade" if self.offset is None else None

    def wipe(self, reason: str, level: int = logging.DEBUG) -> None:
        """Start over with an empty store of the new format: nothing that counts is lost."""
        super().wipe(reason, logging.DEBUG)
        self.offset = None
        keep_version(self.store, self._upgrade.to_version)
        reach(BEGUN)

    def step(self, max_records: int | None = None) -> bool:
        """Write the next ``max_records`` of the changelog (None: all) into the new store.

        Return whether it is at the changelog's end. Raises: CommitFailedError, StoreUnavailableError; the errors of the
        upgrade's functions.
        """
        conversion = Conversion(self.store, self._config.records, self._upgrade)
        step = (self.store, self._changelog, self._partition)
        try:
            done = restore(*step, self.offset, {}, self._on_restore, self.bound, conversion, max_records=max_records)
        except OffsetOutOfRangeError as error:
            # The changelog no longer has the next record, or it is another changelog.
            self.wipe(str(error))
            return False
        self._records += done.records
        if done.last_offset is not None:
            self.offset = done.last_offset
        reach(STEPPED)
        return not done.cut

    def swap(self) -> None:
        """Swap the closed store at ``path`` for the new one, which is at the changelog's end."""
        self.close()
        reach(CAUGHT_UP)
        replace_store(self._place)
        end = self._changelog.end_offset(self._partition)
        self._report_progress(-1 if self.offset is None else self.offset, end, self._records, swapped=True)

    def discard(self) -> None:
        """Close and remove the new store, as far as the disk allows it.

        If there was no room to continue the new store of an earlier process, that store stays.
        """
        if not self._has_room:
            return
        with suppress(StoreError):
            self.close()
        with suppress(StoreError):
            wipe(self.path)

    def _check_space(self) -> None:
        with translated_system_errors(self._place):
            needed = room_needed_bytes(self._place, self.path)
            free = shutil.disk_usage(self._place.parent).free
        if free < needed:
            raise StoreUnavailableError(
                f"the upgrade of {self._place} needs about {needed:,} bytes beside it, and its disk has {free:,} free: "
                "make room and open the task again. Nothing was changed"
            )

    def _on_restore(self, progress: RestoreProgress) -> None:
        self._report_progress(progress.offset, progress.to_offset, self._records + progress.records)

    def _report_progress(self, offset: int, to_offset: int, records: int, *, swapped: bool = False) -> None:
        progress = UpgradeProgress(self.name, self._upgrade.to_version, offset, to_offset, records, swapped)
        self._counted(progress)
        if self._upgrade.on_upgrade is not None:
            self._upgrade.on_upgrade(progress)
