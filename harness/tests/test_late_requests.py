"""A request that reaches a real broker within the next transaction of its producer changes nothing of it.

Source: KIP-890; librdkafka, issue 5423.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import confluent_kafka
import pytest

from harness.experiments.broker_faults.kafka_proxy import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    TXN_OFFSET_COMMIT,
    KafkaProxy,
)
from stores.changelog.interface import Committed
from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.producer import KafkaProducer
from stores.changelog.kafka.testing.broker import Broker, BrokerListener
from stores.changelog.kafka.testing.committed import committed_records
from stores.errors import ChangelogError, ChangelogTimeoutError, ProducerFencedError
from stores.interface import TopicPartition
from stores.tests.kafka.shared_broker import FOLDER, skip_without_kafka

pytestmark = pytest.mark.kafka

ANSWER_S = 600.0
RECORDS = 700
"""More than a producer holds: a part of them is at the broker before the transaction ends."""
GROUP, INPUT = "g", TopicPartition("input", 0)


@pytest.fixture(scope="module")
def network() -> Iterator[tuple[Broker, KafkaProxy]]:
    """A broker, and a proxy before it."""
    skip_without_kafka()
    with TemporaryDirectory(prefix="kafka-") as data, KafkaProxy() as proxy:
        listeners = [BrokerListener("PROXIED", advertised_port=proxy.port)]
        broker = Broker(Path(data), FOLDER, listeners=listeners)
        try:
            broker.start()
            proxy.target = broker.ports["PROXIED"]
            yield broker, proxy
        finally:
            broker.kill()


@pytest.fixture
def topic(network: tuple[Broker, KafkaProxy], request: pytest.FixtureRequest) -> TopicPartition:
    """A topic of the test's own."""
    name = f"t-{abs(hash(request.node.name))}"
    with KafkaChangelog({"bootstrap.servers": network[0].address}) as log:
        log.create_topic(name)
        if INPUT.topic not in log.topics():
            log.create_topic(INPUT.topic)
    return TopicPartition(name, 0)


def fill(producer: KafkaProducer, topic: TopicPartition, name: bytes, offset: int) -> None:
    """Begin a transaction, with most of its records at the client."""
    producer.begin()
    producer.send_all(topic, [(name, b"%d" % number, -1) for number in range(RECORDS)])
    producer.send_offsets(GROUP, {INPUT: offset})


def outcome(network: tuple[Broker, KafkaProxy], topic: TopicPartition) -> dict[str, int]:
    """Return the number of committed records by their transaction's name, as another process reads them."""
    return Counter(key.decode() for key, _ in committed_records(network[0].address, topic.topic))


def proxied(network: tuple[Broker, KafkaProxy]) -> KafkaChangelog:
    return KafkaChangelog({"bootstrap.servers": f"127.0.0.1:{network[1].port}"})


@pytest.mark.parametrize("api_key", [END_TXN, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT], ids=str)
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_late_request_of_a_transaction_changes_nothing_of_the_next_one(
    network: tuple[Broker, KafkaProxy], topic: TopicPartition, api_key: int, end: str
) -> None:
    _, proxy = network
    with proxied(network) as log, log.producer(topic.topic) as producer:
        fill(producer, topic, b"first", 5)
        producer.commit()
        proxy.hold(api_key)
        fill(producer, topic, b"held", 6)
        if end == "commit":
            producer.commit()
        else:
            producer._writer._client.flush(ANSWER_S)
            if api_key in (ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT):
                producer._writer._send_offsets(GROUP, Committed({INPUT: 6}, {}))
            producer.abort()
        assert proxy.await_held(ANSWER_S)
        refused = 0
        while True:
            try:
                fill(producer, topic, b"next", 7)
                break
            except ChangelogTimeoutError:
                refused += 1
                producer.abort()
        producer._writer._client.flush(ANSWER_S)
        assert proxy.deliver(ANSWER_S)
        producer.commit()
        assert log.committed_offsets(GROUP) == {INPUT: 7}
    held = 0 if end == "abort" else RECORDS
    expected = {"first": RECORDS, "held": held, "next": RECORDS}
    assert outcome(network, topic) == {name: number for name, number in expected.items() if number}
    assert refused == bool(held), "an abort has a new epoch by itself"


def test_a_bare_client_shows_a_late_commits_part_of_the_next_transaction(
    network: tuple[Broker, KafkaProxy], topic: TopicPartition
) -> None:
    """The proxy does what it should, and the client still needs the library's help."""
    _, proxy = network
    settings: dict[str, Any] = {"bootstrap.servers": f"127.0.0.1:{proxy.port}", "transactional.id": topic.topic}
    client = confluent_kafka.Producer(settings)
    client.init_transactions(ANSWER_S)
    proxy.hold(END_TXN)
    for name in (b"held", b"next"):
        client.begin_transaction()
        for _ in range(RECORDS):
            client.produce(topic.topic, b"v", name)
        client.flush(ANSWER_S)
        if name == b"held":
            client.commit_transaction(ANSWER_S)
            assert proxy.await_held(ANSWER_S)
    assert proxy.deliver(ANSWER_S)
    # The broker answers before the marker is in the partition, and takes records of that transaction until then.
    deadline = time.monotonic() + ANSWER_S
    while outcome(network, topic) != {"held": RECORDS, "next": RECORDS}:
        assert time.monotonic() < deadline, outcome(network, topic)
    client.produce(topic.topic, b"v", b"next")
    client.flush(ANSWER_S)
    with pytest.raises(confluent_kafka.KafkaException):
        client.commit_transaction(ANSWER_S)
    assert outcome(network, topic) == {"held": RECORDS, "next": RECORDS}


def test_a_zombie_that_lost_a_request_is_fenced_and_its_successor_goes_on(
    network: tuple[Broker, KafkaProxy], topic: TopicPartition
) -> None:
    """It asks under its old epoch, before a new one would fence the successor."""
    _, proxy = network
    with proxied(network) as old, KafkaChangelog({"bootstrap.servers": network[0].address}) as new:
        zombie = old.producer(topic.topic)
        proxy.hold(END_TXN)
        fill(zombie, topic, b"zombie", 5)
        zombie.commit()
        assert proxy.await_held(ANSWER_S)
        with new.producer(topic.topic) as successor:
            fill(successor, topic, b"successor", 6)
            successor.commit()
            zombie.begin()
            zombie.send(topic, b"zombie", b"v")
            with pytest.raises(ChangelogError):
                zombie.commit()
            with pytest.raises(ProducerFencedError):
                zombie.abort()
            zombie.close()
            fill(successor, topic, b"successor", 7)
            successor.commit()
        assert new.committed_offsets(GROUP) == {INPUT: 7}
    assert outcome(network, topic) == {"zombie": RECORDS, "successor": 2 * RECORDS}
