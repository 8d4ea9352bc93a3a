"""Mutants of what readers see: a trial must detect each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from harness.faults.registry import unknown
from stores.batch.buffer import IndexedBatch, Layer
from stores.engines.engine import Writes
from stores.errors import ConfigError
from stores.interface import IsolationLevel, TopicPartition
from stores.registry import Backend
from stores.strategies.indexed_batch import IndexedBatchStore
from stores.strategies.native import NativeStore
from stores.strategies.spilling import SpillingStore
from stores.strategies.store import EngineStore
from stores.strategies.undo_log import Undo

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect: its description, the strategy that can have it, and the function that builds it in."""

    defect: str
    strategy: str
    build: Callable[[Callable[[type, str, Any], None]], None]


def _half_a_commit(replace: Callable[[type, str, Any], None]) -> None:
    def commit(
        self: IndexedBatchStore, meta: Mapping[bytes, bytes | None], offsets: Mapping[TopicPartition, int | None]
    ) -> None:
        with self._batch.lock:
            layers = [layer.as_writes() for layer in self._batch.layers()]
            for ranges, writes, _ in layers:
                pairs = list(writes.items())
                self._engine.write([Writes(ranges, dict(pairs[: len(pairs) // 2]))], {})
                time.sleep(0)
                self._engine.write([Writes((), dict(pairs[len(pairs) // 2 :]))], {})
            self._engine.write([], meta)
            self._recent = {}
            self._batch.clear()

    replace(IndexedBatchStore, "_commit", commit)


def _shared_layer(replace: Callable[[type, str, Any], None]) -> None:
    def freeze(self: IndexedBatch, pins: int = 1) -> tuple[Layer, ...]:
        # A copy with its own order: if a reader and the writer change one order at once, the writer may loop for ever.
        shared = []
        for layer in (*self._frozen, self._active):
            shared.append(Layer(layer.staged.writes))
            shared[-1].ranges.update(layer.ranges)
        return tuple(shared)

    replace(IndexedBatch, "freeze", freeze)
    replace(IndexedBatch, "release", lambda self, layers: None)


def _keys_one_by_one(replace: Callable[[type, str, Any], None]) -> None:
    def get_many(self: IndexedBatchStore, level: IsolationLevel, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._get(level, key) for key in keys]

    replace(IndexedBatchStore, "_get_many", get_many)


def _dirty_read(replace: Callable[[type, str, Any], None]) -> None:
    get = IndexedBatchStore._get

    def dirty(self: IndexedBatchStore, level: IsolationLevel, key: bytes) -> bytes | None:
        return get(self, IsolationLevel.READ_UNCOMMITTED, key)

    replace(IndexedBatchStore, "_get", dirty)


def _position_first(replace: Callable[[type, str, Any], None]) -> None:
    commit = EngineStore.commit

    def hasty(self: EngineStore, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> None:
        self._position = {**self._position, **self._staged_position}
        time.sleep(0)
        commit(self, changelog_offsets)

    replace(EngineStore, "commit", hasty)


def _old_lookups(replace: Callable[[type, str, Any], None]) -> None:
    get = IndexedBatchStore._get

    def cached(self: Any, level: IsolationLevel, key: bytes) -> bytes | None:
        if level is IsolationLevel.READ_UNCOMMITTED:
            return get(self, level, key)
        kept: dict[bytes, bytes | None] = self.__dict__.setdefault("kept", {})
        if len(kept) > 20:
            kept.clear()
        return kept.setdefault(key, get(self, level, key))

    replace(IndexedBatchStore, "_get", cached)


def _parts_in_sight(replace: Callable[[type, str, Any], None]) -> None:
    replace(SpillingStore, "_shown_as_committed", lambda self: nullcontext())


def _open_transaction(replace: Callable[[type, str, Any], None]) -> None:
    get, get_many = NativeStore._get, NativeStore._get_many

    def dirty_get(self: NativeStore, level: IsolationLevel, key: bytes) -> bytes | None:
        return get(self, IsolationLevel.READ_UNCOMMITTED, key)

    def dirty_get_many(self: NativeStore, level: IsolationLevel, keys: Sequence[bytes]) -> list[bytes | None]:
        return get_many(self, IsolationLevel.READ_UNCOMMITTED, keys)

    replace(NativeStore, "_get", dirty_get)
    replace(NativeStore, "_get_many", dirty_get_many)


def _nothing_noted(replace: Callable[[type, str, Any], None]) -> None:
    replace(NativeStore, "_note", lambda self, transaction, key: None)


def _cut_off(replace: Callable[[type, str, Any], None]) -> None:
    def part(self: NativeStore, copied: Layer | None) -> None:
        for scan in self._open_scans():
            scan.rest = iter(())
        self._undo = Undo()

    replace(NativeStore, "_part", part)


MUTANTS: Mapping[str, Mutant] = {
    "half-a-commit": Mutant("a commit is two writes of the engine", "indexed-batch", _half_a_commit),
    "shared-layer": Mutant("a scan shows the layer that is written to", "indexed-batch", _shared_layer),
    "keys-one-by-one": Mutant("get_many looks each key up by itself", "indexed-batch", _keys_one_by_one),
    "dirty-read": Mutant("a lookup of committed data shows what is staged", "indexed-batch", _dirty_read),
    "position-first": Mutant("a commit's position is told before its data is there", "indexed-batch", _position_first),
    "old-lookups": Mutant("a lookup of committed data is answered from a cache", "indexed-batch", _old_lookups),
    "parts-in-sight": Mutant("a commit is seen while it is copied in parts", "dual-store", _parts_in_sight),
    "open-transaction": Mutant("a lookup of committed data reads the open transaction", "native", _open_transaction),
    "nothing-noted": Mutant("a write does not note what an open scan is still to show", "native", _nothing_noted),
    "scan-cut-off": Mutant("an open scan ends with the transaction that it reads", "native", _cut_off),
}


def fitting(mutant: str, backends: Sequence[Backend]) -> list[Backend]:
    """Return the backends that can have the defect, by the mutant's strategy; all of them for an empty name.

    Raises: ConfigError for an unknown mutant, and for one that fits none of the backends, which would show nothing.
    """
    if not mutant:
        return list(backends)
    if mutant not in MUTANTS:
        raise unknown("mutant", mutant, MUTANTS)
    strategy = MUTANTS[mutant].strategy
    found = [backend for backend in backends if backend.strategy == strategy]
    if not found:
        raise ConfigError(
            f"the mutant {mutant!r} is a defect of the strategy {strategy!r}, which none of these backends has: "
            + ", ".join(backend.name for backend in backends)
        )
    return found


@contextmanager
def sabotaged(mutant: str) -> Iterator[None]:
    """Build a mutant into this process's stores for the block; none for an empty name. Raises: ConfigError."""
    if mutant and mutant not in MUTANTS:
        raise unknown("mutant", mutant, MUTANTS)
    undo: list[tuple[type, str, Any]] = []

    def replace(kind: type, name: str, broken: Any) -> None:
        undo.append((kind, name, kind.__dict__.get(name, _ABSENT)))
        setattr(kind, name, broken)

    try:
        if mutant:
            MUTANTS[mutant].build(replace)
        yield
    finally:
        for kind, name, whole in reversed(undo):
            if whole is _ABSENT:
                delattr(kind, name)
            else:
                setattr(kind, name, whole)
