"""The format of a task's store: its check on opening, and its upgrade to a newer format.

A store of the newer format is built beside the task's store, from the changelog of both. After a kill at any moment the
next opening continues the new store at its committed offset, or starts over if it has none. The task's own store is not
changed before the new one takes its place (``stores.tasks.directory.replacement``).

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
from typing import Any

from stores.changelog.interface import Headers
from stores.config import StoreConfig
from stores.errors import (
    ChangelogError,
    CommitFailedError,
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
from stores.records.record_kind import RecordKind, check_untyped, is_empty, kept_description
from stores.settings import Upgrade, UpgradeMode, UpgradeProgress
from stores.tasks.directory.replacement import remove_unfinished, replace_store
from stores.tasks.directory.store_places import PREPARE_END, beside
from stores.tasks.directory.task_files import StorePlan
from stores.tasks.stores.log_follower import LogFollower, RestoreProgress, restore
from stores.tasks.stores.log_format import Conversion, version_headers
from stores.tasks.stores.store_metrics import TaskStoreCounters

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
    mark = store.mark(VERSION_MARK) if store.keeps_marks else None
    if mark is None:
        return 0
    if not mark.isdigit():
        raise StoreCorruptedError(
            f"store {store.name!r} has the format {mark!r}, which is not a number: wipe the store and restore it from "
            "its changelog"
        )
    return int(mark)


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
    """Return an estimate of what the new store in ``folder``, which replaces that at ``path``, still needs."""
    return ROOM_FACTOR * files_bytes(path) + ROOM_BYTES - files_bytes(folder)


STEP_RECORDS_MIN = 1_000
"""The records that an online upgrade copies after each commit; ``STEP_SHARE`` for each new record if that is more."""
STEP_SHARE = 4

_log = logging.getLogger(__name__)


class StoreBeside(LogFollower):
    """The store of the newer format that is built beside the one of ``plan``. For the task's thread."""

    _wiped_after = (StoreCorruptedError, StoreIncompatibleError)

    def __init__(self, plan: StorePlan, upgrade: Upgrade, records: RecordKind | None, counted: Counted) -> None:
        # The new store has no readers, and all its data is committed in the changelog.
        config = replace(plan.config, records=records, upgrade=None, upgrade_mode=None)
        super().__init__(plan.name, beside(plan.path, PREPARE_END), config, plan.changelog, plan.partition.topic)
        self.offset: int | None = None
        self._place = plan.path
        self._partition, self._changelog = plan.partition, plan.changelog
        self._upgrade, self._counted = upgrade, counted
        self._records = 0
        self._has_room = False

    def open(self) -> None:
        """Continue an earlier process's new store, or create one. Raises: StoreUnavailableError without room for it."""
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
        """Write the next ``max_records`` (None: all) into the new store; return whether it is at the log's end."""
        conversion = Conversion(self.store, self._config.records, self._upgrade)
        step = (self.store, self._changelog, self._partition)
        try:
            result = restore(
                *step,
                self.offset,
                {},
                self._on_restore,
                self.bound,
                conversion,
                self.restore_bytes,
                max_records=max_records,
            )
        except OffsetOutOfRangeError as error:
            # The changelog no longer has the next record, or it is another changelog.
            self.wipe(str(error))
            return False
        self._records += result.records
        if result.last_offset is not None:
            self.offset = result.last_offset
        reach(STEPPED)
        return not result.cut

    def swap(self) -> None:
        """Swap the closed store at ``path`` for the new one, which is at the changelog's end."""
        self.close()
        reach(CAUGHT_UP)
        replace_store(self._place)
        end = self._changelog.end_offset(self._partition)
        self._report_progress(-1 if self.offset is None else self.offset, end, self._records, swapped=True)

    def abandon(self, error: BaseException) -> None:
        """Close the new store after ``error``. A disk error removes it, unless there was no room to continue it."""
        with suppress(StoreError):
            self.close()
        if not self._has_room or not isinstance(error, CommitFailedError | StoreUnavailableError):
            return
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


def history_of(config: StoreConfig) -> int | None:
    """Return the time for which a changelog is to keep records that another one of their key follows; None for none.

    The store may be on the way to another kind, by an online upgrade.
    """
    kinds = (config.records, None if config.upgrade is None else config.upgrade.records)
    return max((kind.log_history_ms for kind in kinds if kind and kind.log_history_ms is not None), default=None)


class StoreFormat:
    """The kind and the format of one store of a task, by its configuration. For the task's thread."""

    def __init__(self, plan: StorePlan, counters: TaskStoreCounters) -> None:
        self._plan = plan
        config = self._config = plan.config
        self.records = config.records
        """The kind of typed store; None for bytes."""
        upgrade = config.upgrade
        self._present = None if upgrade is None else upgrade.present
        self._version = 0 if self._present is None else self._present.to_version
        self._path, self._partition, self._changelog = plan.path, plan.partition, plan.changelog
        self._counters = counters
        self.online = upgrade is not None and upgrade.online
        """True while another store is to be built from the changelog, by an online upgrade."""
        self._proxy = None if upgrade is None else upgrade.proxy
        self.may_swap = upgrade is not None and upgrade.swap_running
        """True where the new store may take the old one's place while the task works."""
        self.swaps = 0
        """The number of swaps that are visible to the function and the readers, 0 or 1. The old store is then gone."""
        self._beside: StoreBeside | None = None
        self._failed = self._caught_up = False
        self._end = 0

    @property
    def headers(self) -> Headers:
        """The headers of the records that the store logs."""
        return version_headers(self._version)

    def conversion(self, store: KeyValueStore) -> Conversion:
        """Return a converter of the changelog's records for one restore of ``store``."""
        return Conversion(store, self.records, self._present)

    def shown(self, store: Any) -> Any:
        """Return the object that the function gets for ``store``, or readers for a view of it."""
        return store if self._proxy is None else self._proxy(store)

    def is_outdated(self, store: KeyValueStore) -> bool:
        """Return whether the opened store is to be upgraded first. Raises: StoreIncompatibleError for another one."""
        version = kept_version(store)
        if self.may_swap and self.online and (version == self._target or self._is_fresh(store)):
            self._switch()
        if version == self._version or self._is_fresh(store):
            return False
        if version < self._version and self._config.upgrade_mode == UpgradeMode.IN_PLACE and not self.online:
            return True
        raise StoreIncompatibleError(
            f"the store {self._path} has format {version}, and its configuration is for format {self._version}: "
            + (
                "use the configuration with the upgrade to that format. Nothing was changed"
                if version > self._version
                else "use upgrade.mode=in_place, or roll over to an empty state directory. Nothing was changed"
            )
        )

    def check(self, store: KeyValueStore) -> None:
        """Check the store's kind; an empty one becomes that kind. Raises: StoreIncompatibleError; nothing changes."""
        if self.may_swap and self.online and self._is_fresh(store):
            # It will be restored from a changelog that may have records of the new format.
            self._switch()
        if kept_version(store) != self._version:
            keep_version(store, self._version)
        if self.records is None:
            check_untyped(store)
        else:
            self.records.prepare(store)
        if not self.online:
            # An unfinished new store, of an upgrade that is no longer configured or of a snapshot.
            remove_unfinished(self._path)

    def upgrade(self, store: KeyValueStore) -> int | None:
        """Build the present store, close ``store``, swap in the new one, return its offset.

        Raises: StoreUnavailableError on a disk error; the old store is then unchanged.
        """
        new = self._new()
        try:
            new.open()
            while not new.step():
                pass
            # Close it while the old store is open: the engine may write buffered data now, and find the disk full.
            new.close()
        except BaseException as error:
            new.abandon(error)
            if not isinstance(error, CommitFailedError | StoreUnavailableError):
                raise
            raise StoreUnavailableError(
                f"the upgrade of {self._path} could not be completed, and the store is as it was: {error}"
            ) from error
        store.close()
        new.swap()
        return new.offset

    @property
    def log_upgrade(self) -> Upgrade | None:
        """The upgrade to the present format, if the changelog is to have records of that format only."""
        upgrade = self._config.upgrade
        return upgrade if upgrade is not None and not self.online and upgrade.rewrite_changelog else None

    def step(self) -> None:
        """Make a bounded step of the online upgrade, if there is one. Called after a commit.

        An error is logged and stops the upgrade until the task is opened again. The task continues. After an error of
        the changelog the next step tries again.
        """
        if not self.online or self._failed:
            return
        try:
            end = self._changelog.end_offset(self._partition)
            if self._beside is None:
                self._beside = self._new()
                self._beside.open()
                self._end = end
            new_records, self._end = end - self._end, end
            if new_records or not self._caught_up:
                self._caught_up = self._beside.step(max(STEP_RECORDS_MIN, STEP_SHARE * new_records))
        except ChangelogError:
            self._caught_up = False
        except Exception as error:
            _log.exception("the upgrade of the store %s was interrupted, and its task continues", self._path)
            self._failed = True
            new, self._beside = self._beside, None
            if new is not None:
                new.abandon(error)

    @property
    def swap_is_due(self) -> bool:
        """True while the new store is at the changelog's end and may take the old one's place."""
        return self.may_swap and self._caught_up and self._beside is not None

    def swap(self, store: KeyValueStore) -> None:
        """Close ``store`` and swap in the new one, unless the new one can't be closed. Called after a commit.

        If ``store`` is closed afterwards, call ``complete``, open the store that counts, and call ``settle``.
        """
        new, self._beside = self._beside, None
        self._failed = True  # unless the new store is found in its place
        assert new is not None
        try:
            # Close it while the old store is open: the engine may write buffered data now, and find the disk full.
            new.close()
        except (CommitFailedError, StoreUnavailableError) as error:
            _log.exception("the upgrade of the store %s was interrupted, and its task continues", self._path)
            new.abandon(error)
            return
        try:
            store.close()
            new.swap()
        except Exception:
            _log.exception(
                "the swap of the store %s was interrupted: the task continues with the valid one", self._path
            )

    def settle(self, store: KeyValueStore) -> None:
        """Continue in the format of ``store``, which was just opened after a ``swap``."""
        if kept_version(store) == self._target:
            self._switch()

    def _switch(self) -> None:
        """Show the new store itself from now on, and log in its format."""
        upgrade = self._config.upgrade
        assert upgrade is not None
        self.records, self._present, self._proxy = upgrade.records, upgrade, None
        self._version, self.online = upgrade.to_version, False
        self._failed = self._caught_up = False
        self.swaps += 1

    @property
    def _target(self) -> int:
        return self._version if self._config.upgrade is None else self._config.upgrade.to_version

    def close(self) -> None:
        """Close the store that is being built; the next opening continues it."""
        new, self._beside = self._beside, None
        self._failed = self._caught_up = False
        if new is not None:
            new.close()

    def _is_fresh(self, store: KeyValueStore) -> bool:
        """Return whether the store was never used."""
        if store.committed_offset(self._partition) is not None:
            return False
        if store.keeps_marks and kept_description(store) is not None:
            return False
        return is_empty(store)

    def _new(self) -> StoreBeside:
        upgrade = self._config.upgrade
        assert upgrade is not None
        records = upgrade.records if upgrade.online else self.records
        return StoreBeside(self._plan, upgrade, records, self._counters.upgraded)
