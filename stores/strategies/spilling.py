"""Staged writes in an indexed batch in memory; beyond a size limit they are spilled to disk.

This is the common part of the indexed-batch and dual-store strategies: staging, spilling, and reads that merge three
levels: memory over the spill over committed data. Each strategy has its own commit protocol.

A spilled commit is copied in parts. Readers never see an incomplete copy and do not wait for it: from the commit point
on, they are shown the spilled writes merged over committed data, which hides the parts that are already copied. Readers
do not wait for the disk while a spill is written, either.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import get_ident
from typing import Any, ClassVar

from stores.batch.buffer import MISSING, PAIR_MEMORY_BYTES, RANGE_MEMORY_BYTES, IndexedBatch, Layer, Missing, lookup
from stores.batch.merge import Pair, chunks_of
from stores.engines.engine import Engine, Writes
from stores.errors import CommitFailedError, StoreUnavailableError
from stores.failpoints import reach
from stores.files.store_directory import StoreDirectory
from stores.interface import HoldsStored, IsolationLevel, Position, TopicPartition
from stores.ordered.ranges import Bounds, ScanRange
from stores.strategies.iterator import Pin
from stores.strategies.seqlock import Seqlock
from stores.strategies.snapshot import HeldState, hold
from stores.strategies.spilled import Spill
from stores.strategies.store import EngineStore, Traits, while_open


class SpillingStore(EngineStore):
    """A store over an engine, with an indexed batch of up to ``buffer_bytes`` in memory.

    A commit copies spilled writes in parts of about ``part_bytes``.
    """

    mid_copy: ClassVar[str]
    """The failpoint between two parts of a copy."""

    def __init__(
        self, engine: Engine, directory: StoreDirectory | None, traits: Traits, buffer_bytes: int, part_bytes: int
    ) -> None:
        super().__init__(engine, directory, traits)
        # The room is never larger than the largest value, so that one comparison checks both limits.
        self._batch = IndexedBatch(min(buffer_bytes, self._max_value_bytes))
        self._part_bytes = part_bytes
        self._spill: Spill | None = None
        """The spilled writes of the open transaction."""
        self._decided = False
        """True if the spill is or may be committed but is not copied completely.

        After a failed copy only opening the store again clears it.
        """
        self._copying = Seqlock(self._batch.lock)
        """A commit that is copied in parts is one change. During it the engine holds a mix of two states."""
        self._recent: Mapping[bytes, bytes | None] = {}
        """The writes of the last commit, while the engine has nothing newer: recent writes are often read soon."""

    @abstractmethod
    def _begin_spill(self) -> Spill:
        """Return an empty spill for the open transaction. Raises: CommitFailedError."""

    # Staging

    def put(self, key: bytes, value: bytes | None) -> None:
        # The hot path: a valid write of a key with nothing staged in older layers is staged here, without calls.
        if type(key) is bytes and type(value) is bytes and get_ident() == self._writer:
            batch = self._batch
            key_bytes = len(key)
            if 0 < key_bytes <= self._max_key_bytes and (num_bytes := key_bytes + len(value)) <= batch.room_bytes:
                writes = batch.writes
                # ``batch.writes`` is read again for the assignment: a reader may have frozen the layer since.
                if key not in writes:
                    if not batch.deep:
                        batch.room_bytes -= num_bytes
                        batch.writes[key] = value
                        return
                elif (old := writes[key]) is not None:
                    if (grown := len(value) - len(old)) > 0:
                        batch.room_bytes -= grown
                    elif grown:
                        batch.granted_bytes += grown
                    batch.writes[key] = value
                    return
        self._check_write(key, value)
        self._stage_checked(key, value)

    def put_timestamped(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        # The same as ``put``, without the cost of a call.
        if type(key) is bytes and type(value) is bytes and type(timestamp_ms) is int and not timestamp_ms >> 62:
            key_bytes = len(key)
            batch = self._batch
            if 0 < key_bytes <= self._max_key_bytes and get_ident() == self._writer:
                num_bytes = key_bytes + len(value) + 8
                if num_bytes <= batch.room_bytes and key not in batch.writes and not batch.deep:
                    batch.room_bytes -= num_bytes
                    # Big-endian; faster than a ``Struct``.
                    batch.writes[key] = timestamp_ms.to_bytes(8) + value
                    return
            self.put(key, timestamp_ms.to_bytes(8) + value)
            return
        super().put_timestamped(key, value, timestamp_ms)

    def _stage(self, key: bytes, value: bytes | None) -> None:
        batch = self._batch
        self._make_room(len(key) + len(value or b""))
        batch.put(key, value)
        self._spill_what_is_too_large()

    def _stage_all(self, writes: dict[bytes, bytes | None]) -> None:
        num_bytes = sum([len(key) + len(value or b"") for key, value in writes.items()])
        batch = self._batch
        if num_bytes > batch.room_bytes and not batch.make_room(num_bytes, PAIR_MEMORY_BYTES * len(writes)):
            # Even if nothing is staged: if a list too large for memory can't be spilled, it is refused here.
            self._spill_staged()
            batch.make_room(num_bytes, PAIR_MEMORY_BYTES * len(writes))
        batch.put_all(writes)
        self._spill_what_is_too_large()

    def _stage_range(self, start: bytes | None, end: bytes | None) -> None:
        self._make_room(len(start or b"") + len(end or b""), RANGE_MEMORY_BYTES)
        self._batch.delete_range(start, end)

    def _make_room(self, num_bytes: int, entry_bytes: int = PAIR_MEMORY_BYTES) -> None:
        """Spill the staged writes if ``num_bytes`` more, and ``entry_bytes`` for the entry, do not fit beside them.

        This happens before the new write is staged: if the disk refuses, only the new write fails.
        """
        batch = self._batch
        if num_bytes > batch.room_bytes and not batch.make_room(num_bytes, entry_bytes) and not batch.is_empty():
            self._spill_staged()
            batch.make_room(num_bytes, entry_bytes)

    def _spill_what_is_too_large(self) -> None:
        """Spill a write that alone is larger than the batch. If that fails, the next write reports the reason."""
        if self._batch.room_bytes < 0:
            with suppress(CommitFailedError):
                self._spill_staged()

    @while_open
    def _spill_staged(self) -> None:
        """Move the staged writes from memory to the spill. Raises: CommitFailedError."""
        if self._decided:
            # A new write in this spill would become part of the interrupted commit, which opening completes.
            raise CommitFailedError(
                f"the last commit of store {self._name!r} was cut short. Close the store, open it again and go on from "
                "its committed offset",
                reopen=True,
            )
        spill = self._spill or self._begin_spill()
        with self._batch.lock:
            self._spill = spill
            layers = self._batch.layers()
        # Without the lock: readers are shown the layers, which hide the same keys at every step of the write.
        spill.add(layers)
        with self._batch.lock:
            spill.hide(layers)
            self._batch.drain(spill)

    def approximate_num_uncommitted_bytes(self) -> int:
        self._check_open()
        return self._batch.num_bytes

    def uncommitted_memory_bytes(self) -> int:
        self._check_open()
        return self._batch.memory_bytes()

    def _is_clean(self) -> bool:
        return self._batch.is_empty() and self._spill is None

    # Copying

    @contextmanager
    def _shown_as_committed(self) -> Iterator[None]:
        """Show the result of the commit to all readers during the copy, and also afterwards if the copy fails."""
        self._decided = True
        with self._copying.change():
            yield
        self._decided = False

    def _shows_staged(self) -> bool:
        return bool(self._copying.count & 1)

    def _copy(self, spill: Spill, ranges: Sequence[Bounds], final: Mapping[bytes, bytes | None]) -> None:
        """Copy the spilled writes into the engine, the meta entries with the last part. It may be repeated.

        The copy is then persisted, so that all of it survives a killed process. Without that, the first parts may be in
        the engine's files while the last is in its memory only.
        """
        part: dict[bytes, bytes | None] = {}
        num_bytes = 0
        for key, value in spill.writes():
            part[key] = value
            num_bytes += len(key) + len(value or b"")
            if num_bytes >= self._part_bytes:
                self._engine.write([Writes(ranges, part)], {}, durable=False)
                reach(self.mid_copy)
                ranges, part, num_bytes = (), {}, 0
        self._engine.write([Writes(ranges, part)], final)
        self._engine.persist()

    def restore(
        self,
        pairs: Iterable[tuple[bytes, bytes | None]],
        changelog_offsets: Mapping[TopicPartition, int],
        position: Position | None = None,
        marks: Mapping[str, bytes | None] | None = None,
    ) -> None:
        self._recent = {}
        super().restore(pairs, changelog_offsets, position, marks)

    def split(self, marks: Mapping[str, bytes | None]) -> None:
        # From now on keys begin with the byte of their family. Those of the last commit do not.
        self._recent = {}
        super().split(marks)

    # Reading

    def get(self, key: bytes) -> bytes | None:
        if type(key) is not bytes:
            return super().get(key)
        batch = self._batch
        writes = batch.writes
        # Catching a KeyError would cost ten times as much for a missing key.
        if key in writes:
            return writes[key]
        try:
            value = self._get_staged(key) if batch.deep else MISSING
            if value is MISSING:
                value = self._recent.get(key, MISSING)
            return self._engine.get(key) if value is MISSING else value  # type: ignore[return-value]
        except StoreUnavailableError:
            # Another thread may have closed the store meanwhile.
            self._check_open()
            raise

    def timestamped_lookup(
        self, form: type[HoldsStored], otherwise: Callable[[bytes], HoldsStored | None]
    ) -> Callable[[bytes], HoldsStored | None]:
        batch = self._batch
        missing: Any = MISSING

        def lookup(key: bytes) -> HoldsStored | None:
            # The same as ``get``, without the cost of a call.
            if type(key) is not bytes:
                return otherwise(key)
            writes = batch.writes
            value: Any
            if key in writes:
                value = writes[key]
            else:
                try:
                    value = self._get_staged(key) if batch.deep else missing
                    if value is missing:
                        value = self._recent.get(key, missing)
                    if value is missing:
                        value = self._engine.get(key)
                except StoreUnavailableError:
                    self._check_open()
                    raise
            if value is None:
                return None
            if len(value) < 8:
                return otherwise(key)
            found = form()
            found.stored = value
            return found

        return lookup

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        keys = list(keys)
        if self._is_clean() and all(type(key) is bytes for key in keys):
            try:
                return self._engine.get_many(keys)
            except StoreUnavailableError:
                self._check_open()
                raise
        return super().get_many(keys)

    def _get_staged(self, key: bytes) -> bytes | Missing | None:
        """Return the staged value of ``key``, from memory or the spill; MISSING if there is none."""
        value = self._batch.get(key)
        # Read once: a close on another thread sets it to None.
        spill = self._spill
        return spill.lookup(key) if value is MISSING and spill is not None else value

    def _get_uncommitted(self, key: bytes) -> bytes | None:
        value = self._get_staged(key)
        return self._engine.get(key) if value is MISSING else value  # type: ignore[return-value]

    def _get(self, level: IsolationLevel, key: bytes) -> bytes | None:
        if level is not IsolationLevel.READ_COMMITTED:
            staged = self._batch.writes.get(key, MISSING)
            if staged is MISSING:
                # The lock excludes a move between layers: a write that is being moved is in neither of them.
                with self._batch.lock:
                    staged = self._get_staged(key)
            return self._engine.get(key) if staged is MISSING else staged  # type: ignore[return-value]
        copying = self._copying
        count = copying.count
        if not count & 1:
            # The first attempt of ``read``, without the cost of a call.
            value = self._engine.get(key)
            if copying.count == count:
                return value
        return copying.read(self._get_committed, self._get_uncommitted, key)

    def _get_committed(self, key: bytes) -> bytes | None:
        return self._engine.get(key)

    def _get_many(self, level: IsolationLevel, keys: Sequence[bytes]) -> list[bytes | None]:
        if level is not IsolationLevel.READ_COMMITTED:
            # As in a scan, the writer continues in a new layer; the lock excludes a commit.
            with self._batch.lock:
                layers = self._batch.freeze()
                try:
                    return self._get_many_below(layers, keys)
                finally:
                    self._batch.release(layers)
        return self._copying.read(self._get_many_committed, self._get_each_uncommitted, keys)

    def _get_many_committed(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._engine.get_many(keys)

    def _get_each_uncommitted(self, keys: Sequence[bytes]) -> list[bytes | None]:
        # Nothing is staged during a copy, so that single lookups see one snapshot.
        return [self._get_uncommitted(key) for key in keys]

    def _get_many_below(self, layers: tuple[Layer, ...], keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of ``keys`` from frozen layers, spill and engine. The caller holds the batch's lock."""
        staged = [lookup(layers, key) for key in keys]
        if (spill := self._spill) is not None:
            staged = [spill.lookup(key) if value is MISSING else value for key, value in zip(keys, staged, strict=True)]
        committed = iter(
            self._engine.get_many([key for key, value in zip(keys, staged, strict=True) if value is MISSING])
        )
        return [next(committed) if isinstance(value, Missing) else value for value in staged]

    def _scan(self, level: IsolationLevel, bounds: ScanRange, *, reverse: bool) -> tuple[Iterator[list[Pair]], Pin]:
        if level is IsolationLevel.READ_UNCOMMITTED:
            batch = self._batch
            start, end, end_open, _ = bounds
            with batch.lock:
                if self._spill is None:
                    committed = self._engine.scan(start, end, end_open=end_open, reverse=reverse)
                    held = HeldState(committed, None, batch, batch.freeze(), bounds, reverse=reverse)
                    return held.chunks(), Pin(held.release)
                return self._scan_uncommitted(bounds, reverse)
        return self._copying.read(self._scan_committed, self._scan_uncommitted, bounds, reverse)

    def _scan_committed(self, bounds: ScanRange, reverse: bool) -> tuple[Iterator[list[Pair]], Pin]:
        start, end, end_open, _ = bounds
        scan = self._engine.scan(start, end, end_open=end_open, reverse=reverse)
        return chunks_of(scan), Pin(scan.close)

    def _scan_uncommitted(self, bounds: ScanRange, reverse: bool) -> tuple[Iterator[list[Pair]], Pin]:
        return self._scans_uncommitted([bounds], reverse)[0]

    def _scans(
        self, level: IsolationLevel, ranges: Sequence[ScanRange], *, reverse: bool
    ) -> list[tuple[Iterator[list[Pair]], Pin]]:
        if level is IsolationLevel.READ_COMMITTED:
            return self._copying.read(self._scans_committed, self._scans_uncommitted, ranges, reverse)
        with self._batch.lock:
            return self._scans_uncommitted(ranges, reverse)

    def _scans_committed(self, ranges: Sequence[ScanRange], reverse: bool) -> list[tuple[Iterator[list[Pair]], Pin]]:
        return [(chunks_of(scan), Pin(scan.close)) for scan in self._engine.scans(ranges, reverse=reverse)]

    def _scans_uncommitted(self, ranges: Sequence[ScanRange], reverse: bool) -> list[tuple[Iterator[list[Pair]], Pin]]:
        """Return scans of one snapshot. The caller holds the lock, so that no staged write is dropped meanwhile."""
        states = hold(self._engine, self._spill, self._batch, ranges, reverse=reverse)
        return [(held.chunks(), Pin(held.release)) for held in states]

    def _close_staging(self) -> None:
        self._recent = {}
        with self._batch.lock:
            self._batch.clear()
