"""Refusal of all calls to an open store in the child of a fork: the store belongs to the parent."""

from __future__ import annotations

from abc import ABC
from typing import Any

from stores.errors import StoreClosedError
from stores.interface import KeyValueStore
from stores.process.forks import BELONGS_TO_PARENT, never_free
from stores.strategies.store import Store


def disown(store: Store) -> None:
    """Disable ``store``, its staging and its iterators in the child of a fork: every use raises StoreClosedError."""
    staging, batch = store.staging, store.staging.batch
    store._disown()
    if batch is not None:
        # A lookup of timestamped values reads from the batch without a call of the store.
        batch.writes, batch.recent = {}, {}
    # Change the objects themselves: readers and other holders of a reference are disabled with them.
    for part, refusing in ((store, _ForkedStore), (staging, _ForkedStaging)):
        never_free(dict(vars(part)))
        vars(part).clear()
        part.__class__ = refusing  # type: ignore[assignment]


class _ForkedStore(KeyValueStore):
    """A store that is open in the parent. Closing it has no effect."""

    is_open = False

    def close(self) -> None:
        """Do nothing: the store belongs to the parent process."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("close", "is_open") or name.startswith("__"):
            return super().__getattribute__(name)
        raise StoreClosedError(f"this store {BELONGS_TO_PARENT}")


class _ForkedStaging(ABC):  # noqa: B024 - an object can take this class only if it has the base of ``Staging``.
    """The staging of a store that is open in the parent."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return super().__getattribute__(name)
        raise StoreClosedError(f"this store {BELONGS_TO_PARENT}")
