"""Mutants of a task: its commit, its input, its outputs, their order, and the restore of its stores.

Source of the two orders of outputs and input offsets: KIP-129, "Motivation": without a transaction one repeats, and the
other loses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from harness.mutants.mutant import BrokerDetection, CrashDetection, IoFault, LibraryTest, mutant, only
from harness.mutants.patches import Patches
from stores.changelog.interface import Changelog, Record
from stores.changelog.producer import BufferedProducer
from stores.changelog.sqlite import SqliteChangelog
from stores.errors import ChangelogTimeoutError, CommitFailedError, OffsetOutOfRangeError, ProducerFencedError
from stores.failpoints import declare, reach
from stores.interface import Position, ProcessingGuarantee, TopicPartition
from stores.strategies.store import Store
from stores.tasks.context import NO_PARTITION, TaskContext
from stores.tasks.settings import TaskSettings
from stores.tasks.task import StreamTask

Read = Callable[[SqliteChangelog, TopicPartition, int], Iterator[Record]]


@mutant("a restore leaves out the last record of each batch", CrashDetection("convergence"))
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


@mutant("a restore replays the whole changelog, whatever the store has", CrashDetection("bounded_restore"))
def _restore_from_start(patches: Patches, subject: str) -> None:
    def from_start(read: Read, log: SqliteChangelog, partition: TopicPartition, offset: int) -> Iterator[Record]:
        return read(log, partition, log.start_offset(partition))

    _instead_of_replays(patches, from_start)


@mutant(
    "once one store of a task is at its changelog's end, the others are assumed to be at theirs",
    CrashDetection("convergence"),
)
def _newest_offset_wins(patches: Patches, subject: str) -> None:
    up_to_date: set[TopicPartition] = set()

    def as_newest(read: Read, log: SqliteChangelog, partition: TopicPartition, offset: int) -> Iterator[Record]:
        end = log.end_offset(partition)
        if offset == end:
            up_to_date.add(partition)
        return read(log, partition, end if up_to_date else offset)

    _instead_of_replays(patches, as_newest)


@mutant(
    "a store whose offset the changelog has truncated is restored without a wipe", CrashDetection("bounded_restore")
)
def _kept_past_truncation(patches: Patches, subject: str) -> None:
    def from_there(read: Read, log: SqliteChangelog, partition: TopicPartition, offset: int) -> Iterator[Record]:
        try:
            return read(log, partition, offset)
        except OffsetOutOfRangeError:
            return read(log, partition, log.start_offset(partition))

    _instead_of_replays(patches, from_there)


@mutant("a commit that times out has every store wiped and restored, as in Kafka", CrashDetection("fallback"))
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


@mutant(
    "a producer hides that it is fenced, and the stores commit what the changelog refused", CrashDetection("atomicity")
)
def _zombie_commits(patches: Patches, subject: str) -> None:
    commit = BufferedProducer.commit

    def mutated(self: BufferedProducer) -> Mapping[TopicPartition, int]:
        try:
            return commit(self)
        except ProducerFencedError:
            self.abort()
            return {}

    patches.replace(BufferedProducer, "commit", mutated)


@mutant(
    "each store of a task is committed with the highest offset of all their changelogs",
    CrashDetection("atomicity"),
    IoFault("kill", only("stream-task")),
)
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


@mutant(
    "the stream time of a task is not committed with the input's offsets", IoFault("kill", only("task-punctuation"))
)
def _stream_time_forgotten(patches: Patches, subject: str) -> None:
    """Commit the input's offsets without the stream time, which has a consumer group of its own."""
    send_offsets = BufferedProducer.send_offsets

    def mutated(self: BufferedProducer, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        if not group.endswith("/stream-time"):
            send_offsets(self, group, offsets)

    patches.replace(BufferedProducer, "send_offsets", mutated)


@mutant(
    "the records that a punctuator forwards are sent outside the task's transaction",
    IoFault("kill", only("task-punctuation")),
)
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


@mutant(
    "a task rolls back a store whose disk has failed, and does not open it again",
    LibraryTest("which engine refuses all writes after a failed call depends on the call"),
)
def _rolled_back_not_reopened(patches: Patches, subject: str) -> None:
    """Report the errors of commits without the request to open the store again."""
    commit = Store.commit

    def mutated(self: Store, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> None:
        try:
            commit(self, changelog_offsets)
        except CommitFailedError as error:
            raise CommitFailedError(str(error)) from error

    patches.replace(Store, "commit", mutated)


@mutant(
    "only the first 512 keys of a range delete are logged to the changelog",
    LibraryTest("the workload of the I/O faults has fewer keys"),
)
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


BETWEEN = declare("mutant.between", "of outputs and input offsets, one is committed and the other is not")


def _inputs_apart(patches: Patches, *, inputs_first: bool) -> None:
    make, commit, send_offsets = StreamTask.__init__, BufferedProducer.commit, BufferedProducer.send_offsets
    logs: list[Changelog] = []
    waiting: list[tuple[str, Mapping[TopicPartition, int]]] = []

    def made(self: StreamTask, *given: Any, **named: Any) -> None:
        # A process of a trial has one changelog, whichever it is.
        logs[:] = [named["changelog"]]
        make(self, *given, **named)

    def set_aside(self: BufferedProducer, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        waiting.append((group, dict(offsets)))

    def send_waiting() -> None:
        with logs[0].producer() as plain:
            assert isinstance(plain, BufferedProducer)
            for group, offsets in waiting:
                send_offsets(plain, group, offsets)
        waiting.clear()

    def mutated(self: BufferedProducer) -> Mapping[TopicPartition, int]:
        if inputs_first:
            send_waiting()
            reach(BETWEEN)
        committed = commit(self)
        if not inputs_first:
            reach(BETWEEN)
            send_waiting()
        return committed

    patches.replace(StreamTask, "__init__", made)
    patches.replace(BufferedProducer, "send_offsets", set_aside)
    patches.replace(BufferedProducer, "commit", mutated)


@mutant(
    "input offsets are committed separately, after the outputs (KIP-129, duplicates)",
    CrashDetection("outputs"),
    BrokerDetection("task killed", BETWEEN, "repeated"),
)
def _inputs_after_outputs(patches: Patches, subject: str) -> None:
    _inputs_apart(patches, inputs_first=False)


@mutant(
    "input offsets are committed separately, before the outputs (KIP-129, losses)",
    CrashDetection("outputs"),
    BrokerDetection("task killed", BETWEEN, "lost"),
    BrokerDetection("worker killed", BETWEEN, "lost"),
    # Offsets whose commit gets no answer may be committed later, so only the outputs may be what is cut off.
    BrokerDetection("broker killed", BETWEEN, "lost"),
)
def _inputs_before_outputs(patches: Patches, subject: str) -> None:
    _inputs_apart(patches, inputs_first=True)


@mutant(
    "a task that promises exactly once works without transactions",
    BrokerDetection("task killed", "task.after_log_commit", "repeated"),
    BrokerDetection("worker killed", "task.after_log_commit", "repeated"),
    BrokerDetection("zombie wakes", "task.before_log_commit", "repeated"),
)
def _no_transactions(patches: Patches, subject: str) -> None:
    make = StreamTask.__init__

    def made(self: StreamTask, *given: Any, **named: Any) -> None:
        settings = replace(named.get("settings") or TaskSettings(), guarantee=ProcessingGuarantee.AT_LEAST_ONCE)
        make(self, *given, **{**named, "settings": settings})

    patches.replace(StreamTask, "__init__", made)


@mutant(
    "at least once, input offsets are committed before the outputs are sent (KIP-129, losses)",
    BrokerDetection("task killed", BETWEEN, "lost", "at_least_once"),
)
def _offsets_before_records(patches: Patches, subject: str) -> None:
    """Send the records of a task without transactions only after its input offsets are committed."""
    flush, send_offsets = BufferedProducer.flush, BufferedProducer.send_offsets

    def sent(self: BufferedProducer, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        send_offsets(self, group, offsets)
        if not group.endswith("/stream-time"):
            reach(BETWEEN)
            flush(self)

    patches.replace(BufferedProducer, "flush", lambda self: {})
    patches.replace(BufferedProducer, "send_offsets", sent)
