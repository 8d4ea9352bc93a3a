"""A broker that goes away and comes back costs a task time, and nothing else: at each step of a commit."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from confluent_kafka import KafkaError, KafkaException

from stores import failpoints
from stores.changelog.kafka import writer
from stores.changelog.kafka.client import returns_in_time
from stores.changelog.kafka.group_member import GroupMembers
from stores.changelog.kafka.testing.broker import Broker
from stores.errors import ChangelogTimeoutError, CommitInDoubtError
from stores.interface import IsolationLevel
from stores.tests.kafka.counting import KEYS, changelog, committed_outputs, prepared, task_over
from stores.tests.kafka.shared_broker import FOLDER, skip_without_kafka
from stores.tests.tasks.setup import expected_outputs, expected_state


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Broker]:
    """A broker that may be killed."""
    skip_without_kafka()
    with TemporaryDirectory(prefix="kafka-") as data, Broker(Path(data), FOLDER) as broker:
        yield broker


def once(action: Callable[[], object], hit: int) -> Callable[[], None]:
    """Return a function that calls ``action`` at its call number ``hit`` only."""
    left = hit

    def act() -> None:
        nonlocal left
        left -= 1
        if not left:
            action()

    return act


def check_counts(folder: Path) -> None:
    """Count the whole input in one task, across errors that ask for another call of ``run``; compare with the model."""
    with changelog(folder) as log, task_over(folder, log) as task:
        for _ in range(5):
            try:
                task.run(commit=True)
                break
            except CommitInDoubtError:
                continue
        for name in ("left", "right"):
            with task.store(name, IsolationLevel.READ_COMMITTED).all() as pairs:
                assert dict(pairs) == expected_state(KEYS)
    assert committed_outputs(folder, len(KEYS)) == expected_outputs(KEYS)


@pytest.mark.kafka
@pytest.mark.parametrize("end", [Broker.kill, Broker.stop], ids=["killed", "stopped"])
@pytest.mark.parametrize("failpoint", ["task.before_log_commit", "changelog.before_commit", "changelog.after_commit"])
def test_a_broker_that_restarts_in_a_commit_costs_time_only(
    tmp_path: Path, own_broker: Broker, failpoint: str, end: Callable[[Broker], None]
) -> None:
    """Source: KIP-572; KIP-588."""
    prepared(tmp_path, own_broker)

    def restart() -> None:
        end(own_broker)
        own_broker.start()

    failpoints.arm(failpoint, once(restart, hit=2))
    try:
        check_counts(tmp_path)
    finally:
        failpoints.disarm(failpoint)


@pytest.mark.kafka
def test_questions_for_members_survive_a_coordinator_that_is_away(tmp_path: Path, own_broker: Broker) -> None:
    """The process was aborted when it came back. Source: librdkafka, issue 4605."""
    prepared(tmp_path, own_broker)
    with changelog(tmp_path) as log:
        members = GroupMembers(log._cluster, "g", "mark")
        assert members.described().members == []
        own_broker.stop()
        for _ in range(2):
            with pytest.raises(ChangelogTimeoutError):
                members.addresses()
        own_broker.start()
        assert members.described().members == []


@pytest.mark.kafka
def test_a_client_whose_call_does_not_return_is_replaced_and_the_task_continues(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_path, broker)
    calls = 0

    def third_is_stuck(call: Callable[[], object], timeout_s: float, serve: Callable[[], object]) -> bool:
        nonlocal calls
        calls += 1
        return calls != 3 and returns_in_time(call, timeout_s, serve)

    monkeypatch.setattr(writer, "returns_in_time", third_is_stuck)
    check_counts(tmp_path)
    assert calls > 3


def join_calls() -> None:
    """Wait for the end of the threads that calls were left in, and of those that serve their clients."""
    for thread in threading.enumerate():
        if thread.name in ("kafka-call", "kafka-served"):
            thread.join(600)
            assert not thread.is_alive()


def test_a_call_that_does_not_return_is_left_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stores.changelog.kafka.client.GRACE_S", 0.0)
    never = threading.Event()
    try:
        assert not returns_in_time(never.wait, 0.01)
    finally:
        never.set()
    assert returns_in_time(lambda: None, 30)


def test_the_client_of_a_call_that_does_not_return_is_served_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its log takes memory, and ever more time. An error of the client changes nothing."""
    monkeypatch.setattr("stores.changelog.kafka.client.GRACE_S", 0.0)
    monkeypatch.setattr("stores.changelog.kafka.client.SERVED_EVERY_S", 0.0)
    never, served = threading.Event(), threading.Semaphore(0)

    def serve() -> None:
        served.release()
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    try:
        assert not returns_in_time(never.wait, 0.01, serve)
        for _ in range(3):
            assert served.acquire(timeout=600)
    finally:
        never.set()
    join_calls()


def test_a_client_whose_call_raises_after_its_deadline_is_let_go_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stores.changelog.kafka.client.GRACE_S", 0.0)
    monkeypatch.setattr("stores.changelog.kafka.client.SERVED_EVERY_S", 0.0)
    never = threading.Event()

    class Client:
        def call(self) -> None:
            never.wait()
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    client = Client()
    let_go = weakref.ref(client)
    gc.disable()
    try:
        assert not returns_in_time(client.call, 0.01, serve=lambda client=client: None)  # type: ignore[misc]
        del client
        never.set()
        join_calls()
        assert let_go() is None
    finally:
        gc.enable()


def test_a_call_that_raises_within_its_deadline_raises_here() -> None:
    def fail() -> None:
        raise KeyError("k")

    with pytest.raises(KeyError):
        returns_in_time(fail, 30)
