"""The state of a store: what it is made of, its facts, its metrics, and its end."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from threading import Lock

from stores import position as positions
from stores.contract import marks as kept_marks
from stores.engines.engine import Engine
from stores.errors import StoreClosedError, StoreUnavailableError
from stores.files.store_directory import StoreDirectory
from stores.interface import Durability, KeyValueStore, RecoveryOutcome, TopicPartition
from stores.metrics import StoreMetrics
from stores.strategies.counters import StoreCounters
from stores.strategies.iterator import OpenIterators
from stores.strategies.staging import CLOSED, Staging, Traits


class StoreState(KeyValueStore):
    """The attributes of a store, which all of its parts use. ``stores.strategies.store`` has the parts."""

    def __init__(
        self, staging: Staging, directory: StoreDirectory | None, traits: Traits, *, upgraded: bool = False
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
        self._iterators = OpenIterators()
        meta = staging.engine.meta()
        self._offsets = positions.decode(positions.OFFSET, meta)
        self._position = positions.decode(positions.POSITION, meta)
        self._marks = kept_marks.decode(meta)
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
        self._rollback_turn = 0
        """A counter, odd during a rollback: data and marks then belong to different transactions."""
        self._upgraded = upgraded
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
    def takes_timestamps(self) -> bool:
        return True

    @property
    def keeps_marks(self) -> bool:
        return True

    @property
    def deletes_ranges_whole(self) -> bool:
        return self.staging.engine.deletes_ranges_whole

    @property
    def is_split(self) -> bool:
        return self.staging.is_split

    @property
    def can_split(self) -> bool:
        return self.is_split or self.staging.engine.splits

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
        try:
            return self.staging.metrics()
        except StoreUnavailableError:
            self.access.check_open()
            raise

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


def _close_engine(engine: Engine, directory: StoreDirectory | None, *, clean: bool) -> None:
    """Close the engine and release the folder. It counts as cleanly closed if ``clean`` and no close failed."""
    closed = False
    try:
        engine.close()
        closed = True
    finally:
        if directory is not None:
            directory.close(clean=clean and closed)
