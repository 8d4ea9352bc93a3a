"""Mutants of tasks, workers and stateful queries: commits, inputs, outputs, their order, versions, and restores.

Building in one of the changelog in Kafka needs the extra ``kafka``.

Source of the two orders of outputs and input offsets: KIP-129, "Motivation": without a transaction one repeats, and the
other loses.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

from harness.mutants.mutant import (
    Act,
    BrokerDetection,
    Build,
    CrashDetection,
    IoFault,
    LibraryTest,
    Patches,
    QueryDetection,
    instead_of,
    mutant,
    only,
)
from stores.changelog.files import Header, PartitionLog
from stores.changelog.interface import Changelog
from stores.changelog.producer import BufferedProducer
from stores.changelog.sqlite import SqliteChangelog
from stores.errors import (
    ChangelogError,
    ChangelogTimeoutError,
    CommitFailedError,
    CommitInDoubtError,
    OffsetOutOfRangeError,
    ProducerFencedError,
)
from stores.failpoints import declare, reach
from stores.interface import ProcessingGuarantee, TopicPartition
from stores.spark.local_state import LocalState
from stores.strategies.store import Store
from stores.tasks.context import NO_PARTITION, TaskContext
from stores.tasks.settings import TaskSettings
from stores.tasks.task import StreamTask


@mutant("a restore leaves out the last record of each batch", CrashDetection("convergence"))
@instead_of(Store, "restore")
def _forgetful_restore(restore: Act, store: Store, pairs: Iterable[Any], *rest: Any, **named: Any) -> None:
    restore(store, list(pairs)[:-1], *rest, **named)


def _instead_of_replays(replay: Act) -> Build:
    """Return the builder of a mutant that calls ``replay`` instead of reading the changelog of a store."""

    @wraps(replay)
    def mutated(read: Act, log: SqliteChangelog, partition: TopicPartition, from_offset: int = 0) -> Any:
        is_replay = partition.topic.endswith("-changelog")
        return replay(read, log, partition, from_offset) if is_replay else read(log, partition, from_offset)

    return instead_of(SqliteChangelog, "read_columns")(mutated)


@mutant("a restore replays the whole changelog, whatever the store has", CrashDetection("bounded_restore"))
@_instead_of_replays
def _restore_from_start(read: Act, log: SqliteChangelog, partition: TopicPartition, offset: int) -> Any:
    return read(log, partition, log.start_offset(partition))


@mutant(
    "once one store of a task is at its changelog's end, the others are assumed to be at theirs",
    CrashDetection("convergence"),
)
def _newest_offset_wins(patches: Patches, subject: str) -> None:
    up_to_date: set[TopicPartition] = set()

    def as_newest(read: Act, log: SqliteChangelog, partition: TopicPartition, offset: int) -> Any:
        end = log.end_offset(partition)
        if offset == end:
            up_to_date.add(partition)
        return read(log, partition, end if up_to_date else offset)

    _instead_of_replays(as_newest)(patches, subject)


@mutant(
    "a store whose offset the changelog has truncated is restored without a wipe", CrashDetection("bounded_restore")
)
@_instead_of_replays
def _kept_past_truncation(read: Act, log: SqliteChangelog, partition: TopicPartition, offset: int) -> Any:
    try:
        return read(log, partition, offset)
    except OffsetOutOfRangeError:
        return read(log, partition, log.start_offset(partition))


@mutant("a commit that times out has every store wiped and restored, as in Kafka", CrashDetection("fallback"))
def _wiped_on_timeout(patches: Patches, subject: str) -> None:
    """Declare a store without isolation once a commit has timed out: the task then wipes it."""

    def mutated(commit: Act, producer: BufferedProducer) -> Any:
        try:
            return commit(producer)
        except ChangelogTimeoutError:
            patches.replace(Store, "transactional", False)
            raise

    patches.wrap(BufferedProducer, "commit", mutated)


@mutant(
    "a producer hides that it is fenced, and the stores commit what the changelog refused", CrashDetection("atomicity")
)
@instead_of(BufferedProducer, "commit")
def _zombie_commits(commit: Act, producer: BufferedProducer) -> Any:
    try:
        return commit(producer)
    except ProducerFencedError:
        producer.abort()
        return {}


@mutant(
    "each store of a task is committed with the highest offset of all their changelogs",
    CrashDetection("atomicity"),
    IoFault("kill", only("stream-task")),
)
@instead_of(BufferedProducer, "commit", "flush")
def _one_offset_for_all(end: Act, producer: BufferedProducer) -> Any:
    last = end(producer)
    logged = {partition: offset for partition, offset in last.items() if partition.topic.endswith("-changelog")}
    return {**last, **dict.fromkeys(logged, max(logged.values(), default=-1))}


@mutant(
    "the stream time of a task is not committed with the input's offsets", IoFault("kill", only("task-punctuation"))
)
@instead_of(BufferedProducer, "send_offsets")
def _stream_time_forgotten(
    send_offsets: Act, producer: BufferedProducer, group: str, offsets: Any, times_ms: Any = None
) -> None:
    """Commit the input's offsets without the stream time."""
    send_offsets(producer, group, offsets)


@mutant(
    "the records that a punctuator forwards are sent outside the task's transaction",
    IoFault("kill", only("task-punctuation")),
)
@instead_of(TaskContext, "forward")
def _punctuated_outside(forward: Act, context: TaskContext, topic: str, *given: Any, **named: Any) -> None:
    producer = context._producer
    if context.partition == NO_PARTITION:
        context._producer = context._changelog.producer()
    try:
        forward(context, topic, *given, **named)
        if context._producer is not producer:
            context._producer.flush()
    finally:
        context._producer = producer


@mutant(
    "a task rolls back a store whose disk has failed, and does not open it again",
    LibraryTest("which engine refuses all writes after a failed call depends on the call"),
)
@instead_of(Store, "commit")
def _rolled_back_not_reopened(commit: Act, store: Store, *offsets: Any) -> None:
    try:
        commit(store, *offsets)
    except CommitFailedError as error:
        raise CommitFailedError(str(error)) from error


@mutant(
    "only the first 512 keys of a range delete are logged to the changelog",
    LibraryTest("the workload of the I/O faults has fewer keys"),
)
def _range_of_512(patches: Patches, subject: str) -> None:
    tombstones = 0

    def sent(
        send: Act, producer: BufferedProducer, partition: TopicPartition, key: Any, value: Any, *rest: Any
    ) -> None:
        nonlocal tombstones
        tombstones = tombstones + 1 if value is None else 0
        if tombstones <= 512:
            send(producer, partition, key, value, *rest)

    def all_sent(_: Act, producer: BufferedProducer, partition: TopicPartition, records: Iterable[Any]) -> None:
        for record in records:
            producer.send(partition, *record)

    def columns_sent(_: Act, producer: BufferedProducer, partition: TopicPartition, *columns: Iterable[Any]) -> None:
        producer.send_all(partition, zip(*columns, strict=True))

    patches.wrap(BufferedProducer, "send", sent)
    patches.wrap(BufferedProducer, "send_all", all_sent)
    patches.wrap(BufferedProducer, "send_columns", columns_sent)


BETWEEN = declare("mutant.between", "of outputs and input offsets, one is committed and the other is not")


def _inputs_apart(patches: Patches, *, inputs_first: bool) -> None:
    send_offsets = BufferedProducer.send_offsets
    logs: list[Changelog] = []
    waiting: list[tuple[Any, ...]] = []

    def made(make: Act, task: StreamTask, *given: Any, **named: Any) -> None:
        # A process of a trial has one changelog, whichever it is.
        logs[:] = [named["changelog"]]
        make(task, *given, **named)

    def set_aside(
        _: Act, producer: BufferedProducer, group: str, offsets: Mapping[TopicPartition, int], times_ms: Any = None
    ) -> None:
        waiting.append((group, dict(offsets), times_ms))

    def send_waiting() -> None:
        with logs[0].producer() as plain:
            assert isinstance(plain, BufferedProducer)
            for each in waiting:
                send_offsets(plain, *each)
        waiting.clear()

    def mutated(commit: Act, producer: BufferedProducer) -> Any:
        if inputs_first:
            send_waiting()
            reach(BETWEEN)
        committed = commit(producer)
        if not inputs_first:
            reach(BETWEEN)
            send_waiting()
        return committed

    patches.wrap(StreamTask, "__init__", made)
    patches.wrap(BufferedProducer, "send_offsets", set_aside)
    patches.wrap(BufferedProducer, "commit", mutated)


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
@instead_of(StreamTask, "__init__")
def _no_transactions(make: Act, task: StreamTask, *given: Any, **named: Any) -> None:
    settings = replace(named.get("settings") or TaskSettings(), guarantee=ProcessingGuarantee.AT_LEAST_ONCE)
    make(task, *given, **{**named, "settings": settings})


@mutant(
    "at least once, input offsets are committed before the outputs are sent (KIP-129, losses)",
    BrokerDetection("task killed", BETWEEN, "lost", "at_least_once"),
)
def _offsets_before_records(patches: Patches, subject: str) -> None:
    flush = BufferedProducer.flush

    def sent(send_offsets: Act, producer: BufferedProducer, *given: Any) -> None:
        send_offsets(producer, *given)
        reach(BETWEEN)
        flush(producer)

    patches.replace(BufferedProducer, "flush", lambda self: {})
    patches.wrap(BufferedProducer, "send_offsets", sent)


@mutant(
    "each instance of a task has a transactional ID of its own, so that it fences no other one",
    BrokerDetection("zombie wakes", "task.before_log_commit", "repeated"),
    BrokerDetection("commit held back", "changelog.before_commit", "repeated"),
)
def _own_transactional_id(patches: Patches, subject: str) -> None:
    from stores.changelog.kafka import KafkaChangelog

    def mutated(producer: Act, log: KafkaChangelog, transactional_id: str | None = None) -> Any:
        return producer(log, transactional_id and f"{transactional_id}-{os.getpid()}")

    patches.wrap(KafkaChangelog, "producer", mutated)


@mutant(
    "a commit for which the brokers need time ends the worker",
    BrokerDetection("broker paused under load", "transactions of threads", "process"),
)
def _errors_end_tasks(patches: Patches, subject: str) -> None:
    from stores.changelog.kafka.producer import KafkaProducer

    def mutated(commit: Act, producer: KafkaProducer) -> Any:
        try:
            return commit(producer)
        except (ChangelogTimeoutError, CommitInDoubtError) as error:
            raise ChangelogError(str(error)) from error

    patches.wrap(KafkaProducer, "commit", mutated)


@mutant("a store commits a version before the log has it", QueryDetection("worker killed"))
@instead_of(LocalState, "take_changes")
def _state_before_log(take_changes: Act, state: LocalState) -> Any:
    version = -1 if state.version is None else state.version
    changes = take_changes(state)
    state.commit(version + 1)
    return changes


@mutant("a snapshot has changes of the version after it", QueryDetection("worker killed"))
@instead_of(PartitionLog, "write_snapshot")
def _snapshot_of_open_version(write_snapshot: Act, log: PartitionLog, header: Header, records: Iterable[Any]) -> None:
    write_snapshot(log, replace(header, version=header.version - 1, id=str(header.previous_id)), records)
