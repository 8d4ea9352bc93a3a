"""Readers of a store for other threads, at one isolation level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from stores.contract.arguments import check_keys
from stores.contract.reading import close_answer, of_one_moment
from stores.errors import ConfigError, StoreUnavailableError
from stores.interface import IsolationLevel, KeyValueIterator, KeyValueSnapshot, KeyValueView, Position, PositionBound
from stores.ordered.ranges import ScanRange
from stores.strategies.access import Access
from stores.strategies.arguments import as_bytes
from stores.strategies.staging import Staging

Answer = TypeVar("Answer")
_TRIES = 8
"""Number of attempts of a query beside the writer. After that the writer waits for the query."""


class Readable(Protocol):
    """The part of a store that a reader uses."""

    access: Access
    staging: Staging
    _rollback_turn: int

    @property
    def name(self) -> str: ...

    @property
    def is_split(self) -> bool: ...

    @property
    def _transaction(self) -> object: ...

    def position(self, isolation_level: IsolationLevel) -> Position: ...

    def _mark_at(self, level: IsolationLevel, name: str) -> bytes | None: ...

    def _marks_held(self) -> AbstractContextManager[None]: ...

    def _scan(
        self,
        level: IsolationLevel,
        start: bytes | None,
        end: bytes | None,
        *,
        end_open: bool = False,
        reverse: bool = False,
    ) -> KeyValueIterator: ...

    def _scan_many(
        self, level: IsolationLevel, ranges: Sequence[ScanRange], *, reverse: bool = False
    ) -> list[KeyValueIterator]: ...

    def _scan_prefix(self, level: IsolationLevel, prefix: bytes, *, reverse: bool = False) -> KeyValueIterator: ...

    def approximate_num_entries(self) -> int: ...

    def snapshot(self) -> KeyValueSnapshot: ...


class StoreReader(KeyValueView):
    """A read-only view of a store at one isolation level, for any thread."""

    def __init__(self, store: Readable, level: IsolationLevel) -> None:
        self._store, self._level = store, level

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._store.name!r}, {self._level}>"

    @property
    def isolation_level(self) -> IsolationLevel:
        return self._level

    @property
    def is_split(self) -> bool:
        return self._store.is_split

    def position(self) -> Position:
        return self._store.position(self._level)

    def mark(self, name: str) -> bytes | None:
        return self._store._mark_at(self._level, name)

    def with_mark(self, name: str, read: Callable[[bytes | None], Answer]) -> Answer:
        store = self._store
        for _ in range(_TRIES):
            turn, mark = store._rollback_turn, self.mark(name)
            answer = read(mark)
            rolled_back = self._level is IsolationLevel.READ_UNCOMMITTED and (turn & 1 or store._rollback_turn != turn)
            if not rolled_back and self.mark(name) == mark:
                return answer
            close_answer(answer)
        with store._marks_held():
            # The writer completes a change that it has begun, and then waits.
            return of_one_moment(lambda: self.mark(name), read)

    def snapshot(self) -> KeyValueSnapshot:
        if self._level is not IsolationLevel.READ_COMMITTED:
            raise ConfigError(
                f"a snapshot shows a commit, and this view of store {self._store.name!r} reads at {self._level}: use "
                "read_only(IsolationLevel.READ_COMMITTED).snapshot()"
            )
        return self._store.snapshot()

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._store.staging.get(self._level, as_bytes("key", key))
        except StoreUnavailableError:
            # The writer's thread may have closed the store meanwhile.
            self._store.access.check_open()
            raise

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        check_keys(keys)
        self._store.access.check_open()
        checked = [as_bytes("key", key) for key in keys]
        try:
            return self._store.staging.get_many(self._level, checked)
        except StoreUnavailableError:
            self._store.access.check_open()
            raise

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._store._scan(self._level, start, end)

    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._store._scan(self._level, start, end, reverse=True)

    def range_many(
        self, bounds: Sequence[tuple[bytes | None, bytes | None]], *, reverse: bool = False
    ) -> list[KeyValueIterator]:
        return self._store._scan_many(self._level, [ScanRange(start, end) for start, end in bounds], reverse=reverse)

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._store._scan_prefix(self._level, prefix)

    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._store._scan_prefix(self._level, prefix, reverse=True)

    def approximate_num_entries(self) -> int:
        return self._store.approximate_num_entries()


class BoundedReader(StoreReader):
    """A reader that answers only from a state that has reached ``bound``.

    The bound applies to the position at the query's isolation level.
    Source: KIP-892, "Interactive Query .position Offsets".
    """

    def __init__(self, store: Readable, level: IsolationLevel, bound: PositionBound) -> None:
        super().__init__(store, level)
        self._bound = bound

    def mark(self, name: str) -> bytes | None:
        return self._answered(lambda: super(BoundedReader, self).mark(name))

    def snapshot(self) -> KeyValueSnapshot:
        return self._answered(super().snapshot)

    def get(self, key: bytes) -> bytes | None:
        return self._answered(lambda: super(BoundedReader, self).get(key))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._answered(lambda: super(BoundedReader, self).get_many(keys))

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._answered(lambda: super(BoundedReader, self).range(start, end))

    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._answered(lambda: super(BoundedReader, self).reverse_range(start, end))

    def range_many(
        self, bounds: Sequence[tuple[bytes | None, bytes | None]], *, reverse: bool = False
    ) -> list[KeyValueIterator]:
        return self._answered(lambda: super(BoundedReader, self).range_many(bounds, reverse=reverse))

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._answered(lambda: super(BoundedReader, self).prefix_scan(prefix))

    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._answered(lambda: super(BoundedReader, self).reverse_prefix_scan(prefix))

    def approximate_num_entries(self) -> int:
        return self._answered(super().approximate_num_entries)

    def _answered(self, query: Callable[[], Answer]) -> Answer:
        while True:
            transaction = self._store._transaction
            self._check_bound()
            answer = query()
            # After a rollback the answer may lack data that the bound check saw. A reader of committed data needs no
            # second look: a commit only adds to its position.
            if self._level is IsolationLevel.READ_COMMITTED or self._store._transaction is transaction:
                return answer
            close_answer(answer)

    def _check_bound(self) -> None:
        self._bound.check(self.position(), f"store {self._store.name!r} at {self._level}")
