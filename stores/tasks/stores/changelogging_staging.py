"""The staging of a typed store in a task: kept pairs go to the store, logged records to its changelog."""

from __future__ import annotations

from stores.records.staging import Staging
from stores.tasks.context import TaskContext
from stores.tasks.stores.changelogging_store import ChangeloggingStore


class ChangeloggingStaging(Staging):
    """A staging over a ``ChangeloggingStore``. Timestamps are those of the record that the task processes."""

    def __init__(self, store: ChangeloggingStore, context: TaskContext) -> None:
        self.store = store
        self._logged = store
        self._context = context

    def put(
        self, key: bytes, kept: bytes | None, log_key: bytes, log_value: bytes | None, timestamp_ms: int | None
    ) -> None:
        self._logged.put_kept(key, kept, log_key, log_value, timestamp_ms)

    def put_unlogged(self, key: bytes, kept: bytes | None) -> None:
        self._logged.put_unlogged(key, kept)

    def delete_range_unlogged(self, start: bytes | None, end: bytes | None) -> None:
        self._logged.delete_range_unlogged(start, end)

    @property
    def may_stage(self) -> bool:
        return self._context.active

    @property
    def timestamp_ms(self) -> int:
        return self._context.record.timestamp_ms
