"""A worker whose input was truncated beyond its offset: its error says what to set, and with that it works again."""

from __future__ import annotations

from collections import Counter

import pytest

from stores.interface import TopicPartition
from stores.tests.worker.counting_app import PARTITIONS
from stores.tests.worker.places import Place, expected_counts
from stores.tests.worker.worker_process import IDLE, WorkerProcess

WORD = "word"
INPUT = TopicPartition("words", sum(WORD.encode()) % PARTITIONS)
PROCESSED, REMOVED, LEFT = 2, 3, 5


def truncated_beyond_the_worker(place: Place) -> None:
    """Let a worker count two words, append eight, and remove the first three of these."""
    place.feed([WORD] * PROCESSED)
    with WorkerProcess(place.folder, "before", place.properties()) as worker:
        place.await_counted(PROCESSED)
        assert worker.terminate() == 0, worker.errors
    place.feed([WORD] * (REMOVED + LEFT))
    with place.open() as log:
        log.truncate(INPUT, PROCESSED + REMOVED)


def test_a_worker_whose_next_input_was_deleted_ends_with_advice_that_lets_the_next_continue(place: Place) -> None:
    truncated_beyond_the_worker(place)
    with WorkerProcess(place.folder, "none", place.properties()) as worker:
        assert worker.ended() == 1
        for part in (f"words-{INPUT.partition}", f"offsets {PROCESSED + REMOVED} to", f"not {PROCESSED}"):
            assert part in worker.errors
        assert "auto.offset.reset" in worker.errors
        assert "Traceback" not in worker.errors
    assert len(place.counted()) == PROCESSED
    with WorkerProcess(place.folder, "earliest", {**place.properties(), "auto.offset.reset": "earliest"}) as worker:
        place.await_counted(PROCESSED + LEFT)
        assert worker.terminate() == 0, worker.errors
    assert Counter(place.counted()) == expected_counts([WORD] * (PROCESSED + LEFT))


@pytest.mark.parametrize("scope", ["task", "thread"])
def test_a_worker_that_continues_at_the_end_leaves_the_rest_out_and_commits_that(place: Place, scope: str) -> None:
    truncated_beyond_the_worker(place)
    latest = {**place.properties(), "auto.offset.reset": "latest", "transaction.scope": scope}
    with WorkerProcess(place.folder, "latest", latest) as worker:
        worker.await_line(f"{PARTITIONS} {IDLE}")
        assert worker.terminate() == 0, worker.errors
    place.feed([WORD])
    with WorkerProcess(place.folder, "after", place.properties()) as worker:
        place.await_counted(PROCESSED + 1)
        assert worker.terminate() == 0, worker.errors
    assert Counter(place.counted()) == expected_counts([WORD] * (PROCESSED + 1))
