"""A store as the function of a task sees it: change-logging, typed, and in its present format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stores.changelog.interface import IsExpired
from stores.interface import KeyValueStore
from stores.records.record_kind import TypedStore
from stores.tasks.context import TaskContext
from stores.tasks.directory.task_files import StorePlan
from stores.tasks.stores.changelogging_store import ChangeloggingStaging, ChangeloggingStore
from stores.tasks.stores.store_counters import TaskStoreCounters
from stores.tasks.stores.store_format import StoreFormat
from stores.tasks.stores.store_log import COALESCED_BYTES_MAX, CoalescingLog, StoreLog


class StoreProxy:
    """A proxy that looks up each attribute in the object that ``present`` returns at that time.

    A reference that a function or a reader keeps works before and after the swap.
    """

    def __init__(self, present: Callable[[], Any]) -> None:
        self._present = present

    def __getattr__(self, name: str) -> Any:
        return getattr(self._present(), name)


class ShownStore:
    """The layers between an open store and the function: its changelog records, and its typed store."""

    log: StoreLog
    """The changelog records of the open transaction. It exists once the store is shown."""

    def __init__(self, plan: StorePlan, form: StoreFormat, counters: TaskStoreCounters) -> None:
        self._partition, self._config, self._format, self._counters = plan.partition, plan.config, form, counters
        self.is_expired: IsExpired | None = None
        """The test for an expired changelog record; None if that is unknown, or records never expire."""
        self._context: TaskContext
        self._logged: ChangeloggingStore | None = None
        self._typed: TypedStore | None = None
        self._shown: Any = None
        """The store as the function sees it; ``_shown_at`` is ``format.swaps`` of that time."""
        self._shown_at = 0

    def show(self, store: KeyValueStore, context: TaskContext) -> Any:
        """Return ``store`` as the function of ``context`` sees it."""
        self._context = context
        self._show(store)
        return StoreProxy(lambda: self._shown) if self._format.may_swap else self._shown

    def _show(self, store: KeyValueStore) -> None:
        context, form = self._context, self._format
        if self._config.changelog_coalescing:
            limit = self._config.uncommitted_max_bytes
            held = COALESCED_BYTES_MAX if limit == -1 else min(COALESCED_BYTES_MAX, limit)
            self.log = CoalescingLog(self._partition, context, form.headers, held)
        else:
            self.log = StoreLog(self._partition, context, form.headers)
        self._counters.follow_log(self.log)
        self._logged = ChangeloggingStore(store, self.log, context)
        records, self._typed = form.records, None
        shown: Any = self._logged
        if records is not None:
            shown = self._typed = records.staged(ChangeloggingStaging(self._logged, context))
            if self._config.upgrade is None:
                # With an upgrade the changelog may have records of another format, whose expiry is unknown.
                self.is_expired = records.expired_records(self._logged)
            self._counters.follow_typed(self._typed)
        self._shown, self._shown_at = form.shown(shown), form.swaps

    def follow(self, store: KeyValueStore) -> None:
        """Continue over ``store``, which was opened again, maybe in another format. Do nothing if none is shown yet."""
        if self._logged is None:
            return
        if self._format.swaps == self._shown_at:
            self._logged.follow(store)
        else:
            # The object that was shown before keeps the closed store.
            self._show(store)
            self.log.begin()

    def before_commit(self) -> None:
        """Let a typed store make a bounded step of expiry."""
        if self._typed is not None:
            self._typed.before_commit()
