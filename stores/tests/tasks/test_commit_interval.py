"""A task commits when an interval is up, by a clock that the test sets. Source: Kafka, ``commit.interval.ms``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog, Record
from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.interface import IsolationLevel
from stores.metrics import EarlyCommitCause
from stores.tasks import NO_INTERVAL, PunctuationType, StreamTask, TaskContext
from stores.tasks.context import ProcessFunction
from stores.tests.tasks.hand_clock import HandClock
from stores.tests.tasks.setup import AT_LEAST_ONCE, EXACTLY_ONCE, INPUT, MEMORY, count, counting_task, feed, single


def clocked(
    folder: Path, log: MemoryChangelog, clock: HandClock, process: ProcessFunction = count, **settings: Any
) -> StreamTask:
    """A task, opened, whose commit interval is the default one unless it is given."""
    arguments = {"commit_interval_ms": None, "clock": clock, "process": process, **settings}
    task = counting_task(folder, log, MEMORY, **arguments)
    task.open()
    return task


def commits(task: StreamTask) -> tuple[int, int]:
    """Return the number of commits, and of those before the interval was over."""
    return task.metrics.commit_total, sum(task.metrics.early_commit_total.values())


@pytest.mark.parametrize(
    ("guarantee", "given", "interval_ms"),
    [(EXACTLY_ONCE, None, 100), (AT_LEAST_ONCE, None, 30_000), (EXACTLY_ONCE, 7_000, 7_000), (AT_LEAST_ONCE, 5, 5)],
)
def test_a_record_waits_no_longer_for_its_commit_than_the_interval(
    tmp_path: Path, log: MemoryChangelog, guarantee: Any, given: int | None, interval_ms: int
) -> None:
    """Defaults as Kafka's. Source: KIP-892, "Transaction Isolation": what a reader waits for."""
    feed(log, range(10))
    clock = HandClock()
    task = clocked(tmp_path, log, clock, guarantee=guarantee, commit_interval_ms=given)
    reader = task.store("left", IsolationLevel.READ_COMMITTED)
    for number, record in enumerate(log.read(INPUT)):
        clock.advance(interval_ms - 1 if number % 2 == 0 else 1)
        task.process(INPUT, record)
        assert commits(task) == ((number + 1) // 2, 0)
        assert (reader.get(b"%d" % number) is not None) is (number % 2 == 1)
    task.close()


def test_run_commits_idle_input_when_the_interval_is_up(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, range(3))
    clock = HandClock()
    task = clocked(tmp_path, log, clock)
    task.run()
    assert commits(task) == (0, 0)
    clock.advance(100)
    assert task.run() == 0
    assert commits(task) == (1, 0)
    clock.advance(1_000)
    assert task.run() == 0
    assert commits(task) == (1, 0)
    # The next interval began then: a record does not find it over.
    clock.advance(50)
    feed(log, [4])
    assert task.run() == 1
    assert commits(task) == (1, 0)
    clock.advance(50)
    assert task.run() == 0
    assert commits(task) == (2, 0)
    task.close()


def test_run_waits_for_input_and_keeps_the_interval_meanwhile(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, range(3))
    clock = HandClock()
    task = clocked(tmp_path, log, clock)
    late = iter([4])

    def arrive() -> None:
        if clock.now_ms >= 150:
            feed(log, late)

    clock.while_asleep = arrive
    assert task.run(wait_s=0.2) == 4
    # Two commits: at 100 ms, and of the late record, which another 0.2 s without input followed.
    assert commits(task) == (2, 0)
    assert 350 <= clock.now_ms <= 400
    assert max(clock.slept) <= 0.02
    task.close()


def test_run_does_not_wait_once_it_has_as_many_records_as_it_was_to_process(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    feed(log, range(3))
    clock = HandClock()
    task = clocked(tmp_path, log, clock)
    assert task.run(2, wait_s=10) == 2
    assert clock.slept == []
    task.close()


def test_commits_before_the_interval_is_up_are_counted_as_early_and_restart_it(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Source: KIP-892, "In-memory Transaction Buffers": a commit is asked for before the interval elapses."""
    feed(log, range(4))

    def asking(record: Record, context: TaskContext) -> None:
        count(record, context)
        if record.offset in (0, 3):
            context.commit()

    clock = HandClock()
    task = clocked(tmp_path, log, clock, asking)
    clock.advance(99)
    task.run(1)
    assert commits(task) == (1, 1)
    clock.advance(99)
    task.run(1)
    assert commits(task) == (1, 1)
    clock.advance(1)
    task.run(1)
    assert commits(task) == (2, 1)
    # Asked for when it was due: not early.
    clock.advance(100)
    task.run(1)
    assert commits(task) == (3, 1)
    task.close()


@pytest.mark.parametrize("cause", [EarlyCommitCause.REQUESTED, EarlyCommitCause.EXCEEDED])
def test_a_punctuator_by_wall_clock_is_committed_at_once_where_it_asks_for_it_or_writes_too_much(
    tmp_path: Path, log: MemoryChangelog, cause: EarlyCommitCause
) -> None:
    """No record need come after it."""
    feed(log, [])
    clock = HandClock()

    def init(context: TaskContext) -> None:
        def write(timestamp_ms: int) -> None:
            context.store("s").put(b"key", b"v" * (2_000 if cause is EarlyCommitCause.EXCEEDED else 1))
            if cause is EarlyCommitCause.REQUESTED:
                context.commit()

        context.schedule(10, PunctuationType.WALL_CLOCK_TIME, write)

    task = single(
        tmp_path, log, count, stores={"s": StoreConfig(MEMORY, uncommitted_max_bytes=1_000)}, init=init, clock=clock
    )
    task.open()
    clock.advance(10)
    assert task.run() == 0
    assert {why: number for why, number in task.metrics.early_commit_total.items() if number} == {cause: 1}
    assert task.store("s", IsolationLevel.READ_COMMITTED).get(b"key") is not None
    task.close()


def test_no_interval_leaves_time_out_and_zero_commits_every_record(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, range(5))
    clock = HandClock()
    task = clocked(tmp_path, log, clock, commit_interval_ms=NO_INTERVAL, commit_every_records=2)
    clock.advance(10**9)
    task.run()
    assert commits(task) == (2, 0)
    task.close()
    feed(log, range(5))
    task = clocked(tmp_path, log, clock, commit_interval_ms=0)
    task.run()
    assert commits(task) == (5, 0)
    task.close()


@pytest.mark.parametrize(
    ("interval_ms", "error"), [(-2, ConfigError), (2**63, ConfigError), (True, TypeError), (1.5, TypeError)]
)
def test_an_interval_that_is_none_is_refused(
    tmp_path: Path, log: MemoryChangelog, interval_ms: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        clocked(tmp_path, log, HandClock(), commit_interval_ms=interval_ms)


@pytest.mark.parametrize(("wait_s", "error"), [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError)])
def test_a_time_to_wait_that_is_none_is_refused(
    tmp_path: Path, log: MemoryChangelog, wait_s: Any, error: type[Exception]
) -> None:
    task = clocked(tmp_path, log, HandClock())
    with pytest.raises(error):
        task.run(wait_s=wait_s)
    task.close()
