"""The format of a task's store: what it is now, whether it may be opened so, and how it comes to a newer one."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from stores.changelog.interface import Changelog, Headers
from stores.config import StoreConfig
from stores.creation import wipe
from stores.errors import ChangelogError, CommitFailedError, StoreError, StoreIncompatibleError, StoreUnavailableError
from stores.files import system_errors_told
from stores.interface import KeyValueStore, TopicPartition
from stores.records.record_kind import check_untyped, is_empty, kept_description
from stores.tasks.conversion import Conversion, version_headers
from stores.tasks.store_counters import TaskStoreCounters
from stores.tasks.swap import PREPARE_END, beside, complete
from stores.tasks.upgrading import StoreBeside, keep_version, kept_version
from stores.upgrade import UpgradeMode

_log = logging.getLogger(__name__)

STEP_RECORDS_MIN = 1_000
"""An online upgrade goes on by so many records after each commit, or by ``STEP_SHARE`` for each new one if that is
more."""
STEP_SHARE = 4


class StoreFormat:
    """The kind and the format of one store of a task, by its configuration. For the task's thread."""

    def __init__(
        self,
        name: str,
        path: Path,
        config: StoreConfig,
        partition: TopicPartition,
        changelog: Changelog,
        counters: TaskStoreCounters,
    ) -> None:
        self.records = config.records
        """What kind of typed store it is; None for bytes."""
        upgrade = config.upgrade
        self._present = None if upgrade is None else upgrade.present
        self._version = 0 if self._present is None else self._present.to_version
        self._name, self._path, self._config = name, path, config
        self._partition, self._changelog, self._counters = partition, changelog, counters
        self._online = upgrade is not None and upgrade.online
        self._proxy = None if upgrade is None else upgrade.proxy
        self._beside: StoreBeside | None = None
        self._failed = self._caught_up = False
        self._end = 0

    @property
    def headers(self) -> Headers:
        """What the records that the store logs bear."""
        return version_headers(self._version)

    def conversion(self, store: KeyValueStore) -> Conversion:
        """A converter of the changelog's records for one restore of ``store``."""
        return Conversion(store, self.records, self._present)

    def shown(self, store: Any) -> Any:
        """What the function gets for ``store``, and readers for a view of it."""
        return store if self._proxy is None else self._proxy(store)

    def complete(self) -> None:
        """Complete a swap that a killed process has left, before the store is opened. Raises: StoreUnavailableError."""
        complete(self._path)

    def is_outdated(self, store: KeyValueStore) -> bool:
        """Whether the store, just opened, is of an earlier format and is to be upgraded before the first record.

        Raises: StoreIncompatibleError where its format is another one and the configuration does not upgrade it.
        """
        kept = kept_version(store)
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
        """Check that the store, which is not outdated, is of the configured kind; an empty one becomes so.

        Raises: StoreIncompatibleError for another kind: the store is left as it is.
        """
        if kept_version(store) != self._version:
            keep_version(store, self._version)
        if self.records is None:
            check_untyped(store)
        else:
            self.records.prepare(store)
        if not self._online:
            # What an upgrade has left that nobody wants any more.
            with system_errors_told(self._path):
                left = os.path.lexists(beside(self._path, PREPARE_END))
            if left:
                wipe(beside(self._path, PREPARE_END))

    def upgrade(self, store: KeyValueStore) -> int | None:
        """Build the store of the present format, close ``store``, and let the new one take its place.

        Returns the changelog offset of the new store. Raises: StoreUnavailableError where the disk refuses; the old
        store is as it was then.
        """
        new = self._new()
        try:
            new.open()
            while not new.step():
                pass
            # Here, while the old store is open: an engine may write what it still holds, and find the disk full.
            new.close()
        except (CommitFailedError, StoreUnavailableError) as error:
            new.give_up()
            raise StoreUnavailableError(
                f"the upgrade of {self._path} could not be completed, and the store is as it was: {error}"
            ) from error
        except BaseException:
            new.close()
            raise
        store.close()
        new.swap()
        return new.offset

    def step(self) -> None:
        """After a commit: go a bounded step on with an online upgrade, if there is one.

        An error ends the upgrade until the task is opened again, and is logged; the task goes on.
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
            _log.exception("the upgrade of the store %s was interrupted, and its task goes on", self._path)
            self._failed = True
            new, self._beside = self._beside, None
            if new is not None and isinstance(error, CommitFailedError | StoreUnavailableError):
                new.give_up()
            elif new is not None:
                with suppress(StoreError):
                    new.close()

    def close(self) -> None:
        """Close the store that is being built; the next opening continues it."""
        new, self._beside = self._beside, None
        self._failed = self._caught_up = False
        if new is not None:
            new.close()

    def _is_fresh(self, store: KeyValueStore) -> bool:
        """Whether nobody has used the store yet."""
        if store.committed_offset(self._partition) is not None:
            return False
        if store.keeps_marks and kept_description(store) is not None:
            return False
        return is_empty(store)

    def _new(self) -> StoreBeside:
        upgrade = self._config.upgrade
        assert upgrade is not None
        records = upgrade.records if self._online else self.records
        place = (self._name, self._path, self._config, self._partition, self._changelog)
        return StoreBeside(*place, upgrade, records, self._counters.upgraded)
