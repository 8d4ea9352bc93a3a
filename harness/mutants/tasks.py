"""Mutants of a task: its commit, its input, its outputs, and the restore of its stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from harness.mutants.mutant import CrashTrial, IoFault, LibraryTest, Mutant, only
from harness.mutants.patches import Patches
from stores.changelog.interface import Record
from stores.changelog.producer import BufferedProducer
from stores.changelog.sqlite import SqliteChangelog
from stores.errors import ChangelogTimeoutError, CommitFailedError, OffsetOutOfRangeError, ProducerFencedError
from stores.interface import Position, TopicPartition
from stores.strategies.store import Store
from stores.tasks.context import NO_PARTITION, TaskContext
from stores.tasks.task import StreamTask

Read = Callable[[SqliteChangelog, TopicPartition, int], Iterator[Record]]


def _forgetful_restore(patches: Patches, subject: str) -> None:
    restore = Store.restore

    def mutated(
        self: Store,
        pairs: Iterable[tuple[bytes, bytes | None]],
        changelog_offsets: Mapping[TopicPartition, int],
        position: Position | None = None,
    ) -> None:
        restore(self, list(pairs)[:-1], changelog_offsets, position)

    patches.replace(Store, "restore", mutated)


def _instead_of_replays(
    patches: Patches, act: Callable[[Read, SqliteChangelog, TopicPartition, int], Iterator[Record]]
) -> None:
    """Call ``act`` instead of reading the changelog of a store. Other topics are read as they are."""
    read = SqliteChangelog.read

    def mutated(self: SqliteChangelog, partition: TopicPartition, from_offset: int = 0) -> Iterator[Record]:
        if partition.topic.endswith("-changelog"):
            return act(read, self, partition, from_offset)
        return read(self, partition, from_offset)

    patches.replace(SqliteChangelog, "read", mutated)


def _restore_from_start(patches: Patches, subject: str) -> None:
    def from_start(read: Read, log: SqliteChangelog, partition: TopicPartition, offset: int) -> Iterator[Record]:
        return read(log, partition, log.start_offset(partition))

    _instead_of_replays(patches, from_start)


def _newest_offset_wins(patches: Patches, subject: str) -> None:
    up_to_date: set[TopicPartition] = set()

    def as_newest(read: Read, log: SqliteChangelog, partition: TopicPartition, offset: int) -> Iterator[Record]:
        end = log.end_offset(partition)
        if offset == end:
            up_to_date.add(partition)
        return read(log, partition, end if up_to_date else offset)

    _instead_of_replays(patches, as_newest)


def _kept_past_truncation(patches: Patches, subject: str) -> None:
    def from_there(read: Read, log: SqliteChangelog, partition: TopicPartition, offset: int) -> Iterator[Record]:
        try:
            return read(log, partition, offset)
        except OffsetOutOfRangeError:
            return read(log, partition, log.start_offset(partition))

    _instead_of_replays(patches, from_there)


def _wiped_on_timeout(patches: Patches, subject: str) -> None:
    """Declare a store without isolation once a commit has timed out: the task then wipes it."""
    commit = BufferedProducer.commit

    def mutated(self: BufferedProducer) -> Mapping[TopicPartition, int]:
        try:
            return commit(self)
        except ChangelogTimeoutError:
            patches.replace(Store, "transactional", False)
            raise

    patches.replace(BufferedProducer, "commit", mutated)


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


def _one_offset_for_all(patches: Patches, subject: str) -> None:
    """Report the highest offset of a commit for all changelogs of the task's stores."""
    for name in ("commit", "flush"):
        _with_highest_offset(patches, name)


def _with_highest_offset(patches: Patches, name: str) -> None:
    end: Callable[[BufferedProducer], Mapping[TopicPartition, int]] = getattr(BufferedProducer, name)

    def mutated(self: BufferedProducer) -> Mapping[TopicPartition, int]:
        last = end(self)
        logged = {partition: offset for partition, offset in last.items() if partition.topic.endswith("-changelog")}
        return {**last, **dict.fromkeys(logged, max(logged.values(), default=-1))}

    patches.replace(BufferedProducer, name, mutated)


def _stream_time_forgotten(patches: Patches, subject: str) -> None:
    """Commit the input's offsets without the stream time, which has a consumer group of its own."""
    send_offsets = BufferedProducer.send_offsets

    def mutated(self: BufferedProducer, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        if not group.endswith("/stream-time"):
            send_offsets(self, group, offsets)

    patches.replace(BufferedProducer, "send_offsets", mutated)


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
    """Report the errors of commits without the request to open the store again."""
    commit = Store.commit

    def mutated(self: Store, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> None:
        try:
            commit(self, changelog_offsets)
        except CommitFailedError as error:
            raise CommitFailedError(str(error)) from error

    patches.replace(Store, "commit", mutated)


def _range_of_512(patches: Patches, subject: str) -> None:
    """Leave out the tombstones after the first 512 of a row."""
    send = BufferedProducer.send
    tombstones = 0

    def mutated(self: BufferedProducer, partition: TopicPartition, key: Any, value: Any, *rest: Any) -> None:
        nonlocal tombstones
        tombstones = tombstones + 1 if value is None else 0
        if tombstones <= 512:
            send(self, partition, key, value, *rest)

    def mutated_all(self: BufferedProducer, partition: TopicPartition, records: Iterable[Any]) -> None:
        for record in records:
            mutated(self, partition, *record)

    patches.replace(BufferedProducer, "send", mutated)
    patches.replace(BufferedProducer, "send_all", mutated_all)


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
        "range-of-512",
        "only the first 512 keys of a range delete are logged to the changelog",
        _range_of_512,
        (LibraryTest("the workload of the I/O faults has fewer keys"),),
    ),
)
