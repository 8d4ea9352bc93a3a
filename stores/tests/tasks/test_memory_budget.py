"""The limit on the staged writes of a process's tasks, and the commits that keep it.

Source: KIP-892, "In-memory Transaction Buffers" and ``statestore.uncommitted.max.bytes``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from threading import Barrier, Thread
from typing import Any

import pytest

from stores import failpoints
from stores.batch.memory import PAIR_MEMORY_BYTES
from stores.changelog import MemoryChangelog, Record
from stores.config import StoreConfig
from stores.errors import ConfigError, ProducerFencedError, StoreError
from stores.interface import IsolationLevel, TopicPartition
from stores.memory_limit import LEAST_BYTES, parts_of
from stores.metrics import EarlyCommitCause
from stores.tasks import NO_INTERVAL, MemoryBudget, StreamTask, TaskContext, TaskId
from stores.tasks.context import ProcessFunction
from stores.tasks.stores.store_log import RECORD_MEMORY_BYTES
from stores.tests.tasks.memory_process import EMPTY_PAIRS
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    DIRECT,
    EXACTLY_ONCE,
    MEMORY,
    Crash,
    crash,
    crashing_at,
    single,
    stream_task,
)

INPUT = TopicPartition("elsewhere", 0)
MIB = 1 << 20


ENTRY_BYTES = PAIR_MEMORY_BYTES + RECORD_MEMORY_BYTES
"""The bytes that count for a pair besides its key and value, with its record for the changelog."""
UNIT = 100
"""Bytes: sizes and limits are in units, so that the smallest pair has room for what it counts beside key and value."""


def stage(record: Record, context: TaskContext) -> None:
    """Stage a pair in the store ``s`` that counts as many units as the record's value says, under a key of its own."""
    assert record.value is not None
    context.store("s").put(b"%09d" % record.offset, bytes(int(record.value) * UNIT - 9 - ENTRY_BYTES))


def give(task: StreamTask, *sizes: int) -> None:
    """One record after the other, each of which stages a pair that counts so many units."""
    for size in sizes:
        [(partition, offset)] = task.input_offsets().items()
        task.process(partition, Record(offset, b"k", b"%d" % size))


def units(task: StreamTask) -> float:
    """Return the bytes that its open transaction counts."""
    return task.uncommitted_memory_bytes() / UNIT


def budgeted(
    folder: Path,
    log: MemoryChangelog,
    budget: MemoryBudget,
    *partitions: int,
    backend: str = MEMORY,
    process: ProcessFunction = stage,
    guarantee: Any = EXACTLY_ONCE,
) -> list[StreamTask]:
    """A worker's tasks, open, each with the input partition of its number."""
    memory = budget.share()
    tasks = [
        stream_task(
            TaskId(0, partition),
            state_dir=folder,
            changelog=log,
            stores={"s": StoreConfig(backend)},
            process=process,
            inputs=[TopicPartition(INPUT.topic, partition)],
            commit_interval_ms=NO_INTERVAL,
            guarantee=guarantee,
            memory=memory,
        )
        for partition in partitions
    ]
    log.create_topic("app-s-changelog", 8)
    for task in tasks:
        task.open()
    return tasks


def close(*tasks: StreamTask) -> None:
    for task in tasks:
        task.close(clean=False)


def early(task: StreamTask) -> tuple[int, int]:
    """Return the commits because the limit was exceeded, and because it would have been."""
    totals = task.metrics.early_commit_total
    return totals[EarlyCommitCause.EXCEEDED], totals[EarlyCommitCause.PREDICTED]


def test_a_task_keeps_to_the_part_of_a_limit_on_all_memory_that_is_for_uncommitted_writes(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    stores = {"s": StoreConfig(MEMORY, memory_max_bytes=LEAST_BYTES)}
    with closing(single(tmp_path, log, stage, stores=stores)) as task:
        assert task._memory.max_bytes == parts_of(LEAST_BYTES).staged_bytes


def test_the_limit_is_64_mib_unless_another_one_is_given() -> None:
    assert MemoryBudget().uncommitted_max_bytes == MemoryBudget().share().max_bytes == 64 * MIB
    limit = StoreConfig.from_properties({"statestore.uncommitted.max.bytes": "1000"}).uncommitted_max_bytes
    assert MemoryBudget(limit).share().max_bytes == 1000


@pytest.mark.parametrize(("limit", "error"), [(-2, ConfigError), ("1", TypeError), (True, TypeError)])
def test_what_is_no_limit_is_refused(limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        MemoryBudget(limit)


def test_what_all_tasks_of_a_worker_have_staged_counts_and_all_of_them_commit(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    left, right, idle = tasks = budgeted(tmp_path, log, MemoryBudget(1000 * UNIT), 0, 1, 2)
    give(left, 200, 200)
    give(right, 200, 200)
    assert [units(task) for task in tasks] == [400, 400, 0]
    give(right, 200)
    assert [units(task) for task in tasks] == [0, 0, 0]
    assert [early(task) for task in tasks] == [(0, 1), (0, 1), (0, 0)]
    assert log.end_offset(TopicPartition("app-s-changelog", 0)) > 0
    close(left, right, idle)


def test_without_a_budget_of_the_process_each_task_has_that_of_its_stores(tmp_path: Path, log: MemoryChangelog) -> None:
    stores = {name: StoreConfig(MEMORY, uncommitted_max_bytes=limit) for name, limit in (("s", 1000 * UNIT), ("t", -1))}
    task = single(tmp_path, log, stage, stores=stores, inputs=[INPUT])
    task.open()
    give(task, 400, 400)
    assert early(task) == (0, 1)
    close(task)


def test_workers_have_equal_parts_which_change_when_one_comes_or_goes(tmp_path: Path, log: MemoryChangelog) -> None:
    budget = MemoryBudget(1200 * UNIT)
    [first] = budgeted(tmp_path, log, budget, 0)
    give(first, *[100] * 7)
    assert units(first) == 700
    second, beside = budgeted(tmp_path, log, budget, 1, 2)
    assert units(first) == 700
    give(first, 10)
    assert (units(first), early(first)) == (0, (1, 0))
    give(second, 290)
    assert units(second) == 290
    give(second, 290)
    assert (units(second), early(second)) == (0, (0, 1))
    close(second)
    give(beside, 290, 290)
    assert early(beside) == (0, 1)
    close(beside)
    give(first, 500)
    assert units(first) == 500
    close(first)


def test_workers_on_threads_of_their_own_keep_to_their_parts_once_all_are_there(tmp_path: Path) -> None:
    budget = MemoryBudget(8000 * UNIT)
    all_there = Barrier(4, timeout=600)
    most: dict[int, float] = {}

    def work(number: int) -> None:
        with MemoryChangelog() as log:
            [task] = budgeted(tmp_path / str(number), log, budget, 0)
            give(task, *[100] * 19)
            all_there.wait()
            staged_bytes = []
            for _ in range(200):
                give(task, 100)
                staged_bytes.append(units(task))
            all_there.wait()
            most[number] = max(staged_bytes)
            close(task)

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == dict.fromkeys(range(4), 1900)


def test_a_share_is_one_thread_s(tmp_path: Path, log: MemoryChangelog) -> None:
    share = MemoryBudget().share()
    task = single(tmp_path, log, stage, memory=share)
    other = single(tmp_path / "other", log, stage, memory=share)
    task.open()
    errors: list[BaseException] = []

    def open_other() -> None:
        try:
            other.open()
        except StoreError as error:
            errors.append(error)

    thread = Thread(target=open_other)
    thread.start()
    thread.join()
    assert len(errors) == 1
    close(task)


def test_steps_that_grow_never_pass_the_limit_by_more_than_they_grow(tmp_path: Path, log: MemoryChangelog) -> None:
    """Source: KIP-892, the pre-emptive commit: "the *next* iteration is likely to cross the threshold"."""
    most = 0.0

    def process(record: Record, context: TaskContext) -> None:
        nonlocal most
        stage(record, context)
        most = max(most, units(task))

    [task] = budgeted(tmp_path, log, MemoryBudget(10_000 * UNIT), 0, process=process)
    give(task, *range(100, 5000, 100))
    assert 9000 < most <= 10_100
    close(task)


def test_steps_all_alike_use_the_limit_up_and_never_pass_it(tmp_path: Path, log: MemoryChangelog) -> None:
    [task] = budgeted(tmp_path, log, MemoryBudget(1000 * UNIT), 0)
    staged_bytes = []
    for _ in range(40):
        give(task, 100)
        staged_bytes.append(units(task))
    assert max(staged_bytes) == 900
    assert early(task) == (0, 4)
    close(task)


def test_a_large_step_costs_a_few_early_commits_and_is_then_forgotten(tmp_path: Path, log: MemoryChangelog) -> None:
    [task] = budgeted(tmp_path, log, MemoryBudget(100_000 * UNIT), 0)
    give(task, 90_000, *[100] * 5_000)
    # 500,000 bytes are five early commits anyway.
    assert 5 <= sum(early(task)) <= 10
    close(task)


def test_a_step_larger_than_the_limit_is_one_transaction_and_its_size_is_reported(
    tmp_path: Path, log: MemoryChangelog, caplog: pytest.LogCaptureFixture
) -> None:
    def process(record: Record, context: TaskContext) -> None:
        assert record.value is not None
        for number in range(int(record.value)):
            context.store("s").put(b"%04d" % number, b"%096d" % record.offset)

    pair_bytes = 100 + ENTRY_BYTES
    budget = MemoryBudget(10 * pair_bytes)
    [task] = budgeted(tmp_path, log, budget, 0, process=process)
    share = task._memory
    with caplog.at_level(logging.WARNING):
        give(task, 1, 50, 40)
    assert share.largest_step_bytes == 50 * pair_bytes
    assert len(caplog.records) == 1
    assert units(task) == 0
    assert {value for _, value in task.store("s").all()} == {b"%096d" % 1, b"%096d" % 2}
    commits = sum(early(task))
    give(task, 1, 1, 1, 1)
    assert sum(early(task)) - commits <= 2
    close(task)


def test_writing_the_same_key_again_and_again_forces_no_commit(tmp_path: Path, log: MemoryChangelog) -> None:
    def process(record: Record, context: TaskContext) -> None:
        for _ in range(20):
            context.store("s").put(b"k", bytes(99))

    [task] = budgeted(tmp_path, log, MemoryBudget(1000 * UNIT), 0, process=process)
    give(task, *[0] * 100)
    assert early(task) == (0, 0)
    assert task.uncommitted_bytes() == 100
    close(task)


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_store_that_keeps_nothing_apart_forces_no_commit(
    tmp_path: Path, log: MemoryChangelog, guarantee: Any
) -> None:
    [task] = budgeted(tmp_path, log, MemoryBudget(1000 * UNIT), 0, backend=DIRECT, guarantee=guarantee)
    give(task, *[2000] * 5)
    assert early(task) == (0, 0)
    close(task)


def test_what_is_written_beside_to_a_store_that_keeps_nothing_apart_does_not_count(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    def process(record: Record, context: TaskContext) -> None:
        stage(record, context)
        context.store("direct").put(b"k", bytes(5000))

    stores = {"s": StoreConfig(MEMORY, uncommitted_max_bytes=1000 * UNIT), "direct": StoreConfig(DIRECT)}
    task = single(tmp_path, log, process, stores=stores, inputs=[INPUT])
    task.open()
    give(task, *[10] * 99)
    assert (early(task), units(task)) == ((0, 0), 990)
    give(task, 10)
    assert early(task) == (0, 1)
    close(task)


def test_no_limit_is_never_reached(tmp_path: Path, log: MemoryChangelog) -> None:
    [task] = budgeted(tmp_path, log, MemoryBudget(-1), 0)
    give(task, *[MIB // UNIT] * 80)
    assert early(task) == (0, 0)
    close(task)


def test_the_running_count_of_bytes_is_never_below_the_staged_bytes(tmp_path: Path, log: MemoryChangelog) -> None:
    rng = Random(7)

    def process(record: Record, context: TaskContext) -> None:
        store = context.store("s")
        for _ in range(rng.randint(1, 4)):
            key, value = b"%02d" % rng.randrange(40), rng.choice([None, bytes(rng.randrange(30))])
            way = rng.randrange(5)
            if way == 0:
                store.put(key, value)
            elif way == 1:
                store.put_all([(key, value), (b"x" + key, value)])
            elif way == 2:
                store.put_if_absent(key, value)
            elif way == 3:
                store.delete(key)
            else:
                store.delete_range(key, key + b"5")

    [task] = budgeted(tmp_path, log, MemoryBudget(), 0, process=process)
    share = task._memory
    counted = []
    for number in range(300):
        give(task, 0)
        counted.append(share.bytes_at_most - task.uncommitted_memory_bytes())
        if number % 50 == 49:
            task.commit()
            share.check(task._resources, 0)
            assert share.bytes_at_most == 0
    assert min(counted) == 0
    close(task)


def test_a_task_that_can_t_commit_keeps_no_other_from_it(tmp_path: Path, log: MemoryChangelog) -> None:
    left, right = budgeted(tmp_path, log, MemoryBudget(1000 * UNIT), 0, 1)
    give(right, 300)
    give(left, 300)

    def fail_once() -> None:
        failpoints.disarm()
        crash()

    failpoints.arm("task.before_log_commit", fail_once)
    with pytest.raises(Crash):
        give(left, 300)
    assert left.input_offsets() == {INPUT: 0}
    assert units(right) == 0
    with right.store("s").all() as pairs:
        assert len(list(pairs)) == 1
    give(left, 300)
    assert units(left) == 300
    close(left, right)


@pytest.mark.parametrize("call", ["process", "run", "commit", "input_offsets", "close"])
def test_what_keeps_a_task_from_its_early_commit_is_raised_by_its_own_next_call_and_not_by_another_s(
    tmp_path: Path, log: MemoryChangelog, call: str
) -> None:
    """Otherwise its caller would not know which records were rolled back."""
    left, right = budgeted(tmp_path, log, MemoryBudget(1000 * UNIT), 0, 1)
    theirs = TopicPartition(INPUT.topic, 1)
    give(right, 300)
    give(left, 300)
    failing = iter([False, True])

    def fail_second() -> None:
        if next(failing):
            crash()

    failpoints.arm("task.before_log_commit", fail_second)
    give(left, 300)
    failpoints.disarm()
    # The one that had the record in hand has noticed nothing, and is committed.
    assert (left.input_offsets(), units(left)) == ({INPUT: 2}, 0)
    give(left, 100)
    with right.store("s", IsolationLevel.READ_UNCOMMITTED).all() as pairs:
        assert list(pairs) == []
    calls: dict[str, Callable[[], object]] = {
        "process": lambda: right.process(theirs, Record(1, b"k", b"300")),
        "run": right.run,
        "commit": right.commit,
        "input_offsets": right.input_offsets,
        "close": right.close,
    }
    with pytest.raises(Crash):
        calls[call]()
    if call == "close":
        assert right.open()
    assert right.input_offsets() == {theirs: 0}
    give(right, 300, 200)
    right.commit()
    assert right.input_offsets() == {theirs: 2}
    assert right.metrics.rollback_total == 1
    close(left, right)


def test_a_task_that_is_fenced_in_an_early_commit_says_so_itself(tmp_path: Path, log: MemoryChangelog) -> None:
    left, right = budgeted(tmp_path / "old", log, MemoryBudget(1000 * UNIT), 0, 1)
    give(right, 300)
    [owner] = budgeted(tmp_path / "new", log, MemoryBudget(1000 * UNIT), 1)
    give(left, 300, 300)
    assert units(left) == 0
    for _ in range(2):
        with pytest.raises(ProducerFencedError):
            give(right, 300)
    close(left, right, owner)


def test_a_task_is_not_committed_in_the_middle_of_its_record(tmp_path: Path, log: MemoryChangelog) -> None:
    tasks: list[StreamTask] = []
    staged_bytes = []

    def process(record: Record, context: TaskContext) -> None:
        stage(record, context)
        if context.task_id.partition == 0 and record.offset == 1:
            give(tasks[1], 900)
            staged_bytes.append(units(tasks[0]))

    tasks += budgeted(tmp_path, log, MemoryBudget(1000 * UNIT), 0, 1, process=process)
    give(tasks[0], 10, 900)
    assert staged_bytes == [910]
    assert [units(task) for task in tasks] == [0, 0]
    close(*tasks)


def test_no_more_is_replayed_after_a_crash_than_may_be_staged(tmp_path: Path, log: MemoryChangelog) -> None:
    """Source: KIP-892, "will effectively bound the number of records that will need to be restored"."""
    backend = "sqlite-indexed-batch"
    [task] = budgeted(tmp_path, log, MemoryBudget(1000 * UNIT), 0, backend=backend)
    give(task, *[100] * 57)
    with crashing_at("task.after_log_commit"):
        give(task, *[100] * 20)
    close(task)
    again = single(tmp_path, log, stage, stores={"s": StoreConfig(backend)}, state_dir=tmp_path, inputs=[INPUT])
    [report] = again.open()
    assert 0 < report.bytes <= 1000 * UNIT
    close(again)


@pytest.mark.parametrize(
    ("backend", "pairs"), [(MEMORY, EMPTY_PAIRS), ("rocksdb-indexed-batch", 20_000), ("lmdb-native", 20_000)]
)
def test_a_task_commits_before_empty_values_take_more_memory_than_its_limit(
    tmp_path: Path, log: MemoryChangelog, backend: str, pairs: int
) -> None:
    steps, pairs_per_step, limit = 400, pairs // 400, 10 * pairs
    most = 0

    def process(record: Record, context: TaskContext) -> None:
        nonlocal most
        store = context.store("s")
        for number in range(record.offset * pairs_per_step, (record.offset + 1) * pairs_per_step):
            store.put(number.to_bytes(4, "big"), b"")
        most = max(most, store.uncommitted_memory_bytes())

    [task] = budgeted(tmp_path, log, MemoryBudget(limit), 0, backend=backend, process=process)
    step_bytes = pairs_per_step * (4 + ENTRY_BYTES)
    give(task, *[0] * steps)
    assert limit / 4 < most <= limit
    assert sum(early(task)) == steps // (limit // step_bytes)
    close(task)
