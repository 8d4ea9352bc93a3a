"""One store of a task, through its life: opened, wiped where it can't be trusted, restored, committed, closed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from stores.changelog.interface import Changelog
from stores.config import StoreConfig
from stores.creation import counts
from stores.errors import (
    ChangelogLostError,
    CommitFailedError,
    OffsetOutOfRangeError,
    StoreCorruptedError,
    StoreError,
    StoreTooNewError,
    StoreUnavailableError,
    TaskCorruptedError,
)
from stores.files import system_errors_told
from stores.interface import KeyValueStore, Position, RecoveryOutcome, TopicPartition
from stores.position import merge
from stores.records.record_kind import TypedStore
from stores.registry import backend_named
from stores.tasks.adoption import adopt, is_adoptable
from stores.tasks.checkpoint import CheckpointFile
from stores.tasks.context import TaskContext
from stores.tasks.logged_staging import LoggedStaging
from stores.tasks.logged_store import LoggedStore
from stores.tasks.origin_file import Origin
from stores.tasks.replay_bound import ReplayBound
from stores.tasks.restore import OnRestore, Restored, RestoreReport, restore
from stores.tasks.store_counters import TaskStoreCounters
from stores.tasks.store_format import StoreFormat
from stores.tasks.store_log import COALESCED_BYTES_MAX, CoalescingLog, StoreLog

UNCLEAN = "it keeps uncommitted writes among the committed ones, and was not closed with a checkpoint"
SWITCHED = "it was written at least once and not closed cleanly: it may have writes that were never committed"
NO_OFFSET = "it has data, and no offset beside it that says how much of the changelog that is"
ROLLED_BACK = "it keeps uncommitted writes among the committed ones, and these had to be rolled back"
IN_DOUBT = "it keeps no offset beside its data, and could not tell how much of a commit reached the disk"

Failure = CommitFailedError | StoreCorruptedError | StoreUnavailableError
"""What a store says when its disk refuses or what lies on it is damaged."""
_FAILURES = (CommitFailedError, StoreCorruptedError, StoreUnavailableError)


class TaskStore:
    """A store, its changelog partition, and the offset there that its committed state reflects.

    Under ``exactly_once``, data that no offset belongs to is thrown away, and a store that does not keep uncommitted
    writes apart, or no offsets of its own, also where its task did not close it (KIP-844, step 1.1; KIP-892, "Error
    Handling"; KIP-129, unclean shutdown). The next task may promise less: what this one has left is thrown away then.
    ``wipe_unclean=False`` keeps all that.
    ``verify``: it is read whole when it is opened, and wiped where it is damaged.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        config: StoreConfig,
        partition: TopicPartition,
        changelog: Changelog,
        checkpoint: CheckpointFile,
        *,
        exactly_once: bool,
        wipe_unclean: bool = True,
        verify: bool = False,
    ) -> None:
        self.name = name
        self.path = path
        self.partition = partition
        self.offset: int | None = None
        self.restores = 0
        """How many restores began and ended: odd while one is under way, when what the store holds is no answer."""
        self._restoring_depth = 0
        self._config = config
        self._changelog = changelog
        self._checkpoint = checkpoint
        # The first is where Kafka Streams keeps it, the second where KIP-892 says that it lies.
        self._position_files = (checkpoint.path.with_name(f"{name}.position"), path / ".position")
        self._exactly_once = exactly_once and wipe_unclean
        self._wipe_unclean, self._verify = wipe_unclean, verify
        self._mixed = False
        """Whether it may have writes that are in no changelog, beside those that are."""
        self._wiped_because: str | None = None
        self._logged: LoggedStore | None = None
        self._log: StoreLog
        self._opened_in_s = 0.0
        self.bound = ReplayBound(config.restore_max_bytes)
        self.counters = TaskStoreCounters(self.bound)
        self.report: RestoreReport | None = None
        """What the last restore of it did: that of opening, or of a return to the last commit."""
        self.store: KeyValueStore
        self.format = StoreFormat(name, path, config, partition, changelog, self.counters)
        self._typed: TypedStore | None = None

    @property
    def checkpointed(self) -> bool:
        """Whether its offset is kept in the checkpoint file alone."""
        return self.store.persistent and not self.store.manages_offsets

    @property
    def _keeps_apart(self) -> bool:
        """Whether its files alone tell which data is committed, and up to which offset."""
        return self.store.transactional and self.store.manages_offsets

    def origin(self, *, running: bool) -> Origin | None:
        """The entry of the store in the file of origins, while the task is open or after a clean close; None for no
        entry."""
        if not self.store.persistent:
            return None
        if self._keeps_apart:
            return Origin.AT_LEAST_ONCE if self._mixed else None
        if running:
            return Origin.EXACTLY_ONCE if self._exactly_once else Origin.AT_LEAST_ONCE
        return Origin.AT_LEAST_ONCE if self._mixed else Origin.CLEAN

    def open(self, checkpointed_offset: int | None, origin: Origin | None) -> None:
        """Open the store, which recovers by itself, and find out which offset it is at.

        One that another backend of the same engine left with a checkpoint is adopted; one of a newer format is wiped.
        So is one of which ``origin`` says that it has what this task, or the one before, does not cover.
        Raises: ChangelogLostError where nothing would restore what is to be wiped; StoreIncompatibleError for a store
        of other ``records``, which is left as it is.
        """
        began = perf_counter()
        # Until it is restored: the commit that it is at may be an earlier one than a view has shown.
        self.restores |= 1
        self.format.complete()
        with system_errors_told(self.path):
            if not counts(self.path):
                # Whoever removed it, or began to make it, has left the checkpoint behind, of what is gone.
                checkpointed_offset = None
        outdated = False
        try:
            if is_adoptable(self.path, self._config):
                self._adopt(checkpointed_offset, origin)
            self._open_engine()
            outdated = self.format.is_outdated(self.store)
            if not outdated:
                self.format.check(self.store)
            if self._verify:
                self.store.verify()
            self.offset = (
                self.store.committed_offset(self.partition) if self.store.manages_offsets else checkpointed_offset
            )
            if self._checks(origin):
                self._check_vouched_for(origin)
            if outdated:
                self._upgrade()
            self._mixed = self._may_be_mixed(origin)
            if self.store.manages_offsets:
                self._remove_position_files()
        except (StoreCorruptedError, StoreTooNewError, TaskCorruptedError) as error:
            self._check_changelog(checkpointed_offset)
            self._wipe(str(error))
        self._opened_in_s = perf_counter() - began

    def _upgrade(self) -> None:
        """Let a store of the present format, made of the changelog, take the place of the one that is open."""
        self._check_changelog(self.offset)
        if self.checkpointed:
            # It is the old store's. Without it a task that is killed meanwhile restores the store whole.
            self._checkpoint.forget(self.partition)
        self.offset = self.format.upgrade(self.store)
        self._open_engine()
        self.format.check(self.store)

    def _adopt(self, checkpointed_offset: int | None, origin: Origin | None) -> None:
        if self._checks(origin) and origin is not Origin.CLEAN:
            raise TaskCorruptedError(SWITCHED if origin is Origin.AT_LEAST_ONCE else UNCLEAN)
        position: dict[TopicPartition, int] = {}
        for file in self._position_files:
            with suppress(StoreCorruptedError):
                # Without it queries wait until the position has come by again: no data is lost.
                position = merge(position, CheckpointFile(file).read())
        offsets = {} if checkpointed_offset is None else {self.partition: checkpointed_offset}
        adopt(self.path, self._config, offsets, position, must_be_clean=self._checks(origin))

    def _remove_position_files(self) -> None:
        """What they told is in the store, or was not the store's."""
        for file in self._position_files:
            CheckpointFile(file).write({})

    def restore(self, position: Position, on_restore: OnRestore | None) -> RestoreReport:
        """Write the changelog's tail into the store; all of the changelog where the two don't fit together.

        ``position`` is that of the input whose effects the changelog has. Raises: ChangelogLostError where that is not
        what the store was filled from.
        """
        began = perf_counter()
        with self._restoring():
            self._check_changelog(self.offset)
            try:
                done = self._restore(self.offset, position, on_restore)
            except (OffsetOutOfRangeError, StoreCorruptedError) as error:
                self._wipe(str(error))
                done = self._restore(None, position, on_restore)
        if self.offset is not None:
            self.counters.replay_total += done.records
        if done.last_offset is not None:
            self.offset = done.last_offset
        seconds = self._opened_in_s + perf_counter() - began
        self.counters.recovery_seconds_total += seconds
        reason, self._wiped_because, self._opened_in_s = self._wiped_because, None, 0.0
        self.report = RestoreReport(
            self.name,
            done.from_offset,
            done.to_offset,
            done.records,
            done.bytes,
            seconds,
            reason is not None,
            reason,
            self.store.recover().outcome,
            self.store.recover().upgraded,
        )
        return self.report

    def _restore(self, offset: int | None, position: Position, on_restore: OnRestore | None) -> Restored:
        conversion = self.format.conversion(self.store)
        return restore(
            self.store, self._changelog, self.partition, offset, position, on_restore, self.bound, conversion
        )

    def logged(self, context: TaskContext) -> Any:
        """The store as the user's function sees it."""
        if self._config.changelog_coalescing:
            limit = self._config.uncommitted_max_bytes
            held = COALESCED_BYTES_MAX if limit == -1 else min(COALESCED_BYTES_MAX, limit)
            self._log = CoalescingLog(self.partition, context, self.format.headers, held)
        else:
            self._log = StoreLog(self.partition, context, self.format.headers)
        self.counters.follow_log(self._log)
        self._logged = LoggedStore(self.store, self._log, context)
        records = self.format.records
        if records is None:
            return self.format.shown(self._logged)
        self._typed = records.staged(LoggedStaging(self._logged, context))
        self.counters.follow_typed(self._typed)
        return self.format.shown(self._typed)

    def begin(self) -> None:
        """Begin a transaction of the changelog: nothing is held of an earlier one."""
        self._log.begin()

    def uncommitted_memory_bytes(self) -> int:
        """What its open transaction counts towards the limit: keys and values, wherever they are staged, what each
        entry takes beside them in memory, and so for each record that is held for the changelog. 0 for a store that is
        not transactional: a commit would not make it smaller."""
        store = self.store
        if not store.transactional:
            return 0
        staged_bytes = max(store.approximate_num_uncommitted_bytes(), store.uncommitted_memory_bytes())
        return staged_bytes + self._log.memory_bytes()

    def log_room(self, wanted_bytes: int) -> int:
        """By how many bytes at least its changelog may grow before the next commit, so that a kill makes nobody replay
        more than the bound; ``sys.maxsize`` where there is none. Exact where that is less than ``wanted_bytes``."""
        bound_bytes = self.bound.max_bytes
        store = self.store
        if bound_bytes == -1 or not (store.persistent and store.transactional and store.manages_offsets):
            return sys.maxsize
        if bound_bytes - self._log.num_bytes_at_most() < wanted_bytes:
            self._log.count()
        return bound_bytes - self._log.num_bytes_at_most()

    def compact_log(self) -> None:
        """Make one step of compacting its changelog. Raises: ChangelogError."""
        self._changelog.compact_step(self.partition)

    def before_commit(self) -> None:
        """Let a typed store make its bounded steps of expiry."""
        if self._typed is not None:
            self._typed.before_commit()

    def finish_log(self) -> None:
        """Send the held records before the changelog is committed, and make room for their replay.

        Raises as ``Producer.send``.
        """
        self._log.finish()
        self.bound.make_room(self._log.sent_bytes)

    def commit(self, offset: int | None) -> Failure | None:
        """Commit what is staged with the offset it got in the changelog (None: no record was logged).

        Returns the error where the store could not: it is then to ``catch_up``.
        """
        store = self.store
        try:
            store.commit({} if offset is None else {self.partition: offset})
        except _FAILURES as error:
            return error
        if offset is not None:
            self.offset = offset
            if self.store.manages_offsets:
                self.bound.committed(self._log.sent_bytes)
        return None

    def catch_up(self, error: Failure, position: Position, on_restore: OnRestore | None) -> RestoreReport:
        """After a failed commit, which the changelog has: go on from what the store kept, and replay the rest.

        Once: raises what the store says when it can't be opened again, or refuses the replay as well.
        """
        with self._restoring():
            if isinstance(error, StoreCorruptedError):
                self._wipe(str(error))
            elif isinstance(error, CommitFailedError) and not error.reopen:
                self.store.rollback()
            elif self._exactly_once and not self._keeps_apart:
                self._wipe(IN_DOUBT)
            else:
                self._reopen()
            return self.restore(position, on_restore)

    def fall_back(self, cause: BaseException, position: Position, on_restore: OnRestore | None) -> RestoreReport:
        """Undo what was staged since the last commit; the store is then at the changelog's end.

        Where the ``cause`` is a store's, and may be this one's, a mere rollback would go on from what has failed.
        """
        with self._restoring():
            if isinstance(cause, StoreCorruptedError) and self._is_damaged():
                self._wipe(str(cause))
            elif not self.store.transactional and self._exactly_once:
                self._wipe(ROLLED_BACK)
            elif isinstance(cause, _FAILURES):
                self._reopen()
            else:
                self.store.rollback()
                self._mixed = self._mixed or not self.store.transactional
            return self.restore(position, on_restore)

    @contextmanager
    def _restoring(self) -> Iterator[None]:
        """Views are not answered within; where it ends in an error the store has failed, and so has its task."""
        outermost = not self._restoring_depth
        self.restores |= 1
        self._restoring_depth += 1
        try:
            yield
        finally:
            self._restoring_depth -= 1
        if outermost:
            self.restores += 1

    def _is_damaged(self) -> bool:
        """Whether damage shows in looking for it, or in reading all there is: not all of that is committed."""
        try:
            self.store.verify()
            with self.store.all() as pairs:
                for _ in pairs:
                    pass
        except (StoreCorruptedError, CommitFailedError):
            # An engine that has given its transaction up over the damage can't be read.
            return True
        return False

    def close(self) -> None:
        """Close the store, if it ever was open, and what an upgrade builds beside it."""
        try:
            self.format.close()
        finally:
            if hasattr(self, "store"):
                self.store.close()

    def _checks(self, origin: Origin | None) -> bool:
        """Whether data that nothing vouches for is wiped: an exactly-once task, now or before, relies on that."""
        return self._exactly_once or (self._wipe_unclean and origin is Origin.EXACTLY_ONCE)

    def _check_vouched_for(self, origin: Origin | None) -> None:
        """Raises: TaskCorruptedError unless the data is known to be that of one offset, or there is none."""
        mixes = self.store.persistent and not self._keeps_apart
        unclean = mixes and not self._was_closed(origin)
        if (unclean or origin is Origin.AT_LEAST_ONCE or self.offset is None) and self._has_data():
            raise TaskCorruptedError(SWITCHED if origin is Origin.AT_LEAST_ONCE else UNCLEAN if mixes else NO_OFFSET)

    def _was_closed(self, origin: Origin | None) -> bool:
        return origin is Origin.CLEAN and self.store.recover().outcome is RecoveryOutcome.NOTHING_TO_DO

    def _may_be_mixed(self, origin: Origin | None) -> bool:
        """Whether the store, once it is opened and checked, may still have writes that are in no changelog."""
        if self._checks(origin):
            return False
        trusted = origin is not Origin.AT_LEAST_ONCE if self._keeps_apart else self._was_closed(origin)
        return not trusted and self._has_data()

    def _check_changelog(self, offset: int | None) -> None:
        """Raises: ChangelogLostError where it is empty, and ``offset`` the store's: restoring would empty the store."""
        if offset is not None and not self._changelog.end_offset(self.partition):
            topic, number = self.partition
            raise ChangelogLostError(
                f"the changelog {topic}-{number} is empty, and the store {self.path} is at its offset {offset}: "
                f"put the changelog back, or, to begin anew, remove {self._checkpoint.path.parent} first"
            )

    def _has_data(self) -> bool:
        with self.store.all() as pairs:
            return next(pairs, None) is not None

    def _open(self) -> None:
        self._open_engine()
        self.format.check(self.store)

    def _open_engine(self) -> None:
        self.store = self._config.open(self.path, name=self.name)
        self.counters.follow(self.store)
        self.bound.follow(self.store.persistence)
        if self._logged is not None:
            self._logged.inner = self.store

    def _reopen(self) -> None:
        self._close()
        # A failed store that keeps nothing apart has what was staged, and a task that promises little keeps it.
        mixed = self._mixed or not self.store.transactional
        self.open(self.offset, Origin.AT_LEAST_ONCE if mixed else Origin.CLEAN)

    def _close(self) -> None:
        # An engine that has failed may refuse this, too: what it has kept, opening it again tells.
        with suppress(StoreError):
            self.store.close()

    def _wipe(self, reason: str) -> None:
        self._wiped_because = reason
        self.counters.wipe_total += 1
        if hasattr(self, "store"):
            self._close()
        # First: a checkpoint that outlived the data would vouch for what a restore cut short has written.
        self._checkpoint.forget(self.partition)
        self._remove_position_files()
        backend_named(self._config.backend).wipe(self.path)
        self.offset, self._mixed = None, False
        self._open()
