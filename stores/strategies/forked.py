"""An open store in the child of a fork: it is the parent's, and says so."""

from __future__ import annotations

from typing import Any

from stores.errors import StoreClosedError
from stores.forks import WHOSE, keep_for_good
from stores.strategies.store import EngineStore


def disown(store: EngineStore) -> None:
    """Turn ``store`` and its iterators into what they are in the child of a fork: every use raises StoreClosedError."""
    keep_for_good(dict(vars(store)))
    for pin in list(store._pins):
        pin.abandon()
    if store._directory is not None:
        # Else the parent's lock would be held for as long as this process lives.
        store._directory.give_up()
    vars(store).clear()
    # The object itself changes, so that readers and whoever else refers to it find it so.
    store.__class__ = _forked(type(store))


def _forked(kind: type[EngineStore]) -> type[EngineStore]:
    class ForkedStore(kind):  # type: ignore[valid-type, misc]
        """A store that is open in the parent. Closing it is nothing."""

        is_open = False

        def close(self) -> None:
            """Nothing here is this process's to close."""

        def __getattribute__(self, name: str) -> Any:
            if name in ("close", "is_open") or name.startswith("__"):
                return super().__getattribute__(name)
            raise StoreClosedError(f"this store {WHOSE}")

    return ForkedStore
