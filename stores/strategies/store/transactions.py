"""The transactions of a store: writes, marks, offsets and position, commit, rollback, recovery and restore."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident

from stores.contract.arguments import check_offsets, check_pair, check_pairs
from stores.contract.levels import Persistence
from stores.engines.engine import Writes
from stores.errors import StoreError
from stores.failpoints import reach
from stores.interface import IsolationLevel, Position, PositionBound, Recovery, TopicPartition
from stores.meta_entries import (
    MARK_BYTES_MAX,
    OFFSET,
    POSITION,
    changed_marks,
    check_mark_name,
    check_mark_value,
    check_marks,
    decode_marks,
    encode_marks,
    encode_offsets,
    merge_marks,
    merge_positions,
    offsets_beyond,
)
from stores.strategies.access import OFFSET_BOUND, check_bounds, check_offset, check_partition, while_open
from stores.strategies.staging import RESTORE_AFTER_WRITE, RESTORE_BEFORE_WRITE
from stores.strategies.store.reads import StoreReads

_BYTES = frozenset({bytes})
_BYTES_OR_NONE = frozenset({bytes, type(None)})


class StoreTransactions(StoreReads):
    """All that stages, commits, undoes or replaces a transaction, on the writer's thread, and lookups of marks."""

    # Writes

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
                        if (growth := len(value) - len(old)) > 0:
                            batch.room_bytes -= growth
                        elif growth:
                            batch.granted_bytes += growth
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

    def put_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        check_pairs(pairs)
        # Read all pairs before any is staged: they may come from a scan of this store.
        writes = self._valid_writes(list(pairs))
        self.access.check_writer()
        if writes:
            self._stage_list(writes)

    def put_many(self, pairs: Mapping[bytes, bytes | None] | Iterable[tuple[bytes, bytes | None]]) -> None:
        # A copy of a dict takes a sixth of the time of a dict from its pairs.
        writes = self._plain_writes(pairs) if isinstance(pairs, dict) else None
        if writes is None:
            super().put_many(pairs)
            return
        self.access.check_writer()
        if writes:
            self._stage_list(writes)

    def _valid_writes(self, pairs: list[tuple[bytes, bytes | None]]) -> dict[bytes, bytes | None]:
        """Return ``pairs``, of which the last one of a key wins. Raises: as ``put`` for the first invalid one."""
        writes = self._plain_writes(pairs)
        return self._checked_writes(pairs) if writes is None else writes

    def _plain_writes(
        self, pairs: dict[bytes, bytes | None] | list[tuple[bytes, bytes | None]]
    ) -> dict[bytes, bytes | None] | None:
        """Return ``pairs`` if all are valid, without bytecode for each; otherwise None."""
        try:
            writes = dict(pairs)
            keys: Collection[bytes] = writes
            values: Collection[bytes | None] = writes.values()
            if len(writes) != len(pairs):
                # Those that a later one replaces are checked, too.
                keys, values = zip(*pairs, strict=True)
        except (TypeError, ValueError):
            return None
        if not (_BYTES.issuperset(map(type, keys)) and _BYTES_OR_NONE.issuperset(map(type, values))) or b"" in writes:
            return None
        access = self.access
        fits = max(map(len, writes), default=0) <= access.max_key_bytes
        return writes if fits and max(map(len, filter(None, values)), default=0) <= access.max_value_bytes else None

    def _checked_writes(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> dict[bytes, bytes | None]:
        """Return ``pairs``, of which the last one of a key wins. Raises: as ``put`` for the first invalid one."""
        check_write = self.access.check_write
        writes: dict[bytes, bytes | None] = {}
        for pair in pairs:
            check_pair(pair)
            key, value = pair
            check_write(key, value)
            writes[key] = value
        return writes

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

    # Transactions

    def commit(self, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> None:
        # The same as ``while_open``, without its cost in each commit.
        if get_ident() != self._writer:
            self.access.check_writer()
        if self._marks_are_held:
            self._let_readers_end()
        with self.access.working:
            if not self._writer:
                self.access.check_open()
            offsets = self._checked_offsets({} if changelog_offsets is None else changelog_offsets)
            meta = encode_offsets(OFFSET, offsets)
            advanced = self._staged_position
            if advanced:
                meta.update(encode_offsets(POSITION, advanced))
            mark_changes = changed_marks(self._marks, self._staged_marks) if self._staged_marks else None
            if mark_changes:
                meta.update(encode_marks(self._marks, mark_changes))
                self._marks_in_doubt = True
            try:
                with self._counters.commits:
                    self.staging.commit(meta)
            except BaseException:
                self._marks_in_doubt = False
                raise
            if offsets and self._keeps_offsets:
                self._keep(offsets)
            # After the data: a reader on another thread never sees a position ahead of the data. See ``position``.
            if advanced:
                self._position = {**self._position, **advanced}
            self._staged_position = {}
            if mark_changes is not None:
                if mark_changes:
                    self._marks = merge_marks(self._marks, mark_changes)
                    self._marks_in_doubt = False
                self._staged_marks = {}

    @while_open
    def rollback(self) -> None:
        undone = bool(self._staged_position or self._staged_marks) or not self.staging.is_clean()
        with self._marks_lock:
            self._turn += 1
            try:
                # Before the data, so that the position never leads the data.
                self._staged_position = {}
                self.staging.rollback()
                # After the data: a reader of staged data needs the stream time that belongs to it.
                self._staged_marks = {}
            finally:
                self._turn += 1
        self._counters.rollback_total += undone

    @property
    def _transaction(self) -> object:
        """A token of the open transaction: another object after each commit and each rollback.

        A rollback replaces it before it drops data.
        """
        return self._staged_position

    def _is_clean(self) -> bool:
        return not self._staged_marks and self.staging.is_clean()

    # Another writer

    _can_change_writer = True

    def _change_writer(self) -> None:
        with self.access.working:
            self.access.check_open()
            if self._staged_position or not self._is_clean():
                raise StoreError(
                    f"store {self.name!r} has staged writes: commit or roll back before its thread changes"
                )
            self.access.writer = self._writer = get_ident()
            self.staging.change_writer()

    # Offsets and position

    def advance_position(self, partition: TopicPartition, offset: int) -> None:
        # The fast path, once per record: a partition that is staged or committed has been checked.
        if type(offset) is int and get_ident() == self._writer:
            staged = self._staged_position
            reached = staged.get(partition)
            if reached is None:
                reached = self._position.get(partition)
            if reached is not None and reached < offset < OFFSET_BOUND:
                staged[partition] = offset
                return
        self.access.check_writer()
        check_partition(partition)
        check_offset(offset)
        # Stage only an offset above both positions: then a commit needs no comparison.
        if offset > max(self._position.get(partition, -1), self._staged_position.get(partition, -1)):
            self._staged_position[partition] = offset

    def committed_offset(self, partition: TopicPartition) -> int | None:
        self.access.check_open()
        check_partition(partition)
        return self._offsets.get(partition)

    def position(self, isolation_level: IsolationLevel) -> Position:
        self.access.check_open()
        if IsolationLevel(isolation_level) is IsolationLevel.READ_COMMITTED and self.transactional:
            return dict(self._position)
        # Copy the staged position first, in one step: a commit merges it into the committed one before clearing it.
        staged = dict(self._staged_position)
        return merge_positions(self._position, staged)

    def _checked_offsets(self, offsets: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, int | None]:
        if type(offsets) is not dict:
            check_offsets(offsets)
        checked = dict(offsets)
        for partition, offset in checked.items():
            committed = self._offsets.get(partition, -1)
            # The fast path, in every commit: a partition with a committed offset has been checked.
            if type(partition) is TopicPartition and type(offset) is int and 0 <= committed <= offset < OFFSET_BOUND:
                continue
            check_partition(partition)
            if offset is None:
                continue
            check_offset(offset)
            if offset < committed:
                raise ValueError(
                    f"store {self.name!r} is at offset {committed} of {partition.topic}-{partition.partition}: "
                    f"a commit can't move it back to {offset}"
                )
        return checked

    def _keep(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        for partition, offset in offsets.items():
            if offset is None:
                self._offsets.pop(partition, None)
            else:
                self._offsets[partition] = offset

    # Marks: small named values that are committed with the data

    def mark(self, name: str) -> bytes | None:
        # The fast path, once per record of a window: a name that is staged or committed has been checked.
        if type(name) is str and self._writer:
            staged = self._staged_marks
            if name in staged:
                return staged[name]
            if name in self._marks:
                return self._marks[name]
        return self._mark_at(IsolationLevel.READ_UNCOMMITTED, name)

    def _mark_at(self, level: IsolationLevel, name: str) -> bytes | None:
        """Return the mark ``name`` at ``level``, from any thread."""
        self.access.check_open()
        check_mark_name(name)
        if level is IsolationLevel.READ_UNCOMMITTED or self.staging.shows_staged():
            # In this order: a commit stores the marks before it clears the staged ones.
            staged = self._staged_marks
            if name in staged:
                return staged[name]
        elif self._marks_in_doubt:
            # Read the engine's marks, like its data: a mark that is the same before and after a scan belongs to it.
            with self.access:
                return decode_marks(self.staging.engine.meta()).get(name)
        return self._marks.get(name)

    def set_mark(self, name: str, value: bytes | None) -> None:
        if self._marks_need_care:
            if self._marks_are_held:
                self._let_readers_end()
            if self._marks_at_once:
                self._set_mark_at_once(name, value)
                return
        # The fast path, up to once per record: a name that is staged has been checked.
        staged = self._staged_marks
        if (
            get_ident() == self._writer
            and type(value) is bytes
            and type(name) is str
            and name in staged
            and len(value) <= MARK_BYTES_MAX
        ):
            staged[name] = value
            return
        self._stage_mark(name, value)

    def put_with_marks(self, pairs: Iterable[tuple[bytes, bytes | None]], marks: Mapping[str, bytes | None]) -> None:
        self.access.check_writer()
        # With the lock: a reader that holds the marks completes its query before this step begins.
        with self._marks_lock:
            self._turn += 1
            try:
                super().put_with_marks(pairs, marks)
            finally:
                self._turn += 1

    def _stage_mark(self, name: str, value: bytes | None) -> None:
        self.access.check_writer()
        check_mark_name(name)
        check_mark_value(value)
        self._staged_marks[name] = value

    @while_open
    def _set_mark_at_once(self, name: str, value: bytes | None) -> None:
        # Write it before the data that it describes, which can't be undone: windows above the stream time are hidden.
        staged = self._staged_marks
        if name in staged and type(value) is bytes and len(value) <= MARK_BYTES_MAX:
            staged[name] = value
        else:
            self._stage_mark(name, value)
        mark_changes = changed_marks(self._marks, self._staged_marks)
        if mark_changes:
            self.staging.engine.write([], encode_marks(self._marks, mark_changes), durable=False)
            self._marks = merge_marks(self._marks, mark_changes)

    @contextmanager
    def _marks_held(self) -> Iterator[None]:
        """Block the writer's next change of a mark, commit or rollback. For use on another thread."""
        with self._marks_lock:
            self._marks_are_held = self._marks_need_care = True
            try:
                yield
            finally:
                self._marks_are_held, self._marks_need_care = False, self._marks_at_once

    def _let_readers_end(self) -> None:
        with self._marks_lock:
            pass

    # Recovery and restore

    def recover(self, changelog_offsets: Mapping[TopicPartition, int] | None = None) -> Recovery:
        self.access.check_open()
        checkpoint = dict({} if changelog_offsets is None else changelog_offsets)
        for partition, offset in checkpoint.items():
            check_partition(partition)
            check_offset(offset)
        super().recover(checkpoint)
        return Recovery(self._outcome, dict(self._offsets))

    @while_open
    def restore(
        self,
        pairs: Iterable[tuple[bytes, bytes | None]],
        changelog_offsets: Mapping[TopicPartition, int],
        position: Position | None = None,
        marks: Mapping[str, bytes | None] | None = None,
    ) -> None:
        if not self._is_clean():
            raise StoreError(f"store {self.name!r} has staged writes: commit or roll back before restoring into it")
        offsets = self._checked_offsets(changelog_offsets)
        pairs = list(pairs)
        writes = self._valid_writes(pairs)
        advanced = self._position
        if position is not None:
            advanced = merge_positions(advanced, PositionBound(position).position)
        meta = encode_offsets(OFFSET, offsets) if self.manages_offsets else {}
        if self.manages_offsets and advanced != self._position:
            meta.update(encode_offsets(POSITION, advanced))
        new_marks = dict({} if marks is None else marks)
        check_marks(new_marks)
        meta.update(encode_marks(self._marks, changed_marks(self._marks, new_marks)))
        reach(RESTORE_BEFORE_WRITE)
        with self._counters.restores:
            if writes or meta:
                self.staging.write_at_once([Writes((), writes)], meta)
        self._counters.restore_total += len(pairs)
        reach(RESTORE_AFTER_WRITE)
        if self._keeps_offsets:
            self._keep(offsets)
        self._position = advanced
        self._staged_position = offsets_beyond(advanced, self._staged_position)
        if new_marks:
            self._marks = merge_marks(self._marks, new_marks)

    @while_open
    def verify(self) -> None:
        self.staging.verify()

    @property
    def persistence(self) -> Persistence:
        self.access.check_open()
        return self.staging.engine.persistence

    @while_open
    def persist(self) -> None:
        self.staging.persist()
