"""The questions for committed offsets: about the inputs of a task, and nothing else of the cluster."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from stores.changelog.interface import Committed
from stores.changelog.kafka import group_offsets
from stores.changelog.kafka.group_member import ASK_S, GroupMembers, check_members
from stores.changelog.kafka.group_offsets import CLIENTS, COORDINATOR_S, OPEN_COMMIT_S, GroupOffsets
from stores.changelog.kafka.producer import KafkaSharedProducer
from stores.changelog.kafka.testing.broker import Broker
from stores.errors import ChangelogError, ChangelogTimeoutError, StoreClosedError
from stores.interface import TopicPartition
from stores.tests.kafka.counting import KEYS, changelog, prepared, task_over
from stores.tests.tasks.setup import INPUT


@pytest.mark.kafka
def test_a_task_asks_for_the_committed_offsets_of_its_inputs_and_changelogs_only(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster may have thousands of topics, and the client may lack the right to see those of others."""
    questions: set[tuple[str, int]] = set()
    committed = group_offsets._committed

    def noted(consumer: Any, partitions: Any, timeout_s: float) -> Committed:
        questions.update((partition.topic, partition.partition) for partition in partitions)
        return committed(consumer, partitions, timeout_s)

    monkeypatch.setattr(group_offsets, "_committed", noted)
    prepared(tmp_path, broker)
    with changelog(tmp_path) as log:
        log.create_topic("of-others", 3)
        with task_over(tmp_path, log) as task:
            task.run(commit=True)
        assert questions == {INPUT, *(TopicPartition(f"app-{name}-changelog", 0) for name in ("left", "right"))}
        assert log.committed_offsets("app") == log.committed_offsets("app", [INPUT]) == {INPUT: len(KEYS)}
        assert log.committed_offsets("app", [TopicPartition("of-others", 1)]) == {}


@pytest.mark.kafka
def test_clients_of_many_groups_are_closed_again(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task asks a group of its own for each store with windows, and a client has threads and connections."""
    open_clients: set[int] = set()
    most = 0

    class Counted(confluent_kafka.Consumer):
        def __init__(self, settings: dict[str, Any]) -> None:
            nonlocal most
            super().__init__(settings)
            open_clients.add(id(self))
            most = max(most, len(open_clients))

        def close(self) -> None:
            open_clients.discard(id(self))
            super().close()

    prepared(tmp_path, broker)
    with changelog(tmp_path) as log:
        with task_over(tmp_path, log) as task:
            task.run(commit=True)
        monkeypatch.setattr(confluent_kafka, "Consumer", Counted)
        for number in range(12):
            assert log.committed_offsets(f"other-{number}", [INPUT]) == {}
            assert log.committed_offsets("app", [INPUT]) == {INPUT: len(KEYS)}
        assert most == CLIENTS  # The client of "app" is older, and is not counted.
    assert not open_clients


@pytest.mark.kafka
def test_threads_that_ask_the_same_group_have_a_client_each(tmp_path: Path, broker: Broker) -> None:
    prepared(tmp_path, broker)
    with changelog(tmp_path) as log:
        with task_over(tmp_path, log) as task:
            task.run(commit=True)
        with ThreadPoolExecutor(8) as threads:
            answers = [threads.submit(log.committed_offsets, "app", [INPUT]) for _ in range(40)]
            assert [each.result() for each in answers] == [{INPUT: len(KEYS)}] * 40


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        ("UNKNOWN_MEMBER_ID", ChangelogError),
        ("ILLEGAL_GENERATION", ChangelogError),
        ("COORDINATOR_LOAD_IN_PROGRESS", KafkaException),
        ("GROUP_AUTHORIZATION_FAILED", KafkaException),
    ],
)
def test_a_commit_into_a_group_with_members_is_an_error_and_others_are_decided_by_their_code(
    monkeypatch: pytest.MonkeyPatch, code: str, raised: type[Exception]
) -> None:
    """A transaction is tried again after the first two. Here they stay as long as the members do."""
    answers = [SimpleNamespace(error=None), SimpleNamespace(error=KafkaError(getattr(KafkaError, code)))]
    consumer = SimpleNamespace(commit=lambda **given: answers)
    cluster: Any = SimpleNamespace(asked=lambda doing, ask: ask(10.0))
    offsets = GroupOffsets(cluster)
    monkeypatch.setattr(offsets, "_consumer", lambda group: nullcontext(consumer))
    with pytest.raises(raised):
        offsets.commit("app", {INPUT: 1}, {})
    answers.pop()
    offsets.commit("app", {INPUT: 1}, {})


def test_the_end_of_an_own_commit_is_awaited_until_an_answer_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets before it are no answer then. Those of others, and of other partitions, are."""
    cluster: Any = SimpleNamespace(check_open=lambda: None)
    offsets, other = GroupOffsets(cluster), TopicPartition("other", 0)
    levels: list[str] = []
    on_question: list[Exception | None] = []

    def asked(doing: str, group: str, queried: object, level: str) -> Committed:
        levels.append(level)
        if on_question and (error := on_question.pop()) is not None:
            raise error
        if on_question == [None]:
            offsets.ended({"g": Committed({INPUT: 6}, {})})
        return Committed({}, {})

    monkeypatch.setattr(offsets, "_asked", asked)
    offsets.ended({"g": Committed({INPUT: 5}, {})})
    offsets.committed("h", [INPUT])
    offsets.committed("g", [other])
    assert levels == ["read_uncommitted"] * 2
    on_question.append(ChangelogTimeoutError("no answer"))
    with pytest.raises(ChangelogTimeoutError):
        offsets.committed("g", [INPUT])
    # Another commit ends during the question.
    on_question += [None, None]
    offsets.committed("g", [INPUT])
    on_question.clear()
    offsets.committed("g", [INPUT, other])
    offsets.committed("g", [INPUT])
    assert levels[2:] == ["read_committed"] * 3 + ["read_uncommitted"]


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_a_client_that_waits_too_long_for_the_end_of_a_commit_is_followed_by_one_of_the_level(
    monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    consumers: dict[str, Mock] = {}
    waits = KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def made(group: str, isolation_level: str) -> Mock:
        answer: object = [] if consumers else waits
        return consumers.setdefault(f"{len(consumers)} {isolation_level}", Mock(committed=Mock(side_effect=[answer])))

    cluster: Any = SimpleNamespace(asked=lambda doing, ask: ask(60.0))
    offsets = GroupOffsets(cluster)
    monkeypatch.setattr(offsets, "_new_consumer", made)
    assert offsets._asked("asking", "g", [], level) == Committed({}, {})
    assert [*consumers] == ["0 read_committed", f"1 {level}"]
    first, second = consumers.values()
    assert first.mock_calls == [call.committed([], timeout=OPEN_COMMIT_S), call.close()]
    assert second.mock_calls == [call.committed([], timeout=COORDINATOR_S), call.close()]


def test_an_error_that_stays_is_not_asked_about_again(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = Mock(committed=Mock(side_effect=KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))))
    cluster: Any = SimpleNamespace(asked=lambda doing, ask: ask(60.0))
    offsets = GroupOffsets(cluster)
    monkeypatch.setattr(offsets, "_new_consumer", lambda group, isolation_level: consumer)
    with pytest.raises(KafkaException):
        offsets._asked("asking", "g", [], "read_committed")
    assert consumer.committed.call_count == 1


def test_a_task_joins_a_transaction_before_the_end_of_earlier_ones_is_awaited() -> None:
    """From then on a commit of this member has its offsets only until the group takes the task away."""
    steps = Mock()
    steps.groups.is_fenced.return_value = True
    inputs = [TopicPartition("in", 0)]
    producer = KafkaSharedProducer(steps.make, steps.cluster, steps.groups, "of the thread", 5.0)
    steps.reset_mock()
    producer.join("of the task", "g", inputs)
    assert steps.mock_calls == [
        call.groups.is_fenced("g"),
        call.groups.begin("g", inputs),
        call.make("of the task", None),
        call.make().close(),
        call.groups.await_decided("g", inputs),
    ]


def test_the_question_for_the_members_of_a_group_ends_with_the_time_that_is_left() -> None:
    future = Mock()
    future.result.return_value.members = []
    admin = Mock()
    admin.describe_consumer_groups.return_value = {"g": future}
    cluster: Any = SimpleNamespace(client=lambda kind, own: admin, asked=lambda doing, ask: ask(3.0))
    check_members(cluster, "g", "fingerprint", fencing=False)
    assert [each.args for each in future.result.mock_calls] == [(3.0,)] * 2


def test_the_addresses_of_a_group_are_asked_for_a_bounded_time_and_of_an_open_changelog() -> None:
    future, admin = Mock(), Mock()
    future.result.return_value.members = []
    admin.describe_consumer_groups.return_value = {"g": future}
    cluster: Any = SimpleNamespace(client=lambda kind, own: admin, check_open=Mock())
    members = GroupMembers(cluster, "g", "mark")
    assert members.addresses() == {}
    assert future.result.call_args == call(ASK_S)
    cluster.check_open.side_effect = StoreClosedError("closed")
    with pytest.raises(StoreClosedError):
        members.addresses()


@pytest.mark.parametrize("failure", [TimeoutError(), KafkaException(KafkaError(KafkaError._TRANSPORT))])
def test_a_client_that_does_not_answer_for_members_is_dropped_and_does_not_give_up_itself(failure: Exception) -> None:
    """It would abort the process. Source: librdkafka, issue 4605."""
    future = Mock()
    clients = [Mock(), Mock()]
    for each in clients:
        each.describe_consumer_groups.return_value = {"g": future}
    made = iter(clients)
    cluster: Any = SimpleNamespace(
        client=lambda kind, own: next(made), check_open=Mock(), failure=lambda error, doing: ChangelogError(doing)
    )
    members = GroupMembers(cluster, "g", "mark")
    future.result.side_effect = failure
    with pytest.raises(ChangelogError):
        members.addresses()
    future.result.side_effect = None
    future.result.return_value.members = []
    for _ in range(2):
        assert members.addresses() == {}
    asked = call.describe_consumer_groups(["g"], request_timeout=3_600)
    assert [each.mock_calls for each in clients] == [[asked], [asked, asked]]


def test_a_late_failure_of_a_dropped_client_does_not_drop_the_next_one() -> None:
    slow, other = Mock(), Mock()
    clients = iter([slow, other])
    cluster: Any = SimpleNamespace(
        client=lambda kind, own: next(clients), check_open=Mock(), failure=lambda error, doing: ChangelogError(doing)
    )
    members = GroupMembers(cluster, "g", "mark")
    late, prompt, answer = Mock(), Mock(), Mock()
    slow.describe_consumer_groups.side_effect = [{"g": late}, {"g": prompt}]
    other.describe_consumer_groups.return_value = {"g": answer}
    prompt.result.side_effect = TimeoutError()
    answer.result.return_value.members = []

    def result(left_s: float) -> None:
        with pytest.raises(ChangelogError):
            members.addresses()
        assert members.addresses() == {}
        raise TimeoutError

    late.result.side_effect = result
    with pytest.raises(ChangelogError):
        members.addresses()
    assert members.addresses() == {}


def test_the_members_are_asked_for_ten_seconds_at_most() -> None:
    future = Mock()
    client = Mock()
    client.describe_consumer_groups.return_value = {"g": future}
    cluster: Any = SimpleNamespace(client=lambda kind, own: client, asked=lambda doing, ask: ask(60.0))
    GroupMembers(cluster, "g").described()
    future.result.assert_called_once_with(10.0)


def test_a_client_that_may_not_see_the_members_of_a_group_is_asked_again() -> None:
    """Each question would else take a connection of its own."""
    admin, future = Mock(), Mock()
    future.result.side_effect = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    admin.describe_consumer_groups.return_value = {"g": future}
    clients = iter([admin])
    cluster: Any = SimpleNamespace(
        client=lambda kind, own: next(clients), check_open=Mock(), failure=lambda error, doing: ChangelogError(doing)
    )
    members = GroupMembers(cluster, "g", "mark")
    for _ in range(2):
        with pytest.raises(ChangelogError):
            members.addresses()
    assert next(clients, None) is None
    assert admin.describe_consumer_groups.call_count == 2


def test_a_client_that_fails_to_answer_for_offsets_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have lost the brokers for good. Source: librdkafka, issue 5301."""
    answers = iter([KafkaError._TRANSPORT, None, None])
    asked: list[Any] = []

    def committed(consumer: Any, partitions: Any, timeout_s: float) -> Committed:
        asked.append(consumer)
        code = next(answers)
        if code is not None:
            raise KafkaException(KafkaError(code))
        return Committed({}, {})

    monkeypatch.setattr(group_offsets, "_committed", committed)
    cluster: Any = SimpleNamespace(
        client=lambda kind, own: Mock(), check_open=Mock(), asked=lambda doing, ask: ask(3.0)
    )
    groups = GroupOffsets(cluster)
    for _ in range(2):
        groups.committed("g", [INPUT])
    assert len({id(each) for each in asked}) == 3
    assert [each.close.called for each in asked] == [True, True, False]
    groups.close()


def test_a_client_that_is_refused_offsets_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    monkeypatch.setattr(group_offsets, "_committed", Mock(side_effect=refusal))
    client = Mock()
    clients = iter([client])
    cluster: Any = SimpleNamespace(
        client=lambda kind, own: next(clients), check_open=Mock(), asked=lambda doing, ask: ask(3.0)
    )
    groups = GroupOffsets(cluster)
    for _ in range(2):
        with pytest.raises(KafkaException):
            groups.committed("g", [INPUT])
    assert not client.close.called
    groups.close()


@pytest.mark.parametrize("behind", [b"", b"\xb7\x01", b"AAAA", b"!? "])
def test_what_the_client_shows_behind_the_end_of_metadata_is_left_out(behind: bytes) -> None:
    """The client takes the metadata of an offset as text that ends with a zero, which the broker's answer lacks."""

    class Entry:
        error, offset, topic, partition = None, 5, INPUT.topic, INPUT.partition

        @property
        def metadata(self) -> str:
            return (group_offsets._metadata(1_700_000_000_000).encode() + behind).decode()

    consumer = Mock(committed=Mock(return_value=[Entry()]))
    assert group_offsets._committed(consumer, [], 1.0) == Committed({INPUT: 5}, {INPUT: 1_700_000_000_000})
