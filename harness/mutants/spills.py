"""Mutants of the commit of a spilled transaction: each does one step too early, or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.mutants.commits import strategy_of
from harness.mutants.mutant import IoFault, Mutant, Patches
from stores.engines.engine import Engine
from stores.interface import Durability
from stores.ordered.ranges import Bounds
from stores.registry import backends
from stores.strategies import spill_store
from stores.strategies.opening import open_engine
from stores.strategies.spilled import Spill
from stores.strategies.spilling import SpillingStore


def _makes_spills(name: str) -> bool:
    """Return True for a backend that makes a staging store for a transaction that exceeds its memory bound."""
    return name in backends() and backends()[name].persistent and hasattr(_module_of(name), "SecondStore")


def _decided_before_record(patches: Patches, subject: str) -> None:
    """Name the staging store in the meta entries before its commit record is written."""
    module, strategy = _module_of(subject), strategy_of(subject)
    commit = strategy._commit_spilled  # type: ignore[attr-defined]

    def mutated(self: Any, spill: Any, meta: Mapping[bytes, bytes | None]) -> None:
        self._engine.write([], {module._COPYING: spill.name})
        commit(self, spill, meta)

    patches.replace(strategy, "_commit_spilled", mutated)


def _offsets_before_copy(patches: Patches, subject: str) -> None:
    """Write the offsets, and that no copy is pending, before the copy."""
    copy = SpillingStore._copy

    def mutated(
        self: SpillingStore, spill: Spill, ranges: Sequence[Bounds], final: Mapping[bytes, bytes | None]
    ) -> None:
        self._engine.write([], final)
        copy(self, spill, ranges, {})

    patches.replace(SpillingStore, "_copy", mutated)


def _unsynced_spill(patches: Patches, subject: str) -> None:
    """Open the staging store without syncs."""

    def mutated(kind: type[Engine], folder: Path, durability: Durability, options: Mapping[str, object]) -> Engine:
        opened = open_engine(kind, folder, Durability.PROCESS, options)
        patches.replace(opened, "persist", lambda: None)
        return opened

    patches.replace(spill_store, "open_engine", mutated)


def _unsynced_spill_folders(patches: Patches, subject: str) -> None:
    """Sync the files of the staging store, but none of the folders that name them."""
    patches.replace(spill_store, "sync_folder", lambda folder: None)


def _module_of(subject: str) -> Any:
    return import_module(strategy_of(subject).__module__)


MUTANTS = (
    Mutant(
        "decided-before-record",
        "the commit of a spilled transaction is decided before the spill is complete",
        _decided_before_record,
        (IoFault("kill", _makes_spills),),
    ),
    Mutant(
        "offsets-before-copy",
        "the commit of a spilled transaction writes its offsets before its data",
        _offsets_before_copy,
        (IoFault("kill", _makes_spills),),
    ),
    Mutant(
        "unsynced-spill",
        "a commit is decided while its spill is not synced",
        _unsynced_spill,
        (IoFault("power", _makes_spills, unseen_by="kill"),),
    ),
    Mutant(
        "unsynced-spill-folders",
        "a commit is decided while the folders of its spill are not synced",
        _unsynced_spill_folders,
        # A journaling file system keeps names in the order of their creation, and the next sync of any file commits
        # them.
        (IoFault("power", _makes_spills, "strict", unseen_by="kill"),),
    ),
)
