"""The lookups and scans of a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stores.contract.arguments import check_keys
from stores.errors import StoreUnavailableError
from stores.interface import HoldsStored, IsolationLevel, KeyValueIterator
from stores.ordered.ranges import ScanRange, prefix_bounds
from stores.strategies.arguments import as_bytes, check_bounds
from stores.strategies.iterator import StoreIterator
from stores.strategies.staging import Scanned
from stores.strategies.store.state import StoreState


class StoreReads(StoreState):
    """Lookups and scans: the writer's, and those at an isolation level, which views use on any thread."""

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
        batch, staging = self._batch, self.staging
        if batch is None:
            return super().timestamped_lookup(form, otherwise)

        def lookup(key: bytes) -> HoldsStored | None:
            # The same as ``get``, without its calls.
            if type(key) is bytes:
                writes = batch.writes
                try:
                    if key in writes:
                        value = writes[key]
                    elif batch.deep:
                        value = staging.look_up(key)
                    elif key in (recent := batch.recent):
                        value = recent[key]
                    else:
                        bare_lookup = staging.bare_lookup
                        value = bare_lookup(key)
                except Exception:
                    # The error may be the engine's own: the longer way raises the one for the caller.
                    return otherwise(key)
                if value is None:
                    return None
                if len(value) >= 8:
                    found = form()
                    found.stored = value
                    return found
            return otherwise(key)

        return lookup

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        check_keys(keys)
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

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._scan(IsolationLevel.READ_UNCOMMITTED, start, end)

    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._scan(IsolationLevel.READ_UNCOMMITTED, start, end, reverse=True)

    def range_many(
        self, bounds: Sequence[tuple[bytes | None, bytes | None]], *, reverse: bool = False
    ) -> list[KeyValueIterator]:
        ranges = [ScanRange(start, end) for start, end in bounds]
        return self._scan_many(IsolationLevel.READ_UNCOMMITTED, ranges, reverse=reverse)

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._scan_prefix(IsolationLevel.READ_UNCOMMITTED, prefix)

    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._scan_prefix(IsolationLevel.READ_UNCOMMITTED, prefix, reverse=True)

    def approximate_num_entries(self) -> int:
        self.access.check_open()
        try:
            return self.staging.engine.approximate_num_entries()
        except StoreUnavailableError:
            self.access.check_open()
            raise

    def _scan(
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

    def _scan_many(
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

    def _scan_prefix(self, level: IsolationLevel, prefix: bytes, *, reverse: bool = False) -> KeyValueIterator:
        """Return a scan of the keys that begin with ``prefix``, at ``level``."""
        start, end = prefix_bounds(as_bytes("prefix", prefix))
        return self._scan(level, start, end, end_open=True, reverse=reverse)
