"""Questions to brokers that pause or break connections, and the wait for the end of transactions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from stores.changelog import Producer
from stores.changelog.kafka import KafkaChangelog, cluster, shared_client
from stores.changelog.kafka import cluster as cluster_module
from stores.changelog.kafka.client import ClientSettings
from stores.changelog.kafka.cluster import CLIENT_LOG, Cluster
from stores.changelog.kafka.ended_transactions import EndedTransactions
from stores.changelog.kafka.shared_client import SharedClient
from stores.changelog.kafka.testing.broker import Broker
from stores.errors import ChangelogError, ChangelogTimeoutError, StoreClosedError
from stores.interface import TopicPartition
from stores.tests.changelog.records import A, await_sent, pairs, put
from stores.tests.kafka.fresh import fresh_changelog

TIMEOUT_S = 30.0
CALL_S = 0.5


def error(name: str, text: str = "") -> KafkaError:
    return KafkaError(getattr(KafkaError, name), text or name)


class Clock:
    """Time that passes with the calls of a client only."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Client:
    """A client that knows no controller until it has looked for the brokers again."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.knows_controller = True
        self.slow = self.has_lost_leaders = self.hangs = False
        self.topics: dict[str, Any] = {}
        self.failure: KafkaError | None = None
        self.on_error: Any = None
        self.closed = 0
        self.brokers = {1: "a broker"}
        self.looks_s: list[float] = []

    def list_topics(self, timeout: float) -> Any:
        self.looks_s.append(timeout)
        if self.failure is not None:
            self.clock.now += timeout
            raise KafkaException(self.failure)
        self.knows_controller = True
        return SimpleNamespace(topics=self.topics, brokers=self.brokers)

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        future: Future[Any] = Future()
        if self.knows_controller and not (self.slow and request_timeout < CALL_S * TIMEOUT_S):
            future.set_result({"a": SimpleNamespace(value=1)})
        else:
            self.clock.now += request_timeout
            future.set_exception(KafkaException(error("_TIMED_OUT", "Failed while waiting for controller")))
        return {resources[0]: future}

    def delete_records(self, records: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        assert self.failure is not None
        future: Future[Any] = Future()
        future.set_exception(KafkaException(self.failure))
        return {"a-0": future}

    def get_watermark_offsets(self, theirs: object, timeout: float) -> tuple[int, int]:
        if self.has_lost_leaders:
            raise KafkaException(error("_UNKNOWN_PARTITION"))
        if self.hangs:
            self.clock.now += timeout
            raise KafkaException(error("_TIMED_OUT"))
        return 3, 7

    def poll(self, wait_s: float) -> None:
        """Call back: there is nothing."""

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    clock = Clock()
    client = Client(clock)

    def make(settings: dict[str, Any]) -> Client:
        client.on_error = settings["error_cb"]
        return client

    monkeypatch.setattr(cluster_module, "AdminClient", make)
    monkeypatch.setattr(confluent_kafka, "Consumer", make)
    for module in (cluster_module, shared_client):
        monkeypatch.setattr(module, "time", clock)
    return client


def cluster_over(client: Client) -> Cluster:
    return Cluster(ClientSettings({"bootstrap.servers": "here:1"}), TIMEOUT_S)


def test_readers_and_other_clients_get_the_settings_of_their_kind(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsent, ahead = {"queue.buffering.max.kbytes": 1}, {"queued.max.messages.kbytes": 2}
    cluster = Cluster(ClientSettings({"bootstrap.servers": "here:1", **unsent, **ahead}), TIMEOUT_S)
    monkeypatch.setattr(confluent_kafka, "Consumer", dict)
    reader, producer = cluster.client(dict, {}), cluster.client(lambda settings: settings, {})
    assert ahead.items() <= reader.items()
    assert unsent.items() <= producer.items()
    assert not {*unsent} & {*reader}
    assert not {*ahead} & {*producer}
    cluster.close()


def test_the_client_is_closed_with_the_cluster_and_once_only(client: Client) -> None:
    cluster = cluster_over(client)
    assert client.closed == 0
    for _ in range(2):
        cluster.close()
        assert client.closed == 1


def test_a_closed_cluster_checks_no_partition_even_of_a_topic_that_it_knows(client: Client) -> None:
    cluster = cluster_over(client)
    cluster._partitions = {"t": 1}
    cluster.check_partition(TopicPartition("t", 0))
    cluster.close()
    with pytest.raises(StoreClosedError):
        cluster.check_partition(TopicPartition("t", 0))


def test_a_client_that_has_lost_the_controller_looks_for_it_again(client: Client) -> None:
    cluster = cluster_over(client)
    client.knows_controller = False
    assert cluster.topic_settings("t") == {"a": "1"}
    assert client.clock.now < TIMEOUT_S / 2


def test_a_client_that_has_lost_the_leader_of_a_partition_is_replaced_and_not_at_each_attempt(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_over(client)
    client.has_lost_leaders = True
    others = [Client(client.clock) for _ in range(2)]
    others[0].has_lost_leaders = True
    answers = iter(others)
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda settings: next(answers))
    assert cluster._stable_bounds(confluent_kafka.TopicPartition("t", 0), "asking") == (3, 7)
    assert next(answers, None) is None
    assert client.clock.now < TIMEOUT_S


def test_a_client_that_asks_a_dead_broker_for_offsets_is_replaced_before_the_time_is_up(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_over(client)
    client.hangs = True
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda settings: Client(client.clock))
    assert cluster._stable_bounds(confluent_kafka.TopicPartition("t", 0), "asking") == (3, 7)
    assert client.clock.now < TIMEOUT_S / 2


def test_a_client_for_administration_that_has_lost_the_brokers_is_replaced_before_the_time_is_up(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Source: librdkafka, issue 5301."""
    cluster = cluster_over(client)
    client.failure = error("_TRANSPORT")
    monkeypatch.setattr(cluster_module, "AdminClient", lambda settings: Client(client.clock))
    assert not cluster.answers(0.5)
    assert not cluster.answers(0.5)
    assert cluster.topics() == {}
    assert cluster.answers(0.5)
    assert client.clock.now < TIMEOUT_S / 2


def test_a_client_that_reaches_no_broker_while_it_connects_is_replaced(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.failure = error("_TRANSPORT")
    clients = iter([client, Client(client.clock)])
    monkeypatch.setattr(cluster_module, "AdminClient", lambda settings: next(clients))
    cluster_over(client).close()
    assert client.looks_s == [1] * 5


def test_a_broker_that_answers_without_brokers_is_no_answer(client: Client) -> None:
    cluster = cluster_over(client)
    client.brokers = {}
    assert not cluster.answers(0.5)


def test_a_shared_client_is_replaced_once_for_the_calls_that_used_it_and_not_before_its_time(
    client: Client,
) -> None:
    made = iter("abc")
    shared = SharedClient(lambda: next(made))

    def fail(after_s: float = 0.0, meanwhile: Callable[[], object] = lambda: None) -> None:
        with pytest.raises(KafkaException), shared.used():
            meanwhile()
            client.clock.sleep(after_s)
            raise KafkaException(error("_TRANSPORT"))

    def used() -> str:
        with shared.used() as each:
            return each

    fail(4.9)
    assert used() == "a"
    client.clock.sleep(0.1)
    fail(5, meanwhile=fail)  # "a" fails again, 5 s after "b" has followed it.
    assert used() == "b"
    fail()
    assert used() == "c"
    fail(4.9)
    assert used() == "c"


def test_a_client_that_is_refused_or_whose_cluster_is_closed_is_not_replaced(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_over(client)
    client.clock.now += TIMEOUT_S
    monkeypatch.setattr(cluster_module, "AdminClient", pytest.fail)
    client.failure = error("TOPIC_AUTHORIZATION_FAILED")
    assert not cluster.answers(0.5)
    cluster.close()
    client.failure = error("_TRANSPORT")
    assert not cluster.answers(0.5)


def test_a_topic_that_one_broker_knows_is_there_although_another_one_has_not_heard_of_it(client: Client) -> None:
    cluster = cluster_over(client)
    client.topics = {"new": SimpleNamespace(partitions={0: None, 1: None}, error=None)}
    assert cluster.await_topic("new") == 2
    client.topics = {}
    cluster.check_partition(TopicPartition("new", 1))
    with pytest.raises(ChangelogTimeoutError):
        cluster.await_topic("other")


def test_a_broker_that_needs_longer_gets_longer_attempts(client: Client) -> None:
    cluster = cluster_over(client)
    client.slow = True
    with pytest.raises(ChangelogTimeoutError):
        cluster.topic_settings("t")
    assert client.clock.now >= TIMEOUT_S
    assert client.looks_s == [1, 5, 10]
    cluster.timeout_s = 3 * TIMEOUT_S
    assert cluster.topic_settings("t") == {"a": "1"}


REFUSED = error("_AUTHENTICATION", "SASL PLAIN mechanism handshake failed: Local: Timed out")


def test_a_connection_that_is_refused_before_the_first_answer_is_an_error_at_once(client: Client) -> None:
    client.failure = REFUSED
    with pytest.raises(ChangelogError) as error:
        cluster_over(client)
    assert not isinstance(error.value, ChangelogTimeoutError)
    assert client.clock.now < TIMEOUT_S / 2


def test_a_connection_that_is_refused_after_answers_is_tried_again_until_the_time_is_up(client: Client) -> None:
    cluster = cluster_over(client)
    client.failure = error("_TIMED_OUT")
    client.on_error(REFUSED)
    with pytest.raises(ChangelogTimeoutError) as failure:
        cluster.topics()
    assert "SASL" in str(failure.value)
    assert client.clock.now >= TIMEOUT_S
    client.failure = REFUSED
    with pytest.raises(ChangelogTimeoutError):
        cluster.topics()
    client.failure = None
    assert cluster.topics() == {}
    client.failure = error("_TIMED_OUT")
    with pytest.raises(ChangelogTimeoutError) as failure:
        cluster.topics()
    assert "SASL" not in str(failure.value)


def test_a_permission_that_is_refused_after_answers_is_an_error_at_once(client: Client) -> None:
    cluster = cluster_over(client)
    assert cluster.topics() == {}
    client.failure = error("TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(ChangelogError) as failure:
        cluster.topics()
    assert not isinstance(failure.value, ChangelogTimeoutError)
    assert client.clock.now <= TIMEOUT_S


def test_a_refused_deletion_is_logged_once_and_an_unanswered_one_is_none(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    # A worker that another test has run in this process may have left another level.
    caplog.set_level(logging.WARNING, logger=CLIENT_LOG.name)
    cluster = cluster_over(client)
    for name, warnings in (
        ("_TIMED_OUT", 0),
        ("NOT_LEADER_FOR_PARTITION", 0),
        ("TOPIC_AUTHORIZATION_FAILED", 1),
        ("TOPIC_AUTHORIZATION_FAILED", 1),
        ("_TIMED_OUT", 1),
    ):
        client.failure = error(name)
        cluster.drop_before(TopicPartition("a", 0), 5)
        assert caplog.text.count("permission DELETE") == warnings


def test_an_error_that_only_a_new_producer_passes_is_not_tried_again_by_a_producer(client: Client) -> None:
    cluster = cluster_over(client)
    calls = 0

    def fail(left_s: float) -> None:
        nonlocal calls
        calls += 1
        raise KafkaException(error("INVALID_TXN_STATE"))

    with pytest.raises(ChangelogTimeoutError):
        cluster.asked("aborting", fail, producing=True)
    assert calls == 1
    with pytest.raises(ChangelogTimeoutError):
        cluster.asked("asking", fail)
    assert calls > 1


def test_the_wait_for_transactions_in_a_partition_that_is_not_there_is_refused(client: Client) -> None:
    with pytest.raises(ChangelogError, match="t"):
        cluster_over(client).await_decided(TopicPartition("t", 0))


LATE = 3
"""The questions that are answered as before a marker."""


@contextmanager
def late(log: KafkaChangelog, monkeypatch: pytest.MonkeyPatch, stable_end: int) -> Iterator[list[int]]:
    """Let the last stable offset seem to be ``stable_end`` for some questions; yield the number of those left."""
    left, asked = [LATE], log._cluster._stable_bounds

    def stable_bounds(*arguments: object) -> tuple[int, int]:
        if left[0]:
            left[0] -= 1
            return 0, stable_end
        return asked(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(log._cluster, "_stable_bounds", stable_bounds)
        patch.setattr(cluster, "VISIBLE_S", 0.0)
        yield left


@pytest.fixture
def log(broker: Broker) -> Iterator[KafkaChangelog]:
    with fresh_changelog(broker) as changelog:
        changelog.create_topic("a")
        yield changelog


@pytest.mark.kafka
@pytest.mark.parametrize("commits", [True, False])
def test_a_late_marker_is_awaited_although_others_have_written_since(
    log: KafkaChangelog, broker: Broker, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    put(log, (b"0", b"before"))
    with log.producer("p") as producer:
        producer.begin()
        for number in range(1_001):
            producer.send(A, b"%d" % number, b"v")
        num_sent = await_sent(log, producer, 1 + 1_001)
        if commits:
            num_sent = producer.commit()[A] + 1
        else:
            producer.abort()
    with KafkaChangelog({"bootstrap.servers": broker.address}) as other:
        put(other, (b"0", b"later"))
    with late(log, monkeypatch, stable_end=1) as left:
        assert log.end_offset(A) == num_sent + 2
        assert left == [0]


@pytest.mark.kafka
def test_the_later_one_of_two_ends_is_awaited_whichever_was_first(
    log: KafkaChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with log.producer("first") as first, log.producer("second") as second:
        second.begin()
        for _ in range(501):
            second.send(A, b"k", b"aborted")
        num_sent = await_sent(log, second, 501)
        first.begin()
        first.send(A, b"k", b"v")
        assert first.commit() == {A: num_sent}
        second.abort()
    with late(log, monkeypatch, stable_end=num_sent):
        assert pairs(log) == [(num_sent, b"k", b"v")]


def commit_behind(log: KafkaChangelog, other: KafkaChangelog, theirs: Producer) -> int:
    """Commit a record behind an open transaction of ``other``; return its offset."""
    theirs.begin()
    for _ in range(501):
        theirs.send(A, b"k", b"theirs")
    await_sent(other, theirs, 501)
    with log.producer("own") as own:
        own.begin()
        own.send(A, b"k", b"own")
        return own.commit()[A]


@pytest.mark.kafka
def test_the_writer_of_a_partition_awaits_its_own_end_behind_a_transaction_of_another(
    log: KafkaChangelog, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.await_decided(A)
    with KafkaChangelog({"bootstrap.servers": broker.address}) as other, other.producer("other") as theirs:
        last = commit_behind(log, other, theirs)
        monkeypatch.setattr(cluster, "VISIBLE_S", 0.0)
        monkeypatch.setattr(log._cluster, "timeout_s", 2.0)
        with pytest.raises(ChangelogTimeoutError):
            log.end_offset(A)
        theirs.abort()
        monkeypatch.setattr(log._cluster, "timeout_s", TIMEOUT_S)
        assert log.end_offset(A) > last


@pytest.mark.kafka
def test_an_open_transaction_of_another_process_is_awaited_once(
    log: KafkaChangelog, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with KafkaChangelog({"bootstrap.servers": broker.address}) as other, other.producer("other") as theirs:
        last = commit_behind(log, other, theirs)
        assert log.end_offset(A) == 0
        monkeypatch.setattr(cluster, "VISIBLE_S", float("inf"))
        assert log.end_offset(A) == 0
        theirs.abort()
        assert other.end_offset(A) == log.end_offset(A)
    assert [(offset, value) for offset, _, value in pairs(log)] == [(last, b"own")]


def test_records_without_a_transaction_wait_for_no_marker() -> None:
    transactions = EndedTransactions()
    transactions.add(None, 3, 4)
    assert not transactions.hold_back(3)
    assert [transactions.are_before(end) for end in (3, 4, 5)] == [False, False, True]


def test_the_marker_of_a_transaction_is_written_before_the_next_one_of_its_producer_begins() -> None:
    transactions = EndedTransactions()
    transactions.add("p", 3, 4)
    transactions.add("q", 5, 6)
    assert [transactions.hold_back(offset) for offset in (3, 5, 6)] == [True, True, False]
    transactions.add("p", 8, 8)
    assert [transactions.hold_back(offset) for offset in (3, 5, 8)] == [False, True, True]
