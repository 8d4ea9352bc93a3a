"""Mutants of the commit of a spilled transaction: each does one step too early, or not at all.

Each function patches the process that it runs in, a child of the fork server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.mutants.patch import replace
from stores.engines.engine import Engine
from stores.interface import Durability
from stores.ordered.ranges import Bounds
from stores.registry import backends
from stores.strategies import spill_store as second_store
from stores.strategies.opening import open_engine
from stores.strategies.spilled import Spill
from stores.strategies.spilling import SpillingStore


def spills_apart(name: str) -> bool:
    """Return True for a backend that makes a staging store for a transaction that exceeds its memory bound."""
    return name in backends() and backends()[name].persistent and hasattr(_module_of(name), "SecondStore")


def decided_before_seal(subject: str) -> None:
    """Name the staging store in the meta entries before its commit record is written."""
    module, strategy = _module_of(subject), backends()[subject].load_strategy()
    commit = strategy._commit_spilled  # type: ignore[attr-defined]

    def broken(self: Any, spill: Any, meta: Mapping[bytes, bytes | None]) -> None:
        self._engine.write([], {module._COPYING: spill.name})
        commit(self, spill, meta)

    replace(strategy, "_commit_spilled", broken)


def offsets_before_copy(subject: str) -> None:
    """Write the offsets, and that no copy is pending, before the copy."""
    copy = SpillingStore._copy

    def broken(
        self: SpillingStore, spill: Spill, ranges: Sequence[Bounds], final: Mapping[bytes, bytes | None]
    ) -> None:
        self._engine.write([], final)
        copy(self, spill, ranges, {})

    replace(SpillingStore, "_copy", broken)


def unsynced_spill(subject: str) -> None:
    """Open the staging store without syncs."""

    def broken(kind: type[Engine], folder: Path, durability: Durability, options: Mapping[str, object]) -> Engine:
        opened = open_engine(kind, folder, Durability.PROCESS, options)
        replace(opened, "persist", lambda: None)
        return opened

    replace(second_store, "open_engine", broken)


def unsynced_spill_folders(subject: str) -> None:
    """Sync the files of the staging store, but none of the folders that name them."""
    replace(second_store, "sync_folder", lambda folder: None)


def _module_of(subject: str) -> Any:
    return import_module(backends()[subject].load_strategy().__module__)
