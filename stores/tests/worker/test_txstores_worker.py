"""``txstores worker`` is the worker of the library: it counts, and ends at SIGTERM after a commit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from stores.tests.worker.places import EmbeddedPlace, expected_counts
from stores.tests.worker.worker_process import IDLE, WorkerProcess

WORDS = ["to", "be", "or", "not", "to", "be"]
COMMAND = ("-c", "import sys; from stores.command import main; sys.exit(main())", "worker")


def test_the_command_runs_a_worker_until_sigterm(tmp_path: Path) -> None:
    place = EmbeddedPlace(tmp_path)
    place.feed(WORDS)
    properties = {**place.properties(), "commit.interval.ms": "3600000"}
    with WorkerProcess(tmp_path, "w", properties, command=COMMAND) as worker:
        worker.await_line(f"4 {IDLE}")
        assert worker.terminate() == 0, worker.errors
    assert Counter(place.counted()) == expected_counts(WORDS)


def test_mistakes_have_the_status_and_the_sentence_of_the_worker(tmp_path: Path) -> None:
    with WorkerProcess(tmp_path, "w", {}, command=COMMAND, application="no_such_module_here:app") as worker:
        assert worker.ended() == 2
        assert "no_such_module_here" in worker.errors
        assert "harness" not in worker.errors
