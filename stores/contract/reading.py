"""The part of the contract that readers see: isolation levels, positions, scans and views.

Import from ``stores.interface``, which has all of the contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from stores.contract.arguments import OnlyReads, as_bytes
from stores.contract.levels import Level
from stores.errors import NotUpToBoundError, StoreClosedError, StoreError
from stores.ordered import ScanRange, prefix_range

Answer = TypeVar("Answer")


class TopicPartition(NamedTuple):
    """One ordered log: a topic's name and a partition number, 0 or more."""

    topic: str
    partition: int


class IsolationLevel(Level):
    """The data that a reader on another thread may see. Source: KIP-892, "Proposed Changes"."""

    READ_UNCOMMITTED = "READ_UNCOMMITTED"
    """Committed data, merged with the writes of the open transaction."""
    READ_COMMITTED = "READ_COMMITTED"
    """Committed data: all of a commit, or nothing of it."""


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
        """Return the number of offsets that ``reached`` lacks, by partition; empty if it is up to the bound."""
        return {
            partition: offset - reached.get(partition, -1)
            for partition, offset in self.position.items()
            if reached.get(partition, -1) < offset
        }

    def check(self, reached: Position, what: str) -> None:
        """Refuse to answer from a state at ``reached`` that is not up to the bound. Raises: NotUpToBoundError."""
        behind = self.behind(reached)
        if behind:
            missing = ", ".join(f"{topic}-{number} by {count:,}" for (topic, number), count in sorted(behind.items()))
            raise NotUpToBoundError(f"{what} is behind the requested position ({missing}): ask again later", behind)


class ShownTimestamps(NamedTuple):
    """The timestamps of a view's values at one moment. Source: ``stores.interface.Timestamps``."""

    are_kept: bool = True
    is_split: bool = False


class Closeable(ABC):
    """A resource that is held until it is closed: use it in a ``with`` block, whose end closes it."""

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
        """Return the value of ``key``, or None."""

    @abstractmethod
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of ``keys``, in their order; None for a missing key."""

    @abstractmethod
    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        """Return the pairs with ``start <= key <= end``, ascending. Empty if ``start > end``."""

    @abstractmethod
    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        """Return the pairs like ``range``, descending. The bounds keep their meaning: ``start`` is the smaller."""

    def all(self) -> KeyValueIterator:
        """Return every pair, ascending."""
        return self.range(None, None)

    def reverse_all(self) -> KeyValueIterator:
        """Return every pair, descending."""
        return self.reverse_range(None, None)

    def range_many(
        self, bounds: Sequence[tuple[bytes | None, bytes | None]], *, reverse: bool = False
    ) -> list[KeyValueIterator]:
        """Return a scan of each range, in their order, like ``range``, or ``reverse_range`` if ``reverse``.

        In the library's own stores and views all are of one snapshot. By default they are made one after the other: a
        view of another package's store may show a commit in the later ones only.
        """
        scans: list[KeyValueIterator] = []
        try:
            for start, end in bounds:
                scans.append(self.reverse_range(start, end) if reverse else self.range(start, end))
        except BaseException:
            for scan in scans:
                scan.close()
            raise
        return scans

    @abstractmethod
    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        """Return the pairs whose key begins with ``prefix``, ascending; every pair for an empty prefix."""

    @abstractmethod
    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        """Return the pairs like ``prefix_scan``, descending."""

    @abstractmethod
    def approximate_num_entries(self) -> int:
        """Return the approximate number of committed keys. Engines estimate; it costs no scan."""


class ScannedReads(ReadOnlyKeyValueStore):
    """A base of readers that make all scans by one method."""

    @abstractmethod
    def _scan(self, bounds: ScanRange, *, reverse: bool) -> KeyValueIterator:
        """Return a scan. The types of its ends are not checked yet."""

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._scan(ScanRange(start, end), reverse=False)

    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._scan(ScanRange(start, end), reverse=True)

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._scan(prefix_range(as_bytes("prefix", prefix)), reverse=False)

    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._scan(prefix_range(as_bytes("prefix", prefix)), reverse=True)


class KeyValueView(OnlyReads, ReadOnlyKeyValueStore):
    """A store as other threads see it, at one isolation level; it has no way to write. For any thread.

    Each lookup and each scan shows one moment. At READ_COMMITTED that is a whole commit, never an earlier one than it
    showed before. At READ_UNCOMMITTED it is committed data, merged with the open transaction as of that moment. All
    keys of a ``get_many`` and all scans of a ``range_many`` are of one moment. If the view has a bound, each raises
    NotUpToBoundError until the state has reached it.

    Source: KIP-892, "Interactive Queries" and "Query-time Isolation Levels".
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {self.isolation_level}>"

    @property
    @abstractmethod
    def isolation_level(self) -> IsolationLevel:
        """The isolation level of the view."""

    @property
    def timestamps(self) -> ShownTimestamps:
        """The state of ``KeyValueStore.timestamps`` of the store that is shown; by default kept, and not split."""
        return ShownTimestamps()

    @abstractmethod
    def position(self) -> Position:
        """Input offsets that the next query's answer reflects at least. A copy; it needs no bound to be reached."""

    def snapshot(self) -> KeyValueSnapshot:
        """Return a snapshot of the last commit, for several lookups and scans that fit each other. Close it.

        Use it in a ``with`` block. It pins the files of that commit until it is closed, as an open iterator does. It
        waits for a commit only while the commit copies a transaction that was spilled to disk.

        Raises: ConfigError at READ_UNCOMMITTED: the open transaction can't be pinned. StoreError if the store is that
        of another package, which offers no snapshots. Else as a lookup.
        """
        raise StoreError(f"{type(self).__name__} offers no snapshots: use get_many() or range_many() for one moment")

    def mark(self, name: str) -> bytes | None:
        """Return the mark ``name`` at the view's level; None where there is none. By default there are none.

        Raises: TypeError, ValueError for what is no name of a mark, StoreClosedError, NotUpToBoundError.
        """
        return None

    def with_mark(self, name: str, read: Callable[[bytes | None], Answer]) -> Answer:
        """Return the result of ``read``, called with the mark ``name``. Its queries of this view fit the mark.

        If the mark has changed meanwhile, ``read`` is called again, and scans that it has returned are closed. In the
        library's own views the writer waits for ``read`` if that happens often; by default there is no limit.
        """
        return of_one_moment(lambda: self.mark(name), read)

    def at_one_moment(self, name: str, read: Callable[[bytes | None, KeyValueView], Answer]) -> Answer:
        """Return the result of ``read``, called with the mark ``name`` and a view that fits it. For a long query.

        In the library's own views ``read`` is called once, however often the writer commits: at READ_COMMITTED with a
        snapshot, which ``read`` closes or returns in its answer, otherwise with this view, while the writer waits. By
        default it is called as by ``with_mark``, with this view.
        """
        return self.with_mark(name, lambda mark: read(mark, self))


class KeyValueSnapshot(KeyValueView, Closeable):
    """The committed data of one moment, whatever is committed later. For any thread; its lookups take turns.

    ``close`` also closes its scans. It is closed with the store, too; afterwards all methods raise StoreClosedError. So
    does a snapshot of a task's store that the task has closed or opened again.
    """

    def snapshot(self) -> Self:
        """Return this snapshot: it shows one moment already."""
        return self


def of_one_moment(mark: Callable[[], bytes | None], read: Callable[[bytes | None], Answer]) -> Answer:
    """Return the result of ``read`` for a mark that is the same before and after the call."""
    value = mark()
    while True:
        answer = read(value)
        earlier, value = value, mark()
        if value == earlier:
            return answer
        close_answer(answer)


def close_answer(answer: object) -> None:
    """Close the scans in the result of a query: a scan or a list of scans; other results are ignored."""
    for each in answer if isinstance(answer, list) else (answer,):
        if isinstance(each, Closeable):
            each.close()


class PlainIterator(KeyValueIterator):
    """The given pairs; closing it closes ``source``. They are a snapshot if the scan of ``source`` is one."""

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]], source: Closeable) -> None:
        self._pairs: Iterator[tuple[bytes, bytes]] | None = iter(pairs)
        self._source = source

    def __next__(self) -> tuple[bytes, bytes]:
        if self._pairs is None:
            raise StoreClosedError("the iterator is closed: start another scan")
        return next(self._pairs)

    def close(self) -> None:
        self._pairs = None
        self._source.close()


def prefixed(scan: KeyValueIterator, prefix: bytes) -> PlainIterator:
    """The pairs of an ascending ``scan``, which begins at ``prefix``, while their keys begin with that."""
    return PlainIterator(takewhile(lambda pair: pair[0].startswith(prefix), scan), scan)


def reversed_scan(scan: KeyValueIterator) -> PlainIterator:
    """The pairs of ``scan`` from its end: it holds all of them in memory."""
    return PlainIterator(reversed(list(scan)), scan)


class ForwardingView(KeyValueView):
    """A base of views that ask a store or another view, and check something before or after its answer."""

    @abstractmethod
    def _answered(self, query: Callable[[ReadOnlyKeyValueStore], Answer]) -> Answer:
        """Return the result of ``query``, called with what is asked."""

    def get(self, key: bytes) -> bytes | None:
        return self._answered(lambda view: view.get(key))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._answered(lambda view: view.get_many(keys))

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._answered(lambda view: view.range(start, end))

    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._answered(lambda view: view.reverse_range(start, end))

    def range_many(
        self, bounds: Sequence[tuple[bytes | None, bytes | None]], *, reverse: bool = False
    ) -> list[KeyValueIterator]:
        return self._answered(lambda view: view.range_many(bounds, reverse=reverse))

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._answered(lambda view: view.prefix_scan(prefix))

    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._answered(lambda view: view.reverse_prefix_scan(prefix))

    def approximate_num_entries(self) -> int:
        return self._answered(lambda view: view.approximate_num_entries())


class PlainView(ForwardingView):
    """Asks the store itself, which must answer on any thread. Its lookups are one by one: not of one moment."""

    def __init__(
        self,
        store: ReadOnlyKeyValueStore,
        position: Callable[[IsolationLevel], Position],
        mark: Callable[[str], bytes | None],
        timestamps: ShownTimestamps,
        level: IsolationLevel,
        bound: PositionBound | None,
    ) -> None:
        self._store, self._position, self._mark, self._timestamps = store, position, mark, timestamps
        self._level, self._bound = level, bound

    @property
    def isolation_level(self) -> IsolationLevel:
        return self._level

    @property
    def timestamps(self) -> ShownTimestamps:
        return self._timestamps

    def position(self) -> Position:
        return self._position(self._level)

    def mark(self, name: str) -> bytes | None:
        return self._answered(lambda _: self._mark(name))

    def _answered(self, query: Callable[[ReadOnlyKeyValueStore], Answer]) -> Answer:
        # The store never falls behind the bound again.
        if self._bound is not None:
            self._bound.check(self.position(), "the store")
        return query(self._store)
