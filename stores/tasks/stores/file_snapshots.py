"""The snapshots by files of one store: they are taken after its commits, and begun from where it is lost.

A snapshot is at one committed offset of one changelog partition, that of a global store at one of each partition of its
topic. What is restored from it is the state of that commit, and the tail follows. So it must fit the log of now: its
topic is the same, it has the next record, and it has still the deletes after it. One of another format or kind of
records is not used. The records of one of another backend are copied.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from types import MappingProxyType

from stores.changelog.interface import Changelog
from stores.config import StoreConfig
from stores.errors import ConfigError, StoreError
from stores.interface import KeyValueStore, ProcessingGuarantee, TopicPartition
from stores.records.record_kind import RECORDS, is_empty
from stores.registry import Backend, StoreBackend, backend_named, open_store
from stores.snapshots import Snapshots
from stores.snapshots.index import IndexName, SnapshotIndex, SnapshotKind
from stores.snapshots.objects import StoreObjects
from stores.snapshots.restoring import copy_store, fitting, kind_of, make_store
from stores.snapshots.taking import SnapshotFigures, SnapshotTaker
from stores.strategies.store import Store
from stores.tasks.directory.replacement import complete, remove_unfinished, replace_store
from stores.tasks.directory.store_places import FORMER_END, PREPARE_END, beside
from stores.tasks.directory.task_files import FollowingStore
from stores.tasks.stores.log_follower import LogFollower, OnRestore, RestoreProgress, RestoreReport
from stores.tasks.stores.log_identity import LOG_ID
from stores.tasks.stores.store_format import VERSION_MARK

_log = logging.getLogger(__name__)
_CLOCK_SHARE = 10
"""A snapshot that is older than the deletes in the changelog may be is not used, less one part of so many of that time:
clocks of machines differ."""


class NoSnapshots:
    """The snapshots of a store of which none are taken. For the task's thread."""

    def __init__(self) -> None:
        self.figures = SnapshotFigures()

    def begin(self) -> None:
        """Start the clock: the store is restored, and its task begins to work."""

    def after_commit(self, store: KeyValueStore, offsets: Mapping[TopicPartition, int]) -> None:
        """Begin a snapshot of the state at ``offsets``, if one is due. An error is logged and counted."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the snapshot that is under way; return False if that takes too long."""
        return True

    def end(self) -> None:
        """End a snapshot that is under way: the store is about to be closed, moved or removed."""

    def offset_in(self, store: KeyValueStore) -> int | None:
        """Return the offset that a snapshot of the store would have now; None without one."""
        return None

    def candidates(self, store: KeyValueStore) -> Iterator[SnapshotIndex]:
        """Return the snapshots that fit the changelog and the empty ``store``, from the newest on.

        Those that were refused before are left out. Raises: ChangelogTimeoutError.
        """
        return iter(())

    def place(self, index: SnapshotIndex, on_restore: OnRestore | None) -> None:
        """Make the store of a snapshot beside the closed one, and swap it in.

        ``on_restore`` gets the progress: the offset is the share of the files that are there. Raises: StoreError.
        """

    def refuse(self, name: IndexName | None, reason: object) -> None:
        """Note why a snapshot is not used, None for all of them, for the report."""

    def told(self, report: RestoreReport) -> RestoreReport:
        """Return the report of a restore with what was done here."""
        return report

    def forget(self) -> None:
        """Forget what was done: another restore may begin."""


class FileSnapshots(NoSnapshots):
    """The snapshots of the store of ``plan``. ``choices`` are those that decide which records it has, by name."""

    def __init__(self, plan: FollowingStore, settings: Snapshots, choices: Mapping[str, str]) -> None:
        super().__init__()
        self._offset: int | None = None
        """The offset of the snapshot that the present restore began from; None if it began from none."""
        self._num_bytes = 0
        """The bytes of its files."""
        self._copied_from: str | None = None
        """The backend of its files, if that is another one."""
        self._plan, self._settings, self._choices = plan, settings, choices
        self._backend = backend_named(plan.config.backend)
        if plan.config.memory is not None:
            settings.key_room.max_bytes = plan.config.memory.changed_keys_bytes
        self._objects = StoreObjects(settings.folder, plan.partition)
        self._taker = SnapshotTaker(settings, self._objects, plan.path, self._kind, self.figures)
        self._refused: dict[IndexName | None, str] = {}
        """Why snapshots were not used since ``forget``, by their names; None for all of them."""

    def begin(self) -> None:
        self._taker.begin()

    def after_commit(self, store: KeyValueStore, offsets: Mapping[TopicPartition, int]) -> None:
        if isinstance(store, Store):
            self._taker.after_commit(store, self._objects.offset_in(offsets))

    def wait(self, timeout_s: float) -> bool:
        return self._taker.wait(timeout_s)

    def end(self) -> None:
        self._taker.end()

    def offset_in(self, store: KeyValueStore) -> int | None:
        offsets = {partition: store.committed_offset(partition) for partition in self._bounds()}
        return self._objects.offset_in({each: offset for each, offset in offsets.items() if offset is not None})

    def candidates(self, store: KeyValueStore) -> Iterator[SnapshotIndex]:
        plan, bounds = self._plan, self._bounds()
        if all(start >= end for start, end in bounds.values()):
            return
        try:
            limits_s = (plan.changelog.deletes_kept_s(plan.partition.topic), plan.config.max_age_s)
            kept_s = min((limit_s for limit_s in limits_s if limit_s is not None), default=None)
            for index in fitting(self._objects, self._kind(store), self._refused.get, self.refuse):
                reason = self._missing(index, bounds)
                if reason is None and not _outlives(index, kept_s):
                    reason = "the changelog may have dropped deletes that came after it"
                if reason is None:
                    yield index
                else:
                    self.refuse(index.name, reason)
        except StoreError as error:
            self.refuse(None, error)

    def _bounds(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the start of each partition that the store follows, and its end."""
        log, (topic, number) = self._plan.changelog, self._plan.partition
        numbers = range(log.topics().get(topic, 0)) if self._objects.of_whole_topic else [number]
        partitions = [TopicPartition(topic, each) for each in numbers]
        return {partition: (log.start_offset(partition), log.written_end(partition)) for partition in partitions}

    def _missing(self, index: SnapshotIndex, bounds: Mapping[TopicPartition, tuple[int, int]]) -> str | None:
        """Return why the changelog does not go on where a snapshot ends; None if it does."""
        of_topic = self._objects.of_whole_topic
        for partition, offset in (index.position if of_topic else {index.partition: index.offset}).items():
            start, end = bounds.get(partition, (0, 0))
            if not start <= offset + 1 <= end:
                log = f"{partition.topic}-{partition.partition}" if of_topic else "the changelog"
                return f"{log} has the offsets from {start} to before {end}"
        return None

    def place(self, index: SnapshotIndex, on_restore: OnRestore | None) -> None:
        path, began_s = self._plan.path, monotonic()
        to_offset = sum(end for _, end in self._bounds().values())

        def fetched(num_bytes: int) -> None:
            if on_restore is not None:
                offset = index.offset * num_bytes // index.num_bytes
                seconds = monotonic() - began_s
                on_restore(RestoreProgress(self._plan.name, offset, to_offset, 0, num_bytes, seconds))

        if index.kind.backend == self._backend.name:
            self._fetch(index, beside(path, PREPARE_END), fetched)
        else:
            self._convert(index, fetched)
        replace_store(path)
        self._offset, self._num_bytes = index.offset, index.num_bytes
        self._copied_from = None if index.kind.backend == self._backend.name else index.kind.backend
        self.figures.restore_total += 1
        _log.info(
            "store %r begins from the snapshot at offset %d in %s: %d bytes were fetched in %.1f s",
            self._plan.name,
            index.offset,
            self._settings.location,
            index.num_bytes,
            monotonic() - began_s,
        )

    def _fetch(self, index: SnapshotIndex, path: Path, fetched: Callable[[int], None]) -> None:
        backend = backend_named(index.kind.backend)
        make_store(self._objects, index, path, backend, self._settings.threads, fetched)

    def _convert(self, index: SnapshotIndex, fetched: Callable[[int], None]) -> None:
        """Make a store of the snapshot's backend, and copy it into a new one. ``replace_store`` removes the first."""
        plan, backend = self._plan, index.kind.backend
        new, former = beside(plan.path, PREPARE_END), beside(plan.path, FORMER_END)
        self._fetch(index, former, fetched)
        level = min(backend_named(backend).durabilities)
        with (
            closing(open_store(backend, former, name=plan.name, durability=level)) as source,
            closing(plan.config.open(new, name=plan.name)) as target,
        ):
            assert isinstance(source, Store)
            copy_store(source, target, lambda: fetched(index.num_bytes))

    def refuse(self, name: IndexName | None, reason: object) -> None:
        if name not in self._refused:
            self._refused[name] = str(reason)
            _log.warning("%s of %s: %s", _not_used(name, self._settings), self._plan.path, reason)
        if name is not None and name.offset == self._offset:
            self._offset, self._num_bytes, self._copied_from = None, 0, None

    def told(self, report: RestoreReport) -> RestoreReport:
        reasons = [report.reason] if report.reason else []
        if self._copied_from is not None:
            reasons.append(f"the snapshot at offset {self._offset} is of {self._copied_from}: its records were copied")
        for name, reason in sorted(self._refused.items(), key=lambda item: item[0] or (-1, ""), reverse=True):
            reasons.append(f"{_not_used(name, self._settings)}: {reason}")
        return replace(
            report,
            reason="; ".join(reasons) or None,
            snapshot_offset=self._offset,
            snapshot_bytes=self._num_bytes,
        )

    def forget(self) -> None:
        self._refused, self._offset, self._num_bytes, self._copied_from = {}, None, 0, None

    def _kind(self, store: KeyValueStore) -> SnapshotKind:
        # The log that the store follows: that of its topic now may be another one, made since it was opened.
        log_id = store.mark(LOG_ID)
        topic_id = self._plan.changelog.topic_id(self._plan.partition.topic) if log_id is None else log_id.decode()
        marks = {name: store.mark(name) for name in (RECORDS, VERSION_MARK)}
        kind = kind_of(topic_id, self._backend, marks)
        return replace(kind, marks={**kind.marks, **self._choices})


def _not_used(name: IndexName | None, settings: Snapshots) -> str:
    if name is None:
        return f"the snapshots in {settings.location} could not be used"
    return f"the snapshot at offset {name.offset} was not used"


def _outlives(index: SnapshotIndex, kept_s: float | None) -> bool:
    """Return whether a changelog that keeps deletes for so long has all that came after the snapshot."""
    if kept_s is None:
        return True
    age_s = time.time() - index.created_ms / 1_000
    return -kept_s / _CLOCK_SHARE <= age_s <= kept_s * (1 - 1 / _CLOCK_SHARE)


def check_snapshots(
    configs: Mapping[str, StoreConfig],
    changelog: Changelog,
    guarantee: ProcessingGuarantee = ProcessingGuarantee.EXACTLY_ONCE,
) -> None:
    """Check that snapshots can be taken of stores that follow ``changelog``. Raises: ConfigError."""
    if guarantee is not ProcessingGuarantee.EXACTLY_ONCE:
        raise ConfigError(
            "snapshots are for tasks under exactly once: at least once two owners of a task may write to its changelog "
            "at the same time, and a snapshot of one lacks the writes of the other. Leave snapshots out"
        )
    if type(changelog).topic_id is Changelog.topic_id:
        raise ConfigError(
            f"{type(changelog).__name__} does not tell a topic from an earlier one of its name, so that a snapshot of "
            "the earlier one would be taken for its own: leave snapshots out, or implement topic_id()"
        )
    for name, config in configs.items():
        _check_backend(name, backend_named(config.backend))


def _check_backend(name: str, backend: Backend) -> None:
    if not backend.persistent:
        return  # It has no files, and is restored from its changelog.
    if not (backend.transactional and backend.manages_offsets):
        raise ConfigError(
            f"store {name!r} is a {backend.name}, which mixes uncommitted writes with committed ones, or keeps no "
            "offset with them: choose another backend for it, such as rocksdb-indexed-batch, or leave snapshots out"
        )
    if isinstance(backend, StoreBackend) or not backend.load_engine().captures:
        raise ConfigError(
            f"store {name!r} is a {backend.name}, whose engine has no snapshots of its files: choose another backend "
            "for it, or leave snapshots out"
        )


def begin_from_snapshot(store: LogFollower, snapshots: NoSnapshots, on_restore: OnRestore | None) -> int | None:
    """Replace a store by the files of the newest snapshot that fits and is whole, if it is empty.

    Return their offset; None if there is no such snapshot, and the store is empty again.
    Raises: as ``open_store``; the errors of ``on_restore``.
    """
    for index in snapshots.candidates(store.store) if is_empty(store.store) else ():
        try:
            store.replace(partial(snapshots.place, index, on_restore))
            if store.was_damaged:
                store.store.verify()
            reached = snapshots.offset_in(store.store)
            if reached == index.offset:
                return reached
            reason: object = f"its files are at offset {reached}"
        except StoreError as error:
            reason = error
        snapshots.refuse(index.name, reason)
        # The swap may be decided, and not be complete.
        if not complete(store.path):
            # Else a copy of the next one would have the records of this one, too.
            remove_unfinished(store.path)
        store.start_empty()
    return None


def snapshots_of(
    plan: FollowingStore, settings: Snapshots | None, choices: Mapping[str, str] = MappingProxyType({})
) -> NoSnapshots:
    """Return the snapshots of the store of ``plan``; none without ``settings``, or if it has no files.

    Those of other ``choices`` are not used: a store has other records with them.
    """
    if settings is None or not backend_named(plan.config.backend).persistent:
        return NoSnapshots()
    return FileSnapshots(plan, settings, choices)
