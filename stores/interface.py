"""The contract of a state store: what every backend promises, and nothing about how.

Keys and values are bytes; keys are ordered by unsigned bytes. There is always exactly one open transaction:
the first begins when the store is opened, the next at each commit or rollback (KIP-844, "StateStore changes").
One thread, the one that opened the store, writes; any number of threads read (KIP-892, "Proposed Changes").
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from stores.contract.arguments import as_pairs, check_keys, check_pair, check_pairs, check_time_ms
from stores.contract.levels import Durability, ProcessingGuarantee
from stores.contract.reading import (
    Closeable,
    IsolationLevel,
    KeyValueIterator,
    KeyValueSnapshot,
    KeyValueView,
    PlainView,
    Position,
    PositionBound,
    ReadOnlyKeyValueStore,
    ShownTimestamps,
    TopicPartition,
    prefixed,
    reversed_scan,
)
from stores.contract.state_store import Recovery, RecoveryOutcome, StateStore
from stores.errors import StoreError, StoreIncompatibleError, damaged

__all__ = [
    "Closeable",
    "Durability",
    "IsolationLevel",
    "KeyValueIterator",
    "KeyValueSnapshot",
    "KeyValueStore",
    "KeyValueView",
    "Position",
    "PositionBound",
    "ProcessingGuarantee",
    "ReadOnlyKeyValueStore",
    "Recovery",
    "RecoveryOutcome",
    "ShownTimestamps",
    "StateStore",
    "Timestamps",
    "TopicPartition",
]


class HoldsStored(Protocol):
    """An object that holds a value as the store keeps it."""

    stored: bytes


class Timestamps:
    """The values of a store that have timestamps: writes and lookups of them, and their records of an older format.

    A store may have records of an older format, without timestamps, besides those of the present one. It is then split:
    all keys begin with one byte more, zero before those of the older format, one before the others. So it is in
    lookups, scans and writes alike; typed stores (``stores.records``) see to that. Source: KIP-258, lazy upgrade.

    This class is for a store that has no faster ways than its ``put`` and ``get``, and is never split.
    """

    def __init__(self, store: KeyValueStore, *, are_kept: bool = True) -> None:
        self._store = store
        self._are_kept = are_kept

    @property
    def are_kept(self) -> bool:
        """True if values may be stored with a timestamp in front. If not, a timestamped store over this one adds the
        time -1 when it reads, and drops times when it writes."""
        return self._are_kept

    def put(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        """Stage ``value`` under ``key`` with its time, eight bytes big-endian, before it; None deletes.

        Times are in milliseconds, from 0 to below 2**62. As a ``put`` of both, and faster in the library's own stores.
        Source: KIP-258, ``<8-byte timestamp><value>``.
        """
        check_time_ms("timestamp_ms", timestamp_ms)
        if not isinstance(key, bytes) or not (value is None or isinstance(value, bytes)):
            raise TypeError(
                f"store {self._store.name!r}: key and value are bytes, not the key {key!r} of type "
                f"{type(key).__name__} and a value of type {type(value).__name__}"
            )
        self._store.put(key, None if value is None else timestamp_ms.to_bytes(8) + value)

    def lookup(
        self, form: type[HoldsStored], otherwise: Callable[[bytes], HoldsStored | None]
    ) -> Callable[[bytes], HoldsStored | None]:
        """Return a lookup of values with times: for a value of eight bytes or more, ``form()`` with it in ``stored``.

        It returns None for a missing key, and the result of ``otherwise`` for a key that is not bytes and for a shorter
        value. ``otherwise`` is such a lookup by itself, and the default. The library's own stores have a faster one.
        """
        return otherwise

    @property
    def is_split(self) -> bool:
        """True if the store has records of an older format."""
        return False

    @property
    def can_split(self) -> bool:
        """True if ``split`` can separate records of two formats."""
        return False

    def split(self, marks: Mapping[str, bytes | None]) -> None:
        """Let all records count as of an older format from now on, and set ``marks``, at once and in one step.

        Costs the same for any number of records: none is read or written. Nothing may be staged, and no view or
        iterator be in use. When the last record of the older format has been removed, the next opening ends it.

        Raises: StoreIncompatibleError unless ``can_split``, StoreError where writes are staged or it is split; else as
        ``StateStore.commit``.
        """
        raise StoreIncompatibleError(
            f"store {self._store.name!r} of {self._store.backend} can't hold records of two formats: wipe it and "
            "restore it from its changelog"
        )

    @property
    def split_has_ended(self) -> bool:
        """True if opening found the last record of an older format gone. False each time it is opened after that."""
        return False


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

    @property
    def timestamps(self) -> Timestamps:
        """The values of the store that have timestamps. By default they are kept only if the store is not persistent.

        A persistent store of another package opts in by returning ``Timestamps(self)``. Source: KIP-258,
        ``TimestampedBytesStore``.
        """
        return Timestamps(self, are_kept=not self.persistent)

    @abstractmethod
    def put(self, key: bytes, value: bytes | None) -> None:
        """Stage ``value`` under ``key``; None deletes."""

    def put_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Stage every pair, or none if one of them is refused. A later pair of the same key wins."""
        check_pairs(pairs)
        checked = list(pairs)
        for pair in checked:
            check_pair(pair)
        for key, value in checked:
            if not isinstance(key, bytes) or not (value is None or isinstance(value, bytes)):
                raise TypeError(f"keys and values are bytes, not {type(key).__name__} and {type(value).__name__}")
            if not 0 < len(key) <= self.max_key_bytes:
                raise ValueError(f"a key has 1 to {self.max_key_bytes} bytes, not {len(key)}")
        for key, value in checked:
            self.put(key, value)

    def put_many(self, pairs: Mapping[bytes, bytes | None] | Iterable[tuple[bytes, bytes | None]]) -> None:
        """Stage every pair of a mapping, or of pairs, like ``put_all``."""
        self.put_all(as_pairs(pairs))

    def delete_many(self, keys: Iterable[bytes]) -> None:
        """Stage the removal of every key, or none if one of them is refused. Old values are not looked up."""
        check_keys(keys, "delete_many")
        self.put_all([(key, None) for key in keys])

    def put_with_marks(self, pairs: Iterable[tuple[bytes, bytes | None]], marks: Mapping[str, bytes | None]) -> None:
        """Stage every pair and every mark, or nothing if one of them is refused.

        In the library's own stores a query of ``KeyValueView.with_mark`` sees all of them or none. By default the marks
        are set first, and each is visible at once. Raises also: as ``set_mark``.
        """
        before = {name: self.mark(name) for name in marks}
        try:
            for name, value in marks.items():
                self.set_mark(name, value)
            self.put_all(pairs)
        except BaseException:
            for name, value in before.items():
                if self.mark(name) != value:
                    self.set_mark(name, value)
            raise

    def put_if_absent(self, key: bytes, value: bytes | None) -> bytes | None:
        """Stage ``value`` unless ``key`` has one; return the existing value, or None if ``value`` was staged."""
        existing = self.get(key)
        if existing is None:
            self.put(key, value)
        return existing

    def update(self, key: bytes, fn: Callable[[bytes], bytes], default: bytes) -> bytes:
        """Stage the result of ``fn``, called with the value of ``key``, and return it.

        Without a value ``fn`` is called with ``default``.

        Raises: as ``put``; the exceptions of ``fn``. Then nothing is staged.
        """
        existing = self.get(key)
        value = fn(default if existing is None else existing)
        self.put(key, value)
        return value

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
                    raise damaged(f"store {self.name!r} has key {key!r} after {before!r}")
                before = key

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        check_keys(keys)
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
        timestamps = ShownTimestamps(self.timestamps.are_kept)
        return PlainView(self, self.position, self.mark, timestamps, level, bound)
