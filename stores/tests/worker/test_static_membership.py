"""Workers with names in their group: a restart keeps the tasks, and no two workers have one name. Source: KIP-345."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from stores.tests.worker.places import KafkaPlace, expected_counts
from stores.tests.worker.worker_process import IDLE, SESSION, WorkerProcess
from stores.worker.__main__ import REFUSED

pytestmark = pytest.mark.kafka

WORDS = ["to", "be", "or", "not", "to", "be"] * 5


@pytest.mark.parametrize("scope", ["task", "thread"])
def test_a_killed_worker_that_is_started_again_has_its_tasks_before_the_session_ends(
    kafka_place: KafkaPlace, scope: str
) -> None:
    place = kafka_place
    place.feed(WORDS)
    settings = {**place.properties(), **SESSION, "transaction.scope": scope}
    with WorkerProcess(place.folder, "other", {**settings, "group.instance.id": "other"}) as other:
        other.await_line(f"4 {IDLE}")
        properties = {**settings, "group.instance.id": "restarted"}
        with WorkerProcess(place.folder, "killed", properties) as dead_worker:
            dead_worker.await_line(f"2 {IDLE}")
            other.await_line(f"2 {IDLE}")
            balanced = len(other.errors)
            dead_worker.kill()
        with WorkerProcess(place.folder, "restarted", properties) as restarted:
            restarted.await_line(f"2 {IDLE}")
            place.feed(WORDS)
            place.await_counted(2 * len(WORDS))
            assert not re.search("[34] tasks", other.errors[balanced:])
            assert restarted.terminate() == 0, restarted.errors
        assert other.terminate() == 0, other.errors
    assert Counter(place.counted()) == expected_counts(WORDS * 2)


@pytest.mark.parametrize("scope", ["task", "thread"])
def test_of_two_workers_with_one_name_the_older_one_ends_with_an_error(kafka_place: KafkaPlace, scope: str) -> None:
    place = kafka_place
    place.feed(WORDS)
    settings = {**place.properties(), "group.instance.id": "same", "transaction.scope": scope}
    with WorkerProcess(place.folder, "older", settings) as older:
        older.await_line(f"4 {IDLE}")
        with WorkerProcess(place.folder, "newer", settings) as newer:
            assert older.ended() == REFUSED, older.errors
            assert "group.instance.id=same" in older.errors
            assert "Traceback" not in older.errors
            place.feed(WORDS)
            place.await_counted(2 * len(WORDS))
            assert newer.terminate() == 0, newer.errors
    assert Counter(place.counted()) == expected_counts(WORDS * 2)
