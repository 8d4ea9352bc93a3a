"""The records of a partition, from the messages and events of a client in any order. No broker."""

from __future__ import annotations

from threading import Lock
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from stores.changelog.interface import Record
from stores.changelog.kafka import reader as module
from stores.changelog.kafka.changelog import KafkaChangelog
from stores.changelog.kafka.client import READ_AHEAD, ClientSettings
from stores.changelog.kafka.reader import KafkaPartitionReader
from stores.errors import ChangelogError, ChangelogTimeoutError, ConfigError, OffsetOutOfRangeError
from stores.interface import TopicPartition
from stores.tests.kafka.test_cluster import Clock

PARTITION = TopicPartition("t", 0)


class Client:
    """A client with the messages and events of ``queue``."""

    def __init__(self) -> None:
        self.queue: list[Message] = []
        self.assigned: list[int] = []

    def assign(self, partitions: list[Any]) -> None:
        self.assigned += [partition.offset for partition in partitions]

    def consume(self, count: int, timeout: float) -> list[Message]:
        messages, self.queue = self.queue[:count], self.queue[count:]
        return messages

    def poll(self, timeout: float) -> Message | None:
        return self.queue.pop(0) if self.queue else None

    def close(self) -> None:
        self.queue = []


class Cluster:
    """A cluster whose only partition ends at ``end``."""

    def __init__(self, end: int, **settings: int) -> None:
        self.timeout_s, self.end = 0.0, end
        self.settings = ClientSettings({"bootstrap.servers": "nowhere", **settings})
        self.made, self.own = Client(), dict[str, Any]()

    def client(self, _: object, own: dict[str, Any]) -> Client:
        self.own = own
        return self.made

    def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        return 0, self.end

    def written_end(self, partition: TopicPartition) -> int:
        return self.end

    def check_open(self) -> None:
        pass

    def failure(self, error: KafkaError, doing: str) -> ChangelogError:
        return ChangelogError(f"{doing}: {error.str()}")


def message(offset: int, headers: list[tuple[str, str | bytes | None]] | None = None) -> Message:
    return Message(
        topic="t", partition=0, offset=offset, key=b"%d" % offset, value=b"v", timestamp=(1, 7), headers=headers
    )


def record(offset: int) -> Record:
    return Record(offset, b"%d" % offset, b"v", 7, ())


def event(code: int, offset: int = 0) -> Message:
    return Message(topic="t", partition=0, offset=offset, error=KafkaError(code))


def read(cluster: Any) -> Any:
    """A changelog with one reader at a time, as far as reading needs one."""
    log = KafkaChangelog.__new__(KafkaChangelog)
    log.__dict__.update(_cluster=cluster, _lock=Lock(), _readers={}, _whole_topics=set(), _empty={}, _asked_at={})
    return log


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 3)


def test_records_come_in_order_and_the_last_ones_wait_for_the_next_read() -> None:
    cluster = Cluster(5)
    log = read(cluster)
    cluster.made.queue = [message(offset) for offset in range(8)]
    assert list(log.read(PARTITION)) == [record(offset) for offset in range(5)]
    cluster.end = 8
    assert list(log.read(PARTITION, 5)) == [record(offset) for offset in range(5, 8)]
    assert cluster.made.assigned == [0]


@pytest.mark.parametrize("taken", range(1, 8))
def test_a_read_that_stops_anywhere_is_continued_there_by_the_next_one(taken: int) -> None:
    cluster = Cluster(8)
    log = read(cluster)
    cluster.made.queue = [message(offset) for offset in range(8)]
    records = log.read(PARTITION)
    assert [next(records).offset for _ in range(taken)] == list(range(taken))
    records.close()
    assert list(log.read(PARTITION, taken)) == [record(offset) for offset in range(taken, 8)]
    assert cluster.made.assigned == [0]


def test_a_read_that_stops_keeps_what_came_from_behind_its_end() -> None:
    cluster = Cluster(2)
    log = read(cluster)
    cluster.made.queue = [message(offset) for offset in range(5)]
    scan = log.read(PARTITION)
    assert next(scan) == record(0)
    scan.close()
    cluster.end = 5
    assert list(log.read(PARTITION, 1)) == [record(offset) for offset in range(1, 5)]


def test_a_read_from_an_earlier_record_than_the_next_one_begins_there() -> None:
    cluster = Cluster(8)
    log = read(cluster)
    cluster.made.queue = [message(offset) for offset in range(8)]
    records = log.read(PARTITION)
    assert [next(records).offset for _ in range(2)] == [0, 1]
    records.close()
    cluster.made.queue = [message(offset) for offset in range(1, 8)]
    assert list(log.read(PARTITION, 1)) == [record(offset) for offset in range(1, 8)]
    assert cluster.made.assigned == [0, 1]


def test_gaps_before_the_end_are_passed_once_the_client_has_reached_the_end() -> None:
    cluster = Cluster(9)
    log = read(cluster)
    cluster.made.queue = [message(2), message(4), event(KafkaError._PARTITION_EOF, 9)]
    assert list(log.read(PARTITION)) == [record(2), record(4)]
    cluster.end = 12
    cluster.made.queue = [message(10), message(11)]
    assert list(log.read(PARTITION, 9)) == [record(10), record(11)]
    assert cluster.made.assigned == [0]


def test_an_end_between_records_loses_none_of_them() -> None:
    cluster = Cluster(6)
    cluster.made.queue = [message(1), event(KafkaError._PARTITION_EOF, 3), message(4), message(5)]
    assert list(read(cluster).read(PARTITION)) == [record(1), record(4), record(5)]


def test_records_before_an_error_are_delivered_before_it_is_raised() -> None:
    cluster = Cluster(9)
    log = read(cluster)
    cluster.made.queue = [message(0), message(1), event(KafkaError._AUTO_OFFSET_RESET), message(2)]
    records = log.read(PARTITION)
    assert [next(records).offset for _ in range(2)] == [0, 1]
    with pytest.raises(OffsetOutOfRangeError):
        next(records)
    # The next read has a reader of its own.
    cluster.made.queue = [message(offset) for offset in range(2, 9)]
    assert [each.offset for each in log.read(PARTITION, 2)] == list(range(2, 9))


def test_an_error_that_passes_is_no_end() -> None:
    cluster = Cluster(2)
    cluster.made.queue = [message(0), event(KafkaError._TRANSPORT), message(1)]
    assert list(read(cluster).read(PARTITION)) == [record(0), record(1)]


def test_headers_are_read_where_a_record_of_the_piece_has_some() -> None:
    cluster = Cluster(3)
    cluster.made.queue = [message(0), message(1, [("a", b"b")]), message(2)]
    with_headers = record(1)._replace(headers=(("a", b"b"),))
    assert list(read(cluster).read(PARTITION)) == [record(0), with_headers, record(2)]


def test_a_client_that_has_nothing_is_an_error_after_the_timeout() -> None:
    cluster: Any = Cluster(3)
    cluster.made.queue = [message(0)]
    pieces = KafkaPartitionReader(cluster, PARTITION, 0).pieces(3)
    assert list(next(pieces).records()) == [record(0)]
    with pytest.raises(ChangelogTimeoutError):
        next(pieces)


class SilentClient(Client):
    """A client that gives nothing. While it polls and is asked, time passes."""

    def __init__(self, clock: Clock, *, answers: bool) -> None:
        super().__init__()
        self.clock, self.answers = clock, answers
        self.asked_s: list[float] = []
        self.closed = False

    def poll(self, timeout: float) -> Message | None:
        self.clock.sleep(timeout)
        return super().poll(timeout)

    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        assert (partition.topic, partition.partition) == PARTITION
        self.asked_s.append(timeout)
        if self.answers:
            return 0, 3
        self.clock.sleep(timeout)
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def close(self) -> None:
        self.closed = True


def silent(monkeypatch: pytest.MonkeyPatch, *answers: bool) -> tuple[Any, list[SilentClient]]:
    """A cluster whose clients are silent, and those clients. They answer the question for offsets or not."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    clients = [SilentClient(clock, answers=each) for each in answers]
    made = iter(clients)
    cluster: Any = Cluster(3)
    cluster.timeout_s = 60.0
    monkeypatch.setattr(cluster, "client", lambda _, own: next(made))
    return cluster, clients


def test_a_silent_client_that_knows_no_offsets_is_replaced_and_read_from_the_same_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Source: librdkafka, issue 5301."""
    cluster, clients = silent(monkeypatch, False, False, True)
    clients[0].queue, clients[2].queue = [message(0)], [message(1), message(2)]
    reader = KafkaPartitionReader(cluster, PARTITION, 0)
    assert [each.offset for piece in reader.pieces(3) for each in piece.records()] == [0, 1, 2]
    assert [client.assigned for client in clients] == [[0], [1], [1]]
    assert [client.asked_s for client in clients] == [[5], [10], []]
    assert [client.closed for client in clients] == [True, True, False]


def test_a_silent_client_stays_if_there_can_be_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a certificate may be missing for a moment. The reader is kept for the next read."""
    cluster, [client] = silent(monkeypatch, False)
    reader = KafkaPartitionReader(cluster, PARTITION, 0)
    monkeypatch.setattr(cluster, "client", Mock(side_effect=ConfigError("a certificate is missing")))
    with pytest.raises(ConfigError):
        next(reader.pieces(1))
    assert not client.closed
    client.queue = [message(0)]
    assert next(reader.pieces(1)).offsets == [0]


def test_a_silent_client_that_knows_the_offsets_is_waited_for_until_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, [client] = silent(monkeypatch, True)
    reader = KafkaPartitionReader(cluster, PARTITION, 0)
    with pytest.raises(ChangelogTimeoutError):
        next(reader.pieces(3))
    assert client.asked_s == [5, 10, 20]
    assert not client.closed


@pytest.mark.parametrize(("timeout_s", "asked_s"), [(9.0, 3.5), (5.6, 0.5)])
def test_a_silent_client_is_asked_for_the_time_that_is_left_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, asked_s: float
) -> None:
    """A negative time is without end."""
    cluster, [client, _] = silent(monkeypatch, False, False)
    cluster.timeout_s = timeout_s
    reader = KafkaPartitionReader(cluster, PARTITION, 0)
    with pytest.raises(ChangelogTimeoutError):
        next(reader.pieces(3))
    assert client.asked_s == [pytest.approx(asked_s)]


def test_a_full_queue_is_filled_up_soon() -> None:
    """The client's default is a second, in which a task would have nothing to do."""
    cluster: Any = Cluster(3)
    KafkaPartitionReader(cluster, PARTITION, 0)
    assert cluster.own[module.REFILL] == module.REFILL_MS < 1_000


@pytest.mark.parametrize("name", [module.REFILL, READ_AHEAD, module.FETCH_WAIT])
def test_a_setting_of_the_caller_comes_before_the_default_of_a_reader(name: str) -> None:
    for settings, expected in (({}, False), ({name: 501}, True)):
        cluster: Any = Cluster(3, **settings)
        KafkaPartitionReader(cluster, PARTITION, 0, rests=True)
        assert (cluster.own[name] == 501) is expected
