"""The state of a store, its lookups and scans, and its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from threading import Lock

from stores.contract.arguments import as_bytes, as_key_list, check_keys
from stores.contract.reading import ScannedReads
from stores.engines.engine import Engine
from stores.errors import StoreClosedError, StoreUnavailableError
from stores.files.store_directory import StoreDirectory
from stores.interface import (
    Durability,
    IsolationLevel,
    KeyValueIterator,
    KeyValueStore,
    RecoveryOutcome,
    TopicPartition,
)
from stores.meta_entries import OFFSET, POSITION, decode_marks, decode_offsets
from stores.metrics import StoreCounters, StoreMetrics
from stores.ordered import ScanRange
from stores.strategies.access import check_bounds
from stores.strategies.iterator import OpenIterators, StoreIterator
from stores.strategies.staging import CLOSED, Scanned, Staging, Traits


class StoreReads(ScannedReads, KeyValueStore):
    """The attributes of a store, its facts and metrics, and its reads.

    Reads are the writer's, and those at an isolation level, which views use on any thread.
    """

    def __init__(
        self, staging: Staging, directory: StoreDirectory | None, traits: Traits, *, split_has_ended: bool = False
    ) -> None:
        self.staging = staging
        self.access = staging.access
        self._batch = staging.batch
        """The staging's indexed batch: ``put`` and ``get`` use it without a call."""
        self._writer = self.access.writer
        """A copy of ``access.writer``, for calls that are made once per record."""
        self._max_key_bytes = self.access.max_key_bytes
        """A copy of ``access.max_key_bytes``."""
        self._directory = directory
        self._traits = traits
        self._counters = StoreCounters()
        self._iterators = OpenIterators() if directory is None else OpenIterators(directory.note_damage)
        meta = staging.engine.meta()
        self._offsets = decode_offsets(OFFSET, meta)
        self._position = decode_offsets(POSITION, meta)
        self._marks = decode_marks(meta)
        self._staged_position: dict[TopicPartition, int] = {}
        self._staged_marks: dict[str, bytes | None] = {}
        self._keeps_offsets = staging.manages_offsets
        """False if the offsets are in the checkpoint file (KIP-892, ``managesOffsets``)."""
        self._marks_in_doubt = False
        """True while a commit may have changed the engine's marks, and ``_marks`` still has the old ones."""
        self._marks_lock = Lock()
        self._marks_are_held = False
        """True while a reader has the lock: the writer then waits before it changes a mark."""
        self._marks_at_once = not staging.transactional
        """True if a mark is written into the engine when it is set."""
        self._marks_need_care = self._marks_at_once
        """True if setting a mark takes more than staging it, for one of these two reasons."""
        self._turn = 0
        """A counter, odd while data and marks do not fit each other: during a rollback, and while both are staged."""
        self._split_has_ended = split_has_ended
        unclean = directory is not None and not directory.clean
        self._outcome = staging.outcome or (RecoveryOutcome.ROLLED_BACK if unclean else RecoveryOutcome.NOTHING_TO_DO)

    # Facts

    @property
    def name(self) -> str:
        return self._traits.name

    @property
    def backend(self) -> str:
        return self._traits.backend

    @property
    def durability(self) -> Durability:
        return self._traits.durability

    @property
    def persistent(self) -> bool:
        return self._directory is not None

    @property
    def transactional(self) -> bool:
        return self.staging.transactional

    @property
    def manages_offsets(self) -> bool:
        return self.staging.manages_offsets

    @property
    def keeps_marks(self) -> bool:
        return True

    @property
    def deletes_ranges_whole(self) -> bool:
        return self.staging.deletes_ranges_whole

    @property
    def is_open(self) -> bool:
        return self._writer != 0

    @property
    def max_key_bytes(self) -> int:
        return self._max_key_bytes

    # Metrics

    def approximate_num_uncommitted_bytes(self) -> int:
        self.access.check_open()
        return self.staging.num_bytes()

    def uncommitted_memory_bytes(self) -> int:
        self.access.check_open()
        return self.staging.memory_bytes()

    @property
    def metrics(self) -> StoreMetrics:
        since = self._iterators.open_since()
        try:
            uncommitted_bytes = self.approximate_num_uncommitted_bytes()
            uncommitted_memory_bytes = self.uncommitted_memory_bytes()
        except StoreClosedError:
            uncommitted_bytes = uncommitted_memory_bytes = 0
        return StoreMetrics(
            store=self.name,
            backend=self.backend,
            uncommitted_bytes=uncommitted_bytes,
            uncommitted_memory_bytes=uncommitted_memory_bytes,
            num_open_iterators=len(since),
            oldest_iterator_open_since_seconds=min(since, default=None),
            **self._counters.read(),
        )

    def engine_metrics(self) -> Mapping[str, int]:
        self.access.check_open()
        with self.access:
            return self.staging.metrics()

    # Closing

    def close(self) -> None:
        if not self.is_open:
            return
        # First, so that the writer begins no new call. A call in progress is completed.
        self.access.writer = 0
        self._writer = 0
        with self.access.working:
            self._close()

    def _close(self) -> None:
        self._counters.end()
        staging = self.staging
        close_engine = partial(_close_engine, staging.engine, self._directory)
        staging.use(CLOSED)
        try:
            self._iterators.close()
            staging.release()
        except BaseException:
            staging.close(close_engine, clean=False)
            raise
        staging.close(close_engine, clean=True)

    def _disown(self) -> None:
        """Give up the folder and the iterators in the child of a fork: both belong to the parent."""
        self._iterators.abandon()
        if self._directory is not None:
            # Otherwise this process would hold the parent's lock for as long as it lives.
            self._directory.release()

    # Lookups and scans

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

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        check_keys(keys)
        self.access.check_open()
        listed = as_key_list(keys)
        with self.access:
            return self.staging.look_up_many(listed)

    def range_many(
        self, bounds: Sequence[tuple[bytes | None, bytes | None]], *, reverse: bool = False
    ) -> list[KeyValueIterator]:
        ranges = [ScanRange(start, end) for start, end in bounds]
        return self._scan_many(IsolationLevel.READ_UNCOMMITTED, ranges, reverse=reverse)

    def approximate_num_entries(self) -> int:
        self.access.check_open()
        with self.access:
            return self.staging.engine.approximate_num_entries()

    def _scan(
        self, bounds: ScanRange, *, reverse: bool, level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> KeyValueIterator:
        """Return a scan at ``level``. May be called on any thread."""
        check_bounds(bounds.start, bounds.end)
        self.access.check_open()
        try:
            scanned = self.staging.scan(level, bounds, reverse=reverse)
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
        with self.access:
            scans = self.staging.scans(level, ranges, reverse=reverse)
        return [self._iterator(scanned) for scanned in scans]

    def _iterator(self, scanned: Scanned) -> StoreIterator:
        """Return an iterator. Closing the store closes it."""
        pairs, pin = scanned
        self._iterators.add(pin)
        if not self._writer:
            # Another thread has closed the store meanwhile and may have missed this pin.
            pin.close()
        return StoreIterator(pairs, pin, self._iterators)


def _close_engine(engine: Engine, directory: StoreDirectory | None, *, clean: bool) -> None:
    """Close the engine and release the folder. It counts as cleanly closed if ``clean`` and no close failed."""
    closed = False
    try:
        engine.close()
        closed = True
    finally:
        if directory is not None:
            directory.close(clean=clean and closed)
