"""Two workers of one application, one of them killed in the middle of a rebalance: each count comes out once."""

from __future__ import annotations

from collections import Counter

import pytest

from stores.tests.worker.places import Place, expected_counts
from stores.tests.worker.worker_process import BATCHED, COUNTING, IDLE, WorkerProcess, over_both_forms

FIRST = ["to", "be", "or", "not", "to", "be", "that", "is", "the", "question"] * 3
SECOND = ["whether", "to", "be", "is", "nobler"] * 4
NEVER = {"commit.interval.ms": "3600000"}


def check_exactly_once(place: Place) -> None:
    assert Counter(place.counted()) == expected_counts(FIRST + SECOND)


def finish(place: Place, worker: WorkerProcess) -> None:
    """Give the remaining worker the second half of the input, let it end, and compare the outputs with the model."""
    place.feed(SECOND)
    place.await_counted(len(FIRST + SECOND))
    assert worker.terminate() == 0, worker.errors
    check_exactly_once(place)


DIES_AT = [
    "group.before_revoke",
    "task.before_log_commit",
    "changelog.before_commit",
    "changelog.after_commit",
    "task.after_log_commit",
    "task.after_store_commit",
    "group.after_revoke",
]


@pytest.mark.parametrize(
    ("dies_at", "application"),
    [*((each, COUNTING) for each in DIES_AT), *((each, BATCHED) for each in DIES_AT[2:5:2])],
)
def test_a_worker_killed_while_it_releases_tasks_repeats_and_loses_no_output(
    place: Place, dies_at: str, application: str
) -> None:
    """Source: KIP-129; KIP-429; KIP-447."""
    place.feed(FIRST)
    settings = {**place.properties(), **NEVER}
    with WorkerProcess(
        place.folder, "first", settings, application=application, dies_at=dies_at, in_rebalance=True
    ) as first:
        first.await_line(f"4 {IDLE}")
        assert place.counted() == []
        with WorkerProcess(place.folder, "second", place.properties(), application=application) as second:
            assert first.ended() == -9, first.errors
            finish(place, second)


def test_a_worker_killed_when_it_gets_tasks_repeats_and_loses_no_output(place: Place) -> None:
    place.feed(FIRST)
    with WorkerProcess(place.folder, "first", place.properties()) as first:
        first.await_line(f"4 {IDLE}")
        with WorkerProcess(place.folder, "second", place.properties(), dies_at="group.before_assign") as second:
            assert second.ended() == -9, second.errors
        finish(place, first)


@over_both_forms
def test_a_worker_that_leaves_gives_its_tasks_to_the_threads_of_another_one(place: Place, application: str) -> None:
    place.feed(FIRST)
    threads = {**place.properties(), "num.stream.threads": "2"}
    with WorkerProcess(place.folder, "first", {**threads, **NEVER}, application=application) as first:
        first.await_line(f"4 {IDLE}")
        with WorkerProcess(place.folder, "second", threads, application=application) as second:
            first.await_line("2 tasks")
            second.await_line(f"2 {IDLE}")
            assert first.terminate() == 0, first.errors
            second.await_line(f"4 {IDLE}")
            finish(place, second)


def test_without_transactions_a_worker_killed_in_a_rebalance_repeats_outputs(place: Place) -> None:
    """A broken variant of exactly once: the check of the outputs finds it."""
    place.feed(FIRST)
    settings = {**place.properties(), "processing.guarantee": "at_least_once"}
    with WorkerProcess(
        place.folder, "first", {**settings, **NEVER}, dies_at="task.after_log_commit", in_rebalance=True
    ) as first:
        first.await_line(f"4 {IDLE}")
        with WorkerProcess(place.folder, "second", settings) as second:
            assert first.ended() == -9, first.errors
            place.feed(SECOND)
            place.await_counted(len(FIRST + SECOND) + 1)
            assert second.terminate() == 0, second.errors
    assert Counter(place.counted()).keys() >= expected_counts(FIRST + SECOND).keys()
    with pytest.raises(AssertionError):
        check_exactly_once(place)
