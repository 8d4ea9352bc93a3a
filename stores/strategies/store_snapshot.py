"""A snapshot of a store's committed data, for several lookups and scans of one commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import TypeVar

from stores.batch.merge import chunks_of
from stores.contract import marks as kept_marks
from stores.contract.arguments import check_keys
from stores.engines.engine import EngineSnapshot
from stores.errors import StoreClosedError
from stores.interface import IsolationLevel, KeyValueIterator, KeyValueSnapshot, Position
from stores.ordered.ranges import ScanRange, prefix_bounds
from stores.position import POSITION, decode, merge
from stores.strategies.arguments import as_bytes, check_bounds
from stores.strategies.iterator import OpenIterators, Pin, StoreIterator

Answer = TypeVar("Answer")


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


class StoreSnapshot(KeyValueSnapshot):
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
    def is_split(self) -> bool:
        return self._is_split

    def position(self) -> Position:
        # Its own entries have the position of its commit. The store's, taken before it, may be that of an earlier one,
        # and is all that a store without offsets has.
        kept = self._answered(lambda: decode(POSITION, self._held.data.meta()))
        return merge(self._position, kept)

    def mark(self, name: str) -> bytes | None:
        kept_marks.check_name(name)

        def read() -> bytes | None:
            if not self._has_marks:
                self._marks, self._has_marks = kept_marks.decode(dict(self._held.data.meta())), True
            return self._marks.get(name)

        return self._answered(read)

    def get(self, key: bytes) -> bytes | None:
        as_bytes("key", key)
        return self._answered(lambda: self._held.data.get(key) if key else None)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        check_keys(keys)
        checked = [as_bytes("key", key) for key in keys]
        return self._answered(lambda: [self._held.data.get(key) if key else None for key in checked])

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._scan(ScanRange(start, end), reverse=False)

    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._scan(ScanRange(start, end), reverse=True)

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._scan(ScanRange(*prefix_bounds(as_bytes("prefix", prefix)), end_open=True), reverse=False)

    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._scan(ScanRange(*prefix_bounds(as_bytes("prefix", prefix)), end_open=True), reverse=True)

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
            return StoreIterator(chunks_of(scan), pin)

        return self._answered(begin)

    def _answered(self, query: Callable[[], Answer]) -> Answer:
        with self._held.lock:
            if self._pin.closed:
                raise StoreClosedError(f"this snapshot of store {self._name!r}, or the store, is closed: take another")
            return query()
