"""docs/worker.md and then docs/kafka.md, as they stand, in one folder and on one broker: each word is counted once."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import stores
from stores.changelog.kafka.testing.broker import Broker
from stores.interface import TopicPartition
from stores.tests.kafka.fresh import fresh_changelog
from stores.tests.worker.places import KafkaPlace, expected_counts
from stores.tests.worker.worker_process import IDLE, WorkerProcess

ROOT = Path(stores.__file__).parents[1]
WORDS = ["to", "be", "or", "not", "to", "be"]


def first_program(page: str) -> str:
    block = re.search(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    return block[1]


@pytest.mark.kafka
def test_the_programs_of_both_pages_count_on_one_broker_one_after_the_other(tmp_path: Path, broker: Broker) -> None:
    place = KafkaPlace(tmp_path, broker.address)
    (tmp_path / "word_count.py").write_text(first_program("docs/worker.md"))
    (tmp_path / "count_words.py").write_text(first_program("docs/kafka.md"))
    with fresh_changelog(broker) as log:
        with WorkerProcess(tmp_path, "w", place.properties(), application="word_count:app") as worker:
            worker.await_line(f"8 {IDLE}")
            with log.producer() as producer:
                producer.send(TopicPartition("lines", 0), None, " ".join(WORDS).encode())
                producer.flush()
            place.await_counted(len(WORDS))
            assert worker.terminate() == 0, worker.errors
    for run in (1, 2):
        process = subprocess.run(
            [sys.executable, "-W", "error", "count_words.py", broker.address],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        assert process.stdout == f"{{'be': {2 * run}, 'not': {run}, 'or': {run}, 'to': {2 * run}}}\n"
    assert Counter(place.counted()) == expected_counts(WORDS)
