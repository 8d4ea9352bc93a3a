"""Staged writes in an indexed batch in memory; beyond a size limit they are spilled to disk.

This is the staging of the indexed-batch and dual-store strategies: staging, spilling, and reads that merge three
levels: memory over the spill over committed data. What a commit does is up to the strategy.

A spilled commit is copied in parts. Readers never see an incomplete copy and do not wait for it: from the commit point
on, they are shown the spilled writes merged over committed data, which hides the parts that are already copied. Readers
do not wait for the disk while a spill is written, either. By a seqlock they know whether a copy runs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import repeat
from threading import Lock
from typing import ClassVar, TypeVar, TypeVarTuple, cast

from stores.batch.buffer import MISSING, IndexedBatch, Layer, Missing, lookup
from stores.batch.memory import PAIR_MEMORY_BYTES, RANGE_MEMORY_BYTES, bytes_of
from stores.batch.merge import chunks_of
from stores.engines.engine import Engine, EngineSnapshot, Writes
from stores.errors import CommitFailedError, StoreUnavailableError, must_reopen
from stores.failpoints import reach
from stores.interface import IsolationLevel, RecoveryOutcome
from stores.ordered import Bounds, ScanRange
from stores.strategies.access import while_open
from stores.strategies.iterator import Pin
from stores.strategies.spilled import HeldState, Spill, hold
from stores.strategies.staging import Opened, Scanned, Staging

_Found = bytes | Missing | None
"""A value: None for a delete, MISSING if a level has nothing of the key."""
Arguments = TypeVarTuple("Arguments")
Value = TypeVar("Value")


class Seqlock:
    """A counter that is odd during a change. A read between two equal even counts overlapped no change."""

    __slots__ = ("_lock", "count")

    def __init__(self, lock: Lock) -> None:
        """``lock`` is the lock that the writer holds while it drops data that readers need during a change."""
        self._lock = lock
        self.count = 0

    @contextmanager
    def change(self) -> Iterator[None]:
        """Count one change. After an exception the count stays odd: readers continue to use ``changing``."""
        self.count += 1
        yield
        self.count += 1

    def read(
        self, settled: Callable[[*Arguments], Value], changing: Callable[[*Arguments], Value], *given: *Arguments
    ) -> Value:
        """Return ``settled(*given)`` if no change overlapped it; during a change return ``changing(*given)``.

        ``changing`` is called with the lock held. A value of ``settled`` that a change overlapped is dropped.
        """
        while True:
            count = self.count
            if not count & 1:
                value = settled(*given)
                if self.count == count:
                    return value
                del value
            with self._lock:
                if self.count & 1:
                    return changing(*given)
            # The change has ended meanwhile: try again.


BUFFER, PART = "staging_buffer_bytes", "copy_part_bytes"
"""The names of the options."""
_SNAPSHOT_TRIES = 8
"""The number of attempts at a snapshot between two commits. After that it waits for the end of a commit."""


class BatchStaging(Staging):
    """An indexed batch of up to ``staging_buffer_bytes`` in memory, and a spill for more.

    A commit copies spilled writes in parts of about ``copy_part_bytes``. The steps of a commit, and their recovery, are
    those of a subclass, which may have files of its own.
    """

    mid_copy: ClassVar[str]
    """The failpoint between two parts of a copy."""
    spills: bool = True
    """False if there is no place to spill to."""

    def __init__(self, opened: Opened) -> None:
        super().__init__(opened)
        limit = opened.access.max_value_bytes
        # The room is never larger than the largest value, so that one comparison checks both limits.
        self.batch: IndexedBatch = IndexedBatch(min(cast(int, opened.options.get(BUFFER, limit)), limit))
        self.part_bytes = cast(int, opened.options.get(PART, limit))
        self.spill: Spill | None = None
        """The spilled writes of the open transaction."""
        self.decided = False
        """True if the spill is or may be committed but is not copied completely.

        After a failed copy only opening the store again clears it.
        """
        self._copying = Seqlock(self.batch.lock)
        """A commit that is copied in parts is one change. During it the engine holds a mix of two states."""
        self.open_files(opened)
        self.outcome = self.recover()

    def open_files(self, opened: Opened) -> None:
        """Open the strategy's own files. Raises: as ``Engine.open``."""

    @abstractmethod
    def recover(self) -> RecoveryOutcome | None:
        """Complete or discard the commit that the last process left. Return ROLLED_FORWARD if it was completed.

        Raises: StoreCorruptedError, StoreUnavailableError. The strategy's own files are then closed.
        """

    @abstractmethod
    def begin_spill(self) -> Spill:
        """Return an empty spill for the open transaction. Raises: CommitFailedError."""

    @abstractmethod
    def discard(self) -> None:
        """Discard the staged writes and the spill."""

    @abstractmethod
    def close_files(self) -> None:
        """Release the spill and close the strategy's own files."""

    def use(self, engine: Engine) -> None:
        super().use(engine)
        if self.batch is not None:
            # The keys of two data families begin with the byte of their family; those of recent writes do not.
            self.batch.forget_recent()

    # Staging

    def stage(self, key: bytes, value: bytes | None) -> None:
        batch = self.batch
        self._make_room(len(key) + len(value or b""))
        batch.put(key, value)
        self._spill_what_is_too_large()

    def stage_all(self, writes: dict[bytes, bytes | None]) -> None:
        num_bytes = bytes_of(writes)
        batch = self.batch
        if num_bytes > batch.room_bytes and not batch.make_room(num_bytes, PAIR_MEMORY_BYTES * len(writes)):
            # Even if nothing is staged: if a list too large for memory can't be spilled, it is refused here.
            self.spill_staged()
            batch.make_room(num_bytes, PAIR_MEMORY_BYTES * len(writes))
        batch.put_all(writes, num_bytes)
        self._spill_what_is_too_large()

    def stage_range(self, start: bytes | None, end: bytes | None) -> None:
        self._make_room(len(start or b"") + len(end or b""), RANGE_MEMORY_BYTES)
        self.batch.delete_range(start, end)

    def _make_room(self, num_bytes: int, entry_bytes: int = PAIR_MEMORY_BYTES) -> None:
        """Spill the staged writes if ``num_bytes`` more, and ``entry_bytes`` for the entry, do not fit beside them.

        This happens before the new write is staged: if the disk refuses, only the new write fails.
        """
        batch = self.batch
        if num_bytes > batch.room_bytes and not batch.make_room(num_bytes, entry_bytes) and not batch.is_empty():
            self.spill_staged()
            batch.make_room(num_bytes, entry_bytes)

    def _spill_what_is_too_large(self) -> None:
        """Spill a write that alone is larger than the batch. If that fails, the next write reports the reason."""
        if self.batch.room_bytes < 0:
            with suppress(CommitFailedError):
                self.spill_staged()

    @while_open
    def spill_staged(self) -> None:
        """Move the staged writes from memory to the spill. Raises: CommitFailedError."""
        if not self.spills:
            return
        if self.decided:
            # A new write in this spill would become part of the interrupted commit, which opening completes.
            raise must_reopen(f"the last commit of store {self.access.name!r} was cut short")
        spill = self.spill or self.begin_spill()
        with self.batch.lock:
            self.spill = spill
            layers = self.batch.layers()
        # Without the lock: readers are shown the layers, which hide the same keys at every step of the write.
        spill.add(layers)
        with self.batch.lock:
            for layer in layers:
                spill.ranges.update(layer.ranges)
            self.batch.drain(spill)

    def is_clean(self) -> bool:
        return self.batch.is_empty() and self.spill is None

    def num_bytes(self) -> int:
        return self.batch.num_bytes

    def memory_bytes(self) -> int:
        return self.batch.memory_bytes()

    # Ending

    def rollback(self) -> None:
        # The engine may have the writes of a commit that has failed.
        self.batch.forget_recent()
        # After a commit that failed in the middle of its copy, opening the store again rolls it forward.
        if not self.decided:
            self.discard()

    @contextmanager
    def shown_as_committed(self) -> Iterator[None]:
        """Show the result of the commit to all readers during the copy, and also afterwards if the copy fails."""
        self.decided = True
        with self._copying.change():
            yield
        self.decided = False

    def shows_staged(self) -> bool:
        return bool(self._copying.count & 1)

    def copy(self, spill: Spill, ranges: Sequence[Bounds], final: Mapping[bytes, bytes | None]) -> None:
        """Copy the spilled writes into the engine, the meta entries with the last part. It may be repeated.

        The copy is then persisted, so that all of it survives a killed process. Without that, the first parts may be in
        the engine's files while the last is in its memory only.
        """
        part: dict[bytes, bytes | None] = {}
        num_bytes = 0
        for key, value in spill.writes():
            part[key] = value
            num_bytes += len(key) + len(value or b"")
            if num_bytes >= self.part_bytes:
                self.engine.write([Writes(ranges, part)], {}, durable=False)
                reach(self.mid_copy)
                ranges, part, num_bytes = (), {}, 0
        self.engine.write([Writes(ranges, part)], final)
        self.engine.persist()

    def write_at_once(self, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None]) -> None:
        self.batch.forget_recent()
        super().write_at_once(layers, meta)

    def release(self) -> None:
        self.batch.forget_recent()
        with self.batch.lock:
            self.batch.clear()
        self.close_files()

    # Reading

    def look_up(self, key: bytes) -> bytes | None:
        value = self._get_staged(key)
        if value is MISSING:
            value = self.batch.recent.get(key, MISSING)
        return self.engine.get(key) if value is MISSING else value  # type: ignore[return-value]

    def look_up_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        batch = self.batch
        # In this order, as in ``Store.get``: a reader that freezes the layer meanwhile sets ``deep``.
        writes, recent = batch.writes, batch.recent
        if batch.deep:
            values: Sequence[_Found] = [self._get_staged(key) for key in keys]
            values = _filled(keys, values, lambda left: list(map(recent.get, left, repeat(MISSING))))
            return cast(list[bytes | None], _filled(keys, values, self.engine.get_many))
        levels = [level for level in (recent, writes) if level and not level.keys().isdisjoint(keys)]
        if not levels:
            return self.engine.get_many(keys)
        found: Iterable[_Found] = repeat(MISSING)
        for level in levels:
            # Without bytecode for each key: the default is what the level below has.
            found = map(level.get, keys, found)
        return cast(list[bytes | None], _filled(keys, list(found), self.engine.get_many))

    def _get_staged(self, key: bytes) -> bytes | Missing | None:
        """Return the staged value of ``key``, from memory or the spill; MISSING if there is none."""
        value = self.batch.get(key)
        # Read once: a close on another thread sets it to None.
        spill = self.spill
        return spill.lookup(key) if value is MISSING and spill is not None else value

    def _get_uncommitted(self, key: bytes) -> bytes | None:
        value = self._get_staged(key)
        return self.engine.get(key) if value is MISSING else value  # type: ignore[return-value]

    def get(self, level: IsolationLevel, key: bytes) -> bytes | None:
        if level is not IsolationLevel.READ_COMMITTED:
            staged = self.batch.writes.get(key, MISSING)
            if staged is MISSING:
                # The lock excludes a move between layers: a write that is being moved is in neither of them.
                with self.batch.lock:
                    staged = self._get_staged(key)
            return self.engine.get(key) if staged is MISSING else staged  # type: ignore[return-value]
        copying = self._copying
        count = copying.count
        if not count & 1:
            # The first attempt of ``read``, without the cost of a call.
            value = self.engine.get(key)
            if copying.count == count:
                return value
        return copying.read(self._get_committed, self._get_uncommitted, key)

    def _get_committed(self, key: bytes) -> bytes | None:
        return self.engine.get(key)

    def get_many(self, level: IsolationLevel, keys: Sequence[bytes]) -> list[bytes | None]:
        if level is not IsolationLevel.READ_COMMITTED:
            # As in a scan, the writer continues in a new layer; the lock excludes a commit.
            with self.batch.lock:
                layers = self.batch.freeze()
                try:
                    return self._get_many_below(layers, keys)
                finally:
                    self.batch.release(layers)
        return self._copying.read(self._get_many_committed, self._get_each_uncommitted, keys)

    def _get_many_committed(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.engine.get_many(keys)

    def _get_each_uncommitted(self, keys: Sequence[bytes]) -> list[bytes | None]:
        # Nothing is staged during a copy, so that single lookups see one snapshot.
        return [self._get_uncommitted(key) for key in keys]

    def _get_many_below(self, layers: tuple[Layer, ...], keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of ``keys`` from frozen layers, spill and engine. The caller holds the batch's lock."""
        values: Sequence[_Found] = [lookup(layers, key) for key in keys]
        if (spill := self.spill) is not None:
            values = _filled(keys, values, lambda left: list(map(spill.lookup, left)))
        return cast(list[bytes | None], _filled(keys, values, self.engine.get_many))

    def snapshot(self) -> EngineSnapshot:
        copying = self._copying
        for _ in range(_SNAPSHOT_TRIES):
            count = copying.count
            if count & 1:
                break
            snapshot = super().snapshot()
            if copying.count == count:
                return snapshot
            snapshot.close()
        # The engine holds parts of a commit: wait for its end, which releases this lock.
        with self.access.working:
            if copying.count & 1:
                raise StoreUnavailableError(
                    f"the last commit of store {self.access.name!r} was cut short: close the store and open it again"
                )
            return super().snapshot()

    def scan(self, level: IsolationLevel, bounds: ScanRange, *, reverse: bool) -> Scanned:
        if level is IsolationLevel.READ_UNCOMMITTED:
            batch = self.batch
            with batch.lock:
                if self.spill is None:
                    committed = self.engine.scan(bounds, reverse=reverse)
                    state = HeldState(committed, None, batch, batch.freeze(), bounds, reverse=reverse)
                    return state.chunks(), Pin(state.release)
                return self._scan_uncommitted(bounds, reverse)
        return self._copying.read(self._scan_committed, self._scan_uncommitted, bounds, reverse)

    def _scan_committed(self, bounds: ScanRange, reverse: bool) -> Scanned:
        scan = self.engine.scan(bounds, reverse=reverse)
        return chunks_of(scan), Pin(scan.close)

    def _scan_uncommitted(self, bounds: ScanRange, reverse: bool) -> Scanned:
        return self._scans_uncommitted([bounds], reverse)[0]

    def scans(self, level: IsolationLevel, ranges: Sequence[ScanRange], *, reverse: bool) -> list[Scanned]:
        if level is IsolationLevel.READ_COMMITTED:
            return self._copying.read(self.scans_committed, self._scans_uncommitted, ranges, reverse)
        with self.batch.lock:
            return self._scans_uncommitted(ranges, reverse)

    def _scans_uncommitted(self, ranges: Sequence[ScanRange], reverse: bool) -> list[Scanned]:
        """Return scans of one snapshot. The caller holds the lock, so that no staged write is dropped meanwhile."""
        states = hold(self.engine, self.spill, self.batch, ranges, reverse=reverse)
        return [(state.chunks(), Pin(state.release)) for state in states]


def _filled(
    keys: Sequence[bytes],
    values: Sequence[_Found],
    look_up: Callable[[list[bytes]], Sequence[_Found]],
) -> Sequence[_Found]:
    """Return ``values`` with the results of one ``look_up`` of all ``keys`` whose value is MISSING in their places."""
    left = [key for key, value in zip(keys, values, strict=True) if value is MISSING]
    if not left:
        return values
    below = look_up(left)
    if len(below) == len(values):
        return below
    rest = iter(below)
    return [next(rest) if value is MISSING else value for value in values]
