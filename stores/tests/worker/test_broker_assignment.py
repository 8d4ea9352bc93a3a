"""Workers whose brokers assign the partitions (``group.protocol=consumer``). Source: KIP-848."""

from __future__ import annotations

from collections import Counter

import pytest

from stores.changelog.kafka.testing.broker import Broker
from stores.tests.worker.places import KafkaPlace, expected_counts
from stores.tests.worker.worker_process import IDLE, WorkerProcess
from stores.worker.__main__ import REFUSED

pytestmark = pytest.mark.kafka

FIRST = ["to", "be", "or", "not", "to", "be"] * 5
SECOND = ["whether", "to", "be", "is", "nobler"] * 4
NEVER = {"commit.interval.ms": "3600000"}


@pytest.fixture
def assigned_place(kafka_place: KafkaPlace, broker: Broker) -> KafkaPlace:
    return KafkaPlace(kafka_place.folder, broker.address, brokers_assign=True)


def own(name: str, place: KafkaPlace, settings: dict[str, str]) -> dict[str, str]:
    return {**place.properties(), "state.dir": str(place.folder / f"state-{name}"), **settings}


def finish(place: KafkaPlace, worker: WorkerProcess) -> None:
    place.feed(SECOND)
    place.await_counted(len(FIRST + SECOND))
    assert worker.terminate() == 0, worker.errors
    assert Counter(place.counted()) == expected_counts(FIRST + SECOND)


@pytest.mark.parametrize(
    ("dies_at", "settings"),
    [
        ("group.before_revoke", {}),
        ("changelog.after_commit", {"num.standby.replicas": "1"}),
        ("changelog.after_commit", {"transaction.scope": "thread"}),
    ],
)
def test_a_worker_killed_while_it_releases_tasks_repeats_and_loses_no_output(
    assigned_place: KafkaPlace, dies_at: str, settings: dict[str, str]
) -> None:
    place = assigned_place
    place.feed(FIRST)
    killed = own("first", place, {**settings, **NEVER})
    with WorkerProcess(place.folder, "first", killed, dies_at=dies_at, in_rebalance=True) as first:
        first.await_line(f"4 {IDLE}")
        with WorkerProcess(place.folder, "second", own("second", place, settings)) as second:
            assert first.ended() == -9, first.errors
            finish(place, second)


def test_the_protocol_is_changed_worker_by_worker(kafka_place: KafkaPlace, assigned_place: KafkaPlace) -> None:
    """A group has members of both protocols meanwhile. Source: KIP-848, "Supporting Online Consumer Group Upgrade"."""
    kafka_place.feed(FIRST)
    with WorkerProcess(kafka_place.folder, "older", own("older", kafka_place, {})) as older:
        older.await_line(f"4 {IDLE}")
        with WorkerProcess(assigned_place.folder, "newer", own("newer", assigned_place, {})) as newer:
            older.await_line("2 tasks")
            newer.await_line(f"2 {IDLE}")
            assert older.terminate() == 0, older.errors
            newer.await_line(f"4 {IDLE}")
            finish(assigned_place, newer)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"group.remote.assignor": "absent"}, "group.remote.assignor names an assignor that they have"),
        ({"group.instance.id": "one"}, "group.instance.id=one needs group.protocol=classic"),
        ({"heartbeat.interval.ms": "300"}, "`heartbeat.interval.ms` is not supported"),
    ],
)
def test_what_the_brokers_do_not_take_ends_the_worker(
    assigned_place: KafkaPlace, settings: dict[str, str], named: str
) -> None:
    assigned_place.feed(FIRST)
    with WorkerProcess(assigned_place.folder, "refused", {**assigned_place.properties(), **settings}) as worker:
        assert worker.ended() == REFUSED, worker.errors
        assert named in worker.errors
        assert "Traceback" not in worker.errors
