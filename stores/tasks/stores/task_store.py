"""One store of a task: opening, wiping if it can't be trusted, restore, commit, rollback and close."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Any

from stores.changelog.interface import Producer
from stores.errors import (
    CommitFailedError,
    OffsetOutOfRangeError,
    StoreCorruptedError,
    StoreError,
    StoreTooNewError,
    StoreUnavailableError,
    TaskCorruptedError,
)
from stores.failpoints import reach
from stores.files.creation import is_complete
from stores.files.plain_files import translated_system_errors
from stores.interface import Position
from stores.records.values import StoreStaging
from stores.snapshots import Snapshots
from stores.tasks.context import TaskContext
from stores.tasks.directory.entry_files import Origin
from stores.tasks.directory.replacement import complete
from stores.tasks.directory.task_files import StorePlan
from stores.tasks.stores.earlier_store import (
    IN_DOUBT,
    ROLLED_BACK,
    PositionFiles,
    Trust,
    can_import_offsets,
    import_offsets,
    keeps_apart,
)
from stores.tasks.stores.file_snapshots import begin_from_snapshot, snapshots_of
from stores.tasks.stores.log_follower import (
    LogFollower,
    OnRestore,
    Restored,
    RestoreProgress,
    RestoreReport,
    check_noted,
    is_damaged,
    reported,
    restore,
    warn_of_missing,
)
from stores.tasks.stores.log_format import FOLLOWED, LOGGED, rewrite
from stores.tasks.stores.log_identity import check_log, too_old
from stores.tasks.stores.log_start import CommittedStreamTime, LogStart, first_needed
from stores.tasks.stores.shown_store import ShownStore
from stores.tasks.stores.store_format import StoreFormat, history_of
from stores.tasks.stores.store_metrics import TaskStoreCounters
from stores.tasks.stores.takeover import TaskTakeover

_log = logging.getLogger(__name__)

Failure = CommitFailedError | StoreCorruptedError | StoreUnavailableError
"""The errors of a store after a disk error or damage."""
_FAILURES = (CommitFailedError, StoreCorruptedError, StoreUnavailableError)


class TaskStore(LogFollower):
    """A store, its changelog partition, and the offset there that its committed state reflects.

    Under ``exactly_once`` a store with data but without an offset is wiped. A store that does not isolate uncommitted
    writes, or does not keep offsets, is also wiped if its task did not close it cleanly. If the next task is not
    exactly-once, it wipes the same stores of this one.

    With ``verify`` the store is read whole when it is opened, and wiped if it is damaged.

    Source: KIP-844, step 1.1; KIP-892, "Error Handling"; KIP-129, unclean shutdown.
    """

    def __init__(
        self, plan: StorePlan, *, exactly_once: bool, verify: bool = False, snapshots: Snapshots | None = None
    ) -> None:
        super().__init__(plan.name, plan.path, plan.config, plan.changelog, plan.partition.topic)
        self.partition = plan.partition
        self.offset: int | None = None
        self.restores = 0
        """The number of beginnings and ends of restores: odd during a restore, when views must not answer."""
        self._restoring_depth = 0
        self._plan, self._changelog = plan, plan.changelog
        # The first is the path of Kafka Streams, the second that of KIP-892.
        self._positions = PositionFiles(
            plan.checkpoint.path.with_name(f"{self.name}.position"), self.path / ".position"
        )
        self._takeover = TaskTakeover(plan)
        self._trust = Trust(exactly_once=exactly_once)
        self._verify = verify
        self.snapshots = snapshots_of(plan, snapshots)
        self._mixed = False
        """True if the store may have writes that are in no changelog."""
        self._opened_in_s = 0.0
        self._read_to: int | None = None
        """The end of the changelog when it was last read whole, exclusive; None if it was not."""
        self.counters = TaskStoreCounters(self.bound, self.snapshots.figures)
        self.report: RestoreReport | None = None
        """The report of the last restore, on opening or after a rollback."""
        self.format = StoreFormat(plan, self.counters)
        self._shown = ShownStore(plan, self.format, self.counters)
        self._stream_time = CommittedStreamTime(plan.partition, plan.changelog)
        self._log_start = LogStart(plan.partition, plan.changelog)

    @property
    def checkpointed(self) -> bool:
        """True if the checkpoint file alone has the store's offset."""
        return self.store.persistent and not self.store.manages_offsets

    def create_topic(self, partitions: int) -> None:
        """Create its changelog topic unless it exists. Raises: as ``Changelog.create_store_topic``."""
        records, topic = self._config.records, self.partition.topic
        expires = records is not None and records.retention is not None
        history_ms = history_of(self._config)
        self._changelog.create_store_topic(topic, partitions, expires=expires, history_ms=history_ms)

    def origin(self, *, running: bool) -> Origin | None:
        """Return the store's entry in the origin file for a running task or after a clean close; None for no entry."""
        return self._trust.origin(self.store, mixed=self._mixed, running=running)

    @property
    def can_be_handed_over(self) -> bool:
        """True if the open store can go on in another task object, on another thread (``open`` with ``copy``)."""
        store = self.store
        committed = store.transactional and store.manages_offsets
        return committed and store._can_change_writer and self._config.upgrade is None

    def open(self, checkpointed_offset: int | None, origin: Origin | None, copy: TaskStore | None = None) -> None:
        """Open the store, which recovers by itself, and set ``offset``. A store of Kafka Streams is taken over first.

        If another backend of the same engine has left the store with a checkpoint, the offset is imported. A store of a
        newer format is wiped. So is a store that may have uncommitted writes according to ``origin``. With ``copy`` the
        store is the one that it has open, and does not use any more.

        Raises: ChangelogLostError if the store must be wiped and the changelog is empty; StoreIncompatibleError for a
        store of other ``records``, or one of Kafka Streams that another configuration could take over, which stays
        unchanged; StoreLockedError if Kafka Streams has the store open.
        """
        began = perf_counter()
        self._read_to = None
        self.snapshots.forget()
        # Views do not answer until the restore: the store may be at an earlier commit than they have shown.
        self.restores |= 1
        if copy is None:
            complete(self.path)
        outdated = False
        # An open copy has followed its log until now, whatever the age of its files.
        log_id, aged = self._log_id(), None if copy is not None else too_old(self.path, self._config.max_age_s)
        try:
            if copy is None:
                checkpointed_offset = self._open_files(checkpointed_offset, origin)
            else:
                self._take_over(copy)
            outdated = self.format.is_outdated(self.store)
            if not outdated:
                self._check_format()
            if self._verify:
                self.store.verify()
            check_noted(self.store, self.path)
            self.offset = (
                self.store.committed_offset(self.partition) if self.store.manages_offsets else checkpointed_offset
            )
            self._trust.check(self.store, self.offset, origin)
            check_log(self.store, self._plan, self.offset, log_id, aged)
            if outdated:
                self._upgrade()
            self._mixed = self._trust.may_be_mixed(self.store, origin)
            if self.store.manages_offsets:
                self._positions.remove()
        except (StoreCorruptedError, StoreTooNewError, TaskCorruptedError) as error:
            self._plan.check_changelog(checkpointed_offset)
            self.wipe_after(error)
        self._opened_in_s = perf_counter() - began

    def _open_files(self, checkpointed_offset: int | None, origin: Origin | None) -> int | None:
        """Open the store's files; return ``checkpointed_offset`` unless it is obsolete."""
        self._takeover.run(checkpointed_offset, self._positions.read)
        with translated_system_errors(self.path):
            if not is_complete(self.path):
                # The store was removed, or its creation was interrupted: its checkpoint is obsolete.
                checkpointed_offset = None
        if can_import_offsets(self.path, self._config):
            self._import_offsets(checkpointed_offset, origin)
        self._open_engine()
        return checkpointed_offset

    def _take_over(self, copy: TaskStore) -> None:
        self.store = copy.store
        self.store._change_writer()
        # They know what a kill would take back.
        self.bound.take_over(copy.bound)
        self._log_start = copy._log_start
        self.counters.follow(self.store)

    def _upgrade(self) -> None:
        """Replace the open store by one of the present format, which is built from the changelog."""
        self._plan.check_changelog(self.offset)
        if self.checkpointed:
            # The checkpoint is that of the old store. Without it a task that is killed here restores the store whole.
            self._plan.checkpoint.forget(self.partition)
        self.offset = self.format.upgrade(self.store)
        self._open_engine()
        self._check_format()

    def swap_upgraded(self, position: Position) -> None:
        """Swap in the new store of an online upgrade, if that is due, between two commits. Raises: as ``open``."""
        if not self.format.swap_is_due:
            return
        with self._restoring():
            self.snapshots.end()
            self.format.swap(self.store)
            if self.store.is_open:
                return
            complete(self.path)
            self._open_engine()
            self.format.settle(self.store)
            self._check_format()
            if self.store.manages_offsets:
                self.offset = self.store.committed_offset(self.partition)
            self.restore(position, None)

    def _import_offsets(self, checkpointed_offset: int | None, origin: Origin | None) -> None:
        self._trust.check_import(origin)
        known = {} if checkpointed_offset is None else {self.partition: checkpointed_offset}
        is_clean, position = self._trust.is_checked(origin), self._positions.read()
        import_offsets(self.path, self._config, known, position, must_be_clean=is_clean)
        _log.info("store %r in %s is kept for the backend %s", self.name, self.path, self._config.backend)

    def restore(self, position: Position, on_restore: OnRestore | None, *, owned: bool = True) -> RestoreReport:
        """Write the changelog's tail into the store, or wipe it and restore it whole. Raises: ChangelogLostError."""
        began = perf_counter()
        with self._restoring():
            if owned:  # Open transactions hide later commits.
                self._changelog.await_decided(self.partition)
            self._plan.check_changelog(self.offset)
            result = self._restore_or_wipe(position, on_restore)
            self._read_to = result.to_offset
            self._stream_time.restore(self.store, self.format.records)
        if self.offset is not None:
            self.counters.replay_total += result.records
        if result.last_offset is not None:
            self.offset = result.last_offset
        if self.offset is not None:
            # The last commit of an earlier process could not remember itself.
            self._note_log(self.offset, keep=True)
        seconds = self._opened_in_s + perf_counter() - began
        self.counters.recovery_seconds_total += seconds
        report = reported(self.store, self.partition, result, seconds, self.wiped_because)
        self.report, self.wiped_because, self._opened_in_s = self.snapshots.told(report), None, 0.0
        self.snapshots.begin()
        return self.report

    def follow(self, max_records: int) -> int:
        """Write up to ``max_records`` further committed records of the changelog into the store; return the lag.

        The lag is the number of offsets from the store's to the last stable one, 0 at the end. For a standby: its
        restore never ends, and leaves the position to ``restore``. A store that does not fit the changelog is wiped.

        Raises: ChangelogLostError, as ``restore``; as ``StateStore.restore``.
        """
        if self._changelog.end_offset(self.partition) == self._read_to:
            return 0
        self._plan.check_changelog(self.offset)
        result = self._restore_or_wipe({}, self._advance, max_records)
        warn_of_missing(self.name, self.partition, result)
        if result.records:
            self._drop_expired()
        self._read_to = None if result.cut else result.to_offset
        following = result.from_offset if self.offset is None else self.offset + 1
        return max(result.to_offset - following, 1) if result.cut else 0

    def _advance(self, progress: RestoreProgress) -> None:
        self.offset = progress.offset

    def _drop_expired(self) -> None:
        """Drop the segments of a window or session store that are older than its retention: no record logs that."""
        records = self.format.records
        if records is not None and records.retention is not None:
            records.staged(StoreStaging(self.store)).commit()

    def rewrite_log(self, transactional_id: str) -> bool:
        """Rewrite the changelog of the restored store if due; return whether it was. Raises: as ``rewrite``."""
        upgrade, log, partition = self.format.log_upgrade, self._changelog, self.partition
        if upgrade is None:
            return False
        last_offset = rewrite(log, partition, upgrade, transactional_id, self._read_to)
        if last_offset is not None:
            reach(LOGGED)
            self._move_to(last_offset)
        needed = first_needed(log, partition)
        self._log_start.forget_before(self.store, needed)
        if needed <= log.start_offset(partition) or not log.can_truncate(partition.topic):
            return last_offset is not None
        if self.offset is None or self.offset < needed - 1:
            # A process that was killed has logged again what the store has.
            self._move_to(needed - 1)
        # A kill must not take the store back to an offset that the changelog no longer has. If that can't be made sure
        # now, the next opening truncates the log.
        if not self._survives_kill():
            return last_offset is not None
        reach(FOLLOWED)
        log.truncate(partition, needed)
        return True

    def _survives_kill(self) -> bool:
        """Flush the store; return whether a kill loses none of its commits."""
        persistence = self.store.persistence
        mark = persistence.mark()
        # A flush under way may have begun before the last commit.
        persistence.wait()
        persistence.begin()
        persistence.wait()
        return persistence.persisted() >= mark

    def _move_to(self, offset: int) -> None:
        """Set the offset of the store, which has what the changelog has up to there."""
        self.store.restore([], {self.partition: offset})
        self.offset = offset

    def _restore_or_wipe(
        self, position: Position, on_restore: OnRestore | None, max_records: int | None = None
    ) -> Restored:
        """Write the changelog's records after ``offset`` into the store; wipe it first if it does not fit them."""

        def restored(progress: RestoreProgress) -> None:
            self._note_log(progress.offset, keep=True)
            if on_restore is not None:
                on_restore(progress)

        def restore_tail() -> Restored:
            if self.offset is None and not self.format.online:
                on_files = on_restore if max_records is None else None
                self.offset = begin_from_snapshot(self, self.snapshots, on_files)
            log = self.store, self._changelog, self.partition, self.offset
            bounds = self.bound, self.format.conversion(self.store), self.restore_bytes
            return restore(*log, position, restored, *bounds, max_records=max_records)

        try:
            return restore_tail()
        except (OffsetOutOfRangeError, StoreCorruptedError) as error:
            self.wipe_after(error)
            return restore_tail()

    def _note_log(self, offset: int, *, keep: bool = False) -> None:
        """Remember the stream time of the committed state, which is at ``offset``."""
        records = self.format.records
        if records is None or records.retention is None:
            return
        if self._log_start.note(self.store, offset, records.retention) and keep:
            self._log_start.keep(self.store)

    def logged(self, context: TaskContext) -> Any:
        """Return the store as the user's function sees it."""
        return self._shown.show(self.store, context)

    def begin(self) -> None:
        """Begin a transaction of the changelog. Held records of an earlier one are dropped."""
        self._shown.log.begin()

    def uncommitted_memory_bytes(self) -> int:
        """Return the memory of the open transaction that counts towards the limit.

        This is the larger of two sums: keys and values wherever they are staged, or the memory of staged writes with
        the cost of each entry. The cost of each record held for the changelog is added. It is 0 for a store that is not
        transactional: a commit would not reduce it.
        """
        store = self.store
        if not store.transactional:
            return 0
        staged_bytes = max(store.approximate_num_uncommitted_bytes(), store.uncommitted_memory_bytes())
        return staged_bytes + self._shown.log.memory_bytes()

    def log_room(self, wanted_bytes: int) -> int:
        """Return by how many bytes the changelog may grow within the replay bound; exact if below ``wanted_bytes``."""
        bound_bytes = self.bound.max_bytes
        store, log = self.store, self._shown.log
        if bound_bytes == -1 or not (store.persistent and store.transactional and store.manages_offsets):
            return sys.maxsize
        if bound_bytes - log.num_bytes_at_most() < wanted_bytes:
            log.count()
        return bound_bytes - log.num_bytes_at_most()

    def compact_log(self) -> None:
        """Make one step of compacting its changelog. Raises: ChangelogError."""
        if self._log_start.due is not None:
            self._log_start.drop()
        self._changelog.compact_step(self.partition, self._shown.is_expired, self._shown.is_needed)

    def send_stream_time(self, producer: Producer) -> None:
        """Add to the transaction what no changelog record has: a stream time, and the first offset that is needed."""
        records = self.format.records
        self._stream_time.send(self.store, records, producer)
        # The new store of an online upgrade may keep its records for longer.
        if records is not None and records.retention is not None and not self.format.online:
            self._log_start.send(self.store, records.retention, producer)

    def before_commit(self) -> None:
        """Let a typed store make a bounded step of expiry."""
        self._shown.before_commit()
        if self._log_start.encoded:
            self._log_start.stage(self.store)

    def finish_log(self) -> None:
        """Send the held records before the changelog is committed, and make room for their replay."""
        log = self._shown.log
        log.finish()
        self.bound.make_room(log.sent_bytes)

    def commit(self, offset: int | None) -> Failure | None:
        """Commit with the offset in the changelog (None: nothing was logged). Return an error for ``catch_up``."""
        try:
            self.store.commit({} if offset is None else {self.partition: offset})
        except _FAILURES as error:
            return error
        if offset is not None:
            self.offset = offset
            if self.store.manages_offsets:
                self.bound.committed(self._shown.log.sent_bytes)
            self._note_log(offset)
        return None

    def take_snapshot(self) -> None:
        """Begin a snapshot by files of the commit that was just made, if one is due."""
        if not self._mixed:
            self.snapshots.after_commit(self.store, {} if self.offset is None else {self.partition: self.offset})

    def catch_up(self, error: Failure, position: Position, on_restore: OnRestore | None) -> RestoreReport:
        """Replay, once, a commit that failed in the store but is in the changelog. Raises: as ``open``."""
        with self._restoring():
            if isinstance(error, StoreCorruptedError):
                self.wipe_after(error)
            elif isinstance(error, CommitFailedError) and not error.reopen:
                self.store.rollback()
            elif self._trust.exactly_once and not keeps_apart(self.store):
                self.wipe(IN_DOUBT)
            else:
                self._reopen()
            return self.restore(position, on_restore)

    def return_to_commit(self, cause: BaseException, position: Position, on_restore: OnRestore | None) -> RestoreReport:
        """Return to the changelog's end after ``cause``. After an error of a store, open the store again."""
        with self._restoring():
            if isinstance(cause, StoreCorruptedError) and is_damaged(self.store):
                self.wipe_after(cause)
            elif not self.store.transactional and self._trust.exactly_once:
                self.wipe(ROLLED_BACK)
            elif isinstance(cause, _FAILURES):
                self._reopen()
            else:
                self.store.rollback()
                self._mixed = self._mixed or not self.store.transactional
            return self.restore(position, on_restore)

    @contextmanager
    def _restoring(self) -> Iterator[None]:
        """Mark a restore: views do not answer during the block. After an error in it the task has failed."""
        outermost = not self._restoring_depth
        self.restores |= 1
        self._restoring_depth += 1
        try:
            yield
        finally:
            self._restoring_depth -= 1
        if outermost:
            self.restores += 1

    def close(self) -> None:
        """Close the store, if it was ever opened, and the new store of an upgrade."""
        self.snapshots.end()
        try:
            self.format.close()
        finally:
            super().close()

    def _open(self) -> None:
        self._open_engine()
        self._check_format()

    def _open_engine(self) -> None:
        super()._open_engine()
        self.counters.follow(self.store)
        self._log_start.follow(self.store)

    def _check_format(self) -> None:
        """Check the format of the opened store, and make it the one that the user's function uses."""
        self.format.check(self.store)
        self._shown.follow(self.store)

    def _reopen(self) -> None:
        self.snapshots.end()
        # A failed engine may fail here, too. Opening the store again shows its state.
        with suppress(StoreError):
            super().close()
        # Without isolation the failed store has the staged writes, and an at-least-once task keeps them.
        mixed = self._mixed or not self.store.transactional
        self.open(self.offset, Origin.AT_LEAST_ONCE if mixed else Origin.CLEAN)

    def _forget(self) -> None:
        self.snapshots.end()
        self.counters.wipe_total += 1
        self._plan.checkpoint.forget(self.partition)
        self._positions.remove()
        self._takeover.discard()
        self.offset, self._mixed = None, False
