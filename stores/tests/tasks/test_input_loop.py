"""The loop of a task over its input: when it reads, and when a read ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from stores.changelog import MemoryChangelog, Record
from stores.interface import TopicPartition
from stores.tasks import TaskContext
from stores.tests.tasks.setup import (
    INPUT,
    Crash,
    count,
    counting_task,
    expected_outputs,
    feed,
    outputs,
    raising_at,
)

KEYS = [1, 2, 1, 3, 1]


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
