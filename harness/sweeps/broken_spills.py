"""Mutants of the commit of a transaction that was spilled: each has one of its steps too early, or not at all.

Each function patches this process, a child of the nursery that asked for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.breaking import replace
from stores.engines.engine import Engine
from stores.interface import Durability
from stores.ranges import Bounds
from stores.registry import backends
from stores.strategies import second_store
from stores.strategies.opening import open_engine
from stores.strategies.spilled import Spill
from stores.strategies.spilling import SpillingStore


def spills_apart(name: str) -> bool:
    """A backend that makes a second store for a transaction which outgrows its memory."""
    return name in backends() and backends()[name].persistent and hasattr(_module_of(name), "SecondStore")


def decided_before_seal(subject: str) -> None:
    """Name the second store in the regular one before it is sealed."""
    module, strategy = _module_of(subject), backends()[subject].load_strategy()
    commit = strategy._commit_spilled  # type: ignore[attr-defined]

    def broken(self: Any, spill: Any, meta: Mapping[bytes, bytes | None]) -> None:
        self._engine.write([], {module._COPYING: spill.name})
        commit(self, spill, meta)

    replace(strategy, "_commit_spilled", broken)


def offsets_before_copy(subject: str) -> None:
    """Write offsets, and that nothing is left to be copied, before the copy."""
    copy = SpillingStore._copy

    def broken(
        self: SpillingStore, spill: Spill, ranges: Sequence[Bounds], final: Mapping[bytes, bytes | None]
    ) -> None:
        self._engine.write([], final)
        copy(self, spill, ranges, {})

    replace(SpillingStore, "_copy", broken)


def unsynced_spill(subject: str) -> None:
    """Open the second store without syncs."""

    def broken(kind: type[Engine], folder: Path, durability: Durability, options: Mapping[str, object]) -> Engine:
        opened = open_engine(kind, folder, Durability.PROCESS, options)
        replace(opened, "persist", lambda: None)
        return opened

    replace(second_store, "open_engine", broken)


def unsynced_spill_folders(subject: str) -> None:
    """Sync the files of the second store, and none of the folders that name them."""
    replace(second_store, "sync_folder", lambda folder: None)


def _module_of(subject: str) -> Any:
    return import_module(backends()[subject].load_strategy().__module__)
