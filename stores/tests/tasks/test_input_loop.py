"""The loop of a task over its input: when it reads, and when a read ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from stores.changelog import MemoryChangelog, Record
from stores.interface import TopicPartition
from stores.tasks import NO_INTERVAL, Batch, TaskContext, input_loop
from stores.tests.tasks.setup import (
    INPUT,
    Crash,
    batch_task,
    count,
    counting_task,
    expected_outputs,
    feed,
    outputs,
    raising_at,
    stream_task,
)

KEYS = [1, 2, 1, 3, 1]
OTHER = TopicPartition("other", 0)
TIMES_MS = {INPUT: [10, 30, 20, 70, 80], OTHER: [0, 40, 50, 60, 90, 100]}
BY_TIME = [
    (OTHER, 0),
    (INPUT, 10),
    (INPUT, 30),
    (INPUT, 20),
    (OTHER, 40),
    (OTHER, 50),
    (OTHER, 60),
    (INPUT, 70),
    (INPUT, 80),
    (OTHER, 90),
    (OTHER, 100),
]
"""The order in which both inputs are processed: the earliest of the next records of each."""


class Reading(MemoryChangelog):
    """A changelog that notes which records were taken from the reads of the input, and whether those were ended."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[int] = []
        self.open_reads = 0

    def read(self, partition: TopicPartition, from_offset: int = 0) -> Iterator[Record]:
        records = super().read(partition, from_offset)
        return self._noted(records) if partition == INPUT else records

    def _noted(self, records: Iterator[Record]) -> Iterator[Record]:
        self.open_reads += 1
        try:
            for record in records:
                self.taken.append(record.offset)
                yield record
        finally:
            self.open_reads -= 1


class Streaming(Reading):
    """The same without snapshots."""

    reads_hold_snapshots: ClassVar[bool] = False


@pytest.mark.parametrize("kind", [Reading, Streaming])
def test_a_read_without_a_snapshot_lasts_while_its_records_are_processed(tmp_path: Path, kind: type[Reading]) -> None:
    seen: list[tuple[int, int]] = []

    def process(record: Record, context: TaskContext) -> None:
        seen.append((len(log.taken), log.open_reads))
        count(record, context)

    with kind() as log:
        feed(log, KEYS)
        with counting_task(tmp_path, log, process=process) as task:
            assert task.run(2) == 2
            assert task.run(commit=True) == 3
        assert seen == (
            [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)] if kind is Streaming else [(2, 0), (2, 0), (5, 0), (5, 0), (5, 0)]
        )
        assert outputs(log) == expected_outputs(KEYS)
        assert not log.open_reads


@pytest.mark.parametrize("kind", [Reading, Streaming])
def test_a_read_ends_when_its_record_fails_even_if_the_error_is_kept(tmp_path: Path, kind: type[Reading]) -> None:
    poisoned = {3}
    with kind() as log:
        feed(log, KEYS)
        with counting_task(tmp_path, log, process=raising_at(poisoned)) as task:
            with pytest.raises(Crash) as error:
                task.run()
            assert error.value.__traceback__ is not None
            assert not log.open_reads
            poisoned.clear()
            assert task.run(commit=True) == len(KEYS)
        assert outputs(log) == expected_outputs(KEYS)


@pytest.mark.parametrize("poisoned", [None, 17])
@pytest.mark.parametrize("kind", [Reading, Streaming])
def test_what_a_slice_of_batches_leaves_of_a_read_is_next_unless_the_task_rolls_back(
    tmp_path: Path, kind: type[Reading], poisoned: int | None
) -> None:
    seen: list[int] = []

    def process_batch(batch: Batch, context: TaskContext) -> None:
        seen.extend(batch.offsets)
        if poisoned in batch.offsets and seen.count(17) == 1:
            raise Crash

    with kind() as log:
        feed(log, range(250))
        with batch_task(tmp_path, log, process_batch, stores={}, commit_interval_ms=NO_INTERVAL) as task:
            for _ in range(3):
                with suppress(Crash):
                    assert task.run(7) == 7
            done = task.input_offsets()[INPUT]
            while (advanced := task.run(7)) == 7:
                done += advanced
            assert done + advanced == 250
        assert seen == [*(range(21) if poisoned else ()), *range(250)]
        if poisoned is None:
            assert log.taken == [*range(250)]
        assert not log.open_reads


@pytest.mark.parametrize(
    ("kind", "slice_records", "settings", "most"),
    [
        (Reading, 250, {}, 300),
        (Streaming, 250, {}, 300),
        (Streaming, 1_000, {"batch_max_records": 150}, 200),
        (Streaming, 1_000, {"batch_max_bytes": 100}, 100),
    ],
)
def test_a_task_of_batches_holds_no_more_than_a_slice_or_a_batch_and_the_end_of_its_last_piece(
    tmp_path: Path, kind: type[Reading], slice_records: int, settings: dict[str, Any], most: int
) -> None:
    """The changelog gives 100 records at a time."""
    held: list[int] = []
    with kind() as log:
        feed(log, range(1_000))

        def process_batch(batch: Batch, context: TaskContext) -> None:
            held.append(len(log.taken) - batch.offsets[0])

        with batch_task(tmp_path, log, process_batch, stores={}, **settings) as task:
            while task.run(slice_records):
                pass
        assert log.taken == [*range(1_000)]
        assert max(held) == most


class SeenTwice(Reading):
    """A changelog that notes each record taken from a read, of all topics."""

    def read(self, partition: TopicPartition, from_offset: int = 0) -> Iterator[Record]:
        return self._noted(MemoryChangelog.read(self, partition, from_offset))


class StreamingBoth(SeenTwice):
    """The same without snapshots."""

    reads_hold_snapshots: ClassVar[bool] = False


def two_inputs(log: MemoryChangelog) -> None:
    for partition, times_ms in TIMES_MS.items():
        log.create_topic(partition.topic)
        with log.producer() as producer:
            producer.send_all(partition, [(b"key", b"value", time_ms) for time_ms in times_ms])
            producer.flush()


@pytest.mark.parametrize("slice_records", [1, 2, 3, 100])
@pytest.mark.parametrize("kind", [SeenTwice, StreamingBoth])
def test_the_earliest_of_the_next_records_of_all_inputs_is_processed_first(
    tmp_path: Path, kind: type[Reading], slice_records: int
) -> None:
    seen: list[tuple[TopicPartition, int]] = []
    with kind() as log:
        two_inputs(log)
        task = stream_task(
            state_dir=tmp_path,
            changelog=log,
            stores={},
            process=lambda record, context: seen.append((context.partition, record.timestamp_ms)),
            inputs=[INPUT, OTHER],
        )
        with task:
            while task.run(slice_records):
                pass
        assert seen == BY_TIME
        assert not log.open_reads
        if kind is StreamingBoth:
            # The record that a slice has not come to is not read again by the next one.
            assert len(log.taken) == len(BY_TIME)


@pytest.mark.parametrize("failing", range(len(BY_TIME)))
@pytest.mark.parametrize("kind", [SeenTwice, StreamingBoth])
def test_after_a_rollback_the_records_since_the_commit_come_again_in_the_same_order(
    tmp_path: Path, kind: type[Reading], failing: int
) -> None:
    seen: list[tuple[TopicPartition, int]] = []

    def process(record: Record, context: TaskContext) -> None:
        seen.append((context.partition, record.timestamp_ms))
        if len(seen) == failing + 1:
            raise Crash

    with kind() as log:
        two_inputs(log)
        task = stream_task(
            state_dir=tmp_path,
            changelog=log,
            stores={},
            process=process,
            inputs=[INPUT, OTHER],
            commit_every_records=3,
            commit_interval_ms=NO_INTERVAL,
        )
        with task:
            with pytest.raises(Crash) as error:
                task.run()
            assert error.value.__traceback__ is not None
            assert not log.open_reads
            task.run()
        committed = failing // 3 * 3
        assert seen == BY_TIME[: failing + 1] + BY_TIME[committed:]
        assert not log.open_reads


def test_many_inputs_are_read_at_most_twice_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were each read as far as one alone, most of what is in memory would be read for nothing in every round."""
    monkeypatch.setattr(input_loop, "_RUN_RECORDS", 10)
    inputs = [TopicPartition(f"input-{number}", 0) for number in range(5)]
    seen: list[int] = []
    with SeenTwice() as log:
        for number, partition in enumerate(inputs):
            log.create_topic(partition.topic)
            with log.producer() as producer:
                producer.send_all(partition, [(b"key", b"value", 5 * step + number) for step in range(20)])
                producer.flush()
        task = stream_task(
            state_dir=tmp_path,
            changelog=log,
            stores={},
            process=lambda record, context: seen.append(record.timestamp_ms),
            inputs=inputs,
        )
        with task:
            assert task.run() == 100
        assert seen == list(range(100))
        assert len(log.taken) <= 2 * 100


@pytest.mark.parametrize("times_ms", [(-1, -1), (7, 7), (7, -1)])
def test_inputs_with_equal_or_unknown_times_take_turns(tmp_path: Path, times_ms: tuple[int, int]) -> None:
    seen: list[TopicPartition] = []
    with MemoryChangelog() as log:
        for partition, time_ms in zip((INPUT, OTHER), times_ms, strict=True):
            log.create_topic(partition.topic)
            with log.producer() as producer:
                producer.send_all(partition, [(b"key", b"value", time_ms)] * 4)
                producer.flush()
        task = stream_task(
            state_dir=tmp_path,
            changelog=log,
            stores={},
            process=lambda record, context: seen.append(context.partition),
            inputs=[INPUT, OTHER],
        )
        with task:
            for _ in range(4):
                assert task.run(1) == 1
        assert seen == [INPUT, OTHER] * 2
