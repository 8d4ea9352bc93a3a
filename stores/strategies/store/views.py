"""Views of a store for other threads: readers at one isolation level, and snapshots of one commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING, TypeVar

from stores.batch.merge import chunks_of
from stores.contract.arguments import as_bytes, as_key_list, check_keys
from stores.contract.reading import ForwardingView, ScannedReads, close_answer, of_one_moment
from stores.engines.engine import EngineSnapshot
from stores.errors import ConfigError, StoreClosedError, StoreCorruptedError, StoreUnavailableError
from stores.interface import (
    IsolationLevel,
    KeyValueIterator,
    KeyValueSnapshot,
    KeyValueView,
    Position,
    PositionBound,
    ShownTimestamps,
)
from stores.meta_entries import POSITION, check_mark_name, decode_marks, decode_offsets, merge_positions
from stores.ordered import ScanRange
from stores.strategies.access import check_bounds
from stores.strategies.iterator import OpenIterators, Pin, StoreIterator

if TYPE_CHECKING:
    from stores.strategies.store.transactions import StoreTransactions

Answer = TypeVar("Answer")
_TRIES = 8
"""Number of attempts of a query beside the writer. After that the writer waits for the query."""


class StoreReader(ScannedReads, KeyValueView):
    """A read-only view of a store at one isolation level, for any thread."""

    def __init__(self, store: StoreTransactions, level: IsolationLevel) -> None:
        self._store, self._level = store, level

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._store.name!r}, {self._level}>"

    @property
    def isolation_level(self) -> IsolationLevel:
        return self._level

    @property
    def timestamps(self) -> ShownTimestamps:
        return ShownTimestamps(is_split=self._store.staging.is_split)

    def position(self) -> Position:
        return self._store.position(self._level)

    def mark(self, name: str) -> bytes | None:
        return self._store._mark_at(self._level, name)

    def with_mark(self, name: str, read: Callable[[bytes | None], Answer]) -> Answer:
        store = self._store
        shows_staged = self._level is IsolationLevel.READ_UNCOMMITTED or not store.staging.transactional
        for _ in range(_TRIES):
            turn, mark = store._turn, self.mark(name)
            if shows_staged and turn & 1:
                continue
            answer = read(mark)
            if (not shows_staged or store._turn == turn) and self.mark(name) == mark:
                return answer
            close_answer(answer)
        with store._marks_held():
            # The writer completes a change that it has begun, and then waits.
            return of_one_moment(lambda: self.mark(name), read)

    def at_one_moment(self, name: str, read: Callable[[bytes | None, KeyValueView], Answer]) -> Answer:
        store = self._store
        # While a commit is copied, a snapshot would have to wait for its end.
        if self._level is IsolationLevel.READ_COMMITTED and not store.staging.shows_staged():
            snapshot = self.snapshot()
            try:
                return read(snapshot.mark(name), snapshot)
            except BaseException:
                snapshot.close()
                raise
        with store._marks_held():
            return of_one_moment(lambda: self.mark(name), lambda mark: read(mark, self))

    def snapshot(self) -> KeyValueSnapshot:
        if self._level is not IsolationLevel.READ_COMMITTED:
            raise ConfigError(
                f"a snapshot shows a commit, and this view of store {self._store.name!r} reads at {self._level}: use "
                "read_only(IsolationLevel.READ_COMMITTED).snapshot()"
            )
        store = self._store
        store.access.check_open()
        # First: a commit advances the position after its data.
        position, is_split = self.position(), store.staging.is_split
        with store.access:
            snapshot = HeldSnapshot(store.staging.snapshot())
            num_entries = store.approximate_num_entries()
        pin = Pin(snapshot.release)
        store._iterators.add(pin)
        if not store.is_open:
            # Another thread has closed the store meanwhile and may have missed this pin.
            pin.close()
        return StoreSnapshot(
            store.name, snapshot, pin, store._iterators, position, is_split=is_split, num_entries=num_entries
        )

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._store.staging.get(self._level, as_bytes("key", key))
        except StoreUnavailableError:
            # The writer's thread may have closed the store meanwhile.
            self._store.access.check_open()
            raise
        except StoreCorruptedError as error:
            self._store._iterators.note_damage(str(error))
            raise

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        check_keys(keys)
        self._store.access.check_open()
        checked = as_key_list(keys)
        try:
            with self._store.access:
                return self._store.staging.get_many(self._level, checked)
        except StoreCorruptedError as error:
            self._store._iterators.note_damage(str(error))
            raise

    def _scan(self, bounds: ScanRange, *, reverse: bool) -> KeyValueIterator:
        return self._store._scan(bounds, reverse=reverse, level=self._level)

    def range_many(
        self, bounds: Sequence[tuple[bytes | None, bytes | None]], *, reverse: bool = False
    ) -> list[KeyValueIterator]:
        return self._store._scan_many(self._level, [ScanRange(start, end) for start, end in bounds], reverse=reverse)

    def approximate_num_entries(self) -> int:
        return self._store.approximate_num_entries()


class BoundedReader(ForwardingView, StoreReader):
    """A reader that answers only from a state that has reached ``bound``.

    The bound applies to the position at the query's isolation level.
    Source: KIP-892, "Interactive Query .position Offsets".
    """

    def __init__(self, store: StoreTransactions, level: IsolationLevel, bound: PositionBound) -> None:
        super().__init__(store, level)
        self._bound, self._reader = bound, StoreReader(store, level)

    def mark(self, name: str) -> bytes | None:
        return self._answered(lambda reader: reader.mark(name))

    def snapshot(self) -> KeyValueSnapshot:
        return self._answered(lambda reader: reader.snapshot())

    def _answered(self, query: Callable[[KeyValueView], Answer]) -> Answer:
        while True:
            transaction = self._store._transaction
            self._bound.check(self.position(), f"store {self._store.name!r} at {self._level}")
            answer = query(self._reader)
            # After a rollback the answer may lack data that the bound check saw. A reader of committed data needs no
            # second look: a commit only adds to its position.
            if self._level is IsolationLevel.READ_COMMITTED or self._store._transaction is transaction:
                return answer
            close_answer(answer)


class HeldSnapshot:
    """An engine's snapshot and the scans of it. It is released once, on any thread, after its scans."""

    def __init__(self, data: EngineSnapshot) -> None:
        self.data = data
        self.scans = OpenIterators()
        self.lock = RLock()
        """Held during a lookup, and while a scan begins: neither meets a release."""

    def release(self) -> None:
        """Close the scans, then the snapshot."""
        with self.lock:
            self.scans.close()
            self.data.close()


class StoreSnapshot(ScannedReads, KeyValueSnapshot):
    """The committed data of one moment. ``pin`` is closed with it, or with the store."""

    def __init__(
        self,
        name: str,
        held: HeldSnapshot,
        pin: Pin,
        scans: OpenIterators,
        position: Position,
        *,
        is_split: bool,
        num_entries: int,
    ) -> None:
        """Make it. ``scans`` are all open iterators of the store, to which those of the snapshot are added."""
        self._name, self._held, self._pin, self._scans = name, held, pin, scans
        self._position, self._is_split, self._num_entries = position, is_split, num_entries
        self._marks: Mapping[str, bytes] = {}
        self._has_marks = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name!r}>"

    @property
    def isolation_level(self) -> IsolationLevel:
        return IsolationLevel.READ_COMMITTED

    @property
    def timestamps(self) -> ShownTimestamps:
        return ShownTimestamps(is_split=self._is_split)

    def position(self) -> Position:
        # Its own entries have the position of its commit. The store's, taken before it, may be that of an earlier one,
        # and is all that a store without offsets has.
        own_position = self._answered(lambda: decode_offsets(POSITION, self._held.data.meta()))
        return merge_positions(self._position, own_position)

    def mark(self, name: str) -> bytes | None:
        check_mark_name(name)

        def read() -> bytes | None:
            if not self._has_marks:
                self._marks, self._has_marks = decode_marks(dict(self._held.data.meta())), True
            return self._marks.get(name)

        return self._answered(read)

    def get(self, key: bytes) -> bytes | None:
        as_bytes("key", key)
        return self._answered(lambda: self._held.data.get(key) if key else None)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        check_keys(keys)
        checked = as_key_list(keys)
        return self._answered(lambda: self._held.data.get_many(checked))

    def approximate_num_entries(self) -> int:
        return self._answered(lambda: self._num_entries)

    def close(self) -> None:
        self._pin.close()

    def _scan(self, bounds: ScanRange, *, reverse: bool) -> KeyValueIterator:
        check_bounds(bounds.start, bounds.end)

        def begin() -> KeyValueIterator:
            scan = self._held.data.scan(bounds, reverse=reverse)
            pin = Pin(scan.close)
            self._held.scans.add(pin)
            # Also there, so that it is given up in the child of a fork.
            self._scans.add(pin)
            return StoreIterator(chunks_of(scan), pin, self._scans)

        return self._answered(begin)

    def _answered(self, query: Callable[[], Answer]) -> Answer:
        with self._held.lock:
            if self._pin.closed:
                raise StoreClosedError(f"this snapshot of store {self._name!r}, or the store, is closed: take another")
            try:
                return query()
            except StoreCorruptedError as error:
                self._scans.note_damage(str(error))
                raise
