"""A member of a consumer group that is silent for too long: its partitions may have another owner by then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from stores.changelog.group import GroupMember
from stores.changelog.kafka import KafkaChangelog, group_member
from stores.changelog.kafka.client import ClientSettings
from stores.changelog.kafka.group_member import KafkaGroupMember, _settings_of_protocol
from stores.changelog.kafka.testing.broker import Broker
from stores.errors import ChangelogError, ConfigError, StoreError
from stores.interface import TopicPartition
from stores.tests.kafka.fresh import remove_all
from stores.tests.kafka.test_cluster import Clock

ALL = {TopicPartition("a", 0), TopicPartition("a", 1)}
SILENCE_MS = 5_000
POLLS_MAX = 12_000
A_0 = confluent_kafka.TopicPartition("a", 0)


class Listener:
    """Keeps the calls."""

    def __init__(self) -> None:
        self.held: set[TopicPartition] = set()
        self.calls: list[str] = []
        self.member: Any = None
        self.in_commits: list[bool] = []
        """For each call that takes partitions away, whether commits may have their offsets meanwhile."""

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        self.held |= set(partitions)
        self.calls.append("assign")

    def revoke(self, partitions: Collection[TopicPartition]) -> None:
        self.held -= set(partitions)
        self.calls.append("revoke")
        self.in_commits.append(set(partitions) <= self.member._held)

    def lose(self, partitions: Collection[TopicPartition]) -> None:
        self.held -= set(partitions)
        self.calls.append("lose")
        self.in_commits.append(bool(set(partitions) & self.member._held))


def poll_until(member: GroupMember, happened: Callable[[], bool]) -> None:
    for _ in range(POLLS_MAX):
        member.poll(0.05)
        if happened():
            return
    raise AssertionError("it did not happen")


@pytest.mark.kafka
def test_a_member_that_was_silent_for_too_long_loses_its_partitions_without_a_commit_and_joins_again(
    broker: Broker,
) -> None:
    """Source: KIP-429, ``onPartitionsLost``; KIP-62, ``max.poll.interval.ms``."""
    remove_all(broker)
    settings = {
        "bootstrap.servers": broker.address,
        "max.poll.interval.ms": SILENCE_MS,
        "session.timeout.ms": SILENCE_MS,
        "heartbeat.interval.ms": 200,
    }
    listener = Listener()
    with KafkaChangelog(settings) as log:
        log.create_topic("a", len(ALL))
        with log.join_group("app", ["a"], listener, fingerprint="f", session_timeout_s=SILENCE_MS / 1000) as member:
            listener.member = member
            poll_until(member, lambda: listener.held == ALL)
            before = len(listener.calls)
            time.sleep(2 * SILENCE_MS / 1000)
            poll_until(member, lambda: len(listener.calls) > before)
            assert listener.calls[before] == "lose"
            poll_until(member, lambda: listener.held == ALL)
            assert member._held == ALL
    assert listener.calls[-1] == "revoke"
    assert listener.in_commits == [call == "revoke" for call in listener.calls if call != "assign"]


@pytest.mark.kafka
def test_offsets_of_a_partition_that_has_moved_are_in_no_more_commits(broker: Broker) -> None:
    """While it is released they are: its task commits then. Source: KIP-447."""
    remove_all(broker)
    listeners = Listener(), Listener()
    settings = {"bootstrap.servers": broker.address, "heartbeat.interval.ms": 200}
    with KafkaChangelog(settings) as log, ExitStack() as resources:
        log.create_topic("a", len(ALL))

        def join(listener: Listener) -> None:
            listener.member = resources.enter_context(
                log.join_group("app", ["a"], listener, fingerprint="f", session_timeout_s=60)
            )

        def poll_all() -> None:
            for each in listeners:
                if each.member is not None:
                    each.member.poll(0.05)

        first, second = listeners
        join(first)
        poll_until(first.member, lambda: first.held == ALL)
        join(second)
        for _ in range(POLLS_MAX):
            poll_all()
            if len(first.held) == len(second.held) == 1:
                break
        assert first.held | second.held == ALL
        assert [each.member._held for each in listeners] == [first.held, second.held]
        assert first.in_commits == [True]


def test_only_members_get_the_protocol_of_groups() -> None:
    given = {
        "bootstrap.servers": "h:1",
        "group.protocol": "consumer",
        "group.remote.assignor": "range",
        "client.id": "c",
    }
    settings = ClientSettings(given)
    assert settings.with_own({"group.id": "g"}) == {"bootstrap.servers": "h:1", "client.id": "c", "group.id": "g"}
    of_member = _settings_of_protocol(settings, 45.0, None)
    assert of_member == {"group.protocol": "consumer", "group.remote.assignor": "range"}
    assert settings.with_own(of_member) == given


@pytest.mark.parametrize(
    ("given", "needs"),
    [
        ({"group.protocol": "CONSUMER"}, "group.protocol=classic"),
        ({"group.remote.assignor": "uniform"}, "group.protocol=consumer"),
    ],
)
def test_settings_of_groups_that_exclude_each_other_are_refused(given: dict[str, str], needs: str) -> None:
    settings = ClientSettings({"bootstrap.servers": "h:1", **given})
    with pytest.raises(ConfigError, match=needs):
        _settings_of_protocol(settings, 45.0, "name of a member")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_has_not_joined_before_the_brokers_have_answered(protocol: str) -> None:
    """With the protocol ``consumer`` the client makes its ID itself (KIP-848)."""
    client = confluent_kafka.Consumer(
        {"bootstrap.servers": "127.0.0.1:1", "group.id": "g/workers", "group.protocol": protocol, "log_level": 0}
    )
    client.subscribe(["a"])
    member: Any = object.__new__(KafkaGroupMember)
    member._cluster, member._consumer = SimpleNamespace(check_open=lambda: None), client
    member._group, member._members_group, member._name = "g", "g/workers", None
    member._next_look_s = float("inf")
    for _ in range(5):
        member._poll(0.05)
    assert bool(client.memberid()) == (protocol == "consumer")
    assert not member.has_joined
    client.close()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "ConsumerGroupHeartbeat fatal error: Broker: The assignor is not supported by the consumer group",
            ConfigError,
        ),
        ("Local: Fatal error: another reason", ChangelogError),
    ],
)
def test_only_a_member_that_brokers_refuse_to_assign_partitions_has_settings_to_change(
    text: str, kind: type[StoreError]
) -> None:
    cluster: Any = SimpleNamespace(
        settings=ClientSettings({"bootstrap.servers": "h:1"}), failure=lambda error, doing: ChangelogError(doing)
    )
    member: Any = object.__new__(KafkaGroupMember)
    member._cluster, member._group = cluster, "g"
    failure = member._failure(KafkaError(KafkaError._FATAL, text, fatal=True))
    assert type(failure) is kind
    assert ("group.remote.assignor" in str(failure)) == (kind is ConfigError)


@pytest.mark.parametrize(
    ("session_timeout_s", "given", "expected_ms"),
    [(45.0, {}, 500), (0.9, {}, 300), (45.0, {"heartbeat.interval.ms": 7}, 7)],
)
def test_a_member_learns_of_a_rebalance_within_half_a_second_unless_the_user_says_otherwise(
    session_timeout_s: float, given: dict[str, int], expected_ms: int
) -> None:
    settings: list[dict[str, Any]] = []
    consumer = SimpleNamespace(subscribe=lambda topics, **calls: None)

    def client(kind: object, own: dict[str, Any]) -> Any:
        settings.append(own)
        return consumer

    cluster: Any = SimpleNamespace(
        client=client,
        asked=lambda doing, ask: SimpleNamespace(members=[]),
        settings=SimpleNamespace(value=given.get),
    )
    KafkaGroupMember(cluster, "group", ["a"], Listener(), "f", session_timeout_s)
    assert settings[-1]["heartbeat.interval.ms"] == expected_ms


class MemberClient:
    """A client of a group, which knows brokers or not. It never answers its end."""

    def __init__(self) -> None:
        self.knows_brokers = True
        self.failure: KafkaError | None = None
        self.looks = 0
        self.generation = b"\0\0\0\1"
        self.left: list[Any] = []
        self.closing = threading.Event()

    def subscribe(self, topics: list[str], **calls: Any) -> None:
        self.topics, self.calls = topics, calls

    def list_topics(self, topic: str, timeout: float) -> Any:
        assert (topic, timeout) == ("a", 0.5)
        self.looks += 1
        if self.failure is not None:
            raise KafkaException(self.failure)
        return SimpleNamespace(brokers={1: "a broker"} if self.knows_brokers else {})

    def assignment(self) -> list[Any]:
        return [A_0]

    def incremental_assign(self, partitions: list[Any]) -> None:
        """It takes them."""

    pause = incremental_assign

    def incremental_unassign(self, partitions: list[Any]) -> None:
        self.left += partitions

    def poll(self, wait_s: float) -> None:
        """There is nothing."""

    def memberid(self) -> str:
        return "m"

    def consumer_group_metadata(self) -> bytes:
        return self.generation + b"g/workers\0"

    def close(self) -> None:
        self.closing.wait()


class Group(NamedTuple):
    """A member over clients that the test answers for."""

    member: KafkaGroupMember
    listener: Listener
    clients: list[MemberClient]
    clock: Clock

    def look(self) -> None:
        self.clock.sleep(group_member.BROKERS_LOOK_S)
        self.member._poll(0)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Group]]:
    """A call that returns a member, which has partition a-0. The brokers answer other clients or not."""
    monkeypatch.setattr("stores.changelog.kafka.client.GRACE_S", 0.0)
    clock = Clock()
    monkeypatch.setattr(group_member, "time", clock)
    clients: list[MemberClient] = []

    def client(kind: object, own: dict[str, Any]) -> MemberClient:
        clients.append(MemberClient())
        if len(clients) > 1:
            clients[-1].generation = b"\xff\xff\xff\xff"
        return clients[-1]

    def join(others_answer: bool = True) -> Group:
        cluster: Any = SimpleNamespace(
            client=client,
            asked=lambda doing, ask: SimpleNamespace(members=[]),
            answers=lambda timeout_s: others_answer and timeout_s == 0.5,
            check_open=lambda: None,
            settings=ClientSettings({"bootstrap.servers": "h:1"}),
        )
        listener = Listener()
        listener.member = member = KafkaGroupMember(cluster, "g", ["a"], listener, "f", 45.0)
        clients[0].calls["on_assign"](clients[0], [A_0])
        return Group(member, listener, clients, clock)

    yield join
    for each in clients:
        each.closing.set()


@pytest.mark.parametrize(
    ("knows", "others_answer", "joins_at"),
    [
        ([True] * 8, True, None),
        ([False] * 8, False, None),
        ([False, False, True, False, False, True, False, False], True, None),
        ([True, False, False, False, True], True, 3),
    ],
    ids=["it knows brokers", "nobody does", "not for long", "others do"],
)
def test_a_member_joins_again_with_another_client_if_only_its_own_knows_no_broker(
    joined: Callable[..., Group], knows: list[bool], others_answer: bool, joins_at: int | None
) -> None:
    """Source: librdkafka, issue 5301."""
    group = joined(others_answer)
    clients, listener = group.clients, group.listener
    for number, each in enumerate(knows):
        clients[-1].knows_brokers = each
        group.look()
        assert (len(clients) == 2) == (joins_at is not None and number >= joins_at)
    if joins_at is not None:
        assert listener.calls == ["assign", "lose"]
        assert clients[0].left == [A_0]
        assert clients[1].topics == ["a"]


@pytest.mark.parametrize(("name", "num_clients"), [("_TRANSPORT", 2), ("_TIMED_OUT", 1)])
def test_a_client_whose_broker_is_silent_knows_a_broker_and_one_without_a_connection_does_not(
    joined: Callable[..., Group], name: str, num_clients: int
) -> None:
    """One broker of several may hang, and others, such as the coordinator of the group, answer.

    Source: librdkafka, ``rd_kafka_metadata``.
    """
    group = joined()
    group.clients[0].failure = KafkaError(getattr(KafkaError, name))
    for _ in range(4):
        group.look()
    assert len(group.clients) == num_clients


@pytest.mark.parametrize("call", ["on_assign", "on_revoke", "on_lost"])
@pytest.mark.parametrize("ends", ["replaced", "closed"])
def test_a_client_that_was_replaced_or_closed_tells_the_listener_nothing(
    joined: Callable[..., Group], ends: str, call: str
) -> None:
    """Its end may take long, and goes on in another thread. Others may have the partitions, or the member again."""
    group = joined()
    first, other = group.clients[0], confluent_kafka.TopicPartition("a", 1)
    if ends == "closed":
        group.clock.sleep(1)
        first.closing.set()
        group.member.close()
    else:
        first.knows_brokers = False
        for _ in range(3):
            group.look()
        group.clients[1].calls["on_assign"](group.clients[1], [A_0])
    calls, held = [*group.listener.calls], group.member._held
    assert calls == (["assign", "revoke"] if ends == "closed" else ["assign", "lose", "assign"])
    first.calls[call](first, [other if call == "on_assign" else A_0])
    assert group.listener.calls == calls
    assert group.member._held == held


def test_a_member_looks_for_brokers_each_five_seconds(joined: Callable[..., Group]) -> None:
    group = joined()
    looks = []
    for _ in range(12):
        group.clock.sleep(1)
        group.member._poll(0)
        looks.append(group.clients[0].looks)
    assert looks == [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2]


def test_a_member_that_joins_again_has_not_joined_and_its_client_gets_its_own_time(
    joined: Callable[..., Group],
) -> None:
    group = joined()
    numbers, have_joined = [], []
    for _ in range(6):
        group.clients[-1].knows_brokers = False
        group.look()
        numbers.append(len(group.clients))
        have_joined.append(group.member.has_joined)
    assert numbers == [1, 1, 2, 2, 2, 3]
    assert have_joined == [True, True, False, False, False, False]


def test_a_replaced_client_is_not_waited_for_and_the_last_one_for_ten_seconds(
    joined: Callable[..., Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[tuple[object, float]] = []
    monkeypatch.setattr(group_member, "returns_in_time", lambda call, timeout_s: ends.append((call, timeout_s)))
    group = joined()
    group.clients[0].knows_brokers = False
    for _ in range(3):
        group.look()
    group.member.close()
    group.member.close()
    first, second = group.clients
    assert ends == [(first.close, 0), (second.close, 10)]


def test_a_client_that_has_failed_for_good_is_closed(
    joined: Callable[..., Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise KafkaException(KafkaError(KafkaError._FATAL))

    group = joined()
    monkeypatch.setattr(group.clients[0], "close", fail)
    group.member.close()
    assert group.listener.calls == ["assign", "revoke"]


def test_partitions_that_are_lost_are_in_no_commit_and_neither_is_the_generation(
    joined: Callable[..., Group],
) -> None:
    """Source: KIP-447."""
    group = joined()
    first = group.clients[0]
    group.member._metadata = first.consumer_group_metadata()
    group.member.begin([TopicPartition("a", 0)])
    first.calls["on_lost"](first, [A_0])
    assert group.listener.calls == ["assign", "lose"]
    assert group.listener.in_commits == [False]
    assert group.member._metadata is None
    assert first.left == [A_0]
