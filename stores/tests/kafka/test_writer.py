"""The records that a writer gives to its client, its connection, and the errors that the client reports. No broker."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from stores.changelog.kafka import writer as module
from stores.changelog.kafka.client import ClientSettings, translated
from stores.changelog.kafka.producer import KafkaProducer
from stores.changelog.kafka.writer import KafkaWriter
from stores.changelog.producer import AppendRequest, ProducerIdentity
from stores.errors import ChangelogError, ProducerFencedError
from stores.interface import TopicPartition
from stores.tests.kafka.test_cluster import Clock

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
BYTES_MAX = 100


class Client:
    """A client with room for ``room`` records, which ``poll`` makes. It refuses the records of the keys ``refused``."""

    def __init__(self, room: int) -> None:
        self.room, self.left = room, room
        self.refused: set[bytes] = set()
        self.taken: list[tuple[Any, ...]] = []
        self.asked: list[Any] = []
        self.waiting = 0

    def produce(
        self, topic: str, value: Any, key: Any, number: int, report: Any, again: Any, time_ms: int, headers: Any = None
    ) -> None:
        if not self.left:
            raise BufferError
        if key in self.refused:
            raise KafkaException(KafkaError(KafkaError._STATE))
        assert report == again
        self.left -= 1
        self.taken.append((topic, number, key, value, time_ms, headers))
        if report is not None:
            self.asked.append(key)

    def poll(self, timeout: float) -> None:
        self.left = self.room

    def __len__(self) -> int:
        return self.room - self.left

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: 0


class Cluster:
    """A cluster that has all topics."""

    timeout_s = 5.0
    settings = ClientSettings({"bootstrap.servers": "none"})

    def __init__(self, client: Client) -> None:
        self._made = client

    def client(self, *_: object) -> Client:
        return self._made

    def asked(self, doing: str, ask: Any, *, producing: bool = False) -> Any:
        return ask(1.0)

    def failure(self, error: KafkaError, doing: str) -> ChangelogError:
        return ChangelogError(error.name())

    def record_bytes_max(self, topic: str) -> int:
        return BYTES_MAX

    def check_partition(self, partition: TopicPartition) -> None:
        pass

    check_open = ended = lambda *_: None


def producer_over(client: Client, transactional_id: str | None = "p") -> KafkaProducer:
    cluster: Any = Cluster(client)
    groups: Any = None
    producer = KafkaProducer(KafkaWriter(cluster, groups, transactional_id), transactional_id)
    if transactional_id is not None:
        producer.begin()
    return producer


@pytest.mark.parametrize("room", [1, 2, 3, 7, 100])
def test_a_client_without_room_gets_each_record_once_and_in_order(room: int) -> None:
    client = Client(room)
    producer = producer_over(client)
    for number in range(20):
        producer.send(A if number % 2 else B, b"%d" % number, b"v", 5)
    producer.commit()
    for partition, first in ((A, 1), (B, 0)):
        keys = [record[2] for record in client.taken if record[:2] == partition]
        assert keys == [b"%d" % number for number in range(first, 20, 2)]


def test_in_a_transaction_the_first_and_last_records_of_a_partition_are_asked_after_without_one_every_record() -> None:
    records = [(b"%d" % number, b"v", 5) for number in range(4)]
    for transactional_id, keys in (("p", [b"0", b"3"]), (None, [b"0", b"1", b"2", b"3"])):
        client = Client(9)
        producer = producer_over(client, transactional_id)
        producer.send_all(A, records)
        producer.commit() if transactional_id else producer.flush()
        assert client.asked == keys


def test_an_append_that_failed_halfway_continues_with_the_record_that_failed() -> None:
    client = Client(9)
    client.refused = {b"2"}
    producer = producer_over(client)
    producer.send_all(A, [(b"%d" % number, b"v", 5) for number in range(4)])
    for _ in range(2):
        with pytest.raises(ChangelogError):
            producer.commit()
    client.refused = set()
    producer.commit()
    assert [record[2] for record in client.taken] == [b"0", b"1", b"2", b"3"]


def test_a_timestamp_of_zero_and_headers_reach_the_client_with_their_own_records_only() -> None:
    client = Client(9)
    producer = producer_over(client)
    producer.send(A, b"0", b"v", 5)
    producer.send(A, b"1", None, 0)
    producer.send(A, None, b"v", -1, (("name", b"content"),))
    producer.commit()
    assert client.taken == [
        ("a", 0, b"0", b"v", 5, None),
        ("a", 0, b"1", None, 0, [("txstores-timestamp-ms", b"0")]),
        ("a", 0, None, b"v", -1, [("name", b"content")]),
    ]


def test_a_record_that_is_too_large_is_refused_beside_small_ones_that_together_are_larger() -> None:
    client = Client(99)
    producer = producer_over(client)
    producer.send_all(A, [(b"%d" % number, bytes(BYTES_MAX - 1), 5) for number in range(9)])
    producer.commit()
    assert len(client.taken) == 9
    producer.begin()
    producer.send(A, b"10", bytes(BYTES_MAX - 1), 5)
    with pytest.raises(ChangelogError, match=r"101 bytes.*a-0.*100 bytes"):
        producer.commit()


def test_a_record_that_is_too_large_by_its_headers_alone_is_refused() -> None:
    producer = producer_over(Client(99))
    producer.send(A, b"k", b"v", 5, (("name", bytes(BYTES_MAX - 10)),))
    with pytest.raises(ChangelogError, match=r"106 bytes.*a-0.*100 bytes"):
        producer.commit()


def test_a_client_that_cannot_begin_is_released_while_its_error_is_handled() -> None:
    """As long as it lives it goes on, and would fence the next producer of its ID."""
    clients: list[weakref.ref[Client]] = []

    def refuse(**_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    class Refusing(Cluster):
        def client(self, *_: object) -> Client:
            client = Client(1)
            client.__dict__["list_topics"] = refuse
            clients.append(weakref.ref(client))
            return client

    cluster: Any = Refusing(Client(1))
    groups: Any = None
    with pytest.raises(KafkaException) as error:
        KafkaWriter(cluster, groups, "p")
    assert {client() for client in clients} == {None}
    assert error.value is not None


def test_a_client_that_reaches_no_broker_is_replaced_before_it_asks_for_an_epoch() -> None:
    """It may have lost the brokers for good. Source: librdkafka, issue 5301."""
    lost, other = Client(1), Client(1)
    timeouts_s: list[float] = []

    def list_topics(timeout: float) -> None:
        timeouts_s.append(timeout)
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    lost.__dict__["list_topics"] = list_topics
    clients = iter([lost, lost, other])

    class Asking(Cluster):
        def client(self, *_: object) -> Client:
            return next(clients)

        def asked(self, doing: str, ask: Any, *, producing: bool = False) -> Any:
            for _ in range(2):
                with pytest.raises(KafkaException):
                    ask(30.0)
            return ask(30.0)

    cluster: Any = Asking(Client(1))
    groups: Any = None
    writer = KafkaWriter(cluster, groups, "p")
    assert writer._client is other
    assert timeouts_s == [5, 10]


@pytest.mark.parametrize(
    ("each_s", "asked_s", "init_s"), [(2.0, [3.0, 1.0], 0), (4.0, [3.0, 0], 0), (0.5, [3.0, 2.5], 2.0)]
)
def test_a_client_connects_and_asks_for_an_epoch_in_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch, each_s: float, asked_s: list[float], init_s: float
) -> None:
    """A negative time is without end."""
    clock, client = Clock(), Client(1)
    monkeypatch.setattr(module, "time", clock)
    timeouts_s: list[float] = []

    def list_topics(timeout: float) -> None:
        timeouts_s.append(timeout)
        clock.sleep(each_s)

    client.__dict__.update(list_topics=list_topics, init_transactions=timeouts_s.append)
    cluster: Any = Cluster(client)
    cluster.asked = lambda doing, ask, producing: ask(3.0)
    groups: Any = None
    KafkaWriter(cluster, groups, "p")
    assert timeouts_s == [*asked_s, init_s]


COMMIT_REQUEST = AppendRequest(ProducerIdentity("p", 0), None, True, {TopicPartition("a", 0): [b"k", b"v", -1, None]})


class FailingClient:
    """It fails for good, and reports the reason when it is polled, if at all: as an error, or to the callback."""

    def __init__(self, on_error: Callable[[KafkaError], None], reason: KafkaError | None, raises: bool) -> None:
        self._on_error, self._reason, self._raises = on_error, reason, raises
        self._polls_until_it_knows = -1

    def begin_transaction(self) -> None:
        """Begin: the client knows nothing yet."""

    def produce(self, *record: object) -> None:
        self._polls_until_it_knows = 2
        raise KafkaException(KafkaError(KafkaError._FATAL))

    def poll(self, wait_s: float) -> None:
        self._polls_until_it_knows -= 1
        if self._polls_until_it_knows != 0:
            return
        if self._reason is not None and self._raises:
            raise KafkaException(self._reason)
        if self._reason is not None:
            self._on_error(self._reason)


def writer_with(reason: KafkaError | None, raises: bool = False) -> KafkaWriter:
    cluster: Any = SimpleNamespace(
        timeout_s=30.0,
        settings=ClientSettings({"bootstrap.servers": "none"}),
        client=lambda kind, own, on_error: FailingClient(on_error, reason, raises),
        asked=lambda doing, ask, producing: None,
        check_open=lambda: None,
        record_bytes_max=lambda topic: 1_000,
        failure=lambda error, doing: translated(error, doing, ClientSettings({"bootstrap.servers": "servers"})),
    )
    groups: Any = None
    return KafkaWriter(cluster, groups, "p")


@pytest.mark.parametrize("raises", [True, False])
def test_a_fence_that_is_reported_late_is_a_fence(*, raises: bool) -> None:
    fenced = getattr(KafkaError, "_FENCED")  # noqa: B009
    with pytest.raises(ProducerFencedError):
        writer_with(KafkaError(fenced, "fenced", fatal=True), raises).append(COMMIT_REQUEST)


def test_a_fatal_error_that_is_never_reported_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stores.changelog.kafka.writer._REPORT_S", 0.0)
    with pytest.raises(ChangelogError) as error:
        writer_with(None).append(COMMIT_REQUEST)
    assert not isinstance(error.value, ProducerFencedError)


class ConnectingClient:
    """Notes the calls that it gets."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def list_topics(self, timeout: float) -> None:
        assert 0 <= timeout <= 5
        self.calls.append("list_topics")

    def init_transactions(self, timeout: float) -> None:
        assert 0 <= timeout <= 5
        self.calls.append("init_transactions")


def writer_over(client: ConnectingClient, transactional_id: str | None) -> KafkaWriter:
    cluster: Any = SimpleNamespace(
        timeout_s=5.0,
        client=lambda *arguments: client,
        asked=lambda doing, ask, **ways: ask(5.0),
        settings=SimpleNamespace(value=lambda name, default: default),
    )
    groups: Any = None
    return KafkaWriter(cluster, groups, transactional_id)


@pytest.mark.parametrize(
    ("transactional_id", "calls"), [("one", ["list_topics", "list_topics", "init_transactions"]), (None, [])]
)
def test_the_client_has_a_lasting_connection_before_it_asks_for_its_coordinator(
    transactional_id: str | None, calls: list[str]
) -> None:
    client = ConnectingClient()
    writer_over(client, transactional_id)
    assert client.calls == calls
