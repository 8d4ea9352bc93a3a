"""A broker answers that there are no brokers, and the connection ends: as of the last one that stops in order.

A client of librdkafka may then know no broker any more, and ask none again. A proxy takes the brokers out of the
answers. Source: librdkafka, issue 5301; Kafka's protocol guide, "Metadata Response (Version: 12)".
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import confluent_kafka
import pytest
from confluent_kafka import KafkaException

from harness.experiments.broker_faults.network_proxy import NetworkProxy, Side
from harness.tests.test_network_proxy import connected, echo, received  # noqa: F401
from stores.changelog.group import GroupMember
from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.broker import Broker, BrokerListener
from stores.interface import IsolationLevel, TopicPartition
from stores.tests.kafka.counting import KEYS, RECORDS_PER_COMMIT, committed_outputs, prepared, task_over
from stores.tests.kafka.fresh import fresh_changelog
from stores.tests.kafka.shared_broker import FOLDER, skip_without_kafka
from stores.tests.kafka.test_cluster import Clock
from stores.tests.tasks.setup import INPUT, expected_outputs, expected_state

_METADATA = 3
_FLEXIBLE = 9
"""The first version of the answer whose arrays and texts are compact, which ``without_brokers`` reads."""
_BEFORE_BROKERS = 4 + 4 + 1 + 4
"""The bytes before the array of brokers: size, correlation ID, no tagged fields, the time of a quota's pause."""
DEADLINE_S = 600.0
ROUNDS = 2
SESSION_S = 6.0
PARTITIONS = [TopicPartition("a", 0), TopicPartition("a", 1)]


def without_brokers(answer: bytes) -> bytes:
    """Return an answer to a request for metadata with an empty array of brokers."""
    end = _BEFORE_BROKERS + 1
    for _ in range(answer[_BEFORE_BROKERS] - 1):
        end += 4  # The ID of the node.
        end += answer[end]  # Its host: the number of bytes and one more, and the bytes.
        end += 4  # Its port.
        end += max(answer[end], 1) + 1  # Its rack, which may be missing, and no tagged fields.
    rest = answer[4:_BEFORE_BROKERS] + b"\1" + answer[end:]
    return struct.pack(">i", len(rest)) + rest


class ForgettingProxy(NetworkProxy):
    """A proxy that takes the brokers out of answers while it ``hides`` them, and cuts the connection after each."""

    def __init__(self) -> None:
        self.hides = False
        self.hidden = 0
        """The number of answers whose brokers were taken out."""
        self._pieces: dict[Side, bytes] = {}
        self._asked: dict[Side, set[int]] = {}
        """The requests for metadata that the broker is to answer, by the correlation ID."""
        super().__init__()

    def _read(self, side: Side) -> None:
        before = self.hidden
        super()._read(side)
        if self.hidden > before:
            self._drop(side)

    def _passed(self, side: Side, piece: bytes) -> bytes:
        rest, passed = self._pieces.get(side, b"") + piece, b""
        while len(rest) >= 4 and len(rest) >= (size := 4 + struct.unpack_from(">i", rest)[0]):
            passed += self._message(side, rest[:size])
            rest = rest[size:]
        self._pieces[side] = rest
        return passed

    def _message(self, side: Side, message: bytes) -> bytes:
        if side.is_client:
            _, api_key, version, correlation_id = struct.unpack_from(">ihhi", message)
            if api_key == _METADATA and version >= _FLEXIBLE:
                self._asked.setdefault(side.other, set()).add(correlation_id)
            return message
        [correlation_id] = struct.unpack_from(">i", message, 4)
        if not self.hides or correlation_id not in self._asked.get(side, ()):
            return message
        self.hidden += 1
        return without_brokers(message)

    def _forget(self, side: Side) -> None:
        self._pieces.pop(side, None)
        self._asked.pop(side, None)
        super()._forget(side)

    def hide(self, work: Callable[[], object]) -> None:
        """Cut all connections, and answer that there are no brokers; meanwhile call ``work`` for a while.

        It is long enough for each client to connect again, and to get such an answer.
        """
        self.hides = True
        self.cut()
        ends = time.monotonic() + 3
        while time.monotonic() < ends:
            work()
        self.hides = False


class Site(NamedTuple):
    """A broker, and a proxy through which clients reach it."""

    broker: Broker
    proxy: ForgettingProxy

    def settings(self, **more: str) -> dict[str, str | int]:
        return {"bootstrap.servers": f"127.0.0.1:{self.proxy.port}", "reconnect.backoff.max.ms": 100, **more}


BROKERS = (
    b"\0\0\0\x07" + b"\x04one" + b"\0\0\x23\x84" + b"\0" + b"\0"  # Without a rack.
    b"\0\0\0\x08" + b"\x06other" + b"\0\0\x23\x85" + b"\x05left" + b"\0"
)
CLUSTER = b"\x08cluster" + b"\0\0\0\x07" + b"\x01" + b"\0"
"""Its ID and controller, no topics, no tagged fields."""


def message(*fields: bytes) -> bytes:
    return struct.pack(">i", len(b"".join(fields))) + b"".join(fields)


def exchanged(api_key: int, version: int, brokers: bytes) -> bytes:
    """Return a request that is also the answer to it: the key and the version are the correlation ID, too."""
    kind = struct.pack(">hh", api_key, version)
    return message(kind, kind, b"\0", brokers, CLUSTER)


METADATA = exchanged(3, 9, b"\x03" + BROKERS)
HIDDEN = exchanged(3, 9, b"\x01")


@pytest.mark.parametrize("brokers", [b"\x03" + BROKERS, b"\x02" + BROKERS[:14], b"\x01"])
def test_an_answer_keeps_all_but_its_brokers(brokers: bytes) -> None:
    """Source: Kafka's protocol guide, "Metadata Response (Version: 12)"."""
    before = b"\0\0\0\x2a" + b"\0" + b"\0\0\0\x05"  # The correlation ID, no tagged fields, a pause.
    assert without_brokers(message(before, brokers, CLUSTER)) == message(before, b"\x01", CLUSTER)


def passed_of_broker(proxy: ForgettingProxy, request: bytes, answer: bytes, piece_bytes: int) -> bytes:
    """Return what the proxy passes to a client that has sent a request, of an answer in pieces."""
    with socket.socket() as one, socket.socket() as two:
        client, broker = Side(one, is_client=True), Side(two, is_client=False)
        client.other, broker.other = broker, client
        assert proxy._passed(client, request) == request
        pieces = [answer[begin : begin + piece_bytes] for begin in range(0, len(answer), piece_bytes)]
        return b"".join(proxy._passed(broker, piece) for piece in pieces)


@pytest.mark.parametrize("piece_bytes", [1, 3, 4, 5, 13, 14, 1000])
def test_the_proxy_empties_answers_about_brokers_while_it_hides_them_wherever_pieces_end(piece_bytes: int) -> None:
    with ForgettingProxy() as proxy:
        assert passed_of_broker(proxy, METADATA, METADATA * 2, piece_bytes) == METADATA * 2
        assert proxy.hidden == 0
        proxy.hides = True
        assert passed_of_broker(proxy, METADATA, METADATA * 2, piece_bytes) == HIDDEN * 2
        assert proxy.hidden == 2


@pytest.mark.parametrize(("api_key", "version"), [(3, 8), (2, 9), (4, 12)])
def test_other_answers_pass_as_they_are(api_key: int, version: int) -> None:
    """Those of earlier versions have another form."""
    other = exchanged(api_key, version, b"\x03" + BROKERS)
    with ForgettingProxy() as proxy:
        proxy.hides = True
        assert passed_of_broker(proxy, other, other, 1000) == other
        assert passed_of_broker(proxy, other, METADATA, 1000) == METADATA
        assert proxy.hidden == 0


def test_a_connection_ends_after_an_answer_without_brokers_and_only_after_such_a_one(
    echo: tuple[int, list[bytes]],  # noqa: F811
) -> None:
    port, _ = echo
    other = exchanged(2, 9, b"")
    with ForgettingProxy() as proxy:
        proxy.target = port
        proxy.hides = True
        with connected(proxy) as one:
            one.sendall(other)
            assert received(one, len(other)) == other
            one.sendall(METADATA)
            assert received(one, len(METADATA)) == HIDDEN  # And the end of the connection.
        assert not proxy._asked
        assert not proxy._pieces
        proxy.hides = False
        with connected(proxy) as one:
            for _ in range(2):
                one.sendall(METADATA)
                assert received(one, len(METADATA)) == METADATA


def test_brokers_are_hidden_for_three_seconds_from_clients_that_connect_again(
    echo: tuple[int, list[bytes]],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port, _ = echo
    clock = Clock()
    monkeypatch.setattr(sys.modules[__name__], "time", clock)
    hides: list[bool] = []
    with ForgettingProxy() as proxy, ExitStack() as ends:
        proxy.target = port
        one = ends.enter_context(connected(proxy))
        one.sendall(METADATA)
        assert received(one, len(METADATA)) == METADATA

        def work() -> None:
            hides.append(proxy.hides)
            clock.sleep(1)

        proxy.hide(work)
        assert (hides, proxy.hides) == ([True] * 3, False)
        with pytest.raises(ConnectionResetError):
            received(one, 1)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    skip_without_kafka()
    with TemporaryDirectory(prefix="kafka-") as data, ForgettingProxy() as proxy:
        listener = BrokerListener("OUTSIDE", advertised_port=proxy.port)
        with Broker(Path(data), FOLDER, listeners=[listener]) as broker:
            proxy.target = broker.ports["OUTSIDE"]
            yield Site(broker, proxy)


class Listener:
    """The partitions of a member."""

    def __init__(self) -> None:
        self.held: set[TopicPartition] = set()

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        self.held |= set(partitions)

    def revoke(self, partitions: Collection[TopicPartition]) -> None:
        self.held -= set(partitions)

    lose = revoke


def knows_a_broker(client: confluent_kafka.Consumer) -> bool:
    try:
        client.list_topics(timeout=5)
    except KafkaException:
        return False
    return True


@pytest.mark.kafka
def test_a_bare_client_is_lost(site: Site) -> None:
    """The control: this fault is one."""
    with fresh_changelog(site.broker) as log:
        log.create_topic("a")
    deadline = time.monotonic() + DEADLINE_S
    is_lost = False
    while not is_lost:
        assert time.monotonic() < deadline, "no client has lost its broker"
        clients = [confluent_kafka.Consumer(site.settings(**{"group.id": "bare", "log_level": "0"})) for _ in range(4)]
        for each in clients:
            each.assign([confluent_kafka.TopicPartition("a", 0)])
            each.list_topics(timeout=DEADLINE_S)
        site.proxy.hide(lambda clients=clients: [each.poll(0.02) for each in clients])  # type: ignore[misc]
        is_lost = not all(map(knows_a_broker, clients))
        for each in clients:
            each.close()


@pytest.mark.kafka
def test_a_task_is_exactly_once_across_it(site: Site, tmp_path: Path) -> None:
    """Its readers, its producer, and what asks for topics and offsets have clients of their own."""
    prepared(tmp_path, site.broker)
    settings = site.settings()
    (tmp_path / "address").write_text(str(settings["bootstrap.servers"]))
    with KafkaChangelog(settings, timeout_s=DEADLINE_S) as log, task_over(tmp_path, log) as task:
        for done in range(0, len(KEYS), RECORDS_PER_COMMIT):
            if done:
                site.proxy.hide(lambda: time.sleep(0.05))
            assert task.run(max_records=RECORDS_PER_COMMIT, commit=True) == RECORDS_PER_COMMIT
            assert log.committed_offsets("app", [INPUT]) == {INPUT: done + RECORDS_PER_COMMIT}
            log.create_topic(f"topic-{done}", 2)
        for name in ("left", "right"):
            with task.store(name, IsolationLevel.READ_COMMITTED).all() as pairs:
                assert dict(pairs) == expected_state(KEYS)
    assert committed_outputs(tmp_path, len(KEYS)) == expected_outputs(KEYS)


@pytest.mark.kafka
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_shares_partitions_after_it(site: Site, protocol: str) -> None:
    """It takes part in the next rebalances: another one joins and leaves."""
    with fresh_changelog(site.broker) as log:
        log.create_topic("a", len(PARTITIONS))
    with KafkaChangelog(site.settings(**{"group.protocol": protocol}), timeout_s=DEADLINE_S) as log:

        def joined() -> tuple[GroupMember, Listener]:
            listener = Listener()
            return log.join_group("app", ["a"], listener, fingerprint="f", session_timeout_s=SESSION_S), listener

        def poll_until_shared(*members: tuple[GroupMember, Listener]) -> None:
            deadline = time.monotonic() + DEADLINE_S
            while sorted(each for _, listener in members for each in listener.held) != PARTITIONS or not all(
                listener.held for _, listener in members
            ):
                assert time.monotonic() < deadline
                for member, _ in members:
                    member.poll(0.05)

        first = joined()
        with first[0]:
            for _ in range(ROUNDS):
                poll_until_shared(first)
                site.proxy.hide(lambda: first[0].poll(0.05))
                second = joined()
                with second[0]:
                    poll_until_shared(first, second)
