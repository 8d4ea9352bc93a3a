"""A worker whose broker is killed and started again: it costs time, and each count still comes out once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stores.changelog.kafka.testing.broker import Broker
from stores.tests.kafka.shared_broker import FOLDER, skip_without_kafka
from stores.tests.worker.places import KafkaPlace, expected_counts
from stores.tests.worker.worker_process import IDLE, WorkerProcess

WORDS = ["to", "be", "or", "not", "to", "be"] * 5


@pytest.mark.kafka
def test_a_worker_continues_after_its_broker_was_killed(tmp_path: Path) -> None:
    skip_without_kafka()
    with Broker(tmp_path / "data", FOLDER) as broker:
        place = KafkaPlace(tmp_path, broker.address)
        place.feed(WORDS)
        # Longer than the deadline of the call that may hang after the restart, within which a worker leaves.
        settings = {**place.properties(), "session.timeout.ms": "45000"}
        with WorkerProcess(tmp_path, "w", {**settings, "commit.interval.ms": "3600000"}) as worker:
            worker.await_line(f"4 {IDLE}")
            broker.kill()
            broker.start()
            place.feed(WORDS)
            with WorkerProcess(tmp_path, "other", settings) as other:
                place.await_counted(1)  # Of the tasks that have moved. The others commit when they are closed.
                assert worker.terminate() == 0, worker.errors
                place.await_counted(2 * len(WORDS))
                assert other.terminate() == 0, other.errors
        assert Counter(place.counted()) == expected_counts(WORDS * 2)
