"""Punctuators are called by stream time and by wall clock, inside the task's transaction. Source: KIP-138."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import Changelog, MemoryChangelog, Record
from stores.errors import ConfigError, StoreError
from stores.interface import TopicPartition
from stores.tasks import PunctuationType, Schedule, StreamTask, TaskContext
from stores.tasks.timing import NEVER_NS, Punctuation, StreamTime
from stores.tests.tasks.hand_clock import EPOCH_MS, HandClock
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    INPUT,
    LEFT,
    MEMORY,
    OUTPUT,
    Crash,
    counting_task,
    crashing_at,
    over_each_changelog,
    single,
    state,
)

STREAM, WALL = PunctuationType.STREAM_TIME, PunctuationType.WALL_CLOCK_TIME
S = LEFT._replace(topic="app-s-changelog")


def feed_times(log: Changelog, times: Iterable[int]) -> None:
    with log.producer() as producer:
        for time in times:
            producer.send(INPUT, b"record", b"x", time)
        producer.flush()


def ignore(record: Record, context: TaskContext) -> None:
    """A function that does nothing."""


def sum_up(record: Record, context: TaskContext) -> None:
    """Count the record since the last punctuation."""
    store = context.store("s")
    store.put(b"open", b"%d" % (int(store.get(b"open") or b"0") + 1))


def closing(interval_ms: int, kind: PunctuationType = STREAM) -> Callable[[TaskContext], None]:
    """Forward what was counted at each interval, with the timestamp as its key, and begin at 0 again."""

    def init(context: TaskContext) -> None:
        def close_window(timestamp_ms: int) -> None:
            store = context.store("s")
            context.forward("output", b"%d" % timestamp_ms, store.get(b"open") or b"0")
            store.put(b"open", b"0")

        context.schedule(interval_ms, kind, close_window)

    return init


def outputs(log: Changelog) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in log.read(OUTPUT)]


def called(
    folder: Path, log: Changelog, interval_ms: int, kind: PunctuationType, **settings: Any
) -> tuple[StreamTask, list[int], list[Schedule]]:
    """A task, opened, whose only schedule notes what it is called with."""
    times: list[int] = []
    schedules: list[Schedule] = []

    def init(context: TaskContext) -> None:
        schedules.append(context.schedule(interval_ms, kind, times.append))

    task = single(folder, log, ignore, init=init, **settings)
    task.open()
    return task, times, schedules


def test_stream_time_calls_once_for_each_interval_that_a_record_reaches(tmp_path: Path, log: MemoryChangelog) -> None:
    """At the first record, then after each multiple of the interval; what is jumped over is not made up for."""
    task, times, _ = called(tmp_path, log, 10, STREAM)
    for stamps, expected in (
        ([3], [3]),
        ([9, -1, 2], []),
        ([10], [10]),
        ([19, 11], []),
        ([47], [47]),
        ([50], [50]),
        ([50, 59], []),
    ):
        feed_times(log, stamps)
        task.run()
        assert times == expected
        times.clear()
    assert task.metrics.punctuate_total == 4
    task.close()


@over_each_changelog
def test_a_function_sees_the_stream_time_with_its_own_record(tmp_path: Path, log: Changelog) -> None:
    seen: list[int] = []
    feed_times(log, [-1, 5, 3, 8])
    task = single(tmp_path, log, lambda record, context: seen.append(context.stream_time_ms))
    task.open()
    task.run()
    assert seen == [-1, 5, 5, 8]
    task.close()
    feed_times(log, [4])
    task.open()
    task.run()
    assert seen[4:] == [8]
    task.close()


def test_wall_clock_calls_after_each_interval_with_and_without_input(tmp_path: Path, log: MemoryChangelog) -> None:
    clock = HandClock()
    task, times, _ = called(tmp_path, log, 10, WALL, clock=clock)
    feed_times(log, [1, 2])
    clock.advance(9)
    task.run(1)
    assert times == []
    clock.advance(1)
    task.run()
    assert times == [EPOCH_MS + 10]
    clock.advance(35)
    task.run()
    assert times == [EPOCH_MS + 10, EPOCH_MS + 45]
    clock.advance(4)
    task.run()
    assert len(times) == 2
    clock.advance(1)
    task.run()
    assert times[2:] == [EPOCH_MS + 50]
    task.run(wait_s=0.02)
    assert times[3:] == [EPOCH_MS + 60, EPOCH_MS + 70]
    task.close()


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_what_a_punctuator_does_is_committed_without_any_record(
    tmp_path: Path, log: MemoryChangelog, guarantee: Any
) -> None:
    """Its writes are logged and its outputs sent, with the time of the call as their timestamp."""
    clock = HandClock()
    task = single(
        tmp_path, log, ignore, init=closing(10, WALL), clock=clock, commit_interval_ms=100, guarantee=guarantee
    )
    task.open()
    clock.advance(10)
    task.run()
    assert outputs(log) == []
    clock.advance(100)
    task.run()
    assert [(key, value) for key, value in outputs(log)] == [(b"%d" % (EPOCH_MS + at), b"0") for at in (10, 110)]
    assert [(record.key, record.value, record.timestamp_ms) for record in log.read(S)][-1] == (
        b"open",
        b"0",
        EPOCH_MS + 110,
    )
    assert task.metrics.commit_total == 1
    task.close()


def test_what_a_punctuator_raises_undoes_the_transaction_and_it_is_called_again(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    poisoned = [True]

    def init(context: TaskContext) -> None:
        def fail(timestamp_ms: int) -> None:
            context.store("s").put(b"punctuated", b"%d" % timestamp_ms)
            if poisoned and timestamp_ms >= 10:
                raise Crash

        context.schedule(10, STREAM, fail)

    feed_times(log, [1, 2, 12])
    task = single(tmp_path, log, sum_up, init=init)
    task.open()
    task.run(1, commit=True)
    with pytest.raises(Crash):
        task.run()
    assert state(task, "s") == {b"open": b"1", b"punctuated": b"1"}
    assert task.input_offsets() == {INPUT: 1}
    poisoned.clear()
    task.run()
    assert state(task, "s") == {b"open": b"3", b"punctuated": b"12"}
    task.close()


def test_a_cancelled_schedule_is_called_no_more_and_made_again_after_a_return(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    poisoned: set[int] = set()

    def fail(record: Record, context: TaskContext) -> None:
        if record.offset in poisoned:
            raise Crash

    task, times, schedules = called(tmp_path, log, 10, STREAM)
    task._function = fail
    feed_times(log, [1, 11, 21, 31])
    task.run(2, commit=True)
    for _ in range(2):
        schedules[-1].cancel()
    task.run(1, commit=True)
    assert times == [1, 11]
    poisoned.add(3)
    with pytest.raises(Crash):
        task.run()
    poisoned.clear()
    task.run()
    assert times == [1, 11, 31]
    assert len(schedules) == 2
    task.close()


@pytest.mark.parametrize("crash", ["task.before_log_commit", "task.after_log_commit", "task.after_store_commit"])
@over_each_changelog
def test_a_crash_neither_repeats_a_call_nor_loses_one(tmp_path: Path, log: Changelog, crash: str) -> None:
    """The stream time is committed with the offsets: Kafka would call once more after the restart."""
    times = [1, 4, 9, 10, 12, 19, 20, 21, 35, 36, 41]
    with MemoryChangelog() as sound:
        for changelog in (sound, log):
            for topic in ("input", "output"):
                changelog.create_topic(topic)
            feed_times(changelog, times)
        task = single(tmp_path / "sound", sound, sum_up, init=closing(10))
        task.open()
        task.run()
        task.close()
        expected = outputs(sound)
    assert [key for key, _ in expected] == [b"1", b"10", b"20", b"35", b"41"]
    for done in range(len(times)):
        task = single(tmp_path / "crashing", log, sum_up, init=closing(10), commit_every_records=2)
        task.open()
        if task.input_offsets()[INPUT] <= done:
            with crashing_at(crash):
                task.run(2, commit=True)
        task.close(clean=False)
    task.open()
    task.run()
    task.close()
    assert outputs(log) == expected


def test_schedules_are_made_in_init_only_which_writes_nothing(tmp_path: Path, log: MemoryChangelog) -> None:
    errors: list[type[BaseException]] = []

    def attempt(step: Callable[[], object]) -> None:
        with pytest.raises(StoreError) as error:
            step()
        errors.append(error.type)

    def init(context: TaskContext) -> None:
        assert context.store("s").get(b"key") is None
        attempt(lambda: context.store("s").put(b"key", b"value"))
        attempt(lambda: context.forward("output", b"key", b"value"))

    def process(record: Record, context: TaskContext) -> None:
        attempt(lambda: context.schedule(10, STREAM, errors.clear))  # type: ignore[arg-type]

    feed_times(log, [1])
    task = single(tmp_path, log, process, init=init)
    task.open()
    task.run()
    task.close()
    assert len(errors) == 3
    assert outputs(log) == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0, STREAM, print), ConfigError),
        ((2**63, STREAM, print), ConfigError),
        ((True, STREAM, print), TypeError),
        ((1.5, WALL, print), TypeError),
        ((10, "STREAM", print), TypeError),
        ((10, WALL, None), TypeError),
    ],
)
def test_a_schedule_that_is_none_ends_the_opening(
    tmp_path: Path, log: MemoryChangelog, arguments: tuple[Any, Any, Any], error: type[Exception]
) -> None:
    task = single(tmp_path, log, ignore, init=lambda context: context.schedule(*arguments) and None)
    with pytest.raises(error):
        task.open()
    task = counting_task(tmp_path, log, MEMORY)
    task.open()
    task.close()


def test_schedules_that_are_due_at_once_are_called_in_the_order_of_their_times(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    calls: list[int] = []

    def init(context: TaskContext) -> None:
        for interval_ms in (10, 4, 7):
            context.schedule(interval_ms, STREAM, lambda _, interval_ms=interval_ms: calls.append(interval_ms))  # type: ignore[misc]

    feed_times(log, [1, 11])
    task = single(tmp_path, log, ignore, init=init)
    task.open()
    task.run()
    assert calls == [10, 4, 7, 4, 7, 10]
    task.close()


@pytest.mark.parametrize("kind", PunctuationType)
def test_a_cancelled_schedule_makes_nothing_due(kind: PunctuationType) -> None:
    """Else a task that waits for input would look at the clock without a pause."""
    clock = HandClock()
    punctuation = Punctuation(clock)
    schedules: list[Schedule] = []
    punctuation.begin(0, lambda: schedules.append(punctuation.schedule(10, kind, lambda _: None)))
    clock.advance(10)
    schedules[0].cancel()
    punctuation.fire_stream(10, lambda *_: None)
    punctuation.fire_wall(lambda *_: None)
    assert (punctuation.stream_due_ms, punctuation.wall_due_ns) == (1 << 63, NEVER_NS)


def test_each_commit_has_the_stream_time_also_if_no_record_has_moved_it() -> None:
    """A commit of offsets replaces the one before, with its time."""
    other, stream_time = TopicPartition("other", 0), StreamTime()
    stream_time.begin({}, [INPUT, other])
    assert stream_time.times_ms() == {}
    stream_time.begin({INPUT: 5, other: 3, OUTPUT: 9}, [INPUT, other])
    assert (stream_time.ms, stream_time.times_ms()) == (5, {INPUT: 5})
    stream_time.ms, stream_time.partition = 9, other
    assert stream_time.times_ms() == stream_time.times_ms() == {other: 9}


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_the_stream_time_is_committed_with_the_offset_of_its_record(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch, guarantee: Any
) -> None:
    feed_times(log, [3])
    task = single(tmp_path, log, ignore, guarantee=guarantee)
    task.open()
    producer = task._context._producer
    send, sent = producer.send_offsets, []

    def send_offsets(*given: Any) -> None:
        sent.append(given)
        send(*given)

    monkeypatch.setattr(producer, "send_offsets", send_offsets)
    task.run(commit=True)
    assert sent == [("app", {INPUT: 1}, {INPUT: 3})]
    assert log.committed("app", [INPUT]) == ({INPUT: 1}, {INPUT: 3})
    task.close()
