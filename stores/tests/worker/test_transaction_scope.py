"""Workers whose threads have one transaction over all their tasks: exactly once through kills and rebalances."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping

import pytest

from stores.tests.worker.places import KafkaPlace, Place, expected_counts
from stores.tests.worker.worker_process import BATCHED, IDLE, WorkerProcess, over_both_forms
from stores.worker.__main__ import FAILED

FIRST = ["to", "be", "or", "not", "to", "be", "that", "is", "the", "question"] * 3
SECOND = ["whether", "to", "be", "is", "nobler"] * 4
NEVER = {"commit.interval.ms": "3600000"}
MODULE = "stores.tests.worker.counting_app"


def sharing(place: Place) -> Mapping[str, str]:
    return {**place.properties(), "transaction.scope": "thread"}


def finish(place: Place, worker: WorkerProcess) -> None:
    """Give the worker the second half of the input, let it end, and compare the outputs with the model."""
    place.feed(SECOND)
    place.await_counted(len(FIRST + SECOND))
    assert worker.terminate() == 0, worker.errors
    assert Counter(place.counted()) == expected_counts(FIRST + SECOND)


@pytest.mark.kafka
@pytest.mark.parametrize(
    "dies_at",
    [
        "task.before_log_commit",
        "changelog.before_commit",
        "changelog.after_commit",
        "task.after_log_commit",
        "task.after_store_commit",
        "task.between_tasks",
        "task.after_checkpoint",
    ],
)
@over_both_forms
def test_a_worker_killed_in_a_common_commit_repeats_and_loses_no_output(
    kafka_place: KafkaPlace, dies_at: str, application: str
) -> None:
    """The next one has its name, so that it aborts the open transaction. Source: KIP-447; KIP-345."""
    place = kafka_place
    place.feed([])
    settings = {**sharing(place), "group.instance.id": "one"}
    with WorkerProcess(place.folder, "first", {**settings, **NEVER}, dies_at=dies_at, application=application) as first:
        first.await_line(f"4 {IDLE}")
        place.feed(FIRST)
        first.await_caught_up(4)
        assert place.counted() == []
        first.send(signal.SIGTERM)
        assert first.ended() == -signal.SIGKILL, first.errors
    with WorkerProcess(place.folder, "second", settings, application=application) as second:
        finish(place, second)


@pytest.mark.kafka
@pytest.mark.parametrize("dies_at", ["changelog.before_commit", "task.between_tasks"])
def test_the_next_owner_of_a_task_waits_for_the_transaction_of_a_killed_worker(
    kafka_place: KafkaPlace, dies_at: str
) -> None:
    """The first worker is killed while it releases two of its tasks. Nobody else has its transactional ID."""
    place = kafka_place
    place.feed([])
    settings = {**sharing(place), "transaction.timeout.ms": "5000"}
    with WorkerProcess(place.folder, "first", {**settings, **NEVER}, dies_at=dies_at, in_rebalance=True) as first:
        first.await_line(f"4 {IDLE}")
        place.feed(FIRST)
        first.await_caught_up(4)
        with WorkerProcess(place.folder, "second", settings) as second:
            assert first.ended() == -signal.SIGKILL, first.errors
            finish(place, second)


def test_tasks_that_move_are_committed_with_the_others_before(place: Place) -> None:
    place.feed([])
    with WorkerProcess(place.folder, "first", {**sharing(place), **NEVER}) as first:
        first.await_line(f"4 {IDLE}")
        place.feed(FIRST)
        first.await_caught_up(4)
        with WorkerProcess(place.folder, "second", {**sharing(place), "num.stream.threads": "2"}) as second:
            second.await_line(f"2 {IDLE}")
            first.await_caught_up(2)
            place.await_counted(len(FIRST))  # The tasks that stayed were in the same transaction.
            assert first.terminate() == 0, first.errors
            second.await_line(f"4 {IDLE}")
            finish(place, second)


@over_both_forms
def test_an_exception_of_one_task_commits_nothing_of_the_others_and_the_next_worker_repeats_them(
    place: Place, application: str
) -> None:
    place.feed([])
    with WorkerProcess(place.folder, "first", {**sharing(place), **NEVER}, application=application) as first:
        first.await_line(f"4 {IDLE}")
        place.feed(FIRST)
        first.await_caught_up(4)
        place.feed(["poison"])
        assert first.ended() == FAILED
        assert "this word can't be counted" in first.errors
    assert place.counted() == []
    skipping = f"{MODULE}:skipping_batched" if application == BATCHED else f"{MODULE}:skipping"
    with WorkerProcess(place.folder, "second", sharing(place), application=skipping) as second:
        finish(place, second)


@pytest.mark.kafka
@pytest.mark.parametrize("shares", [True, False])
def test_workers_of_one_application_have_one_scope(kafka_place: KafkaPlace, shares: bool) -> None:
    """Instances of one task would fence each other in one of the two ways only."""
    place = kafka_place
    place.feed(FIRST)
    both = [place.properties(), sharing(place)]
    with WorkerProcess(place.folder, "first", both[shares]) as first:
        first.await_line(f"4 {IDLE}")
        with WorkerProcess(place.folder, "second", both[not shares]) as second:
            assert second.ended() == FAILED
            assert "transaction.scope" in second.errors
        finish(place, first)
