"""An index of a store's records by time: pairs ``<prefix><time><rest>``, which no scan shows. Most values are empty.

The index is in the store, so it is committed and rolled back with the records. No changelog record has it: a restore
makes it from the records. So it may also have keys of records that are gone, and its reader checks each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stores.interface import KeyValueStore
from stores.records.pieces import Pairs
from stores.records.segments import packed, unpacked
from stores.records.values import TIME_BYTES, RecordStaging, StagedWrite

CHUNK: Final = 1_000
"""The keys that are in memory at a time."""
_NEVER_MS = 1 << 63


def behind(prefix: bytes) -> bytes:
    """Return a bound above all keys of the index. Times are below 2**62, so that it is no key."""
    return prefix + b"\x40"


class TimeIndex:
    """The index of one writer's store."""

    def __init__(self, staging: RecordStaging, prefix: bytes) -> None:
        self._staging, self._store, self._prefix = staging, staging.store, prefix
        self._time_at = slice(len(prefix), len(prefix) + TIME_BYTES)
        self._start, self._next_ms = prefix, 0
        """The key with which the next look begins, and a time that is at most the first one of the index."""

    def forget(self) -> None:
        """Forget what is known of the store: it was rolled back or restored."""
        self._start, self._next_ms = self._prefix, 0

    def added(self, time_ms: int) -> None:
        """Note a new key of that time."""
        self._next_ms = min(self._next_ms, time_ms)
        self._start = min(self._start, self._prefix + packed(time_ms))

    def has_up_to(self, time_ms: int) -> bool:
        """Return False if no key has that time or an earlier one. It is read again if that is unknown."""
        return time_ms >= self._next_ms

    def time(self, entry: bytes) -> int:
        """Return the time of a key of the index."""
        return unpacked(entry[self._time_at])

    def taken(self, end_ms: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield the pairs before the time ``end_ms`` in parts, in their order, and stage the removal of each part.

        Keys that are added to earlier parts meanwhile are left to a later call, so that it ends.
        """
        start, added_ms, is_last = self._start, _NEVER_MS, False
        while not is_last:
            part, next_ms = self._read(start, end_ms)
            is_last = len(part) < CHUNK
            # From its beginning on a log-structured engine would go over all that was removed, again and again.
            start = self._prefix + packed(end_ms) if is_last else part[-1][0] + b"\0"
            self._next_ms = min(added_ms, next_ms)
            if part:
                self._staging.put_all([StagedWrite(entry, None) for entry, _ in part])
                yield part
            if self._next_ms < next_ms:
                added_ms = self._next_ms
        self._start = min(start, self._prefix + packed(self._next_ms))

    def _read(self, start: bytes, end_ms: int) -> tuple[list[tuple[bytes, bytes]], int]:
        """Return some pairs from ``start`` to before ``end_ms``, and the time of the one that follows."""
        part: list[tuple[bytes, bytes]] = []
        with self._store.range(start, behind(self._prefix)) as pairs:
            for entry, value in pairs:
                time_ms = self.time(entry)
                if time_ms >= end_ms or len(part) == CHUNK:
                    return part, time_ms
                part.append((entry, value))
        return part, _NEVER_MS


def removed(store: KeyValueStore, prefix: bytes) -> Iterator[Pairs]:
    """Yield the writes that remove an index."""
    with store.range(prefix, behind(prefix)) as pairs:
        for key, _ in pairs:
            yield [(key, None)]
