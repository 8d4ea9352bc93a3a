"""Refusals of what a broker or its topics make impossible: with the reason, and nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from stores.changelog.interface import Headers, Record
from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.broker import Broker
from stores.errors import ChangelogError, ChangelogLostError, CommitInDoubtError
from stores.interface import TopicPartition
from stores.tasks import TaskContext
from stores.tests.kafka.counting import KEYS, changelog, prepared, task_over, work
from stores.tests.kafka.fresh import fresh_changelog
from stores.tests.tasks.setup import (
    INPUT,
    LEFT,
    TASK,
    count,
    counting_task,
    expected_outputs,
    expected_state,
    outputs,
    state,
)

pytestmark = pytest.mark.kafka

A = TopicPartition("a", 0)


def topic_with(broker: Broker, name: str, partitions: int = 1, **settings: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    config = {setting.replace("_", "."): value for setting, value in settings.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(600)


def test_a_record_beyond_the_topics_limit_is_refused_and_its_transaction_leaves_nothing(broker: Broker) -> None:
    with fresh_changelog(broker) as log:
        topic_with(broker, "a", max_message_bytes="10000")
        with log.producer("p") as producer:
            producer.begin()
            producer.send(A, b"small", b"v")
            producer.send(A, b"large", bytes(20_000))
            with pytest.raises(ChangelogError, match=r"20005 bytes.*a-0"):
                producer.commit()
            producer.abort()
            producer.begin()
            producer.send(A, b"next", b"v")
            producer.commit()
        assert [record.key for record in log.read(A)] == [b"next"]


@pytest.mark.parametrize("headers", [(("h", bytes(10_000)),), (("name", b"content"),) * 600], ids=["large", "many"])
def test_the_headers_of_a_record_count(broker: Broker, headers: Headers) -> None:
    with fresh_changelog(broker) as log:
        topic_with(broker, "a", max_message_bytes="10000")
        with log.producer("p") as producer:
            producer.begin()
            producer.send(A, b"key", b"value", headers=headers)
            with pytest.raises(ChangelogError, match=r"bytes.*a-0.*takes 9872 bytes"):
                producer.commit()


def test_a_batch_beyond_the_topics_limit_is_refused_with_the_two_settings(broker: Broker) -> None:
    """The client does not divide a batch that the broker refuses."""
    with fresh_changelog(broker) as log:
        topic_with(broker, "a", max_message_bytes="10000")
        with log.producer("p") as producer:
            producer.begin()
            producer.send_all(A, [(b"%d" % number, bytes(1_000), -1) for number in range(200)])
            with pytest.raises(ChangelogError, match=r"a-0.*max\.message\.bytes is 10000.*batch\.size"):
                producer.commit()
            producer.abort()
            assert list(log.read(A)) == []
            for number in range(2):
                producer.begin()
                producer.send(A, b"%d" % number, b"small")
                producer.commit()
            assert [record.key for record in log.read(A)] == [b"0", b"1"]
    with (
        KafkaChangelog({"bootstrap.servers": broker.address, "batch.size": 10_000}) as log,
        log.producer("p") as producer,
    ):
        producer.begin()
        producer.send_all(A, [(b"%d" % number, bytes(1_000), -1) for number in range(200)])
        producer.commit()
        assert len(list(log.read(A))) == 202


def test_a_record_without_a_transaction_that_the_broker_refuses_is_an_error(broker: Broker) -> None:
    """Only the report of its delivery says so."""
    with fresh_changelog(broker) as log:
        topic_with(broker, "a", max_message_bytes="10000")
        with log.producer() as producer:
            producer.send_all(A, [(b"%d" % number, bytes(1_000), -1) for number in range(200)])
            with pytest.raises(CommitInDoubtError, match=r"max\.message\.bytes is 10000"):
                producer.flush()
            producer.abort()


def test_a_task_whose_record_is_too_large_names_it_and_keeps_nothing_of_its_transaction(
    tmp_path: Path, broker: Broker
) -> None:
    prepared(tmp_path, broker)

    def grow(record: Record, context: TaskContext) -> None:
        count(record, context)
        if record.offset == 4:
            context.store("left").put(b"large", bytes(20_000))

    with changelog(tmp_path) as log:
        topic_with(broker, LEFT.topic, cleanup_policy="compact", max_message_bytes="10000")
        with counting_task(tmp_path, log, process=grow, commit_every_records=3) as task:
            with pytest.raises(ChangelogError, match=rf"20005 bytes.*{LEFT.topic}-0.*9872 bytes"):
                task.run()
            assert task.input_offsets() == {INPUT: 3}
            assert state(task, "left") == expected_state(KEYS[:3])
        assert outputs(log) == expected_outputs(KEYS[:3])
        assert log.committed_offsets("app") == {INPUT: 3}


def test_an_input_topic_with_fewer_partitions_than_the_task_is_refused(tmp_path: Path, broker: Broker) -> None:
    prepared(tmp_path, broker)
    with changelog(tmp_path) as log:
        task = counting_task(tmp_path, log, inputs=[TopicPartition("input", 3)])
        with pytest.raises(ChangelogError, match=r"input.*(partition|3)"):
            task.open()
        assert set(log.topics()) == {"input", "output"}
        assert not log.committed_offsets("app")


def test_an_input_topic_that_does_not_exist_is_refused_before_anything_is_made(tmp_path: Path, broker: Broker) -> None:
    prepared(tmp_path, broker)
    with changelog(tmp_path) as log:
        task = counting_task(tmp_path, log, inputs=[INPUT, TopicPartition("inptu", 0)])
        with pytest.raises(ChangelogError, match="'inptu'"):
            task.open()
        assert set(log.topics()) == {"input", "output"}
        assert not (tmp_path / "state" / str(TASK)).exists()


def test_a_task_refuses_a_changelog_that_is_not_compacted(tmp_path: Path, broker: Broker) -> None:
    prepared(tmp_path, broker)
    topic_with(broker, LEFT.topic, cleanup_policy="delete")
    with changelog(tmp_path) as log:
        with pytest.raises(ChangelogError, match=r"cleanup\.policy"):
            task_over(tmp_path, log).open()
        assert not log.committed_offsets("app")


def test_a_store_topic_with_too_few_partitions_is_refused(broker: Broker) -> None:
    with fresh_changelog(broker) as log:
        log.create_store_topic("few", 2)
        log.create_store_topic("few", 1)
        with pytest.raises(ChangelogError, match="2 partitions"):
            log.create_store_topic("few", 3)


def test_a_changelog_that_was_deleted_while_its_store_is_there_is_refused(tmp_path: Path, broker: Broker) -> None:
    prepared(tmp_path, broker)
    work(tmp_path)
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.delete_topics([LEFT.topic])[LEFT.topic].result(600)
    with changelog(tmp_path) as log, pytest.raises(ChangelogLostError):
        task_over(tmp_path, log).open()


def test_credentials_for_a_broker_that_takes_none_are_an_error_without_the_secret(broker: Broker) -> None:
    settings = {
        "bootstrap.servers": broker.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "shop",
        "sasl.password": "correct-horse-battery",
    }
    with pytest.raises(ChangelogError) as error:
        KafkaChangelog(settings, timeout_s=3)
    assert "correct-horse-battery" not in f"{error.value!r} {error.value.__context__!r}"
