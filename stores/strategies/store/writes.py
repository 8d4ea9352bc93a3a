"""The writes of a store: checks, and the hand-over to the staging."""

from __future__ import annotations

from collections.abc import Iterable
from threading import get_ident

from stores.contract.arguments import check_pair, check_pairs
from stores.errors import StoreError
from stores.strategies.access import while_open
from stores.strategies.arguments import check_bounds
from stores.strategies.store.state import StoreState


class StoreWrites(StoreState):
    """Puts and deletes, on the writer's thread."""

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
        check_pairs(pairs)
        check_write = self.access.check_write
        writes: dict[bytes, bytes | None] = {}
        # Read all pairs before any is staged: they may come from a scan of this store.
        for pair in pairs:
            if type(pair) is not tuple or len(pair) != 2:
                check_pair(pair)
            key, value = pair
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
