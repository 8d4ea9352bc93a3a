"""A store: the contract's checks, offsets and position, iterators, readers and restore, over a staging.

The staging (``stores.strategies.staging``) defines how a write is staged, how it is read back, and what a commit does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock, get_ident
from typing import final

from stores import position as positions
from stores.contract import marks as kept_marks
from stores.contract.persistence import Persistence
from stores.engines.engine import Engine, Writes
from stores.errors import StoreClosedError, StoreCorruptedError, StoreError, StoreUnavailableError
from stores.failpoints import reach
from stores.files.store_directory import StoreDirectory
from stores.interface import (
    Durability,
    HoldsStored,
    IsolationLevel,
    KeyValueIterator,
    KeyValueStore,
    KeyValueView,
    Position,
    PositionBound,
    Recovery,
    RecoveryOutcome,
    TopicPartition,
)
from stores.metrics import StoreMetrics
from stores.ordered.ranges import ScanRange, prefix_bounds
from stores.strategies.access import while_open
from stores.strategies.arguments import OFFSET_BOUND, as_bytes, check_bounds, check_offset, check_partition
from stores.strategies.counters import StoreCounters
from stores.strategies.family_split import split
from stores.strategies.iterator import OpenIterators, StoreIterator
from stores.strategies.reader import BoundedReader, StoreReader
from stores.strategies.staging import CLOSED, RESTORE_AFTER_WRITE, RESTORE_BEFORE_WRITE, Scanned, Staging, Traits


@final
class Store(KeyValueStore):
    """A store over a staging, which has the engine."""

    def __init__(
        self, staging: Staging, directory: StoreDirectory | None, traits: Traits, *, upgraded: bool = False
    ) -> None:
        self.staging = staging
        self.access = staging.access
        self._batch = staging.batch
        """The staging's indexed batch: ``put`` and ``get`` use it without a call."""
        self._writer = self.access.writer
        """A copy of ``access.writer``, for calls that are made once per record."""
        self._max_key_bytes = self.access.max_key_bytes
        """A copy of ``access.max_key_bytes``."""
        self._directory = directory
        self._traits = traits
        self._counters = StoreCounters()
        self._iterators = OpenIterators()
        meta = staging.engine.meta()
        self._offsets = positions.decode(positions.OFFSET, meta)
        self._position = positions.decode(positions.POSITION, meta)
        self._marks = kept_marks.decode(meta)
        self._staged_position: dict[TopicPartition, int] = {}
        self._staged_marks: dict[str, bytes | None] = {}
        self._keeps_offsets = staging.manages_offsets
        """False if the offsets are in the checkpoint file (KIP-892, ``managesOffsets``)."""
        self._marks_in_doubt = False
        """True while a commit may have changed the engine's marks, and ``_marks`` still has the old ones."""
        self._marks_lock = Lock()
        self._marks_are_held = False
        """True while a reader has the lock: the writer then waits before it changes a mark."""
        self._marks_at_once = not staging.transactional
        """True if a mark is written into the engine when it is set."""
        self._marks_need_care = self._marks_at_once
        """True if setting a mark takes more than staging it, for one of these two reasons."""
        self.rollback_turn = 0
        """A counter, odd during a rollback: data and marks then belong to different transactions."""
        self._upgraded = upgraded
        unclean = directory is not None and not directory.clean
        self._outcome = staging.outcome or (RecoveryOutcome.ROLLED_BACK if unclean else RecoveryOutcome.NOTHING_TO_DO)

    # Facts

    @property
    def name(self) -> str:
        return self._traits.name

    @property
    def backend(self) -> str:
        return self._traits.backend

    @property
    def durability(self) -> Durability:
        return self._traits.durability

    @property
    def persistent(self) -> bool:
        return self._directory is not None

    @property
    def transactional(self) -> bool:
        return self.staging.transactional

    @property
    def manages_offsets(self) -> bool:
        return self.staging.manages_offsets

    @property
    def takes_timestamps(self) -> bool:
        return True

    @property
    def keeps_marks(self) -> bool:
        return True

    @property
    def deletes_ranges_whole(self) -> bool:
        return self.staging.engine.deletes_ranges_whole

    @property
    def is_split(self) -> bool:
        return self.staging.is_split

    @property
    def can_split(self) -> bool:
        return self.is_split or self.staging.engine.splits

    @property
    def is_open(self) -> bool:
        return self._writer != 0

    @property
    def max_key_bytes(self) -> int:
        return self._max_key_bytes

    # Writing

    def put(self, key: bytes, value: bytes | None) -> None:
        # The hot path: a valid write of a key with nothing staged in older layers is staged here, without calls.
        if type(key) is bytes and type(value) is bytes and get_ident() == self._writer:
            batch = self._batch
            key_bytes = len(key)
            if batch is not None:
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
            elif 0 < key_bytes <= self._max_key_bytes and len(value) <= self.access.max_value_bytes:
                try:
                    self.staging.stage(key, value)
                except StoreError:
                    # Another thread may have closed the store meanwhile.
                    self.access.check_open()
                    raise
                return
        self.access.check_write(key, value)
        self._stage(key, value)

    def put_timestamped(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        # The same as ``put``, without the cost of a call.
        if type(key) is bytes and type(value) is bytes and type(timestamp_ms) is int and not timestamp_ms >> 62:
            key_bytes = len(key)
            batch = self._batch
            if batch is not None and 0 < key_bytes <= self._max_key_bytes and get_ident() == self._writer:
                num_bytes = key_bytes + len(value) + 8
                if num_bytes <= batch.room_bytes and key not in batch.writes and not batch.deep:
                    batch.room_bytes -= num_bytes
                    # Big-endian; faster than a ``Struct``.
                    batch.writes[key] = timestamp_ms.to_bytes(8) + value
                    return
            self.put(key, timestamp_ms.to_bytes(8) + value)
            return
        super().put_timestamped(key, value, timestamp_ms)

    def put_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        check_write = self.access.check_write
        writes: dict[bytes, bytes | None] = {}
        # Read all pairs before any is staged: they may come from a scan of this store.
        for key, value in pairs:
            check_write(key, value)
            writes[key] = value
        self.access.check_writer()
        if writes:
            self._stage_list(writes)

    def put_if_absent(self, key: bytes, value: bytes | None) -> bytes | None:
        self.access.check_write(key, value)
        existing = self.get(key)
        if existing is None:
            self._stage(key, value)
        return existing

    def delete(self, key: bytes) -> bytes | None:
        self.access.check_write(key, None)
        existing = self.get(key)
        if existing is not None:
            self._stage(key, None)
        return existing

    def _stage(self, key: bytes, value: bytes | None) -> None:
        """Stage a checked write."""
        try:
            self.staging.stage(key, value)
        except StoreError:
            # Another thread may have closed the store meanwhile.
            self.access.check_open()
            raise

    @while_open
    def _stage_list(self, writes: dict[bytes, bytes | None]) -> None:
        self.staging.stage_all(writes)

    @while_open
    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        check_bounds(start, end)
        if start is None or end is None or start <= end:
            self.staging.stage_range(start, end)

    def advance_position(self, partition: TopicPartition, offset: int) -> None:
        # The fast path, once per record: a partition that is staged or committed has been checked.
        if type(offset) is int and get_ident() == self._writer:
            staged = self._staged_position
            known = staged.get(partition)
            if known is None:
                known = self._position.get(partition)
            if known is not None and known < offset < OFFSET_BOUND:
                staged[partition] = offset
                return
        self.access.check_writer()
        check_partition(partition)
        check_offset(offset)
        # Stage only an offset above both positions: then a commit needs no comparison.
        if offset > max(self._position.get(partition, -1), self._staged_position.get(partition, -1)):
            self._staged_position[partition] = offset

    def set_mark(self, name: str, value: bytes | None) -> None:
        if self._marks_need_care:
            if self._marks_are_held:
                self._let_readers_end()
            if self._marks_at_once:
                self._set_mark_at_once(name, value)
                return
        # The fast path, up to once per record: a name that is staged has been checked.
        staged = self._staged_marks
        if (
            get_ident() == self._writer
            and type(value) is bytes
            and type(name) is str
            and name in staged
            and len(value) <= kept_marks.VALUE_BYTES_MAX
        ):
            staged[name] = value
            return
        self._stage_mark(name, value)

    def _stage_mark(self, name: str, value: bytes | None) -> None:
        self.access.check_writer()
        kept_marks.check_name(name)
        kept_marks.check_value(value)
        self._staged_marks[name] = value

    @while_open
    def _set_mark_at_once(self, name: str, value: bytes | None) -> None:
        # Write it before the data that it describes, which can't be undone: windows above the stream time are hidden.
        staged = self._staged_marks
        if name in staged and type(value) is bytes and len(value) <= kept_marks.VALUE_BYTES_MAX:
            staged[name] = value
        else:
            self._stage_mark(name, value)
        changed = kept_marks.changed(self._marks, self._staged_marks)
        if changed:
            self.staging.engine.write([], kept_marks.encode(self._marks, changed), durable=False)
            self._marks = kept_marks.merge(self._marks, changed)

    @contextmanager
    def marks_held(self) -> Iterator[None]:
        """Block the writer's next change of a mark, commit or rollback. For use on another thread."""
        with self._marks_lock:
            self._marks_are_held = self._marks_need_care = True
            try:
                yield
            finally:
                self._marks_are_held, self._marks_need_care = False, self._marks_at_once

    def _let_readers_end(self) -> None:
        with self._marks_lock:
            pass

    # Reading

    def get(self, key: bytes) -> bytes | None:
        if type(key) is not bytes:
            key = as_bytes("key", key)
        batch = self._batch
        try:
            if batch is None:
                lookup = self.staging.lookup
                return self.staging.look_up(key) if lookup is None else lookup(key)
            writes = batch.writes
            # Catching a KeyError would cost ten times as much for a missing key.
            if key in writes:
                return writes[key]
            if batch.deep:
                return self.staging.look_up(key)
            recent = batch.recent
            return recent[key] if key in recent else self.staging.engine.get(key)
        except StoreUnavailableError:
            # Another thread may have closed the store meanwhile.
            self.access.check_open()
            raise

    def timestamped_lookup(
        self, form: type[HoldsStored], otherwise: Callable[[bytes], HoldsStored | None]
    ) -> Callable[[bytes], HoldsStored | None]:
        batch, staging, access = self._batch, self.staging, self.access
        if batch is None:
            return super().timestamped_lookup(form, otherwise)

        def lookup(key: bytes) -> HoldsStored | None:
            # The same as ``get``, without the cost of a call.
            if type(key) is not bytes:
                return otherwise(key)
            writes = batch.writes
            if key in writes:
                value = writes[key]
            else:
                try:
                    if batch.deep:
                        value = staging.look_up(key)
                    else:
                        recent = batch.recent
                        value = recent[key] if key in recent else staging.engine.get(key)
                except StoreUnavailableError:
                    access.check_open()
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
        staging = self.staging
        if self._batch is not None and staging.is_clean() and all(type(key) is bytes for key in keys):
            try:
                return staging.engine.get_many(keys)
            except StoreUnavailableError:
                self.access.check_open()
                raise
        self.access.check_open()
        return [self.get(key) for key in keys]

    def mark(self, name: str) -> bytes | None:
        # The fast path, once per record of a window: a name that is staged or committed has been checked.
        if type(name) is str and self._writer:
            staged = self._staged_marks
            if name in staged:
                return staged[name]
            if name in self._marks:
                return self._marks[name]
        return self.mark_at(IsolationLevel.READ_UNCOMMITTED, name)

    def mark_at(self, level: IsolationLevel, name: str) -> bytes | None:
        """Return the mark ``name`` at ``level``, from any thread."""
        self.access.check_open()
        kept_marks.check_name(name)
        if level is IsolationLevel.READ_UNCOMMITTED or self.staging.shows_staged():
            # In this order: a commit stores the marks before it clears the staged ones.
            staged = self._staged_marks
            if name in staged:
                return staged[name]
        elif self._marks_in_doubt:
            # Read the engine's marks, like its data: a mark that is the same before and after a scan belongs to it.
            try:
                return kept_marks.decode(self.staging.engine.meta()).get(name)
            except StoreUnavailableError:
                self.access.check_open()
                raise
        return self._marks.get(name)

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self.scan(IsolationLevel.READ_UNCOMMITTED, start, end)

    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self.scan(IsolationLevel.READ_UNCOMMITTED, start, end, reverse=True)

    def range_many(
        self, bounds: Sequence[tuple[bytes | None, bytes | None]], *, reverse: bool = False
    ) -> list[KeyValueIterator]:
        ranges = [ScanRange(start, end) for start, end in bounds]
        return self.scan_many(IsolationLevel.READ_UNCOMMITTED, ranges, reverse=reverse)

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self.scan_prefix(IsolationLevel.READ_UNCOMMITTED, prefix)

    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self.scan_prefix(IsolationLevel.READ_UNCOMMITTED, prefix, reverse=True)

    def approximate_num_entries(self) -> int:
        self.access.check_open()
        try:
            return self.staging.engine.approximate_num_entries()
        except StoreUnavailableError:
            self.access.check_open()
            raise

    def read_only(
        self, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> KeyValueView:
        self.access.check_open()
        level = self._traits.isolation_level if isolation_level is None else IsolationLevel(isolation_level)
        if bound is None:
            return StoreReader(self, level)
        if not isinstance(bound, PositionBound):
            raise TypeError(f"a bound is a PositionBound, not {type(bound).__name__}")
        return BoundedReader(self, level, bound)

    def scan(
        self,
        level: IsolationLevel,
        start: bytes | None,
        end: bytes | None,
        *,
        end_open: bool = False,
        reverse: bool = False,
    ) -> KeyValueIterator:
        """Return a scan at ``level``. May be called on any thread."""
        check_bounds(start, end)
        self.access.check_open()
        try:
            scanned = self.staging.scan(level, ScanRange(start, end, end_open), reverse=reverse)
        except StoreUnavailableError:
            self.access.check_open()
            raise
        return self._iterator(scanned)

    def scan_many(
        self, level: IsolationLevel, ranges: Sequence[ScanRange], *, reverse: bool = False
    ) -> list[KeyValueIterator]:
        """Return scans of ``ranges`` at ``level``, all of one snapshot. May be called on any thread."""
        for start, end, *_ in ranges:
            check_bounds(start, end)
        self.access.check_open()
        try:
            made = self.staging.scans(level, ranges, reverse=reverse)
        except StoreUnavailableError:
            self.access.check_open()
            raise
        return [self._iterator(scanned) for scanned in made]

    def _iterator(self, scanned: Scanned) -> StoreIterator:
        """Return an iterator. Closing the store closes it."""
        pairs, pin = scanned
        self._iterators.add(pin)
        if not self._writer:
            # Another thread has closed the store meanwhile and may have missed this pin.
            pin.close()
        return StoreIterator(pairs, pin)

    def scan_prefix(self, level: IsolationLevel, prefix: bytes, *, reverse: bool = False) -> KeyValueIterator:
        """Return a scan of the keys that begin with ``prefix``, at ``level``."""
        start, end = prefix_bounds(as_bytes("prefix", prefix))
        return self.scan(level, start, end, end_open=True, reverse=reverse)

    # Transactions

    def commit(self, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> None:
        # The same as ``while_open``, without its cost in each commit.
        if get_ident() != self._writer:
            self.access.check_writer()
        if self._marks_are_held:
            self._let_readers_end()
        with self.access.working:
            if not self._writer:
                self.access.check_open()
            offsets = self._checked_offsets({} if changelog_offsets is None else changelog_offsets)
            meta = positions.encode(positions.OFFSET, offsets)
            advanced = self._staged_position
            if advanced:
                meta.update(positions.encode(positions.POSITION, advanced))
            changed = kept_marks.changed(self._marks, self._staged_marks) if self._staged_marks else None
            if changed:
                meta.update(kept_marks.encode(self._marks, changed))
                self._marks_in_doubt = True
            try:
                with self._counters.commits:
                    self.staging.commit(meta)
            except BaseException:
                self._marks_in_doubt = False
                raise
            if offsets and self._keeps_offsets:
                self._keep(offsets)
            # After the data: a reader on another thread never sees a position ahead of the data. See ``position``.
            if advanced:
                self._position = {**self._position, **advanced}
            self._staged_position = {}
            if changed is not None:
                if changed:
                    self._marks = kept_marks.merge(self._marks, changed)
                    self._marks_in_doubt = False
                self._staged_marks = {}

    @property
    def persistence(self) -> Persistence:
        self.access.check_open()
        return self.staging.engine.persistence

    @while_open
    def persist(self) -> None:
        self.staging.persist()

    def _is_clean(self) -> bool:
        return not self._staged_marks and self.staging.is_clean()

    @while_open
    def rollback(self) -> None:
        undone = bool(self._staged_position or self._staged_marks) or not self.staging.is_clean()
        with self._marks_lock:
            self.rollback_turn += 1
            try:
                # Before the data, so that the position never leads the data.
                self._staged_position = {}
                self.staging.rollback()
                # After the data: a reader of staged data needs the stream time that belongs to it.
                self._staged_marks = {}
            finally:
                self.rollback_turn += 1
        self._counters.rollback_total += undone

    @property
    def transaction(self) -> object:
        """A token of the open transaction: another object after each commit and each rollback.

        A rollback replaces it before it drops data.
        """
        return self._staged_position

    def recover(self, changelog_offsets: Mapping[TopicPartition, int] | None = None) -> Recovery:
        self.access.check_open()
        checkpoint = dict({} if changelog_offsets is None else changelog_offsets)
        for partition, wanted in checkpoint.items():
            check_partition(partition)
            check_offset(wanted)
        for partition, wanted in checkpoint.items():
            reached = self._offsets.get(partition)
            if reached is None or reached < wanted:
                raise StoreCorruptedError(
                    f"store {self.name!r} is at offset {reached} of {partition.topic}-{partition.partition}, behind "
                    f"its checkpoint {wanted}: wipe the store and restore it from its changelog"
                )
        return Recovery(self._outcome, dict(self._offsets), self._upgraded)

    @while_open
    def split(self, marks: Mapping[str, bytes | None]) -> None:
        if not self.staging.engine.splits:
            super().split(marks)
        if not self._is_clean():
            raise StoreError(f"store {self.name!r} has staged writes: commit or roll back before splitting it")
        if self.is_split:
            raise StoreError(f"store {self.name!r} is split already")
        kept_marks.check(marks)
        split(self.staging, kept_marks.encode(self._marks, kept_marks.changed(self._marks, marks)))
        self._max_key_bytes = self.access.max_key_bytes
        self._marks = kept_marks.merge(self._marks, marks)

    @while_open
    def restore(
        self,
        pairs: Iterable[tuple[bytes, bytes | None]],
        changelog_offsets: Mapping[TopicPartition, int],
        position: Position | None = None,
        marks: Mapping[str, bytes | None] | None = None,
    ) -> None:
        if not self._is_clean():
            raise StoreError(f"store {self.name!r} has staged writes: commit or roll back before restoring into it")
        offsets = self._checked_offsets(changelog_offsets)
        pairs = list(pairs)
        writes = dict(pairs)
        for key, value in writes.items():
            self.access.check_write(key, value)
        advanced = self._position
        if position is not None:
            advanced = positions.merge(advanced, PositionBound(position).position)
        meta = positions.encode(positions.OFFSET, offsets) if self.manages_offsets else {}
        if self.manages_offsets and advanced != self._position:
            meta.update(positions.encode(positions.POSITION, advanced))
        given = dict({} if marks is None else marks)
        kept_marks.check(given)
        meta.update(kept_marks.encode(self._marks, kept_marks.changed(self._marks, given)))
        reach(RESTORE_BEFORE_WRITE)
        with self._counters.restores:
            if writes or meta:
                self.staging.write_at_once([Writes((), writes)], meta)
        self._counters.restore_total += len(pairs)
        reach(RESTORE_AFTER_WRITE)
        if self._keeps_offsets:
            self._keep(offsets)
        self._position = advanced
        self._staged_position = positions.advanced(advanced, self._staged_position)
        if given:
            self._marks = kept_marks.merge(self._marks, given)

    @while_open
    def verify(self) -> None:
        self.staging.verify()

    def committed_offset(self, partition: TopicPartition) -> int | None:
        self.access.check_open()
        check_partition(partition)
        return self._offsets.get(partition)

    def position(self, isolation_level: IsolationLevel) -> Position:
        self.access.check_open()
        if IsolationLevel(isolation_level) is IsolationLevel.READ_COMMITTED and self.transactional:
            return dict(self._position)
        # Copy the staged position first, in one step: a commit merges it into the committed one before clearing it.
        staged = dict(self._staged_position)
        return positions.merge(self._position, staged)

    # Metrics

    def approximate_num_uncommitted_bytes(self) -> int:
        self.access.check_open()
        return self.staging.num_bytes()

    def uncommitted_memory_bytes(self) -> int:
        self.access.check_open()
        return self.staging.memory_bytes()

    @property
    def metrics(self) -> StoreMetrics:
        since = self._iterators.open_since()
        try:
            uncommitted_bytes = self.approximate_num_uncommitted_bytes()
            uncommitted_memory_bytes = self.uncommitted_memory_bytes()
        except StoreClosedError:
            uncommitted_bytes = uncommitted_memory_bytes = 0
        return StoreMetrics(
            store=self.name,
            backend=self.backend,
            uncommitted_bytes=uncommitted_bytes,
            uncommitted_memory_bytes=uncommitted_memory_bytes,
            num_open_iterators=len(since),
            oldest_iterator_open_since_seconds=min(since, default=None),
            **self._counters.read(),
        )

    def engine_metrics(self) -> Mapping[str, int]:
        self.access.check_open()
        try:
            return self.staging.metrics()
        except StoreUnavailableError:
            self.access.check_open()
            raise

    # Closing

    def close(self) -> None:
        if not self.is_open:
            return
        # First, so that the writer begins no new call. A call in progress is completed.
        self.access.writer = 0
        self._writer = 0
        with self.access.working:
            self._close()

    def _close(self) -> None:
        self._counters.end()
        staging = self.staging
        close_engine = partial(_close_engine, staging.engine, self._directory)
        staging.use(CLOSED)
        try:
            self._iterators.close()
            staging.release()
        except BaseException:
            staging.close(close_engine, clean=False)
            raise
        staging.close(close_engine, clean=True)

    def disown(self) -> None:
        """Give up the folder and the iterators in the child of a fork: both belong to the parent."""
        self._iterators.abandon()
        if self._directory is not None:
            # Otherwise this process would hold the parent's lock for as long as it lives.
            self._directory.release()

    # Offsets

    def _checked_offsets(self, offsets: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, int | None]:
        checked = dict(offsets)
        for partition, offset in checked.items():
            committed = self._offsets.get(partition, -1)
            # The fast path, in every commit: a partition with a committed offset has been checked.
            if type(partition) is TopicPartition and type(offset) is int and 0 <= committed <= offset < OFFSET_BOUND:
                continue
            check_partition(partition)
            if offset is None:
                continue
            check_offset(offset)
            if offset < committed:
                raise ValueError(
                    f"store {self.name!r} is at offset {committed} of {partition.topic}-{partition.partition}: "
                    f"a commit can't move it back to {offset}"
                )
        return checked

    def _keep(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        for partition, offset in offsets.items():
            if offset is None:
                self._offsets.pop(partition, None)
            else:
                self._offsets[partition] = offset


def __getattr__(name: str) -> object:
    if name == "EngineStore":
        from stores.strategies.engine_store import EngineStore  # Deprecated, and seldom used.

        return EngineStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _close_engine(engine: Engine, directory: StoreDirectory | None, *, clean: bool) -> None:
    """Close the engine and release the folder. It counts as cleanly closed if ``clean`` and no close failed."""
    closed = False
    try:
        engine.close()
        closed = True
    finally:
        if directory is not None:
            directory.close(clean=clean and closed)
