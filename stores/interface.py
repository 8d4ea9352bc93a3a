"""The contract of a state store: what every backend promises, and nothing about how.

Keys and values are bytes; keys are ordered by unsigned bytes. There is always exactly one open transaction:
the first begins when the store is opened, the next at each commit or rollback (KIP-844, "StateStore changes").
One thread, the one that opened the store, writes; any number of threads read (KIP-892, "Proposed Changes").
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import NamedTuple, Self

from stores.metrics import StoreMetrics
from stores.persistence import AT_ONCE, Persistence


class TopicPartition(NamedTuple):
    """One ordered log: a topic's name and a partition number, 0 or more."""

    topic: str
    partition: int


class IsolationLevel(StrEnum):
    """What a reader on another thread may see. Source: KIP-892, "Proposed Changes"."""

    READ_UNCOMMITTED = "READ_UNCOMMITTED"
    """What was committed, with the open transaction laid over it."""
    READ_COMMITTED = "READ_COMMITTED"
    """What was committed; all of a commit, or nothing of it."""


class Durability(StrEnum):
    """What a commit survives by itself. Figures are only ever compared within one level."""

    CHANGELOG = "CHANGELOG"
    """Nothing: after a crash the store is at some earlier commit, whole; the changelog's tail is replayed."""
    PROCESS = "PROCESS"
    """A killed process."""
    DISK = "DISK"
    """Power loss: every commit is synced."""


class ProcessingGuarantee(StrEnum):
    """What a task promises about records that it processes again after a failure. Source: KIP-129."""

    AT_LEAST_ONCE = "at_least_once"
    """No record's effect is lost; after a failure some may be there twice, in outputs and in state."""
    EXACTLY_ONCE = "exactly_once"
    """Each record's effects on outputs, state and input offsets are there once, whatever fails."""


class RecoveryOutcome(StrEnum):
    """What opening a store had to do with the transaction that was open when it was last used."""

    NOTHING_TO_DO = "NOTHING_TO_DO"
    """The store is new, or was closed cleanly."""
    ROLLED_BACK = "ROLLED_BACK"
    """It was not closed cleanly; what was staged then is gone."""
    ROLLED_FORWARD = "ROLLED_FORWARD"
    """A commit that was marked as ready has been carried out."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of a recovery: what was done, and the committed offsets that the store is at now."""

    outcome: RecoveryOutcome
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


Position = Mapping[TopicPartition, int]
"""Highest input offset per topic and partition that a state reflects. Source: KIP-796."""


@dataclass(frozen=True, slots=True)
class PositionBound:
    """A query's condition on the state that answers it: up to date with at least ``position``.

    A partition that is not named is no condition. Raises: TypeError, ValueError for what is no position.
    Source: KIP-796, ``PositionBound``.
    """

    position: Position = field(default_factory=dict)

    def __post_init__(self) -> None:
        for partition, offset in self.position.items():
            if not isinstance(partition, TopicPartition) or not isinstance(offset, int) or isinstance(offset, bool):
                raise TypeError(f"a bound maps TopicPartitions to offsets, not {partition!r} to {offset!r}")
            if offset < 0:
                raise ValueError(f"an offset is 0 or more, not {offset}")
        # The caller's mapping may change later.
        object.__setattr__(self, "position", dict(self.position))

    def behind(self, reached: Position) -> dict[TopicPartition, int]:
        """How many offsets ``reached`` lacks, by partition; empty where it is up to the bound."""
        return {
            partition: offset - reached.get(partition, -1)
            for partition, offset in self.position.items()
            if reached.get(partition, -1) < offset
        }


class Closeable(ABC):
    """What holds on to something until it is closed: use it in a ``with`` block, whose end closes it."""

    @abstractmethod
    def close(self) -> None:
        """Give up what is held. May be called more than once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class KeyValueIterator(Closeable, Iterator[tuple[bytes, bytes]]):
    """Pairs of a scan, in key order: a snapshot of the moment the scan was made.

    Use it in a ``with`` block, or run it to its end, or close it: until then it pins the state that it shows.
    Once it or its store is closed, every further step raises ``StoreClosedError``.
    """

    @abstractmethod
    def close(self) -> None:
        """Give up what the scan pins. May be called more than once."""


class ReadOnlyKeyValueStore(ABC):
    """Lookups and ordered scans. Scans are inclusive at both ends; ``None`` leaves an end open.

    Raises, all methods: ``TypeError`` where a key is not bytes, ``StoreClosedError`` after close.
    """

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value under ``key``, or None."""

    @abstractmethod
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values under ``keys``, in their order; None where there is none."""

    @abstractmethod
    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        """Pairs with ``start <= key <= end``, ascending. Empty where ``start > end``."""

    @abstractmethod
    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        """As ``range``, descending: the bounds keep their meaning, ``start`` is the smaller."""

    def all(self) -> KeyValueIterator:
        """Every pair, ascending."""
        return self.range(None, None)

    def reverse_all(self) -> KeyValueIterator:
        """Every pair, descending."""
        return self.reverse_range(None, None)

    @abstractmethod
    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        """Pairs whose key begins with ``prefix``, ascending; every pair for an empty prefix."""

    @abstractmethod
    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        """As ``prefix_scan``, descending."""

    @abstractmethod
    def approximate_num_entries(self) -> int:
        """How many committed keys there are, about; 0 or more. Engines estimate; it costs no scan."""


class KeyValueView(ReadOnlyKeyValueStore):
    """A store as other threads see it, at one isolation level; it has no way to write. For any thread.

    Each lookup and each scan shows one moment: at READ_COMMITTED a whole commit, never an earlier one than it showed
    before; at READ_UNCOMMITTED what was committed with the open transaction as it was then laid over it. That holds
    for all keys of a ``get_many`` together. Where the view has a bound, each raises NotUpToBoundError until the state
    has reached it.

    Source: KIP-892, "Interactive Queries" and "Query-time Isolation Levels".
    """

    @property
    @abstractmethod
    def isolation_level(self) -> IsolationLevel:
        """What the view shows."""

    @abstractmethod
    def position(self) -> Position:
        """Input offsets that the next query's answer reflects at least. A copy; it needs no bound to be reached."""


class StateStore(Closeable):
    """A store's life: commit, rollback, recovery, restore, close, and the offsets that tie it to its changelog.

    A user's function never calls ``commit``: the task that owns the store does (KIP-892, ``StateStore#commit``).
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The store's name, unique within its task."""

    @property
    @abstractmethod
    def backend(self) -> str:
        """The registered name of the backend, such as ``rocksdb-indexed-batch``."""

    @property
    @abstractmethod
    def durability(self) -> Durability:
        """What a commit of this store survives by itself."""

    @property
    @abstractmethod
    def persistent(self) -> bool:
        """Whether anything is kept when the process ends."""

    @property
    @abstractmethod
    def transactional(self) -> bool:
        """Whether uncommitted writes are kept apart until commit. Source: KIP-844, ``transactional()``."""

    @property
    @abstractmethod
    def manages_offsets(self) -> bool:
        """Whether offsets given to ``commit`` are kept with the data. Source: KIP-892, ``managesOffsets()``."""

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

    def persist(self) -> None:
        """Make all that was committed survive a killed process, whatever the level.

        Only for stores that do not manage their offsets: a task calls it before it writes a checkpoint file that
        names one (KIP-844, step 4a). The others have nothing to do, since their offsets lie with their data.

        Raises: CommitFailedError, WrongThreadError, StoreClosedError.
        """

    @property
    def persistence(self) -> Persistence:
        """How much of what was committed a killed process would lose. By default each commit survives one at once."""
        return AT_ONCE

    @abstractmethod
    def rollback(self) -> None:
        """Discard what was staged since the last commit: writes, deletes, range deletes, position."""

    @abstractmethod
    def recover(self, changelog_offsets: Mapping[TopicPartition, int] | None = None) -> Recovery:
        """What opening did with an interrupted transaction, and the offsets the store is at.

        Opening has already recovered from the store's own files; this never reads the changelog. Where offsets
        are given (a checkpoint's), the store must have reached at least those.

        Raises: StoreCorruptedError where the store is behind a given offset. Source: KIP-844, ``recover``.
        """

    @abstractmethod
    def restore(
        self,
        pairs: Iterable[tuple[bytes, bytes | None]],
        changelog_offsets: Mapping[TopicPartition, int],
        position: Position | None = None,
    ) -> None:
        """Write committed changelog records straight into the engine, with their offsets, atomically per call.

        Bypasses the open transaction, which must be empty, and counts no uncommitted bytes. ``None`` deletes;
        a later pair of the same key wins. ``position`` is what the state reflects afterwards, merged by maximum.

        Raises: StoreError where writes are staged, TypeError and ValueError for a pair that ``put`` would refuse,
        else as ``commit``.
        """

    @abstractmethod
    def verify(self) -> None:
        """Read everything committed and check whatever tells damage: checksums, order, counts, the engine's structure.

        Changes nothing, and may be called while writes are staged, which it does not look at. It takes the time of a
        scan of everything or some of those. What it finds is in the store's files: reads may show it as well, but
        LMDB and SQLite may show a damaged page's keys as absent, without a word. Damage to LMDB's meta pages, which
        tell its last commit, is found when the store is opened.

        Raises: StoreCorruptedError for damage, StoreUnavailableError, WrongThreadError, StoreClosedError.
        """

    @abstractmethod
    def committed_offset(self, partition: TopicPartition) -> int | None:
        """The offset that the last commits kept for ``partition``, or None. Source: KIP-892, ``committedOffset``."""

    @abstractmethod
    def approximate_num_uncommitted_bytes(self) -> int:
        """Bytes of keys and values staged in the open transaction; a key that is written twice counts once.

        0 where nothing is staged and for stores that are not transactional.
        Source: KIP-892, ``approximateNumUncommittedBytes``.
        """

    @abstractmethod
    def advance_position(self, partition: TopicPartition, offset: int) -> None:
        """Note that the staged writes reflect input up to ``offset`` (0 or more): to be called after them.

        Committed with them, merged by maximum; a rollback drops it with them.
        """

    @abstractmethod
    def position(self, isolation_level: IsolationLevel) -> Position:
        """Input offsets that the state reflects: committed, or with the open transaction laid over them. A copy."""

    @property
    @abstractmethod
    def metrics(self) -> StoreMetrics:
        """What the store has counted since it was opened, and what it holds now. A copy; any thread; after close, too.

        Raises: StoreClosedError in the child of a fork. Source: KIP-892, "Metrics".
        """

    def engine_metrics(self) -> Mapping[str, int]:
        """Figures of the engine worth watching (memory, caches, files), by the engine's names; none by default.

        Read from the engine now: it costs a look-up of each, and no scan. On any thread. Bytes where a name says so,
        else counts. Raises: StoreClosedError, StoreUnavailableError.
        """
        return {}

    @abstractmethod
    def close(self) -> None:
        """Close the store and its iterators; never commits. May be called more than once.

        Raises: StoreUnavailableError, CommitFailedError where the disk refuses; the store is closed all the same, and
        opening it again recovers.
        """


class KeyValueStore(StateStore, ReadOnlyKeyValueStore):
    """A transactional map of bytes to bytes. The writer reads its own uncommitted writes, in lookups and scans.

    Keys have 1 byte or more, up to the engine's limit; values may be empty; ``None`` as a value deletes.
    Raises, all writes: TypeError and ValueError before anything is staged, WrongThreadError on any thread but
    the opening one, StoreClosedError after close.
    """

    @property
    @abstractmethod
    def max_key_bytes(self) -> int:
        """The longest key that this engine takes."""

    @abstractmethod
    def put(self, key: bytes, value: bytes | None) -> None:
        """Stage ``value`` under ``key``; None deletes."""

    @abstractmethod
    def put_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Stage every pair, or none where one of them is refused. A later pair of the same key wins."""

    @abstractmethod
    def put_if_absent(self, key: bytes, value: bytes | None) -> bytes | None:
        """Stage ``value`` unless ``key`` has one; returns the existing value, or None where it was staged."""

    @abstractmethod
    def delete(self, key: bytes) -> bytes | None:
        """Stage the removal of ``key``; returns the value it had."""

    @abstractmethod
    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        """Stage the removal of every key from ``start`` to ``end``, both included; None leaves an end open."""

    @abstractmethod
    def read_only(
        self, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> KeyValueView:
        """A view for other threads, closed with the store, at the level that the store was opened with unless
        another one is given; it costs nothing to make, and it never writes. At READ_COMMITTED no write waits for it; at
        READ_UNCOMMITTED one may, for a lookup or a step of a scan.

        Raises: ValueError for a level that does not exist, StoreClosedError.
        """
