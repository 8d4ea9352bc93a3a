"""Staged writes in an indexed batch in memory, and beyond a bound of theirs in a second store on disk.

What both strategies with a batch have in common: staging, spilling, and reading from the top down: memory, what was
spilled, what is committed. How a commit makes one of all three is the strategy's own.

A commit that was spilled is copied in parts. Readers never see that, and wait for no copy: from the moment on that
nothing undoes the commit any more they are shown what comes out of it, what was spilled laid over what is committed;
so laid over it, a part that is copied changes nothing. No reader waits for the disk either, while a spill is written.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from struct import Struct
from threading import get_ident
from typing import ClassVar

from stores.buffer import MISSING, PAIR_MEMORY_BYTES, RANGE_MEMORY_BYTES, IndexedBatch, Layer, Missing, lookup
from stores.directory import StoreDirectory
from stores.engines.engine import Engine, Writes
from stores.errors import CommitFailedError, StoreUnavailableError
from stores.failpoints import reach
from stores.interface import IsolationLevel, Position, TopicPartition
from stores.merge import Pair, chunks_of
from stores.ranges import Bounds, ScanRange
from stores.strategies.held import HeldState, hold
from stores.strategies.iterator import Pin
from stores.strategies.spilled import Spill
from stores.strategies.store import EngineStore, Traits, while_open

_pack_time = Struct(">q").pack


class SpillingStore(EngineStore):
    """A store over an engine, with an indexed batch that takes up to ``buffer_bytes`` of memory. What was spilled is
    copied in parts of ``part_bytes``."""

    mid_copy: ClassVar[str]
    """The failpoint between two parts of a copy."""

    def __init__(
        self, engine: Engine, directory: StoreDirectory | None, traits: Traits, buffer_bytes: int, part_bytes: int
    ) -> None:
        super().__init__(engine, directory, traits)
        # No write is larger than what there is room for, so that one comparison will do for both bounds.
        self._batch = IndexedBatch(min(buffer_bytes, self._max_value_bytes))
        self._part_bytes = part_bytes
        self._spill: Spill | None = None
        """What has left memory of the open transaction."""
        self._decided = False
        """Whether that is committed, or may be, and not all of it copied: only opening the store again ends this."""
        self._turn = 0
        """Odd while a commit is copied in parts, when what is committed is in between."""
        self._recent: Mapping[bytes, bytes | None] = {}
        """The writes of the last commit, while nothing newer is in the engine: what was just written is soon read."""

    @abstractmethod
    def _begin_spill(self) -> Spill:
        """Where the open transaction can be spilled to. Raises: CommitFailedError."""

    # Staging

    def put(self, key: bytes, value: bytes | None) -> None:
        # The hot path: a write that is as it should be, and has nothing staged below it, is staged right here.
        if type(key) is bytes and type(value) is bytes and get_ident() == self._writer:
            batch = self._batch
            key_bytes = len(key)
            if 0 < key_bytes <= self._max_key_bytes and (num_bytes := key_bytes + len(value)) <= batch.room_bytes:
                writes = batch.writes
                # Looked up again where it is assigned to: a reader may have frozen the layer since.
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
        # As ``put``, without the price of calling it.
        if type(key) is bytes and type(value) is bytes and type(timestamp_ms) is int and not timestamp_ms >> 62:
            key_bytes = len(key)
            batch = self._batch
            if 0 < key_bytes <= self._max_key_bytes and get_ident() == self._writer:
                num_bytes = key_bytes + len(value) + 8
                if num_bytes <= batch.room_bytes and key not in batch.writes and not batch.deep:
                    batch.room_bytes -= num_bytes
                    batch.writes[key] = _pack_time(timestamp_ms) + value
                    return
            self.put(key, _pack_time(timestamp_ms) + value)
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
            # Also where nothing is staged: a list that has to be spilled by itself is refused here, where it can't be.
            self._spill_staged()
            batch.make_room(num_bytes, PAIR_MEMORY_BYTES * len(writes))
        batch.put_all(writes)
        self._spill_what_is_too_large()

    def _stage_range(self, start: bytes | None, end: bytes | None) -> None:
        self._make_room(len(start or b"") + len(end or b""), RANGE_MEMORY_BYTES)
        self._batch.delete_range(start, end)

    def _make_room(self, num_bytes: int, entry_bytes: int = PAIR_MEMORY_BYTES) -> None:
        """Spill what is staged where so much more, and what its entry takes, has no room beside it.

        Before that is staged: where the disk refuses, only this write was not made.
        """
        batch = self._batch
        if num_bytes > batch.room_bytes and not batch.make_room(num_bytes, entry_bytes) and not batch.is_empty():
            self._spill_staged()
            batch.make_room(num_bytes, entry_bytes)

    def _spill_what_is_too_large(self) -> None:
        """Spill a write that is larger than the batch by itself: where that can't be, it stays until the next one,
        which says why."""
        if self._batch.room_bytes < 0:
            with suppress(CommitFailedError):
                self._spill_staged()

    @while_open
    def _spill_staged(self) -> None:
        """Move what is staged in memory to where it is spilled to."""
        if self._decided:
            # It would be committed with what was: opening copies all that is there.
            raise CommitFailedError(
                f"the last commit of store {self._name!r} was cut short. Close the store, open it again and go on from "
                "its committed offset",
                reopen=True,
            )
        spill = self._spill or self._begin_spill()
        with self._batch.lock:
            self._spill = spill
            layers = self._batch.layers()
        # Without the lock: readers are shown the layers, which hide the same keys however far this has got.
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
        """Show all readers what comes out of the commit meanwhile; and from then on, if it fails."""
        self._decided = True
        self._turn += 1
        yield
        self._turn += 1
        self._decided = False

    def _shows_staged(self) -> bool:
        return bool(self._turn & 1)

    def _copy(self, spill: Spill, ranges: Sequence[Bounds], final: Mapping[bytes, bytes | None]) -> None:
        """Write what was spilled into the engine, the meta entries with the last part; repeating it changes nothing.

        Afterwards it survives a kill as a whole: a part may be in the engine's files, and the end in its memory only.
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
        # Its keys mean others from now on.
        self._recent = {}
        super().split(marks)

    # Reading

    def get(self, key: bytes) -> bytes | None:
        if type(key) is not bytes:
            return super().get(key)
        try:
            return self._batch.writes[key]
        except KeyError:
            pass
        try:
            value = self._get_staged(key) if self._batch.deep else MISSING
            if value is MISSING:
                value = self._recent.get(key, MISSING)
            return self._engine.get(key) if value is MISSING else value  # type: ignore[return-value]
        except StoreUnavailableError:
            # The store may have been closed meanwhile, by another thread.
            self._check_open()
            raise

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
        """What is staged for ``key``, in memory or spilled."""
        value = self._batch.get(key)
        # Closing the store takes it away meanwhile.
        spill = self._spill
        return spill.lookup(key) if value is MISSING and spill is not None else value

    def _get_uncommitted(self, key: bytes) -> bytes | None:
        value = self._get_staged(key)
        return self._engine.get(key) if value is MISSING else value  # type: ignore[return-value]

    def _get(self, level: IsolationLevel, key: bytes) -> bytes | None:
        turn = self._turn
        if not turn & 1:
            if level is IsolationLevel.READ_COMMITTED:
                value = self._engine.get(key)
                if self._turn == turn:
                    return value
            else:
                staged = self._batch.writes.get(key, MISSING)
                if staged is MISSING:
                    # Not while layers change hands: what is on its way from one to another is in neither.
                    with self._batch.lock:
                        staged = self._get_staged(key)
                return self._engine.get(key) if staged is MISSING else staged  # type: ignore[return-value]
        with self._batch.lock:
            # What was spilled is not forgotten while the lock is held.
            if self._turn & 1:
                return self._get_uncommitted(key)
        # The copy has ended meanwhile.
        return self._get(level, key)

    def _get_many(self, level: IsolationLevel, keys: Sequence[bytes]) -> list[bytes | None]:
        turn = self._turn
        if not turn & 1:
            if level is IsolationLevel.READ_COMMITTED:
                values = self._engine.get_many(keys)
                if self._turn == turn:
                    return values
            else:
                # As a scan: the writer stages on into a new layer, and no commit comes between.
                with self._batch.lock:
                    layers = self._batch.freeze()
                    try:
                        return self._get_many_below(layers, keys)
                    finally:
                        self._batch.release(layers)
        with self._batch.lock:
            if self._turn & 1:
                # Nothing is staged meanwhile: single lookups are all of one moment.
                return [self._get_uncommitted(key) for key in keys]
        return self._get_many(level, keys)

    def _get_many_below(self, layers: tuple[Layer, ...], keys: Sequence[bytes]) -> list[bytes | None]:
        """What frozen layers show, and what lies below them. The caller holds the batch's lock."""
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
        return super()._scan(level, bounds, reverse=reverse)

    def _scans(
        self, level: IsolationLevel, ranges: Sequence[ScanRange], *, reverse: bool
    ) -> list[tuple[Iterator[list[Pair]], Pin]]:
        turn = self._turn
        copying = turn & 1
        if level is IsolationLevel.READ_COMMITTED and not copying:
            scans = self._engine.scans(ranges, reverse=reverse)
            if self._turn == turn:
                return [(chunks_of(scan), Pin(scan.close)) for scan in scans]
            for scan in scans:
                scan.close()
        else:
            # All that is held is of one moment: nothing that is staged or spilled is forgotten meanwhile.
            with self._batch.lock:
                if level is IsolationLevel.READ_UNCOMMITTED or self._turn & 1:
                    states = hold(self._engine, self._spill, self._batch, ranges, reverse=reverse)
                    return [(held.chunks(), Pin(held.release)) for held in states]
        # A copy has begun or ended meanwhile.
        return self._scans(level, ranges, reverse=reverse)

    def _close_staging(self) -> None:
        self._recent = {}
        with self._batch.lock:
            self._batch.clear()
