"""Uncommitted writes stay in an indexed batch in memory; a commit is one engine write. Source: KIP-892."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from threading import get_ident
from typing import ClassVar

from stores.buffer import MISSING, IndexedBatch, Layer, Missing, lookup
from stores.directory import StoreDirectory
from stores.engines.engine import Engine, Scan
from stores.failpoints import declare, reach
from stores.interface import IsolationLevel, Position, TopicPartition
from stores.merge import Pair, chunks_of, lay_over
from stores.strategies.iterator import Pin
from stores.strategies.store import RESTORE_AFTER_WRITE, RESTORE_BEFORE_WRITE, EngineStore, Traits

BEFORE_WRITE = declare("indexed_batch.before_write", "the batch is complete, the engine has seen nothing of it")
AFTER_WRITE = declare("indexed_batch.after_write", "the engine has taken the batch, the caller does not know yet")

_RECENT_BYTES_MAX = 16 << 20
"""Writes of a commit up to this size stay readable from memory until the next one: as much as a write buffer."""


class IndexedBatchStore(EngineStore):
    """Everything staged is in memory: a transaction must fit there (KIP-892, "In-memory Transaction Buffers")."""

    strategy: ClassVar[str] = "indexed-batch"
    failpoints: ClassVar[tuple[str, ...]] = (BEFORE_WRITE, AFTER_WRITE, RESTORE_BEFORE_WRITE, RESTORE_AFTER_WRITE)

    def __init__(self, engine: Engine, directory: StoreDirectory | None, traits: Traits) -> None:
        super().__init__(engine, directory, traits)
        self._batch = IndexedBatch()
        self._recent: Mapping[bytes, bytes | None] = {}
        """The writes of the last commit, while nothing newer is in the engine: what was just written is soon read."""

    def put(self, key: bytes, value: bytes | None) -> None:
        # The hot path: a write that is as it should be, and has nothing staged below it, is staged right here.
        if type(key) is bytes and type(value) is bytes and get_ident() == self._writer:
            key_bytes = len(key)
            if 0 < key_bytes <= self._max_key_bytes and (num_bytes := key_bytes + len(value)) <= self._max_value_bytes:
                batch = self._batch
                writes = batch.writes
                # Looked up again where it is assigned to: a reader may have frozen the layer since.
                if key not in writes:
                    if not batch.deep:
                        batch.num_bytes += num_bytes
                        batch.writes[key] = value
                        return
                elif (old := writes[key]) is not None:
                    batch.num_bytes += len(value) - len(old)
                    batch.writes[key] = value
                    return
        self._check_write(key, value)
        self._batch.put(key, value)

    def get(self, key: bytes) -> bytes | None:
        if type(key) is not bytes:
            return super().get(key)
        try:
            return self._batch.writes[key]
        except KeyError:
            value = self._batch.get(key) if self._batch.deep else MISSING
        if value is MISSING:
            value = self._recent.get(key, MISSING)
        return self._engine.get(key) if value is MISSING else value  # type: ignore[return-value]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        keys = list(keys)
        if self._is_clean() and all(type(key) is bytes for key in keys):
            return self._engine.get_many(keys)
        return super().get_many(keys)

    def _stage(self, key: bytes, value: bytes | None) -> None:
        self._batch.put(key, value)

    def _stage_range(self, start: bytes | None, end: bytes | None) -> None:
        self._batch.delete_range(start, end)

    def _commit(self, meta: Mapping[bytes, bytes | None], offsets: Mapping[TopicPartition, int | None]) -> None:
        reach(BEFORE_WRITE)
        # Not for as long as it is written: what is staged hides the same keys whether or not the engine has it already,
        # and only this thread changes a layer.
        with self._batch.lock:
            layers = [layer.as_writes() for layer in self._batch.layers()]
        if layers or meta:
            self._engine.write(layers, meta)
        reach(AFTER_WRITE)
        small = len(layers) == 1 and not layers[0].ranges and self._batch.num_bytes <= _RECENT_BYTES_MAX
        with self._batch.lock:
            self._recent = layers[0].writes if small else {}
            self._batch.clear()

    def restore(
        self,
        pairs: Iterable[tuple[bytes, bytes | None]],
        changelog_offsets: Mapping[TopicPartition, int],
        position: Position | None = None,
    ) -> None:
        self._recent = {}
        super().restore(pairs, changelog_offsets, position)

    def _rollback(self) -> None:
        with self._batch.lock:
            self._batch.clear()

    def _is_clean(self) -> bool:
        return self._batch.is_empty()

    def approximate_num_uncommitted_bytes(self) -> int:
        self._check_open()
        return self._batch.num_bytes

    def _get(self, level: IsolationLevel, key: bytes) -> bytes | None:
        if level is IsolationLevel.READ_UNCOMMITTED:
            value = self._batch.writes.get(key, MISSING)
            if value is MISSING:
                # Not while layers change hands: what is on its way from one to another is in neither.
                with self._batch.lock:
                    value = self._batch.get(key)
            if value is not MISSING:
                return value  # type: ignore[return-value]
        return self._engine.get(key)

    def _get_many(self, level: IsolationLevel, keys: Sequence[bytes]) -> list[bytes | None]:
        if level is IsolationLevel.READ_COMMITTED:
            return self._engine.get_many(keys)
        # As a scan: the writer stages on into a new layer, and no commit comes between.
        with self._batch.lock:
            layers = self._batch.freeze()
            try:
                below = self._get_many_below(layers, keys)
            finally:
                self._batch.release(layers)
        return below

    def _get_many_below(self, layers: tuple[Layer, ...], keys: Sequence[bytes]) -> list[bytes | None]:
        """What frozen layers show, and committed data below them. The caller holds the batch's lock."""
        staged = [lookup(layers, key) for key in keys]
        committed = iter(
            self._engine.get_many([key for key, value in zip(keys, staged, strict=True) if value is MISSING])
        )
        return [next(committed) if isinstance(value, Missing) else value for value in staged]

    def _scan(
        self, level: IsolationLevel, start: bytes | None, end: bytes | None, *, end_open: bool, reverse: bool
    ) -> tuple[Iterator[list[Pair]], Pin]:
        if level is IsolationLevel.READ_COMMITTED:
            scan = self._engine.scan(start, end, end_open=end_open, reverse=reverse)
            return chunks_of(scan), Pin(scan.close)
        lock = self._batch.lock
        # The layers and the snapshot below them are of one moment: no commit comes between.
        with lock:
            scan = self._engine.scan(start, end, end_open=end_open, reverse=reverse)
            layers = self._batch.freeze()
        chunks = self._lay_layers(chunks_of(scan), layers, start, end, end_open=end_open, reverse=reverse)
        return chunks, Pin(partial(self._release, scan, layers))

    def _lay_layers(
        self,
        chunks: Iterator[list[Pair]],
        layers: tuple[Layer, ...],
        start: bytes | None,
        end: bytes | None,
        *,
        end_open: bool,
        reverse: bool,
    ) -> Iterator[list[Pair]]:
        """Frozen layers over chunks from below. Nothing is sorted before the first step."""
        for layer in layers:
            with self._batch.lock:
                staged = layer.scan(start, end, end_open=end_open, reverse=reverse)
            chunks = lay_over(chunks, staged, layer.ranges, reverse=reverse)
        yield from chunks

    def _release(self, scan: Scan, layers: tuple[Layer, ...]) -> None:
        scan.close()
        self._batch.release(layers)

    def _close_staging(self) -> None:
        self._recent = {}
        with self._batch.lock:
            self._batch.clear()
