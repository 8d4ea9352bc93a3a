"""Native strategy: staged writes stay in the engine's own write transaction; a commit commits that transaction.

The engine holds the staged writes and writes them once. Memory holds the staged keys with the lengths of their values,
so that the count of uncommitted bytes is exact; it holds no values. A rollback or a range delete under an open scan
copies the staged values once for that scan.

An undo log (``Undo``) keeps an open scan unchanged while the transaction is written to. An indexed batch merges new
writes over older data. An undo log merges old values over newer data. Each scan gets a new, empty layer. While a scan
is open, a write first saves the old value of its key in the newest layer. A scan merges its own and all newer layers
over the current data; the oldest entry of a key wins.

An engine that fails to write aborts its transaction, and the staged writes are lost. The failed commit or write then
raises ``CommitFailedError`` with ``reopen``: the store must be opened again, and the changelog's tail is replayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from threading import Lock, current_thread, get_ident
from typing import ClassVar, cast
from weakref import WeakSet

from stores.batch.buffer import Layer
from stores.batch.memory import PAIR_MEMORY_BYTES, RANGE_MEMORY_BYTES
from stores.batch.merge import Pair, chunks_of, lay_over, merged
from stores.engines.engine import FETCH_FIRST, FETCH_MAX, Engine, Scan, Transaction, TransactionalEngine
from stores.errors import ConfigError, StoreError
from stores.failpoints import declare, reach
from stores.interface import IsolationLevel
from stores.ordered import KeyRanges, ScanRange, SortedMap
from stores.strategies.access import leave_to
from stores.strategies.iterator import Pin
from stores.strategies.staging import RESTORE_AFTER_WRITE, RESTORE_BEFORE_WRITE, Opened, Scanned, Staging


class LiveScan:
    """The progress of a scan of the open transaction, and the layer at which its undo log begins."""

    def __init__(self, layer: Layer, bounds: ScanRange, *, reverse: bool) -> None:
        self.layer = layer
        self.bounds, self.reverse = bounds, reverse
        """The range that is left, and the direction."""
        self.fetch_most = FETCH_FIRST
        self.below: Scan | None = None
        """A scan of committed data, once this scan is detached from the transaction."""
        self.rest: Iterator[list[Pair]] | None = None
        """The remaining pairs, once this scan is detached."""
        self.released = False

    def release(self) -> None:
        """Mark the scan as released and close the scan below. May be called on any thread and by a finalizer."""
        self.released = True
        if self.below is not None:
            self.below.close()

    def covers(self, chunk: list[Pair], *, ended: bool) -> ScanRange:
        """Return the range that ``chunk`` covers completely."""
        if ended:
            return self.bounds
        if self.reverse:
            return self.bounds._replace(start=chunk[-1][0])
        return self.bounds._replace(end=chunk[-1][0], end_open=False)

    def go_on_after(self, key: bytes) -> None:
        """Continue the scan after ``key``. All pairs up to it have been returned, or are about to be."""
        self.fetch_most = min(2 * self.fetch_most, FETCH_MAX)
        self.bounds = self.bounds.rest_after(key, reverse=self.reverse)


class Undo:
    """Layers of old values, oldest first, as long as scans need them. Used by one thread at a time."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        """Empty while no scan is open: then no old value has to be saved."""
        self._released: deque[Layer] = deque()

    def pin(self) -> Layer:
        """Return the layer for a scan that is made now."""
        if not self.layers or self.layers[-1].staged.writes:
            self.layers.append(Layer())
        newest = self.layers[-1]
        newest.pins += 1
        return newest

    def release(self, layer: Layer) -> None:
        """Record that a scan no longer needs its layer. May be called on any thread and by a finalizer: no lock."""
        self._released.append(layer)

    def settle(self) -> None:
        """Drop the layers that no scan needs. Merge a layer without a scan of its own into the next older one."""
        if not self._released:
            return
        while self._released:
            self._released.popleft().pins -= 1
        layers: list[Layer] = []
        for layer in self.layers:
            if layer.pins:
                layers.append(layer)
            elif layers:
                older = layers[-1].staged.writes
                for key, value in layer.staged.writes.items():
                    older.setdefault(key, value)
        self.layers = layers

    def is_noted(self, key: bytes) -> bool:
        """Return whether the newest layer has the old value of ``key``. There must be a layer."""
        return key in self.layers[-1].staged.writes

    def note(self, key: bytes, value: bytes | None) -> None:
        """Save ``value`` as the old value of a key that is about to be written; None if it has none."""
        self.layers[-1].staged.writes[key] = value

    def since(self, layer: Layer) -> list[Layer]:
        """Return the layers of a scan that was given ``layer``, newest first."""
        return self.layers[self.layers.index(layer) :][::-1]


BEFORE_COMMIT = declare("native.before_commit", "everything is in the engine's transaction, which is about to commit")
AFTER_COMMIT = declare("native.after_commit", "the engine's transaction is committed, the caller does not know yet")


class NativeStaging(Staging):
    """The engine's own transaction, as large as the engine allows. The staged keys must fit into memory."""

    strategy: ClassVar[str] = "native"
    failpoints: ClassVar[tuple[str, ...]] = (BEFORE_COMMIT, AFTER_COMMIT, RESTORE_BEFORE_WRITE, RESTORE_AFTER_WRITE)

    @classmethod
    def bounds_memory(cls, engine: type[Engine]) -> bool:
        return super().bounds_memory(engine) and issubclass(engine, TransactionalEngine) and engine.spills

    @classmethod
    def check_engine(cls, engine: type[Engine], backend: str) -> None:
        if not issubclass(engine, TransactionalEngine):
            raise ConfigError(f"{backend}: the engine {engine.name!r} has no transactions of its own")

    def __init__(self, opened: Opened) -> None:
        super().__init__(opened)
        self._thread, self._writer = current_thread(), opened.access.writer
        self._transactions.prepare()
        self._transaction: Transaction | None = None
        # Held during each use of the transaction, and while it begins or ends: readers never see half a change.
        self._lock = Lock()
        self._live: WeakSet[LiveScan] = WeakSet()
        self._forget()

    def use(self, engine: Engine) -> None:
        super().use(engine)
        self.lookup = engine.get

    def change_writer(self) -> None:
        super().change_writer()
        self._thread, self._writer = current_thread(), self.access.writer

    @property
    def _transactions(self) -> TransactionalEngine:
        return cast(TransactionalEngine, self.engine)

    def _forget(self) -> None:
        self._lengths: SortedMap[int] = SortedMap()
        """Lengths of the staged values, by key; 0 for a delete."""
        self._num_bytes = 0
        self._key_bytes = 0
        """Bytes of the staged keys alone: only these are kept in memory."""
        self._ranges = KeyRanges()
        self._has_ranges = False
        """True if a range delete is staged or about to be. Readers look at it without the lock."""
        self._undo = Undo()

    # Staging

    def stage(self, key: bytes, value: bytes | None) -> None:
        # The hot path. ``stage_all`` has the same steps: a call for each pair would cost more than they do.
        with self._lock:
            transaction = self._transaction or self._begin()
            if self._undo.layers:
                self._note(transaction, key)
            transaction.put(key, value)
            lengths, length = self._lengths.writes, 0 if value is None else len(value)
            old = lengths.get(key)
            if old is None:
                self._num_bytes += len(key) + length
                self._key_bytes += len(key)
            else:
                self._num_bytes += length - old
            lengths[key] = length

    def stage_all(self, writes: dict[bytes, bytes | None]) -> None:
        with self._lock:
            transaction = self._transaction or self._begin()
            lengths = self._lengths.writes
            for key, value in writes.items():
                if self._undo.layers:
                    self._note(transaction, key)
                transaction.put(key, value)
                length = 0 if value is None else len(value)
                old = lengths.get(key)
                if old is None:
                    self._num_bytes += len(key) + length
                    self._key_bytes += len(key)
                else:
                    self._num_bytes += length - old
                lengths[key] = length

    def stage_range(self, start: bytes | None, end: bytes | None) -> None:
        with self._lock:
            transaction = self._transaction or self._begin()
            if self._is_watched():
                # Saving each key's old value could copy the whole database. This copies only the staged writes.
                self._part(self._copy(transaction))
            self._has_ranges = True
            transaction.delete_range(start, end)
            for key, length in self._lengths.discard_range(start, end):
                self._num_bytes -= len(key) + length
                self._key_bytes -= len(key)
            self._ranges.add(start, end)

    def _begin(self) -> Transaction:
        # A close on another thread may have ended the last transaction: do not begin one after it.
        self.access.check_open()
        self._transaction = transaction = self._transactions.begin()
        self.lookup = None
        return transaction

    def _note(self, transaction: Transaction, key: bytes) -> None:
        self._undo.settle()
        if self._undo.layers and not self._undo.is_noted(key):
            self._undo.note(key, transaction.get(key))

    def num_bytes(self) -> int:
        return self._num_bytes

    def memory_bytes(self) -> int:
        with self._lock:
            return (
                self._key_bytes
                + self._ranges.num_bytes()
                + PAIR_MEMORY_BYTES * len(self._lengths.writes)
                + RANGE_MEMORY_BYTES * len(self._ranges)
            )

    def is_clean(self) -> bool:
        return self._transaction is None

    # Ending

    def commit(self, meta: Mapping[bytes, bytes | None]) -> None:
        reach(BEFORE_COMMIT)
        with self._lock:
            if self._transaction is not None:
                self.engine.note_changes(self._lengths.writes, self._ranges)
                self._transaction.commit(meta)
                self._end()
                self._part(None)
                self._forget()
            elif meta:
                self.engine.write([], meta)
        reach(AFTER_COMMIT)

    def rollback(self) -> None:
        with self._lock:
            transaction = self._transaction
            if transaction is None:
                return
            if self._is_watched():
                try:
                    self._part(self._copy(transaction))
                except StoreError as error:
                    # The engine has aborted the transaction: the snapshot of the open scans is lost.
                    for scan in self._open_scans():
                        scan.rest = _raising(error)
            transaction.abort()
            self._end()
            self._forget()

    def _end(self) -> None:
        """Look up committed data again: the transaction has ended."""
        self._transaction = None
        self.lookup = self.engine.get

    def close(self, close_engine: Callable[..., None], *, clean: bool) -> None:
        with self._lock:
            transaction, self._transaction = self._transaction, None
        if transaction is None:
            close_engine(clean=clean)
            return

        def end() -> None:
            try:
                transaction.abort()
            except BaseException:
                close_engine(clean=False)
                raise
            close_engine(clean=clean)

        if transaction.bound_to_thread:
            leave_to(self._thread, end)
        else:
            end()

    # Reading

    def look_up(self, key: bytes) -> bytes | None:
        if get_ident() == self._writer:
            with self._lock:
                transaction = self._transaction
                if transaction is not None:
                    return transaction.get(key)
        return self.get(IsolationLevel.READ_UNCOMMITTED, key)

    def get(self, level: IsolationLevel, key: bytes) -> bytes | None:
        if (
            level is IsolationLevel.READ_UNCOMMITTED
            and self._transaction is not None
            # Compared here as well: for the writer, the call would cost a large part of the lookup.
            and (get_ident() == self._writer or self._may_change((key,)))
        ):
            with self._lock:
                if self._transaction is not None:
                    return self._transaction.get(key)
        return self.engine.get(key)

    def _may_change(self, keys: Sequence[bytes]) -> bool:
        """Return whether one of ``keys`` must be looked up in the open transaction.

        That is always so for the writer, which never waits for a reader's lookup here. A reader uses the transaction
        for staged keys only: it reads other keys from committed data, without waiting for a commit.
        """
        if get_ident() == self._writer:
            return True
        staged = self._lengths.writes
        # In this order: a range delete sets the flag before it removes keys from the staged ones.
        return any(key in staged for key in keys) or self._has_ranges

    def get_many(self, level: IsolationLevel, keys: Sequence[bytes]) -> list[bytes | None]:
        if level is IsolationLevel.READ_UNCOMMITTED and self._transaction is not None and self._may_change(keys):
            # The lock makes this a snapshot: nothing is staged or committed while it is held.
            with self._lock:
                if self._transaction is not None:
                    return self._transaction.get_many(keys)
        return self.engine.get_many(keys)

    def scan(self, level: IsolationLevel, bounds: ScanRange, *, reverse: bool) -> Scanned:
        if level is IsolationLevel.READ_UNCOMMITTED and self._transaction is not None:
            return super().scan(level, bounds, reverse=reverse)
        scan = self.engine.scan(bounds, reverse=reverse)
        return chunks_of(scan), Pin(scan.close)

    def scans(self, level: IsolationLevel, ranges: Sequence[ScanRange], *, reverse: bool) -> list[Scanned]:
        if level is IsolationLevel.READ_UNCOMMITTED and self._transaction is not None:
            with self._lock:
                if self._transaction is not None:
                    return [self._live_scan(each, reverse=reverse) for each in ranges]
        return self.scans_committed(ranges, reverse)

    def _live_scan(self, bounds: ScanRange, *, reverse: bool) -> Scanned:
        """Return a scan of the open transaction. The caller holds the lock."""
        live = LiveScan(self._undo.pin(), bounds, reverse=reverse)
        self._live.add(live)
        return self._chunks(live), Pin(partial(self._release, live))

    def _chunks(self, scan: LiveScan) -> Iterator[list[Pair]]:
        at_end = False
        while not at_end:
            with self._lock:
                if scan.rest is not None:
                    break
                chunk, at_end = self._fetch(scan)
            yield chunk
        else:
            return
        yield from scan.rest

    def _fetch(self, scan: LiveScan) -> tuple[list[Pair], bool]:
        """Return the next pairs, as they were when the scan was made, and whether they are the last."""
        if self._transaction is None or scan.released:
            # Another thread has released the scan meanwhile. Its iterator raises.
            return [], True
        chunk, at_end = self._transaction.fetch(scan.bounds, scan.fetch_most, reverse=scan.reverse)
        low, high, end_open, _ = scan.covers(chunk, ended=at_end)
        old_values: dict[bytes, bytes | None] = {}
        for layer in self._undo.since(scan.layer):
            old_values.update(
                (key, layer.staged.writes[key]) for key in layer.staged.keys_between(low, high, end_open=end_open)
            )
        if not at_end:
            scan.go_on_after(chunk[-1][0])
        return merged(chunk, sorted(old_values.items()), reverse=scan.reverse) if old_values else chunk, at_end

    # Scans that outlive what they read

    def _is_watched(self) -> bool:
        """Return whether a scan of the transaction is open."""
        self._undo.settle()
        return bool(self._undo.layers)

    def _open_scans(self) -> list[LiveScan]:
        return [scan for scan in self._live if not scan.released and scan.rest is None]

    def _copy(self, transaction: Transaction) -> Layer:
        """Return the changes of the transaction, copied into memory."""
        changes = Layer()
        changes.ranges.update(self._ranges)
        changes.staged.writes.update((key, transaction.get(key)) for key in self._lengths.writes)
        return changes

    def _part(self, copied: Layer | None) -> None:
        """Detach the open scans from the transaction: from now on they read committed data.

        ``copied`` and their undo log are merged over it.
        """
        for scan in self._open_scans():
            layers = [*([] if copied is None else [copied]), *self._undo.since(scan.layer)]
            try:
                scan.below = self.engine.scan(scan.bounds, reverse=scan.reverse)
            except StoreError as error:
                scan.rest = _raising(error)
                continue
            scan.rest = self._lay_over(scan.below, layers, scan)
            if scan.released:
                # Another thread released it meanwhile, maybe before ``below`` was set: close that scan too.
                scan.release()
        self._undo = Undo()

    def _lay_over(self, below: Scan, layers: list[Layer], scan: LiveScan) -> Iterator[list[Pair]]:
        chunks = chunks_of(below)
        for layer in layers:
            staged = layer.scan(scan.bounds, reverse=scan.reverse)
            chunks = lay_over(chunks, staged, layer.ranges, reverse=scan.reverse)
        yield from chunks

    def _release(self, scan: LiveScan) -> None:
        scan.release()
        self._undo.release(scan.layer)


def _raising(error: StoreError) -> Iterator[list[Pair]]:
    raise error
    yield []
