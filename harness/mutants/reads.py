"""Mutants of what readers see of the open transaction and of a commit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from harness.mutants.mutant import Mutant, Patches, ReaderTrial
from stores.batch.buffer import IndexedBatch, Layer
from stores.interface import IsolationLevel, TopicPartition
from stores.strategies.indexed_batch import IndexedBatchStore
from stores.strategies.native import NativeStore
from stores.strategies.spilling import SpillingStore
from stores.strategies.store import EngineStore
from stores.strategies.undo_log import Undo

_INDEXED_BATCH, _DUAL_STORE, _NATIVE = (
    (ReaderTrial(strategy),) for strategy in ("indexed-batch", "dual-store", "native")
)


def _shared_layer(patches: Patches, subject: str) -> None:
    def freeze(self: IndexedBatch, pins: int = 1) -> tuple[Layer, ...]:
        # A copy with its own order: if a reader and the writer change one order at once, the writer may loop for ever.
        shared = []
        for layer in (*self._frozen, self._active):
            shared.append(Layer(layer.staged.writes))
            shared[-1].ranges.update(layer.ranges)
        return tuple(shared)

    patches.replace(IndexedBatch, "freeze", freeze)
    patches.replace(IndexedBatch, "release", lambda self, layers: None)


def _keys_one_by_one(patches: Patches, subject: str) -> None:
    def get_many(self: IndexedBatchStore, level: IsolationLevel, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._get(level, key) for key in keys]

    patches.replace(IndexedBatchStore, "_get_many", get_many)


def _dirty_read(patches: Patches, subject: str) -> None:
    get = IndexedBatchStore._get

    def dirty(self: IndexedBatchStore, level: IsolationLevel, key: bytes) -> bytes | None:
        return get(self, IsolationLevel.READ_UNCOMMITTED, key)

    patches.replace(IndexedBatchStore, "_get", dirty)


def _position_first(patches: Patches, subject: str) -> None:
    commit = EngineStore.commit

    def hasty(self: EngineStore, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> None:
        self._position = {**self._position, **self._staged_position}
        time.sleep(0)
        commit(self, changelog_offsets)

    patches.replace(EngineStore, "commit", hasty)


def _old_lookups(patches: Patches, subject: str) -> None:
    get = IndexedBatchStore._get

    def cached(self: Any, level: IsolationLevel, key: bytes) -> bytes | None:
        if level is IsolationLevel.READ_UNCOMMITTED:
            return get(self, level, key)
        kept: dict[bytes, bytes | None] = self.__dict__.setdefault("kept", {})
        if len(kept) > 20:
            kept.clear()
        return kept.setdefault(key, get(self, level, key))

    patches.replace(IndexedBatchStore, "_get", cached)


def _parts_in_sight(patches: Patches, subject: str) -> None:
    patches.replace(SpillingStore, "_shown_as_committed", lambda self: nullcontext())


def _open_transaction(patches: Patches, subject: str) -> None:
    get, get_many = NativeStore._get, NativeStore._get_many

    def dirty_get(self: NativeStore, level: IsolationLevel, key: bytes) -> bytes | None:
        return get(self, IsolationLevel.READ_UNCOMMITTED, key)

    def dirty_get_many(self: NativeStore, level: IsolationLevel, keys: Sequence[bytes]) -> list[bytes | None]:
        return get_many(self, IsolationLevel.READ_UNCOMMITTED, keys)

    patches.replace(NativeStore, "_get", dirty_get)
    patches.replace(NativeStore, "_get_many", dirty_get_many)


def _nothing_noted(patches: Patches, subject: str) -> None:
    patches.replace(NativeStore, "_note", lambda self, transaction, key: None)


def _cut_off(patches: Patches, subject: str) -> None:
    def part(self: NativeStore, copied: Layer | None) -> None:
        for scan in self._open_scans():
            scan.rest = iter(())
        self._undo = Undo()

    patches.replace(NativeStore, "_part", part)


MUTANTS = (
    Mutant("shared-layer", "a scan reads the layer that is written to", _shared_layer, _INDEXED_BATCH),
    Mutant("keys-one-by-one", "get_many looks up each key separately", _keys_one_by_one, _INDEXED_BATCH),
    Mutant("dirty-read", "a lookup of committed data shows staged writes", _dirty_read, _INDEXED_BATCH),
    Mutant("position-first", "a commit's position is visible before its data", _position_first, _INDEXED_BATCH),
    Mutant("old-lookups", "a lookup of committed data is answered from a cache", _old_lookups, _INDEXED_BATCH),
    Mutant("parts-in-sight", "a commit is visible while it is copied in parts", _parts_in_sight, _DUAL_STORE),
    Mutant("open-transaction", "a lookup of committed data reads the open transaction", _open_transaction, _NATIVE),
    Mutant("nothing-noted", "a write does not save the old value for an open scan", _nothing_noted, _NATIVE),
    Mutant("scan-cut-off", "an open scan ends with the transaction that it reads", _cut_off, _NATIVE),
)
