"""Mutants of a task: its commit, its input, its outputs, and the restore of its stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from harness.mutants.commits import strategy_of
from harness.mutants.mutant import CrashTrial, IoFault, LibraryTest, Mutant, Patches, only
from stores.changelog import checksum, sqlite
from stores.changelog.producer import BufferedProducer
from stores.errors import OffsetOutOfRangeError, ProducerFencedError
from stores.failpoints import declare, reach
from stores.interface import Position, TopicPartition
from stores.strategies.store import EngineStore
from stores.tasks.context import NO_PARTITION, TaskContext
from stores.tasks.stores import task_store
from stores.tasks.stores.changelogging_store import ChangeloggingStore
from stores.tasks.stores.restore import restore
from stores.tasks.stores.store_group import StoreGroup
from stores.tasks.stores.task_store import TaskStore
from stores.tasks.task import StreamTask
from stores.tasks.timing.stream_time import StreamTime

BETWEEN = declare("mutant.between", "of outputs and input offsets, one is committed and the other is not")


def _forgetful_restore(patches: Patches, subject: str) -> None:
    strategy = strategy_of(subject)
    restore = strategy.restore

    def mutated(
        self: EngineStore,
        pairs: Iterable[tuple[bytes, bytes | None]],
        changelog_offsets: Mapping[TopicPartition, int],
        position: Position | None = None,
    ) -> None:
        restore(self, list(pairs)[:-1], changelog_offsets, position)

    patches.replace(strategy, "restore", mutated)


def _restore_from_start(patches: Patches, subject: str) -> None:
    def mutated(store: Any, changelog: Any, partition: TopicPartition, offset: int | None, *rest: Any) -> Any:
        return restore(store, changelog, partition, None, *rest)

    patches.replace(task_store, "restore", mutated)


def _newest_offset_wins(patches: Patches, subject: str) -> None:
    up_to_date: set[str] = set()

    def mutated(store: Any, changelog: Any, partition: TopicPartition, offset: int | None, *rest: Any) -> Any:
        last = changelog.end_offset(partition) - 1
        if offset == last:
            up_to_date.add(store.name)
        return restore(store, changelog, partition, last if up_to_date else offset, *rest)

    patches.replace(task_store, "restore", mutated)


def _kept_past_truncation(patches: Patches, subject: str) -> None:
    def mutated(store: Any, changelog: Any, partition: TopicPartition, offset: int | None, *rest: Any) -> Any:
        try:
            return restore(store, changelog, partition, offset, *rest)
        except OffsetOutOfRangeError:
            return restore(store, changelog, partition, None, *rest)

    patches.replace(task_store, "restore", mutated)


def _wiped_on_timeout(patches: Patches, subject: str) -> None:
    def mutated(self: Any, cause: BaseException, *rest: Any) -> Any:
        self._wipe("a commit has timed out")
        return self.restore(*rest)

    patches.replace(task_store.TaskStore, "return_to_commit", mutated)


def _zombie_commits(patches: Patches, subject: str) -> None:
    commit = BufferedProducer.commit

    def mutated(self: BufferedProducer) -> Mapping[TopicPartition, int]:
        try:
            return commit(self)
        except ProducerFencedError:
            self.abort()
            return {}

    patches.replace(BufferedProducer, "commit", mutated)


def _skipped_wipe(patches: Patches, subject: str) -> None:
    make = StreamTask.__init__

    def mutated(self: StreamTask, *given: Any, **named: Any) -> None:
        make(self, *given, **{**named, "wipe_unclean": False})

    patches.replace(StreamTask, "__init__", mutated)


def _inputs_apart(patches: Patches, *, inputs_first: bool) -> None:
    commit = BufferedProducer.commit
    waiting: list[tuple[str, Mapping[TopicPartition, int]]] = []

    def set_aside(self: BufferedProducer, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        waiting.append((group, dict(offsets)))

    def send_waiting(self: BufferedProducer) -> None:
        plain = BufferedProducer(self._log, None)
        for group, offsets in waiting:
            send_offsets(plain, group, offsets)
        waiting.clear()

    def mutated(self: BufferedProducer) -> Mapping[TopicPartition, int]:
        if inputs_first:
            send_waiting(self)
            reach(BETWEEN)
        committed = commit(self)
        if not inputs_first:
            reach(BETWEEN)
            send_waiting(self)
        return committed

    send_offsets = BufferedProducer.send_offsets
    patches.replace(BufferedProducer, "send_offsets", set_aside)
    patches.replace(BufferedProducer, "commit", mutated)


def _one_offset_for_all(patches: Patches, subject: str) -> None:
    """Commit every store of a task with the highest offset of all their changelogs."""
    commit = StoreGroup.commit

    def mutated(self: StoreGroup, offsets: Mapping[TopicPartition, int], *given: Any, **named: Any) -> None:
        logged = [offsets[partition] for partition in self.partitions if partition in offsets]
        commit(self, dict.fromkeys(self.partitions, max(logged)) if logged else offsets, *given, **named)

    patches.replace(StoreGroup, "commit", mutated)


def _stream_time_forgotten(patches: Patches, subject: str) -> None:
    """Commit the input's offsets without the stream time."""
    patches.replace(StreamTime, "uncommitted", lambda time: {})


def _punctuated_outside(patches: Patches, subject: str) -> None:
    """Send the records that a punctuator forwards at once, outside the task's transaction."""
    forward = TaskContext.forward

    def mutated(self: TaskContext, topic: str, *given: Any, **named: Any) -> None:
        producer = self.producer
        if self.partition == NO_PARTITION:
            self.producer = self._changelog.producer()
        try:
            forward(self, topic, *given, **named)
            if self.producer is not producer:
                self.producer.flush()
        finally:
            self.producer = producer

    patches.replace(TaskContext, "forward", mutated)


def _rolled_back_not_reopened(patches: Patches, subject: str) -> None:
    patches.replace(TaskStore, "_reopen", lambda store: store.store.rollback())


def _tombstone_unchecked(patches: Patches, subject: str) -> None:
    def mutated(given: Any, offset: Any, key: Any, value: Any, *rest: Any) -> bool:
        return value is None or checksum.is_sound(given, offset, key, value, *rest)

    patches.replace(sqlite, "is_sound", mutated)


def _range_of_512(patches: Patches, subject: str) -> None:
    log_all = ChangeloggingStore._log_all

    def mutated(store: ChangeloggingStore, pairs: Any) -> None:
        log_all(store, pairs if isinstance(pairs, list) else islice(pairs, 512))

    patches.replace(ChangeloggingStore, "_log_all", mutated)


MUTANTS = (
    Mutant(
        "skipped-wipe",
        "a direct store is not wiped after an abort or an unclean end",
        _skipped_wipe,
        (CrashTrial("uncommitted"),),
    ),
    Mutant(
        "forgetful-restore",
        "a restore leaves out the last record of each batch",
        _forgetful_restore,
        (CrashTrial("convergence"),),
    ),
    Mutant(
        "restore-from-start",
        "a restore replays the whole changelog, whatever the store has",
        _restore_from_start,
        (CrashTrial("bounded_restore"),),
    ),
    Mutant(
        "newest-offset-wins",
        "once one store of a task is at its changelog's end, the others are assumed to be at theirs",
        _newest_offset_wins,
        (CrashTrial("convergence"),),
    ),
    Mutant(
        "one-offset-for-all",
        "each store of a task is committed with the highest offset of all their changelogs",
        _one_offset_for_all,
        (CrashTrial("atomicity"), IoFault("kill", only("stream-task"))),
    ),
    Mutant(
        "kept-past-truncation",
        "a store whose offset the changelog has truncated is restored without a wipe",
        _kept_past_truncation,
        (CrashTrial("bounded_restore"),),
    ),
    Mutant(
        "wiped-on-timeout",
        "a commit that times out has every store wiped and restored, as in Kafka",
        _wiped_on_timeout,
        (CrashTrial("fallback"),),
    ),
    Mutant(
        "zombie-commits",
        "a producer hides that it is fenced, and the stores commit what the changelog refused",
        _zombie_commits,
        (CrashTrial("atomicity"),),
    ),
    Mutant(
        "inputs-after-outputs",
        "input offsets are committed separately, after the outputs (KIP-129, duplicates)",
        lambda patches, subject: _inputs_apart(patches, inputs_first=False),
        (CrashTrial("outputs"),),
    ),
    Mutant(
        "inputs-before-outputs",
        "input offsets are committed separately, before the outputs (KIP-129, losses)",
        lambda patches, subject: _inputs_apart(patches, inputs_first=True),
        (CrashTrial("outputs"),),
    ),
    Mutant(
        "stream-time-forgotten",
        "the stream time of a task is not committed with the input's offsets",
        _stream_time_forgotten,
        (IoFault("kill", only("task-punctuation")),),
    ),
    Mutant(
        "punctuated-outside",
        "the records that a punctuator forwards are sent outside the task's transaction",
        _punctuated_outside,
        (IoFault("kill", only("task-punctuation")),),
    ),
    Mutant(
        "rolled-back-not-reopened",
        "a task rolls back a store whose disk has failed, and does not open it again",
        _rolled_back_not_reopened,
        (LibraryTest("which engine refuses all writes after a failed call depends on the call"),),
    ),
    Mutant(
        "tombstone-unchecked",
        "the checksum of a tombstone in the changelog is not verified",
        _tombstone_unchecked,
        (LibraryTest("few flipped bits hit a tombstone, and fewer make it delete another key"),),
    ),
    Mutant(
        "range-of-512",
        "only the first 512 keys of a range delete are logged to the changelog",
        _range_of_512,
        (LibraryTest("the workload of the I/O faults has fewer keys"),),
    ),
)
