"""The life of a state store: commit, rollback, recovery, restore, close, and its offsets and marks.

It is the half of the contract in ``stores.interface`` that is the same for all kinds of data.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from stores.contract.levels import AT_ONCE, Durability, Persistence
from stores.contract.reading import Answer, Closeable, IsolationLevel, Position, TopicPartition
from stores.errors import StoreError, damaged
from stores.metrics import StoreMetrics


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


class StateStore(Closeable):
    """A store's life: commit, rollback, recovery, restore, close, and the offsets that tie it to its changelog.

    A user's function never calls ``commit``: the task that owns the store does (KIP-892, ``StateStore#commit``).

    Methods that are not abstract have defaults. They fit a store that neither isolates uncommitted writes nor keeps
    offsets, like stores of Kafka Streams before KIP-844: its task keeps the offset, and restores the store after an
    unclean close.
    """

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"<{type(self).__name__} {self.name!r} of {self.backend}, {self.durability}, {state}>"

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
        for partition, checkpoint in ({} if changelog_offsets is None else changelog_offsets).items():
            reached = self.committed_offset(partition)
            if reached is None or reached < checkpoint:
                raise damaged(
                    f"store {self.name!r} is at offset {reached} of {partition.topic}-{partition.partition}, behind "
                    f"its checkpoint {checkpoint}"
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

    _can_change_writer: ClassVar[bool] = False
    """True if another thread can become the writer of the open store (``_change_writer``)."""

    def _change_writer(self) -> None:
        """Make this thread the writer. The former one has ended its last call, and nothing is staged.

        Snapshots and iterators stay open. Raises: StoreClosedError; StoreError if ``_can_change_writer`` is False, or
        writes are staged.
        """
        raise StoreError(f"store {self.name!r} of {self.backend} stays with its thread: close it, and open it there")

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
