"""The contract of a state store: what every backend promises, and nothing about how.

Keys and values are bytes; keys are ordered by unsigned bytes. There is always exactly one open transaction:
the first begins when the store is opened, the next at each commit or rollback (KIP-844, "StateStore changes").
One thread, the one that opened the store, writes; any number of threads read (KIP-892, "Proposed Changes").
"""

from __future__ import annotations

import sys
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from struct import Struct
from typing import Protocol

from stores.contract.persistence import AT_ONCE, Persistence
from stores.contract.plain import PlainView, prefixed, reversed_scan
from stores.contract.reading import (
    Answer,
    Closeable,
    IsolationLevel,
    KeyValueIterator,
    KeyValueView,
    Position,
    PositionBound,
    ReadOnlyKeyValueStore,
    TopicPartition,
)
from stores.errors import StoreCorruptedError, StoreError, StoreIncompatibleError
from stores.metrics import StoreMetrics

__all__ = [
    "Closeable",
    "Durability",
    "IsolationLevel",
    "KeyValueIterator",
    "KeyValueStore",
    "KeyValueView",
    "Position",
    "PositionBound",
    "ProcessingGuarantee",
    "ReadOnlyKeyValueStore",
    "Recovery",
    "RecoveryOutcome",
    "StateStore",
    "TopicPartition",
]


_pack_time = Struct(">q").pack


class HoldsStored(Protocol):
    """An object that holds a value as the store keeps it."""

    stored: bytes


class Durability(StrEnum):
    """The failures that a commit survives by itself. Figures are only compared within one level."""

    CHANGELOG = "CHANGELOG"
    """Nothing: after a crash the store is at some earlier commit, whole; the changelog's tail is replayed."""
    PROCESS = "PROCESS"
    """A killed process."""
    DISK = "DISK"
    """Power loss: every commit is synced."""


class ProcessingGuarantee(StrEnum):
    """The promise of a task about records that it processes again after a failure. Source: KIP-129."""

    AT_LEAST_ONCE = "at_least_once"
    """No record's effect is lost; after a failure some may be there twice, in outputs and in state."""
    EXACTLY_ONCE = "exactly_once"
    """Each record's effects on outputs, state and input offsets are there once, whatever fails."""


class RecoveryOutcome(StrEnum):
    """The result of recovery for the transaction that was open when the store was last used."""

    NOTHING_TO_DO = "NOTHING_TO_DO"
    """The store is new, or was closed cleanly."""
    ROLLED_BACK = "ROLLED_BACK"
    """It was not closed cleanly; the writes staged then are rolled back."""
    ROLLED_FORWARD = "ROLLED_FORWARD"
    """A commit that had passed its commit point was completed."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of a recovery: what was done, and the committed offsets that the store is at now."""

    outcome: RecoveryOutcome
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    upgraded: bool = False
    """True if opening found the last record of an older format gone: from now on the store is like one that never had
    any. False each time it is opened after that."""


class StateStore(Closeable):
    """A store's life: commit, rollback, recovery, restore, close, and the offsets that tie it to its changelog.

    A user's function never calls ``commit``: the task that owns the store does (KIP-892, ``StateStore#commit``).

    Methods that are not abstract have defaults. They fit a store that neither isolates uncommitted writes nor keeps
    offsets, like stores of Kafka Streams before KIP-844: its task keeps the offset, and restores the store after an
    unclean close.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The store's name, unique within its task."""

    @property
    def backend(self) -> str:
        """The registered name of the backend, such as ``rocksdb-indexed-batch``."""
        return type(self).__name__

    @property
    def durability(self) -> Durability:
        """The durability level of the store: what its commits survive; by default CHANGELOG."""
        return Durability.CHANGELOG

    @property
    def persistent(self) -> bool:
        """True if data is kept when the process ends. False by default: a task then restores the store whole."""
        return False

    @property
    def transactional(self) -> bool:
        """True if uncommitted writes are isolated until commit; False by default. Source: KIP-844, ``transactional()``.

        A transactional store implements ``rollback``, and its ``restore`` leaves staged writes as they are.
        """
        return False

    @property
    def manages_offsets(self) -> bool:
        """True if offsets given to ``commit`` are stored with the data; False by default.

        A store that returns True implements ``committed_offset``. Source: KIP-892, ``managesOffsets()``.
        """
        return False

    @property
    def takes_timestamps(self) -> bool:
        """True if values may be stored with a timestamp in front; by default only if the store is not persistent.

        A persistent store of another package that does not return True goes on with plain values: a timestamped store
        over it adds the time -1 when it reads, and drops times when it writes. Source: KIP-258,
        ``TimestampedBytesStore``.
        """
        return not self.persistent

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """False from the first ``close`` on."""

    @abstractmethod
    def commit(self, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> None:
        """Make staged data, position and offsets visible and persistent in one step, or change nothing.

        Offsets (0 or more; the changelog record most recently reflected) merge into those already kept:
        an empty mapping or None changes none, ``{tp: None}`` clears one. After a failed commit everything
        staged is as it was, unless the error asks to open the store again. An offset never moves backwards.

        Raises: ValueError for a negative offset or one below the committed one, CommitFailedError,
        WrongThreadError, StoreClosedError.
        Source: KIP-892, ``StateStore#commit(Map)``.
        """

    def flush(self) -> None:
        """Deprecated: ``commit`` replaces it (KIP-844, "StateStore changes"). Commits without changing an offset."""
        warnings.warn("flush() is deprecated: use commit()", DeprecationWarning, stacklevel=2)
        self.commit()

    @property
    def keeps_marks(self) -> bool:
        """True if the store keeps marks with its data; False by default.

        A store that returns True implements ``mark`` and ``set_mark``, and its ``restore`` takes ``marks``.
        """
        return False

    def mark(self, name: str) -> bytes | None:
        """Return the bytes that were set as the mark ``name``, staged or committed; None where there are none.

        Marks lie beside the data, as offsets do, and never show in a scan. For the writer's thread; other threads read
        them from a view. Raises: TypeError, ValueError for what is no name of a mark, StoreClosedError.
        """
        return None

    def with_mark(self, name: str, read: Callable[[bytes | None], Answer]) -> Answer:
        """Return what ``read`` returns, which is given the mark ``name``. For the writer's thread: nothing changes
        meanwhile."""
        return read(self.mark(name))

    def set_mark(self, name: str, value: bytes | None) -> None:
        """Stage ``value`` as the mark ``name``; None removes it. Committed with the next commit, dropped by a rollback.
        A store that is not transactional keeps it in a rollback, as it keeps its writes; only a crash takes it back.

        A name has 1 to 64 printable ASCII characters, a value up to 64 KiB. It costs about as much as a write to a
        dict, and nothing in a commit where the value is the committed one.

        Raises: StoreError where ``keeps_marks`` is False; TypeError, ValueError, WrongThreadError, StoreClosedError.
        """
        raise StoreError(
            f"store {self.name!r} of {self.backend} keeps no marks: choose a backend whose keeps_marks is True"
        )

    @property
    def is_split(self) -> bool:
        """True if the store has records of an older format besides those of the present one; False by default.

        All keys then begin with one byte more: zero before those of the older format, one before the others; so it is
        in lookups, scans and writes alike. Typed stores see to that (``stores.records``).
        """
        return False

    @property
    def can_split(self) -> bool:
        """True if ``split`` can separate records of two formats; False by default."""
        return False

    def split(self, marks: Mapping[str, bytes | None]) -> None:
        """Let all records count as of an older format from now on, and set ``marks``, at once and in one step.

        Costs the same for any number of records: none is read or written. Nothing may be staged, and no view or
        iterator be in use. When the last record of the older format has been removed, the next opening ends it.

        Raises: StoreIncompatibleError unless ``can_split``, StoreError where writes are staged or it is split; else as
        ``commit``.
        """
        raise StoreIncompatibleError(
            f"store {self.name!r} of {self.backend} can't hold records of two formats: wipe it and restore it "
            "from its changelog"
        )

    def persist(self) -> None:
        """Make all that was committed survive a killed process, whatever the level.

        Only for stores that do not manage their offsets: a task calls it before it writes a checkpoint file that
        names one (KIP-844, step 4a). The others have nothing to do, since their offsets lie with their data.

        Raises: CommitFailedError, WrongThreadError, StoreClosedError.
        """

    @property
    def persistence(self) -> Persistence:
        """The commits that survive a killed process; by default all of them, at once."""
        return AT_ONCE

    def rollback(self) -> None:
        """Discard what was staged since the last commit: writes, deletes, range deletes, position.

        For a store that is not transactional it does nothing: its writes can't be undone.
        """
        if self.transactional:
            raise NotImplementedError(f"{type(self).__name__} is transactional and has no rollback(): implement it")

    def recover(self, changelog_offsets: Mapping[TopicPartition, int] | None = None) -> Recovery:
        """Return what opening did with an interrupted transaction, and the offsets of the store.

        Opening has already recovered from the store's own files; this never reads the changelog. Where offsets
        are given (a checkpoint's), the store must have reached at least those.

        Raises: StoreCorruptedError if the store is behind a given offset. Source: KIP-844, ``recover``.
        """
        offsets = {}
        for partition, wanted in ({} if changelog_offsets is None else changelog_offsets).items():
            reached = self.committed_offset(partition)
            if reached is None or reached < wanted:
                raise StoreCorruptedError(
                    f"store {self.name!r} is at offset {reached} of {partition.topic}-{partition.partition}, behind "
                    f"its checkpoint {wanted}: wipe the store and restore it from its changelog"
                )
            offsets[partition] = reached
        return Recovery(RecoveryOutcome.NOTHING_TO_DO, offsets)

    @abstractmethod
    def restore(
        self,
        pairs: Iterable[tuple[bytes, bytes | None]],
        changelog_offsets: Mapping[TopicPartition, int],
        position: Position | None = None,
        marks: Mapping[str, bytes | None] | None = None,
    ) -> None:
        """Write committed changelog records straight into the engine, with their offsets, atomically per call.

        Bypasses the open transaction, which must be empty, and counts no uncommitted bytes. ``None`` deletes;
        a later pair of the same key wins. ``position`` is what the state reflects afterwards, merged by maximum.
        ``marks`` are set with them; they are passed only to a store whose ``keeps_marks`` is True.

        Raises: StoreError where writes are staged, TypeError and ValueError for a pair that ``put`` would refuse,
        else as ``commit``.
        """

    def verify(self) -> None:
        """Read everything committed and detect corruption: checksums, order, counts, the engine's structure.

        Changes nothing, and may be called while writes are staged, which it does not check. It takes the time of a few
        scans of everything. LMDB and SQLite may show the keys of a damaged page as absent without an error, so reads
        alone do not detect everything that this does. Corruption of LMDB's meta pages is detected when the store is
        opened.

        Raises: StoreCorruptedError for damage, StoreUnavailableError, WrongThreadError, StoreClosedError.
        """

    def committed_offset(self, partition: TopicPartition) -> int | None:
        """Return the committed offset of ``partition``, or None. Source: KIP-892, ``committedOffset``."""
        if self.manages_offsets:
            raise NotImplementedError(
                f"{type(self).__name__} manages offsets and has no committed_offset(): implement it"
            )
        return None

    def approximate_num_uncommitted_bytes(self) -> int:
        """Return the bytes of keys and values staged in the open transaction; a key that is written twice counts once.

        0 if nothing is staged, and for stores that are not transactional.
        Source: KIP-892, ``approximateNumUncommittedBytes``.
        """
        return 0

    def uncommitted_memory_bytes(self) -> int:
        """Return the approximate memory of the open transaction: keys and values in memory, and each entry's cost.

        Memory that an engine takes for its own transaction is not included. The default is the result of
        ``approximate_num_uncommitted_bytes``.
        """
        return self.approximate_num_uncommitted_bytes()

    def advance_position(self, partition: TopicPartition, offset: int) -> None:
        """Note that the staged writes reflect input up to ``offset`` (0 or more). Call it after these writes.

        The position is committed with them, merged by maximum; a rollback drops it. By default no position is kept.
        """

    def position(self, isolation_level: IsolationLevel) -> Position:
        """Return the input offsets that the state reflects: committed, or including the open transaction. A copy.

        Empty if the store keeps none: every query with a bound is then refused.
        """
        return {}

    @property
    def metrics(self) -> StoreMetrics:
        """The counts of the store since it was opened, and its present state. A copy; any thread; after close, too.

        By default only the names are set. Raises: StoreClosedError in the child of a fork.
        Source: KIP-892, "Metrics".
        """
        return StoreMetrics(store=self.name, backend=self.backend)

    def engine_metrics(self) -> Mapping[str, int]:
        """Return figures of the engine (memory, caches, files), by the engine's names; none by default.

        They are read from the engine at the call: a lookup of each, no scan. On any thread. They are bytes if the name
        says so, otherwise counts. Raises: StoreClosedError, StoreUnavailableError.
        """
        return {}

    @abstractmethod
    def close(self) -> None:
        """Close the store and its iterators; never commits. May be called more than once.

        If another thread than the writer's closes an ``lmdb-native`` store with an open transaction, its folder stays
        locked until the writer's thread uses a store again, or ends.

        Raises: StoreUnavailableError, CommitFailedError on a disk error. The store is closed even then, and opening it
        again recovers it.
        """


class KeyValueStore(StateStore, ReadOnlyKeyValueStore):
    """A transactional map of bytes to bytes. The writer reads its own uncommitted writes, in lookups and scans.

    Keys have 1 byte or more, up to the engine's limit; values may be empty; ``None`` as a value deletes.
    Raises, all writes: TypeError and ValueError before anything is staged, WrongThreadError on any thread but
    the opening one, StoreClosedError after close.
    """

    @property
    def max_key_bytes(self) -> int:
        """The length of the longest key that the engine accepts."""
        return sys.maxsize

    @property
    def deletes_ranges_whole(self) -> bool:
        """True if the cost of a range delete does not depend on the number of removed keys; False by default."""
        return False

    @abstractmethod
    def put(self, key: bytes, value: bytes | None) -> None:
        """Stage ``value`` under ``key``; None deletes."""

    def put_timestamped(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        """Stage ``value`` under ``key`` with its time, eight bytes big-endian, before it; None deletes.

        Times are in milliseconds, from 0 to below 2**62. As a ``put`` of both, and faster in the library's own stores.
        Source: KIP-258, ``<8-byte timestamp><value>``.
        """
        if type(timestamp_ms) is not int:
            raise TypeError(f"timestamp_ms is an int, in milliseconds, not {type(timestamp_ms).__name__}")
        if timestamp_ms >> 62:
            raise ValueError(f"timestamp_ms is 0 or more, and below 2**62 milliseconds, not {timestamp_ms}")
        if not isinstance(key, bytes) or not (value is None or isinstance(value, bytes)):
            raise TypeError(
                f"store {self.name!r}: key and value are bytes, not the key {key!r} of type {type(key).__name__} and "
                f"a value of type {type(value).__name__}"
            )
        self.put(key, None if value is None else _pack_time(timestamp_ms) + value)

    def timestamped_lookup(
        self, form: type[HoldsStored], otherwise: Callable[[bytes], HoldsStored | None]
    ) -> Callable[[bytes], HoldsStored | None]:
        """Return a lookup of values with times: for a value of eight bytes or more, ``form()`` with it in ``stored``.

        It returns None for a missing key, and the result of ``otherwise`` for a key that is not bytes and for a shorter
        value. ``otherwise`` is such a lookup by itself, and the default. The library's own stores have a faster one.
        """
        return otherwise

    def put_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Stage every pair, or none if one of them is refused. A later pair of the same key wins."""
        checked = list(pairs)
        for key, value in checked:
            if not isinstance(key, bytes) or not (value is None or isinstance(value, bytes)):
                raise TypeError(f"keys and values are bytes, not {type(key).__name__} and {type(value).__name__}")
            if not 0 < len(key) <= self.max_key_bytes:
                raise ValueError(f"a key has 1 to {self.max_key_bytes} bytes, not {len(key)}")
        for key, value in checked:
            self.put(key, value)

    def put_if_absent(self, key: bytes, value: bytes | None) -> bytes | None:
        """Stage ``value`` unless ``key`` has one; return the existing value, or None if ``value`` was staged."""
        existing = self.get(key)
        if existing is None:
            self.put(key, value)
        return existing

    def delete(self, key: bytes) -> bytes | None:
        """Stage the removal of ``key``; return its old value."""
        existing = self.get(key)
        self.put(key, None)
        return existing

    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        """Stage the removal of every key from ``start`` to ``end``, both included; None leaves an end open."""
        with self.range(start, end) as pairs:
            keys = [key for key, _ in pairs]
        for key in keys:
            self.put(key, None)

    def restore(
        self,
        pairs: Iterable[tuple[bytes, bytes | None]],
        changelog_offsets: Mapping[TopicPartition, int],
        position: Position | None = None,
        marks: Mapping[str, bytes | None] | None = None,
    ) -> None:
        """Restore like ``StateStore.restore``. By default the pairs are put and committed: the open transaction is
        empty, so the result is the same."""
        if self.approximate_num_uncommitted_bytes():
            raise StoreError(f"store {self.name!r} has staged writes: commit or roll back before restoring into it")
        self.put_all(pairs)
        for partition, offset in ({} if position is None else position).items():
            self.advance_position(partition, offset)
        for name, value in ({} if marks is None else marks).items():
            self.set_mark(name, value)
        self.commit(changelog_offsets)

    def verify(self) -> None:
        """Verify like ``StateStore.verify``. By default all keys are read, and their order is checked."""
        before = b""
        with self.all() as pairs:
            for key, _ in pairs:
                if key <= before:
                    raise StoreCorruptedError(
                        f"store {self.name!r} has key {key!r} after {before!r}: wipe the store and restore it from its "
                        "changelog"
                    )
                before = key

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return reversed_scan(self.range(start, end))

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return prefixed(self.range(prefix or None, None), prefix)

    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return reversed_scan(self.prefix_scan(prefix))

    def approximate_num_entries(self) -> int:
        """Return the number of keys. By default they are counted with a full scan."""
        with self.all() as pairs:
            return sum(1 for _ in pairs)

    def read_only(
        self, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> KeyValueView:
        """Return a read-only view for other threads, which is closed with the store.

        The default level is the one that the store was opened with. Creating a view costs nothing. At READ_COMMITTED no
        write waits for it; at READ_UNCOMMITTED a write may wait for a lookup or a step of a scan.

        Raises: ValueError for an unknown level, StoreClosedError.
        """
        level = IsolationLevel.READ_COMMITTED if isolation_level is None else IsolationLevel(isolation_level)
        if self.transactional and level is IsolationLevel.READ_COMMITTED:
            raise StoreError(
                f"store {self.name!r} does not isolate uncommitted writes: read at READ_UNCOMMITTED, or "
                f"implement read_only() in {type(self).__name__}"
            )
        return PlainView(self, self.position, self.mark, level, bound)
