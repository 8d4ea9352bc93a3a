"""Tasks in one transaction over Kafka are fenced by the generation of their group. Source: KIP-447."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from stores import failpoints
from stores.changelog.interface import Record
from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.cluster import VISIBLE_S
from stores.changelog.kafka.group_member import KafkaGroupMember
from stores.changelog.kafka.group_offsets import GroupOffsets
from stores.changelog.kafka.producer import KafkaProducer
from stores.changelog.kafka.testing.broker import Broker
from stores.changelog.kafka.writer import KafkaWriter
from stores.errors import ChangelogError, ChangelogTimeoutError, CommitInDoubtError, ProducerFencedError
from stores.interface import TopicPartition
from stores.tasks import TaskContext
from stores.tests.kafka.fresh import fresh_changelog
from stores.tests.kafka.sharing_worker import SILENT_S, SharingWorker, committed_outputs, feed_afresh
from stores.tests.tasks.setup import crashing_at, over_both_forms
from stores.tests.tasks.sharing import INPUTS, KEYS, expected, feed_both, offsets, sharing_task, sharing_tasks, state

pytestmark = pytest.mark.kafka

EXPECTED = [expected(keys)[0] for keys in KEYS]
NUMBER = sum(map(len, KEYS))
CHANGELOG = TopicPartition("app-counts-changelog", 0)
UNCOMMITTED = 3
"""The records of each task that the zombie has processed, and not committed."""


def begun(zombie: SharingWorker, batches: bool = False) -> None:
    zombie.open_all(batches=batches)
    for task in zombie.tasks:
        task.run(UNCOMMITTED)


def take_over(folder: Path, broker: Broker, batches: bool = False) -> None:
    """Let another worker process and commit everything. The zombie does not poll, so the group removes it."""
    with SharingWorker(folder, broker.address, "successor") as successor:
        successor.open_all(batches=batches)
        assert offsets(successor.tasks) == [0, 0]
        for task in successor.tasks:
            task.run()
        successor.tasks[0].commit()


@pytest.mark.parametrize(("knows", "batches"), [(True, False), (False, True)])
def test_a_zombie_whose_tasks_have_moved_commits_nothing(
    tmp_path: Path, broker: Broker, knows: bool, batches: bool
) -> None:
    """Its client knows that the group has removed it, or not yet: the process was stopped, say."""
    feed_afresh(broker)
    with SharingWorker(tmp_path, broker.address, "zombie", polls_within_s=SILENT_S) as zombie:
        begun(zombie, batches)
        take_over(tmp_path, broker, batches)
        if knows:
            zombie.member._look()
        with pytest.raises(ChangelogTimeoutError):
            zombie.tasks[0].commit()
        zombie.tasks[1].run(0)
        assert offsets(zombie.tasks) == [len(keys) for keys in KEYS]
    assert committed_outputs(broker.address, NUMBER) == EXPECTED


def test_without_the_groups_metadata_a_zombie_repeats_outputs(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken variant: offsets are committed as by a client outside of the group. The check finds it."""
    feed_afresh(broker)

    def outside(member: KafkaGroupMember, partitions: Collection[TopicPartition]) -> Any:
        assert member._fencing is not None
        return member._fencing.outside_metadata("app")

    monkeypatch.setattr(KafkaGroupMember, "metadata", outside)
    with SharingWorker(tmp_path, broker.address, "zombie", polls_within_s=SILENT_S) as zombie:
        begun(zombie)
        take_over(tmp_path, broker)
        zombie.tasks[0].commit()
    outputs = committed_outputs(broker.address, NUMBER + len(KEYS) * UNCOMMITTED)
    assert outputs != EXPECTED
    assert [len(each) for each in outputs] == [len(keys) + UNCOMMITTED for keys in KEYS]


def test_a_partition_that_was_lost_is_in_no_commit_of_a_member_that_has_joined_again(
    tmp_path: Path, broker: Broker
) -> None:
    """Its metadata are valid then, and a slow function may still have its task, also if it was given back meanwhile."""
    feed_afresh(broker)
    with SharingWorker(tmp_path, broker.address, "member") as worker:
        begun(worker)
        partitions = [confluent_kafka.TopicPartition(*INPUTS[1])]
        worker.member._take_away(partitions)
        with pytest.raises(ChangelogTimeoutError):
            worker.tasks[0].commit()
        worker.member._held |= {INPUTS[1]}
        for task in worker.tasks:
            task.run(1)
        with pytest.raises(ChangelogTimeoutError):
            worker.tasks[0].commit()
        worker.tasks[1].close(clean=False)
        worker.tasks[1].open()
        for task in worker.tasks:
            task.run()
        worker.tasks[0].commit()
    assert committed_outputs(broker.address, NUMBER) == EXPECTED


def test_records_that_a_zombie_sends_do_not_hide_the_commits_of_its_successor(tmp_path: Path, broker: Broker) -> None:
    """They hold back the last stable offset of the changelog. A restore after a rollback waits for their end."""
    feed_afresh(broker)
    with SharingWorker(tmp_path, broker.address, "zombie", polls_within_s=SILENT_S) as zombie:
        begun(zombie)
        with SharingWorker(tmp_path, broker.address, "successor") as successor:
            successor.open_all()
            producer = zombie.tasks[0]._context._producer
            assert isinstance(producer, KafkaProducer)
            producer._append(ends=False)
            while not successor.log.written_end(CHANGELOG):
                time.sleep(0.05)
            for task in successor.tasks:
                task.run(2)
            successor.tasks[0].commit()
            successor.tasks[0].run(1)
            end = threading.Timer(4 * VISIBLE_S, producer.abort)
            end.start()
            with crashing_at("task.before_log_commit"):
                successor.tasks[0].commit()
            end.join()
            assert [state(task) for task in successor.tasks] == [expected(keys[:2])[1] for keys in KEYS]
            for task in successor.tasks:
                task.run()
            successor.tasks[0].commit()
    assert committed_outputs(broker.address, NUMBER) == EXPECTED


@over_both_forms
def test_a_task_that_is_closed_without_a_commit_leaves_nothing_in_the_transaction_of_the_others(
    tmp_path: Path, broker: Broker, batches: bool
) -> None:
    """As one that the group has given to another worker. Their one producer has its records."""
    feed_afresh(broker)
    with SharingWorker(tmp_path, broker.address, "one") as worker:
        begun(worker, batches)
        first, second = worker.tasks
        second.close(clean=False)
        first.run()
        first.commit()
        assert committed_outputs(broker.address, len(EXPECTED[0])) == [EXPECTED[0], []]
        second.open()
        second.run()
        second.commit()
    assert committed_outputs(broker.address, NUMBER) == EXPECTED


@over_both_forms
@pytest.mark.parametrize("took", [False, True])
def test_a_common_commit_in_doubt_is_decided_by_the_brokers(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch, took: bool, batches: bool
) -> None:
    """Source: KIP-588."""
    feed_afresh(broker)
    commit = KafkaWriter._commit

    def doubtful(writer: KafkaWriter) -> None:
        if took:
            commit(writer)
        raise CommitInDoubtError("the connection broke")

    with SharingWorker(tmp_path, broker.address, "one") as worker:
        begun(worker, batches)
        with monkeypatch.context() as patch:
            patch.setattr(KafkaWriter, "_commit", doubtful)
            with pytest.raises(CommitInDoubtError):
                worker.tasks[0].commit()
        worker.tasks[1].run(0)
        assert offsets(worker.tasks) == [UNCOMMITTED * took] * 2
        for task in worker.tasks:
            task.run()
        worker.tasks[0].commit()
    assert committed_outputs(broker.address, NUMBER) == EXPECTED


def test_an_instance_with_a_transaction_of_its_own_is_fenced_as_well(tmp_path: Path, broker: Broker) -> None:
    """As after a change of the configuration. The group knows nothing of it."""
    feed_afresh(broker)
    with KafkaChangelog({"bootstrap.servers": broker.address}) as log:
        old = sharing_task(tmp_path / "old", log, 0, None)
        old.open()
        old.run(UNCOMMITTED)
        with SharingWorker(tmp_path, broker.address, "new") as worker:
            worker.open_all()
            with pytest.raises(ProducerFencedError):
                old.commit()
            for task in worker.tasks:
                task.run()
            worker.tasks[0].commit()
    assert committed_outputs(broker.address, NUMBER) == EXPECTED


def forward(record: Record, context: TaskContext) -> None:
    context.forward("output", record.key, record.value)


def test_the_next_owner_of_a_task_without_stores_waits_for_the_open_commit_of_its_offsets(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older instance is stopped between its input offsets and the commit, which then comes. Source: KIP-447."""
    feed_afresh(broker)
    stateless: dict[str, Any] = {"stores": {}, "process": forward}
    successor = SharingWorker(tmp_path, broker.address, "successor")
    waits, await_decided = threading.Event(), GroupOffsets.await_decided

    def noted(groups: GroupOffsets, group: str, partitions: Collection[TopicPartition]) -> None:
        waits.set()
        await_decided(groups, group, partitions)

    monkeypatch.setattr(GroupOffsets, "await_decided", noted)

    def finish() -> list[int]:
        with successor:
            successor.open_all(**stateless)
            committed = offsets(successor.tasks)
            for task in successor.tasks:
                task.run()
            successor.tasks[0].commit()
        return list(committed)

    with SharingWorker(tmp_path, broker.address, "zombie", polls_within_s=SILENT_S) as zombie:
        zombie.open_all(**stateless)
        for task in zombie.tasks:
            task.run(UNCOMMITTED)
        # On a slow machine much of its interval between two polls is over.
        zombie.member.poll(0.0)
        with ThreadPoolExecutor(1) as threads:
            finished: list[Future[list[int]]] = []

            def stop() -> None:
                failpoints.disarm("changelog.before_commit")
                waits.clear()
                finished.append(threads.submit(finish))
                # A successor that does not wait finishes the work, and repeats outputs.
                while not waits.wait(0.1) and not finished[0].done():
                    pass

            failpoints.arm("changelog.before_commit", stop)
            zombie.tasks[0].commit()
            assert finished[0].result() == [UNCOMMITTED] * 2
    assert committed_outputs(broker.address, NUMBER) == [[(b"%d" % key, b"x") for key in keys] for keys in KEYS]


def test_without_a_membership_tasks_can_not_share_a_transaction(tmp_path: Path, broker: Broker) -> None:
    """Nothing would fence an older instance of them."""
    with fresh_changelog(broker) as log:
        feed_both(log)
        with pytest.raises(ChangelogError):
            sharing_tasks(tmp_path, log)
