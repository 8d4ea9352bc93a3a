"""The common part of all strategies: the contract's checks, offsets and position, iterators, readers and restore.

A strategy defines how a write is staged, how it is read back, and what a commit does.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from threading import Lock, RLock, get_ident
from typing import ClassVar, Concatenate, NoReturn, ParamSpec, Self, TypeVar, final
from weakref import WeakSet

from stores import position as positions
from stores.batch.merge import Pair
from stores.contract import marks as kept_marks
from stores.contract.persistence import Persistence
from stores.engines.engine import Engine, Writes
from stores.engines.families import BOTH, FAMILIES, SECOND
from stores.engines.split import SplitEngine, split_or_whole
from stores.errors import (
    CommitFailedError,
    StoreClosedError,
    StoreCorruptedError,
    StoreError,
    StoreUnavailableError,
    WrongThreadError,
)
from stores.failpoints import Part, declare, reach
from stores.files.plain_files import translated_system_errors
from stores.files.store_directory import StoreDirectory
from stores.interface import (
    Durability,
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
from stores.strategies.arguments import OFFSET_BOUND, as_bytes, check_bounds, check_offset, check_partition
from stores.strategies.counters import StoreCounters
from stores.strategies.iterator import Pin, StoreIterator
from stores.strategies.opening import build_engine, open_data
from stores.strategies.reader import BoundedReader, StoreReader
from stores.strategies.writer_thread import catch_up

AnyStore = TypeVar("AnyStore", bound="EngineStore")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

RESTORE_BEFORE_WRITE = declare(
    "restore.before_write", "changelog records are about to be written into the engine", part=Part.RESTORE, twice=True
)
RESTORE_AFTER_WRITE = declare(
    "restore.after_write",
    "changelog records are in the engine together with their offsets",
    part=Part.RESTORE,
    twice=True,
)

SPLIT_BEFORE_WRITE = declare(
    "split.before_write", "a second data family exists, and no meta entry says that it is in use", part=Part.CHANGE
)
SPLIT_AFTER_WRITE = declare(
    "split.after_write", "the records are of an older format, new ones have their own family", part=Part.CHANGE
)
END_SPLIT_BEFORE_WRITE = declare(
    "split.end.before_write", "opening found the last record of an older format gone", part=Part.CHANGE
)
END_SPLIT_AFTER_WRITE = declare(
    "split.end.after_write", "the second data family has all data, and the first is unused", part=Part.CHANGE
)
SPLIT_FAILPOINTS = (SPLIT_BEFORE_WRITE, SPLIT_AFTER_WRITE, END_SPLIT_BEFORE_WRITE, END_SPLIT_AFTER_WRITE)
"""Failpoints that only an upgrade of a store's records reaches."""


@dataclass(frozen=True)
class Traits:
    """The properties that a store is opened with."""

    name: str
    backend: str
    durability: Durability
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    """The level of readers that do not ask for one."""


def while_open(
    method: Callable[Concatenate[AnyStore, Arguments], Result],
) -> Callable[Concatenate[AnyStore, Arguments], Result]:
    """Make a close on another thread wait until the writer's thread has finished ``method``.

    Raises: StoreClosedError if the store was closed first.
    """

    @wraps(method)
    def carried_out(self: AnyStore, /, *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        # The check methods are called only if a check fails: each range delete and each list passes here.
        if get_ident() != self._writer:
            self._check_writer()
        with self._working:
            if not self._writer:
                self._check_open()
            return method(self, *args, **named)

    return carried_out


class EngineStore(KeyValueStore):
    """A store over an engine. Subclasses are the strategies."""

    strategy: ClassVar[str]
    """The strategy's part of a backend's name."""
    failpoints: ClassVar[tuple[str, ...]] = (RESTORE_BEFORE_WRITE, RESTORE_AFTER_WRITE)
    """The failpoints in commits and recoveries of this strategy."""
    options: ClassVar[Mapping[str, object]] = {}
    """The strategy's own options, with their defaults."""
    persistent_failpoints: ClassVar[tuple[str, ...]] = ()
    """Failpoints that are reached over persistent engines only."""
    persistent_options: ClassVar[Mapping[str, object]] = {}
    """Options that exist over persistent engines only."""
    transactional: ClassVar[bool] = True
    manages_offsets: ClassVar[bool] = True

    @classmethod
    def bounds_memory(cls, engine: type[Engine]) -> bool:
        """Return whether a transaction over ``engine`` takes no more memory than the options allow, however large."""
        return engine.bounded_memory

    @classmethod
    def open(cls, engine: type[Engine], path: Path, options: Mapping[str, object], traits: Traits) -> Self:
        """Open the store's folder and engine, and recover. ``options`` has a value for every option."""
        catch_up()
        durability = traits.durability
        if not engine.persistent:
            return cls(engine.open(path, durability, options), None, traits)

        def build(folder: Path) -> None:
            cls._build(engine, folder, durability, options)

        settled: list[RecoveryOutcome] = []

        def settle(older: Engine) -> None:
            store = cls._over(older, directory, options, traits)
            settled.append(store._outcome)
            store._close_staging()

        tearable = engine.torn_by_power_loss(durability)
        directory = StoreDirectory.open(path, traits.backend, durability, build, tearable=tearable)
        if directory.clean:
            try:
                with translated_system_errors(path):
                    for folder in cls._folders(directory):
                        engine.check_closed(folder)
            except BaseException:
                # No engine was opened yet: the folder stays cleanly closed, so that the next attempt reports the same.
                directory.close(clean=True)
                raise
        try:
            opened = open_data(engine, directory, durability, options, settle)
            try:
                store = cls._over(opened, directory, options, traits)
                if RecoveryOutcome.ROLLED_FORWARD in settled:
                    store._outcome = RecoveryOutcome.ROLLED_FORWARD
                store._end_split(path)
                return store
            except BaseException:
                # The original error matters more than an error of this close.
                with suppress(StoreError):
                    opened.close()
                raise
        except BaseException:
            directory.close(clean=False)
            raise

    @classmethod
    def _build(cls, engine: type[Engine], folder: Path, durability: Durability, options: Mapping[str, object]) -> None:
        """Fill the folder of a new store."""
        build_engine(engine, folder / "data", durability, options)

    @classmethod
    def _folders(cls, directory: StoreDirectory) -> Sequence[Path]:
        """Return the folders of the store's engines."""
        return (directory.data,)

    @classmethod
    def _over(cls, engine: Engine, directory: StoreDirectory, options: Mapping[str, object], traits: Traits) -> Self:
        """Return the store over an open engine."""
        return cls(engine, directory, traits)

    def __init__(self, engine: Engine, directory: StoreDirectory | None, traits: Traits) -> None:
        self._engine = split_or_whole(engine)
        self._directory = directory
        self._name, self._backend = traits.name, traits.backend
        self._durability, self._isolation_level = traits.durability, traits.isolation_level
        self._writer = get_ident()
        self._working = RLock()
        """Held while the writer's thread uses the engine for more than a lookup, and while the store is closed."""
        self._persistent = engine.persistent
        self._max_key_bytes = self._engine.max_key_bytes
        self._max_value_bytes = engine.max_value_bytes
        self._counters = StoreCounters()
        self._pins: WeakSet[Pin] = WeakSet()
        self._pins_lock = Lock()
        self._load_meta()
        self._staged_position: dict[TopicPartition, int] = {}
        self._staged_marks: dict[str, bytes | None] = {}
        self._marks_in_doubt = False
        """True while a commit may have changed the engine's marks, and ``_marks`` still has the old ones."""
        self._marks_lock = Lock()
        self._marks_are_held = False
        """True while a reader has the lock: the writer then waits before it changes a mark."""
        self.rollback_turn = 0
        """A counter, odd during a rollback: data and marks then belong to different transactions."""
        self._upgraded = False
        unclean = directory is not None and not directory.clean
        self._outcome = RecoveryOutcome.ROLLED_BACK if unclean else RecoveryOutcome.NOTHING_TO_DO

    def _load_meta(self) -> None:
        meta = self._engine.meta()
        self._offsets = positions.decode(positions.OFFSET, meta)
        self._position = positions.decode(positions.POSITION, meta)
        self._marks = kept_marks.decode(meta)

    # Hooks of a strategy

    @abstractmethod
    def _stage(self, key: bytes, value: bytes | None) -> None:
        """Stage one checked write."""

    @abstractmethod
    def _stage_all(self, writes: dict[bytes, bytes | None]) -> None:
        """Stage checked writes: readers see all of them or none. The method takes ownership of ``writes``."""

    @abstractmethod
    def _stage_range(self, start: bytes | None, end: bytes | None) -> None:
        """Stage one checked range delete."""

    @abstractmethod
    def _commit(self, meta: Mapping[bytes, bytes | None], offsets: Mapping[TopicPartition, int | None]) -> None:
        """Write the staged writes and the meta entries atomically. After an error, everything is as it was before."""

    @abstractmethod
    def _rollback(self) -> None:
        """Discard the staged writes."""

    @abstractmethod
    def _is_clean(self) -> bool:
        """Return whether no write is staged."""

    def _scan(self, level: IsolationLevel, bounds: ScanRange, *, reverse: bool) -> tuple[Iterator[list[Pair]], Pin]:
        """Return a scan of one range, like ``_scans``. A strategy may override it with a cheaper one."""
        return self._scans(level, [bounds], reverse=reverse)[0]

    @abstractmethod
    def _scans(
        self, level: IsolationLevel, ranges: Sequence[ScanRange], *, reverse: bool
    ) -> list[tuple[Iterator[list[Pair]], Pin]]:
        """Return a scan at ``level`` of each of ``ranges``, all of one snapshot, each with the pin of its resources."""

    @abstractmethod
    def _get(self, level: IsolationLevel, key: bytes) -> bytes | None:
        """Return the value of ``key`` at ``level``. May be called on any thread."""

    @abstractmethod
    def _get_many(self, level: IsolationLevel, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of ``keys`` at ``level``, all of one snapshot. May be called on any thread."""

    # Facts

    @property
    def name(self) -> str:
        return self._name

    @property
    def backend(self) -> str:
        return self._backend

    @property
    def durability(self) -> Durability:
        return self._durability

    @property
    def persistent(self) -> bool:
        return self._persistent

    @property
    def takes_timestamps(self) -> bool:
        return True

    @property
    def keeps_marks(self) -> bool:
        return True

    @property
    def deletes_ranges_whole(self) -> bool:
        return self._engine.deletes_ranges_whole

    @property
    def is_split(self) -> bool:
        return isinstance(self._engine, SplitEngine)

    @property
    def can_split(self) -> bool:
        return self.is_split or self._engine.splits

    @property
    def is_open(self) -> bool:
        return self._writer != 0

    @property
    def max_key_bytes(self) -> int:
        return self._max_key_bytes

    # Writing

    def put(self, key: bytes, value: bytes | None) -> None:
        self._check_write(key, value)
        self._stage_checked(key, value)

    def put_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        writes: dict[bytes, bytes | None] = {}
        # Read all pairs before any is staged: they may come from a scan of this store.
        for key, value in pairs:
            self._check_write(key, value)
            writes[key] = value
        self._check_writer()
        if writes:
            self._stage_list(writes)

    def put_if_absent(self, key: bytes, value: bytes | None) -> bytes | None:
        self._check_write(key, value)
        existing = self.get(key)
        if existing is None:
            self._stage_checked(key, value)
        return existing

    def delete(self, key: bytes) -> bytes | None:
        self._check_write(key, None)
        existing = self.get(key)
        if existing is not None:
            self._stage_checked(key, None)
        return existing

    def _stage_checked(self, key: bytes, value: bytes | None) -> None:
        try:
            self._stage(key, value)
        except StoreError:
            # Another thread may have closed the store meanwhile.
            self._check_open()
            raise

    @while_open
    def _stage_list(self, writes: dict[bytes, bytes | None]) -> None:
        self._stage_all(writes)

    @while_open
    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        check_bounds(start, end)
        if start is None or end is None or start <= end:
            self._stage_range(start, end)

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
        self._check_writer()
        check_partition(partition)
        check_offset(offset)
        # Stage only an offset above both positions: then a commit needs no comparison.
        if offset > max(self._position.get(partition, -1), self._staged_position.get(partition, -1)):
            self._staged_position[partition] = offset

    def set_mark(self, name: str, value: bytes | None) -> None:
        if self._marks_are_held:
            self._let_readers_end()
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
        self._check_writer()
        kept_marks.check_name(name)
        kept_marks.check_value(value)
        staged[name] = value

    @contextmanager
    def marks_held(self) -> Iterator[None]:
        """Block the writer's next change of a mark, commit or rollback. For use on another thread."""
        with self._marks_lock:
            self._marks_are_held = True
            try:
                yield
            finally:
                self._marks_are_held = False

    def _let_readers_end(self) -> None:
        with self._marks_lock:
            pass

    # Reading

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
        self._check_open()
        kept_marks.check_name(name)
        if level is IsolationLevel.READ_UNCOMMITTED or self._shows_staged():
            # In this order: a commit stores the marks before it clears the staged ones.
            staged = self._staged_marks
            if name in staged:
                return staged[name]
        elif self._marks_in_doubt:
            # Read the engine's marks, like its data: a mark that is the same before and after a scan belongs to it.
            try:
                return kept_marks.decode(self._engine.meta()).get(name)
            except StoreUnavailableError:
                self._check_open()
                raise
        return self._marks.get(name)

    def _shows_staged(self) -> bool:
        """Return whether readers of committed data are shown staged writes: during a commit in parts, or always."""
        return False

    def get(self, key: bytes) -> bytes | None:
        if type(key) is not bytes:
            key = as_bytes("key", key)
        try:
            return self._get(IsolationLevel.READ_UNCOMMITTED, key)
        except StoreUnavailableError:
            self._check_open()
            raise

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check_open()
        return [self.get(key) for key in keys]

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
        self._check_open()
        try:
            return self._engine.approximate_num_entries()
        except StoreUnavailableError:
            self._check_open()
            raise

    def read_only(
        self, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> KeyValueView:
        self._check_open()
        level = self._isolation_level if isolation_level is None else IsolationLevel(isolation_level)
        if bound is None:
            return StoreReader(self, level)
        if not isinstance(bound, PositionBound):
            raise TypeError(f"a bound is a PositionBound, not {type(bound).__name__}")
        return BoundedReader(self, level, bound)

    @final
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
        self._check_open()
        try:
            pairs, pin = self._scan(level, ScanRange(start, end, end_open), reverse=reverse)
        except StoreUnavailableError:
            self._check_open()
            raise
        return self._iterator(pairs, pin)

    @final
    def scan_many(
        self, level: IsolationLevel, ranges: Sequence[ScanRange], *, reverse: bool = False
    ) -> list[KeyValueIterator]:
        """Return scans of ``ranges`` at ``level``, all of one snapshot. May be called on any thread."""
        for start, end, *_ in ranges:
            check_bounds(start, end)
        self._check_open()
        try:
            made = self._scans(level, ranges, reverse=reverse)
        except StoreUnavailableError:
            self._check_open()
            raise
        return [self._iterator(pairs, pin) for pairs, pin in made]

    def _iterator(self, pairs: Iterator[list[Pair]], pin: Pin) -> StoreIterator:
        """Return an iterator. Closing the store closes it."""
        with self._pins_lock:
            self._pins.add(pin)
        if not self._writer:
            # Another thread has closed the store meanwhile and may have missed this pin.
            pin.close()
        return StoreIterator(pairs, pin)

    @final
    def scan_prefix(self, level: IsolationLevel, prefix: bytes, *, reverse: bool = False) -> KeyValueIterator:
        """Return a scan of the keys that begin with ``prefix``, at ``level``."""
        start, end = prefix_bounds(as_bytes("prefix", prefix))
        return self.scan(level, start, end, end_open=True, reverse=reverse)

    # Transactions

    def commit(self, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> None:
        # The same as ``while_open``, without its cost in each commit.
        if get_ident() != self._writer:
            self._check_writer()
        if self._marks_are_held:
            self._let_readers_end()
        with self._working:
            if not self._writer:
                self._check_open()
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
                    self._commit(meta, offsets)
            except BaseException:
                self._marks_in_doubt = False
                raise
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
        self._check_open()
        return self._engine.persistence

    @while_open
    def persist(self) -> None:
        """Do nothing: a commit is already as durable as it will be."""

    @while_open
    def rollback(self) -> None:
        undone = bool(self._staged_position or self._staged_marks) or not self._is_clean()
        with self._marks_lock:
            self.rollback_turn += 1
            try:
                # Before the data, so that the position never leads the data.
                self._staged_position = {}
                self._rollback()
                # After the data: a reader of staged data needs the stream time that belongs to it.
                self._staged_marks = {}
            finally:
                self.rollback_turn += 1
        self._counters.rollback_total += undone

    def recover(self, changelog_offsets: Mapping[TopicPartition, int] | None = None) -> Recovery:
        self._check_open()
        checkpoint = dict({} if changelog_offsets is None else changelog_offsets)
        for partition, wanted in checkpoint.items():
            check_partition(partition)
            check_offset(wanted)
        for partition, wanted in checkpoint.items():
            reached = self._offsets.get(partition)
            if reached is None or reached < wanted:
                raise StoreCorruptedError(
                    f"store {self._name!r} is at offset {reached} of {partition.topic}-{partition.partition}, behind "
                    f"its checkpoint {wanted}: wipe the store and restore it from its changelog"
                )
        return Recovery(self._outcome, dict(self._offsets), self._upgraded)

    @while_open
    def split(self, marks: Mapping[str, bytes | None]) -> None:
        engine = self._engine
        if not engine.splits:
            super().split(marks)
        if self._staged_marks or not self._is_clean():
            raise StoreError(f"store {self._name!r} has staged writes: commit or roll back before splitting it")
        if self.is_split:
            raise StoreError(f"store {self._name!r} is split already")
        kept_marks.check(marks)
        engine.add_family()
        reach(SPLIT_BEFORE_WRITE)
        changed = kept_marks.changed(self._marks, marks)
        self._write_at_once([], {**kept_marks.encode(self._marks, changed), FAMILIES: BOTH})
        reach(SPLIT_AFTER_WRITE)
        engine.select_families()
        self._engine = split_or_whole(engine)
        self._max_key_bytes += 1
        self._marks = kept_marks.merge(self._marks, marks)

    def _end_split(self, path: Path) -> None:
        """Make the store whole if its last record of the older format is gone. Raises: StoreUnavailableError."""
        split = self._engine
        if not isinstance(split, SplitEngine) or split.has_old():
            return
        try:
            reach(END_SPLIT_BEFORE_WRITE)
            self._write_at_once([], {FAMILIES: SECOND})
        except CommitFailedError as error:
            raise StoreUnavailableError(
                f"the upgrade of {path} could not be ended: {error}. Mend that and open the store again"
            ) from error
        reach(END_SPLIT_AFTER_WRITE)
        split.engine.select_families()
        self._engine = split.engine
        self._max_key_bytes -= 1
        self._upgraded = True

    @while_open
    def restore(
        self,
        pairs: Iterable[tuple[bytes, bytes | None]],
        changelog_offsets: Mapping[TopicPartition, int],
        position: Position | None = None,
        marks: Mapping[str, bytes | None] | None = None,
    ) -> None:
        if self._staged_marks or not self._is_clean():
            raise StoreError(f"store {self._name!r} has staged writes: commit or roll back before restoring into it")
        offsets = self._checked_offsets(changelog_offsets)
        pairs = list(pairs)
        writes = dict(pairs)
        for key, value in writes.items():
            self._check_write(key, value)
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
                self._write_at_once([Writes((), writes)], meta)
        self._counters.restore_total += len(pairs)
        reach(RESTORE_AFTER_WRITE)
        self._keep(offsets)
        self._position = advanced
        self._staged_position = positions.advanced(advanced, self._staged_position)
        if given:
            self._marks = kept_marks.merge(self._marks, given)

    def _write_at_once(self, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None]) -> None:
        """Write directly into the engine, atomically. Staged writes are not affected."""
        self._engine.write(layers, meta)

    @while_open
    def verify(self) -> None:
        self._engine.verify()

    def committed_offset(self, partition: TopicPartition) -> int | None:
        self._check_open()
        check_partition(partition)
        return self._offsets.get(partition)

    def position(self, isolation_level: IsolationLevel) -> Position:
        self._check_open()
        if IsolationLevel(isolation_level) is IsolationLevel.READ_COMMITTED and self.transactional:
            return dict(self._position)
        # Copy the staged position first, in one step: a commit merges it into the committed one before clearing it.
        staged = dict(self._staged_position)
        return positions.merge(self._position, staged)

    # Metrics

    @property
    def metrics(self) -> StoreMetrics:
        with self._pins_lock:
            pins = list(self._pins)
        since = [pin.since for pin in pins if pin.held]
        try:
            uncommitted_bytes = self.approximate_num_uncommitted_bytes()
            uncommitted_memory_bytes = self.uncommitted_memory_bytes()
        except StoreClosedError:
            uncommitted_bytes = uncommitted_memory_bytes = 0
        return StoreMetrics(
            store=self._name,
            backend=self._backend,
            uncommitted_bytes=uncommitted_bytes,
            uncommitted_memory_bytes=uncommitted_memory_bytes,
            num_open_iterators=len(since),
            oldest_iterator_open_since_seconds=min(since, default=None),
            **self._counters.read(),
        )

    def engine_metrics(self) -> Mapping[str, int]:
        self._check_open()
        try:
            return self._read_engines()
        except StoreUnavailableError:
            self._check_open()
            raise

    def _read_engines(self) -> Mapping[str, int]:
        return self._engine.metrics()

    def close(self) -> None:
        if not self.is_open:
            return
        # First, so that the writer begins no new call. A call in progress is completed.
        self._writer = 0
        with self._working:
            self._close()

    def _close(self) -> None:
        self._counters.end()
        with self._pins_lock:
            pins = list(self._pins)
        engine, self._engine = self._engine, _CLOSED
        try:
            for pin in pins:
                pin.close()
            self._close_staging()
        except BaseException:
            self._close_engine(engine, clean=False)
            raise
        self._close_engine(engine, clean=True)

    def _close_engine(self, engine: Engine, *, clean: bool) -> None:
        """Close the engine and release the folder. It counts as cleanly closed if ``clean`` and no close failed."""
        closed = False
        try:
            engine.close()
            closed = True
        finally:
            if self._directory is not None:
                self._directory.close(clean=clean and closed)

    def _close_staging(self) -> None:
        """Close the strategy's resources other than the engine."""

    # Checks

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
                    f"store {self._name!r} is at offset {committed} of {partition.topic}-{partition.partition}: "
                    f"a commit can't move it back to {offset}"
                )
        return checked

    def _keep(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        for partition, offset in offsets.items():
            if offset is None:
                self._offsets.pop(partition, None)
            else:
                self._offsets[partition] = offset

    def _check_write(self, key: bytes, value: bytes | None) -> None:
        self._check_writer()
        if not isinstance(key, bytes):
            as_bytes("key", key)
        if not key:
            raise ValueError("a key has at least one byte")
        if len(key) > self._max_key_bytes:
            raise ValueError(f"key of {len(key)} bytes: {self._backend} takes up to {self._max_key_bytes}")
        if value is not None:
            if not isinstance(value, bytes):
                as_bytes("value", value)
            if len(value) > self._max_value_bytes:
                raise ValueError(f"value of {len(value)} bytes: {self._backend} takes up to {self._max_value_bytes}")

    def _check_writer(self) -> None:
        if get_ident() != self._writer:
            self._check_open()
            raise WrongThreadError(
                f"store {self._name!r} is written by the thread that opened it: use read_only() on other threads"
            )

    def _check_open(self) -> None:
        if not self.is_open:
            catch_up()
            raise StoreClosedError(f"store {self._name!r} is closed: open it again")


class _Closed:
    """The stand-in for the engine of a closed store."""

    def __getattr__(self, name: str) -> NoReturn:
        raise StoreClosedError("the store is closed: open it again")


_CLOSED: Engine = _Closed()  # type: ignore[assignment]
