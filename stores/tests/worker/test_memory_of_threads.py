"""The stream threads of a worker share its limit on uncommitted writes: each has an equal part, over each changelog.

Source: KIP-892, ``statestore.uncommitted.max.bytes``; Kafka Streams, ``KafkaStreams.resizeThreadCacheAndBufferMemory``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from stores.batch.memory import PAIR_MEMORY_BYTES
from stores.memory_limit import LEAST_BYTES, PROPERTY, parts_of
from stores.metrics import EarlyCommitCause
from stores.tasks.stores.store_log import RECORD_MEMORY_BYTES
from stores.tests.worker.counting_app import PARTITIONS
from stores.tests.worker.places import Place, expected_counts
from stores.tests.worker.worker_process import IDLE, WorkerProcess
from stores.tests.worker.worker_thread import ALL, await_counted, await_true, open_tasks, running
from stores.worker import Worker

LIMIT = 10_000_019
WORDS = [word for word in (f"{number:08d}" for number in range(200)) if sum(word.encode()) % PARTITIONS == 0][:40]
"""Different words of one partition, and of one length."""
WORD_BYTES = 8 + len(b"1") + PAIR_MEMORY_BYTES + RECORD_MEMORY_BYTES
"""The bytes that count for the pair of a word, and for its record in the changelog."""
NEVER = {"commit.interval.ms": "3600000"}


def limited(threads: int, limit: int = LIMIT) -> Mapping[str, str]:
    return {"num.stream.threads": str(threads), "statestore.uncommitted.max.bytes": str(limit)}


def parts(worker: Worker) -> list[int]:
    """Return the part of the limit that each task shares with the others of its thread."""
    return [task._memory.max_bytes for task in open_tasks(worker)]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_each_thread_has_an_equal_part_of_the_limit_for_all_its_tasks(place: Place, threads: int) -> None:
    with running(place, limited(threads)) as worker:
        assert parts(worker) == [LIMIT // threads] * PARTITIONS
        assert len({id(task._memory) for task in open_tasks(worker)}) == threads


def test_threads_share_the_part_of_a_limit_on_all_memory_that_is_for_uncommitted_writes(place: Place) -> None:
    with running(place, {"num.stream.threads": "2", PROPERTY: f"{LEAST_BYTES}"}) as worker:
        assert parts(worker) == [parts_of(LEAST_BYTES).staged_bytes // 2] * PARTITIONS


def test_the_parts_follow_the_threads_that_have_tasks_when_another_worker_comes_and_goes(place: Place) -> None:
    with running(place, limited(PARTITIONS)) as worker:
        assert parts(worker) == [LIMIT // PARTITIONS] * PARTITIONS
        with WorkerProcess(place.folder, "second", place.properties()) as second:
            second.await_line(f"2 {IDLE}")
            await_true(lambda: parts(worker) == [LIMIT // 2] * 2)
            assert second.terminate() == 0, second.errors
        await_true(lambda: parts(worker) == [LIMIT // PARTITIONS] * PARTITIONS)


@pytest.mark.parametrize(("threads", "committed"), [(1, 0), (2, 30)])
def test_a_thread_commits_before_its_tasks_exceed_its_part(place: Place, threads: int, committed: int) -> None:
    """The limit is that of 60 words. All 40 words are in one partition: the other thread has nothing to commit."""
    with running(place, {**limited(threads, 60 * WORD_BYTES), **NEVER}) as worker:
        place.feed(WORDS)
        await_true(lambda: processed(worker) == len(WORDS))
        task = worker.open_task(ALL[0])
        assert task is not None
        early = {cause: number for cause, number in task.metrics.early_commit_total.items() if number}
        assert early == ({EarlyCommitCause.PREDICTED: 1} if committed else {})
        assert task.uncommitted_memory_bytes() == (len(WORDS) - committed) * WORD_BYTES
        await_counted(place, committed)
        assert Counter(place.counted()) == expected_counts(WORDS[:committed])
    await_counted(place, len(WORDS))
    assert Counter(place.counted()) == expected_counts(WORDS)


def processed(worker: Worker) -> int:
    return sum(offset for status in worker.status().tasks for _, offset in status.next_offsets)
