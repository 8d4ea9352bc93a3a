"""The brokers' log of transactions: compacted before a restart, and without the IDs of tasks that were idle for long.

Source: KIP-98, "Transaction Log"; KIP-360; Kafka, ``transactional.id.expiration.ms`` and ``producer.id.expiration.ms``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.broker import Broker
from stores.errors import ChangelogTimeoutError, ProducerFencedError
from stores.interface import TopicPartition
from stores.tasks import StreamTask
from stores.tests.kafka.broker_cluster import COORDINATORS
from stores.tests.kafka.independent_reader import IndependentReader
from stores.tests.kafka.shared_broker import FOLDER, skip_without_kafka
from stores.tests.kafka.sharing_worker import feed_afresh
from stores.tests.kafka.two_tasks import (
    HIT,
    TASK,
    THREAD,
    check_that_repeated_outputs_are_found,
    differences,
    finish,
    step,
    striking,
    two_tasks,
    work,
)
from stores.tests.tasks.sharing import ROUND

pytestmark = pytest.mark.kafka

IDS = {TASK: (b"app-0_0", b"app-0_1"), THREAD: (b"app/one/1",)}
"""The transactional IDs of the tasks, by the owner of a transaction."""
COMPACTED = {"segment.ms": "1", "min.cleanable.dirty.ratio": "0.01"}
CLEANER = "log.cleaner.backoff.ms=100\n"
EXPIRED_SOON = """\
transactional.id.expiration.ms=2000
transaction.remove.expired.transaction.cleanup.interval.ms=200
producer.id.expiration.ms=2000
producer.id.expiration.check.interval.ms=200
"""
"""Days in a real broker: 7 for an ID, and one for what the leader of a partition knows of a producer."""
DEADLINE_S = 600.0
FILLER = TopicPartition("filler", 0)


@contextmanager
def started(settings: str) -> Iterator[Broker]:
    skip_without_kafka()
    with TemporaryDirectory(prefix="kafka-") as data:
        broker = Broker(Path(data), FOLDER, settings=settings)
        try:
            broker.start()
            yield broker
        finally:
            broker.kill()


@pytest.fixture(scope="module")
def compacting() -> Iterator[Broker]:
    """A broker that compacts soon, and may be killed."""
    with started(CLEANER) as broker:
        yield broker


@pytest.fixture(scope="module")
def forgetting() -> Iterator[Broker]:
    """A broker that forgets producers soon."""
    with started(EXPIRED_SOON) as broker:
        yield broker


def states_of(broker: Broker, scope: str) -> list[list[bytes | None]]:
    """Return the states of the tasks' transactions that the log has, by ID. An ID that has expired ends with None."""
    with IndependentReader(broker, COORDINATORS, "read_uncommitted") as reader:
        records = reader.records()
    return [[record.value for record in records if wanted in record.key] for wanted in IDS[scope]]


def compact(broker: Broker, scope: str) -> None:
    """Let the broker compact its log of transactions, until it has one of the states of each ID of the tasks."""
    deadline = time.monotonic() + DEADLINE_S
    with KafkaChangelog({"bootstrap.servers": broker.address}) as log:
        log._cluster.alter_topic(COORDINATORS.topic, COMPACTED)
        log.create_topic(FILLER.topic)
        with log.producer("filler") as producer:
            while any(len(states) != 1 for states in states_of(broker, scope)):
                assert time.monotonic() < deadline
                # A segment is compacted once a later one has begun.
                producer.begin()
                producer.send(FILLER, b"k", b"v")
                producer.commit()


def compact_and_restart(broker: Broker, scope: str) -> None:
    compact(broker, scope)
    broker.kill()
    broker.start()


@pytest.mark.parametrize(("scope", "is_open"), [(TASK, True), (THREAD, False), (THREAD, True)])
def test_a_coordinator_that_starts_with_a_compacted_log_knows_all_transactions(
    tmp_path: Path, compacting: Broker, scope: str, is_open: bool
) -> None:
    """Also one that is open: its records are at the brokers, and it ends after the restart."""
    feed_afresh(compacting)
    with two_tasks(tmp_path, compacting.address, scope) as tasks:
        if is_open:
            with striking({HIT[scope]: lambda: compact_and_restart(compacting, scope)}):
                work(tasks)
        else:
            step(tasks)
            compact_and_restart(compacting, scope)
            work(tasks)
    assert differences(tmp_path, compacting.address) == {}


def test_without_transactions_outputs_are_there_twice(tmp_path: Path, compacting: Broker) -> None:
    """A broken variant of the test before."""
    feed_afresh(compacting)

    def restart() -> None:
        compacting.kill()
        compacting.start()

    check_that_repeated_outputs_are_found(tmp_path, compacting.address, restart)


def await_expired(broker: Broker, scope: str) -> None:
    """Wait until the broker has forgotten the IDs of the tasks."""
    deadline = time.monotonic() + DEADLINE_S
    while any(states[-1] is not None for states in states_of(broker, scope)):
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.parametrize("scope", [TASK, THREAD])
def test_tasks_that_were_idle_until_their_ids_have_expired_continue(
    tmp_path: Path, forgetting: Broker, scope: str
) -> None:
    feed_afresh(forgetting)
    with two_tasks(tmp_path, forgetting.address, scope) as tasks:
        # On a busy machine they expire before it.
        finish(tasks, ROUND)
        await_expired(forgetting, scope)
        work(tasks)
    assert differences(tmp_path, forgetting.address) == {}


def ends_fenced(task: StreamTask) -> bool:
    """Return True if another instance owns the task, False once this one has processed and committed all."""
    while True:
        try:
            task.run(commit=True)
            return False
        except ChangelogTimeoutError:
            continue
        except ProducerFencedError:
            return True


def test_a_zombie_whose_id_has_expired_repeats_nothing(tmp_path: Path, forgetting: Broker) -> None:
    """Nothing at the brokers says any more that its successor is newer: either of them continues."""
    feed_afresh(forgetting)
    with two_tasks(tmp_path, forgetting.address, TASK, name="zombie") as zombies:
        finish(zombies, ROUND)
        for zombie in zombies:
            assert zombie.run(ROUND) == ROUND
        await_expired(forgetting, TASK)
        with two_tasks(tmp_path, forgetting.address, TASK, name="successor") as tasks:
            finish(tasks, 2 * ROUND)
            for zombie, task in zip(zombies, tasks, strict=True):
                assert [ends_fenced(zombie), ends_fenced(task)] != [True, True]
    assert differences(tmp_path, forgetting.address) == {}
