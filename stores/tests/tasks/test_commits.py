"""When a task commits, in which order, and what a record, a limit and a clean close have to do with it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stores import failpoints
from stores.changelog import MemoryChangelog, Record
from stores.config import StoreConfig
from stores.errors import (
    ChangelogError,
    StoreClosedError,
)
from stores.interface import IsolationLevel, KeyValueStore, TopicPartition
from stores.tasks import TaskContext
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    INPUT,
    MEMORY,
    count,
    counting_task,
    expected_outputs,
    expected_state,
    feed,
    outputs,
    single,
    state,
)


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_each_record_is_processed_once_and_nothing_is_replayed_after_a_clean_close(
    tmp_path: Path, log: MemoryChangelog, guarantee: Any
) -> None:
    feed(log, [1, 2, 1])
    task = counting_task(tmp_path, log, guarantee=guarantee)
    assert [report.records for report in task.open()] == [0, 0]
    assert task.run() == 3
    assert outputs(log) == []
    task.close()
    assert outputs(log) == expected_outputs([1, 2, 1])
    assert log.committed_offsets("app") == {INPUT: 3}
    assert [report.records for report in task.open()] == [0, 0]
    assert state(task, "left") == state(task, "right") == expected_state([1, 2, 1])
    assert task.run() == 0
    task.close()


def test_a_pushed_record_is_processed_like_one_that_is_pulled(tmp_path: Path, log: MemoryChangelog) -> None:
    elsewhere = TopicPartition("elsewhere", 7)
    task = counting_task(tmp_path, log, inputs=[elsewhere])
    task.open()
    assert task.input_offsets() == {elsewhere: 0}
    task.process(elsewhere, Record(5, b"1", b"x"))
    task.commit()
    assert task.input_offsets() == log.committed_offsets("app") == {elsewhere: 6}
    for offset in (0, 5):
        with pytest.raises(ValueError):
            task.process(elsewhere, Record(offset, b"1", b"x"))
    with pytest.raises(ValueError):
        task.process(INPUT, Record(0, b"1", b"x"))
    task.close()
    assert outputs(log) == expected_outputs([1])


def test_a_task_opens_without_its_input_topic_and_cannot_read_it(tmp_path: Path, log: MemoryChangelog) -> None:
    """Its records may come from elsewhere; only ``run`` needs the topic."""
    elsewhere = TopicPartition("elsewhere", 7)
    with counting_task(tmp_path, log, inputs=[elsewhere]) as task:
        with pytest.raises(ChangelogError, match="elsewhere"):
            task.run()
        assert task.input_offsets() == {elsewhere: 0}


def test_the_changelog_commits_before_the_stores_and_the_checkpoint_comes_last(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Source: KIP-844, "StateStore changes", steps 3, 4a, 4b."""
    order: list[str] = []
    for name in failpoints.declared():
        if name.startswith(("task.", "changelog.", "indexed_batch.")):
            failpoints.arm(name, partial(order.append, name))
    task = counting_task(tmp_path, log)
    task.open()
    order.clear()
    feed(log, [1])
    task.run()
    task.commit()
    task.close(clean=False)
    store = ["indexed_batch.before_write", "indexed_batch.after_write"]
    assert order == [
        "task.before_log_commit",
        "changelog.before_commit",
        "changelog.after_commit",
        "task.after_log_commit",
        *store,
        "task.between_stores",
        *store,
        "task.after_store_commit",
        "task.after_checkpoint",
    ]


def test_a_store_commits_with_the_offset_that_its_records_got_and_the_position_of_the_input(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Source: KIP-892, ``committedOffset``; KIP-796."""
    feed(log, [1, 2, 3])
    stores_seen: list[KeyValueStore] = []

    def process(record: Record, context: TaskContext) -> None:
        stores_seen.append(context.store("s"))
        stores_seen[0].put(b"k", b"v")

    task = single(tmp_path, log, process)
    task.open()
    task.run()
    task.commit()
    store = stores_seen[0]
    assert store.committed_offset(TopicPartition("app-s-changelog", 0)) == 2
    assert store.position(IsolationLevel.READ_COMMITTED) == {INPUT: 2}
    task.close()


def test_commits_come_after_so_many_records_and_on_request(tmp_path: Path, log: MemoryChangelog) -> None:
    """Source: KIP-892, ``ProcessingContext#commit``."""

    def process(record: Record, context: TaskContext) -> None:
        count(record, context)
        if record.offset == 6:
            context.commit()
            assert len(outputs(log)) == 5

    feed(log, range(9))
    task = counting_task(tmp_path, log, process=process, commit_every_records=5)
    task.open()
    ended = {}
    for number in range(1, 10):
        task.run(1)
        ended[number] = len(outputs(log))
    assert ended == {1: 0, 2: 0, 3: 0, 4: 0, 5: 5, 6: 5, 7: 7, 8: 7, 9: 7}
    task.close(clean=False)


def test_the_stores_together_never_stage_more_than_their_limit(tmp_path: Path, log: MemoryChangelog) -> None:
    """Source: KIP-892, "In-memory Transaction Buffers" and ``statestore.uncommitted.max.bytes``."""
    staged_bytes = []

    def process(record: Record, context: TaskContext) -> None:
        for name in ("left", "right"):
            context.store(name).put(b"%09d" % record.offset, bytes(91))
        staged_bytes.append(sum(context.store(name).approximate_num_uncommitted_bytes() for name in ("left", "right")))

    # Beside its key and value each pair counts 220 bytes: five records are within the limit.
    settings = StoreConfig(MEMORY, uncommitted_max_bytes=10 * (100 + 220))
    feed(log, range(20))
    task = counting_task(tmp_path, log, process=process, stores={"left": settings, "right": settings})
    task.open()
    task.run()
    assert log.committed_offsets("app") == {INPUT: 20}
    assert max(staged_bytes) == 1_000
    task.close()


def test_no_limit_means_no_commit(tmp_path: Path, log: MemoryChangelog) -> None:
    settings = StoreConfig(MEMORY, uncommitted_max_bytes=-1)
    feed(log, range(20))
    task = counting_task(tmp_path, log, stores={"left": settings, "right": settings})
    task.open()
    task.run()
    assert log.committed_offsets("app") == {}
    task.close(clean=False)


def test_leaving_uncleanly_drops_what_is_staged(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, [1, 2])
    task = counting_task(tmp_path, log)
    task.open()
    task.run()
    task.close(clean=False)
    task.close()
    with pytest.raises(StoreClosedError):
        task.run()
    task.open()
    assert task.input_offsets() == {INPUT: 0}
    assert state(task, "left") == {}
    task.close()
