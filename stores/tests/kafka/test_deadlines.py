"""A broker that does not answer: each call ends by its deadline, with an error that says so, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stores.changelog.interface import Producer
from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.producer import KafkaProducer
from stores.changelog.kafka.testing.broker import Broker
from stores.errors import ChangelogTimeoutError, CommitInDoubtError
from stores.interface import TopicPartition
from stores.tests.kafka.fresh import remove_all
from stores.tests.kafka.shared_broker import FOLDER, skip_without_kafka

pytestmark = pytest.mark.kafka

A = TopicPartition("a", 0)
SHORT_S, LONG_S = 1.0, 300.0


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Broker]:
    """A broker that may be paused and killed."""
    skip_without_kafka()
    with TemporaryDirectory(prefix="kafka-") as data:
        broker = Broker(Path(data), FOLDER)
        try:
            broker.start()
            yield broker
        finally:
            broker.kill()


@contextmanager
def paused(broker: Broker) -> Iterator[None]:
    broker.pause()
    try:
        yield
    finally:
        broker.resume()


def changelog(broker: Broker, timeout_s: float, **settings: int) -> KafkaChangelog:
    own = {name.replace("_", "."): value for name, value in settings.items()}
    return KafkaChangelog({"bootstrap.servers": broker.address, **own}, timeout_s=timeout_s)


@pytest.fixture
def broker(own_broker: Broker) -> Broker:
    """The broker, with the topic ``a`` alone."""
    remove_all(own_broker)
    with changelog(own_broker, LONG_S) as log:
        log.create_topic("a")
    return own_broker


def shorten(log: KafkaChangelog, timeout_s: float = SHORT_S) -> None:
    """Give the next calls this much time. What comes before them has more: a busy machine may need it."""
    log._cluster.timeout_s = timeout_s


@contextmanager
def within(producer: KafkaProducer, timeout_s: float) -> Iterator[None]:
    """Give the calls of a producer this much time, and then as much as before."""
    producer._writer._timeout_s = timeout_s
    try:
        yield
    finally:
        producer._writer._timeout_s = LONG_S


def put(producer: Producer, key: bytes) -> None:
    producer.send(A, key, b"v")
    producer.flush()


def keys(broker: Broker) -> list[bytes | None]:
    with changelog(broker, LONG_S) as log:
        return [record.key for record in log.read(A)]


@pytest.mark.parametrize(
    "call",
    [
        lambda log: log.topics(),
        lambda log: log.end_offset(A),
        lambda log: log.committed_offsets("g", [A]),
        lambda log: log.create_topic("b"),
        lambda log: log.truncate(A, 0),
        lambda log: log.producer("p"),
    ],
    ids=["topics", "end_offset", "committed_offsets", "create_topic", "truncate", "producer"],
)
def test_a_call_that_gets_no_answer_ends_by_its_deadline(
    broker: Broker, call: Callable[[KafkaChangelog], object]
) -> None:
    with changelog(broker, LONG_S) as log:
        shorten(log)
        with paused(broker), pytest.raises(ChangelogTimeoutError):
            call(log)


def test_offsets_outside_of_a_transaction_that_get_no_answer_end_by_their_deadline(broker: Broker) -> None:
    with changelog(broker, LONG_S) as log, log.producer() as producer:
        producer.send_offsets("g", {A: 1})
        shorten(log, 4.0)
        with paused(broker), pytest.raises(ChangelogTimeoutError):
            producer.send_offsets("g", {A: 2})
        shorten(log, LONG_S)
        assert log.committed_offsets("g", [A])[A] in (1, 2)


def test_a_read_that_gets_no_records_ends_by_its_deadline(broker: Broker) -> None:
    with changelog(broker, LONG_S) as before, before.producer() as producer:
        put(producer, b"1")
    with changelog(broker, LONG_S) as log:
        records = log.read(A)
        shorten(log)
        with paused(broker), pytest.raises(ChangelogTimeoutError):
            list(records)
    assert keys(broker) == [b"1"]


def commit(producer: Producer) -> None:
    """Commit, and try again after a timeout: nothing of the transaction is lost by it."""
    for _ in range(30):
        try:
            producer.commit()
            return
        except ChangelogTimeoutError:
            continue
    raise AssertionError("no commit in 30 attempts")


def test_a_producer_whose_queue_stays_full_waits_until_its_deadline_and_continues(broker: Broker) -> None:
    with changelog(broker, LONG_S, queue_buffering_max_messages=10) as log, log.producer("p") as producer:
        producer.begin()
        producer.send(A, b"first", b"v")
        commit(producer)  # From now on the client asks for nothing but room.
        producer.begin()
        for number in range(100):
            producer.send(A, b"%d" % number, b"v")
        with paused(broker), within(producer, SHORT_S), pytest.raises(ChangelogTimeoutError):
            producer.commit()
        commit(producer)
    assert keys(broker) == [b"first", *(b"%d" % number for number in range(100))]


def test_records_that_were_not_sent_and_are_aborted_are_never_sent(broker: Broker) -> None:
    with changelog(broker, LONG_S, reconnect_backoff_max_ms=200) as log, log.producer() as producer:
        put(producer, b"before")
        broker.kill()
        producer.send(A, b"never", b"v")
        with within(producer, SHORT_S), pytest.raises(CommitInDoubtError):
            producer.flush()
        producer.abort()
        broker.start()
        put(producer, b"after")
    assert keys(broker) == [b"before", b"after"]
