"""Refusal of all calls to an open store in the child of a fork: the store belongs to the parent."""

from __future__ import annotations

from typing import Any

from stores.errors import StoreClosedError
from stores.process.forks import WHOSE, keep_for_good
from stores.strategies.store import EngineStore


def disown(store: EngineStore) -> None:
    """Disable ``store`` and its iterators in the child of a fork: every use raises StoreClosedError."""
    keep_for_good(dict(vars(store)))
    for pin in list(store._pins):
        pin.abandon()
    if store._directory is not None:
        # Otherwise this process would hold the parent's lock for as long as it lives.
        store._directory.release()
    vars(store).clear()
    # Change the object itself: readers and other holders of a reference are disabled with it.
    store.__class__ = _forked(type(store))


def _forked(kind: type[EngineStore]) -> type[EngineStore]:
    class ForkedStore(kind):  # type: ignore[valid-type, misc]
        """A store that is open in the parent. Closing it has no effect."""

        is_open = False

        def close(self) -> None:
            """Do nothing: the store belongs to the parent process."""

        def __getattribute__(self, name: str) -> Any:
            if name in ("close", "is_open") or name.startswith("__"):
                return super().__getattribute__(name)
            raise StoreClosedError(f"this store {WHOSE}")

    return ForkedStore
