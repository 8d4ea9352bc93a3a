"""The format of a task's store: its check on opening, and its upgrade to a newer format."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import Any

from stores.changelog.interface import Headers
from stores.errors import ChangelogError, CommitFailedError, StoreError, StoreIncompatibleError, StoreUnavailableError
from stores.files.creation import wipe
from stores.files.plain_files import translated_system_errors
from stores.interface import KeyValueStore
from stores.records.record_kind import check_untyped, is_empty, kept_description
from stores.settings import UpgradeMode
from stores.tasks.directory.replacement import complete
from stores.tasks.directory.store_places import PREPARE_END, beside
from stores.tasks.directory.task_files import StorePlan
from stores.tasks.stores.conversion import Conversion, version_headers
from stores.tasks.stores.log_rewriting import rewrite
from stores.tasks.stores.store_counters import TaskStoreCounters
from stores.tasks.stores.upgrading import StoreBeside, keep_version, kept_version

_log = logging.getLogger(__name__)

STEP_RECORDS_MIN = 1_000
"""The records that an online upgrade copies after each commit; ``STEP_SHARE`` for each new record if that is more."""
STEP_SHARE = 4


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
        self._online = upgrade is not None and upgrade.online
        self._proxy = None if upgrade is None else upgrade.proxy
        self.may_swap = upgrade is not None and upgrade.swap_running
        """True where the new store may take the old one's place while the task works."""
        self.swaps = 0
        """The number of swaps that are visible to the function and the readers, 0 or 1. The old store is then gone."""
        self._beside: StoreBeside | None = None
        self._failed = self._caught_up = False
        self._end = 0

    @property
    def builds_beside(self) -> bool:
        """True while another store is to be built from the changelog, by an online upgrade."""
        return self._online

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

    def complete(self) -> None:
        """Complete a replacement that a kill interrupted, before the store is opened. Raises: as ``complete``."""
        complete(self._path)

    def is_outdated(self, store: KeyValueStore) -> bool:
        """Return whether the store, just opened, has an earlier format and must be upgraded before the first record.

        Raises: StoreIncompatibleError if it has another format and the configuration does not upgrade it.
        """
        kept = kept_version(store)
        if self.may_swap and self._online and (kept == self._target or self._is_fresh(store)):
            self._switch()
        if kept == self._version or self._is_fresh(store):
            return False
        if kept < self._version and self._config.upgrade_mode == UpgradeMode.IN_PLACE and not self._online:
            return True
        raise StoreIncompatibleError(
            f"the store {self._path} has format {kept}, and its configuration is for format {self._version}: "
            + (
                "use the configuration with the upgrade to that format. Nothing was changed"
                if kept > self._version
                else "use upgrade.mode=in_place, or roll over to an empty state directory. Nothing was changed"
            )
        )

    def check(self, store: KeyValueStore) -> None:
        """Check that the store, which is not outdated, is of the configured kind. An empty one becomes that kind.

        Raises: StoreIncompatibleError for another kind; the store is then unchanged.
        """
        if self.may_swap and self._online and self._is_fresh(store):
            # It will be restored from a changelog that may have records of the new format.
            self._switch()
        if kept_version(store) != self._version:
            keep_version(store, self._version)
        if self.records is None:
            check_untyped(store)
        else:
            self.records.prepare(store)
        if not self._online:
            # An unfinished new store of an upgrade that is no longer configured.
            with translated_system_errors(self._path):
                left = os.path.lexists(beside(self._path, PREPARE_END))
            if left:
                wipe(beside(self._path, PREPARE_END))

    def upgrade(self, store: KeyValueStore) -> int | None:
        """Build the store of the present format, close ``store``, and swap in the new one.

        Return the changelog offset of the new store. Raises: StoreUnavailableError on a disk error; the old store is
        then unchanged.
        """
        new = self._new()
        try:
            new.open()
            while not new.step():
                pass
            # Close it while the old store is open: the engine may write buffered data now, and find the disk full.
            new.close()
        except (CommitFailedError, StoreUnavailableError) as error:
            new.discard()
            raise StoreUnavailableError(
                f"the upgrade of {self._path} could not be completed, and the store is as it was: {error}"
            ) from error
        except BaseException:
            new.close()
            raise
        store.close()
        new.swap()
        return new.offset

    @property
    def rewrites_log(self) -> bool:
        """True if the changelog is to have records of the present format only."""
        upgrade = self._config.upgrade
        return upgrade is not None and not self._online and upgrade.rewrite_changelog

    def rewrite_log(self, transactional_id: str) -> int | None:
        """Log all records again in the present format if there are older ones; return the last offset, None if not.

        Raises: ChangelogError; the errors of the upgrade's function. Nothing has changed then.
        """
        upgrade = self._config.upgrade
        assert upgrade is not None
        return rewrite(self._changelog, self._partition, upgrade, transactional_id)

    def step(self) -> None:
        """Make a bounded step of the online upgrade, if there is one. Called after a commit.

        An error is logged and stops the upgrade until the task is opened again. The task continues. After an error of
        the changelog the next step tries again.
        """
        if not self._online or self._failed:
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
            if new is not None and isinstance(error, CommitFailedError | StoreUnavailableError):
                new.discard()
            elif new is not None:
                with suppress(StoreError):
                    new.close()

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
        except (CommitFailedError, StoreUnavailableError):
            _log.exception("the upgrade of the store %s was interrupted, and its task continues", self._path)
            new.discard()
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
        self._version, self._online = upgrade.to_version, False
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
