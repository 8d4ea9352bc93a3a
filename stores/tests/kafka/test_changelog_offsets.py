"""The changelog offsets of tasks over a broker, and the offset sums that rank the instances of a task.

Source: KIP-892, "Offsets for Consumer Rebalances"; KIP-441, "Computing the most-caught-up instances".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stores.changelog import Changelog, Record
from stores.changelog.kafka.testing.broker import Broker
from stores.interface import TopicPartition
from stores.tasks import StateDirectory, StreamTask, TaskContext, most_caught_up_first, offset_sum
from stores.tasks.directory.entry_files import UNKNOWN_OFFSET
from stores.tasks.directory.state_directory import OFFSET_SUM_MAX
from stores.tests.kafka.counting import KEYS, changelog, prepared
from stores.tests.kafka.independent_reader import IndependentReader
from stores.tests.tasks.setup import LEFT, RIGHT, TASK, Crash, checkpoint, counting_task, raising_at

pytestmark = pytest.mark.kafka


def write_unevenly(record: Record, context: TaskContext) -> None:
    """Change the left store by each record, and the right one by every third."""
    assert record.key is not None
    context.store("left").put(record.key, b"%d" % record.offset)
    if record.offset % 3 == 2:
        context.store("right").put(record.key, b"%d" % record.offset)


def write_left(record: Record, context: TaskContext) -> None:
    assert record.key is not None
    context.store("left").put(record.key, b"%d" % record.offset)


@contextmanager
def files_away(folder: Path) -> Iterator[None]:
    """Let no file of the task be found during the block."""
    state = folder / "state"
    away = state.rename(folder / "away")
    try:
        yield
    finally:
        away.rename(state)


def offsets_without_files(folder: Path, task: StreamTask) -> dict[TopicPartition, int | None]:
    with files_away(folder):
        return task.changelog_offsets()


def test_an_open_task_knows_the_offset_of_its_last_committed_record_and_reads_no_file(
    tmp_path: Path, broker: Broker
) -> None:
    """Markers and aborted records have offsets, too: the number of records is not enough."""
    poisoned = {8}
    prepared(tmp_path, broker)
    with (
        changelog(tmp_path) as log,
        counting_task(tmp_path, log, process=raising_at(poisoned, write_unevenly)) as task,
        IndependentReader(broker, LEFT) as reader,
        IndependentReader(broker, RIGHT) as right,
    ):
        assert offsets_without_files(tmp_path, task) == {LEFT: None, RIGHT: None}
        task.run(2, commit=True)
        assert right.records() == []
        assert offsets_without_files(tmp_path, task) == {LEFT: reader.await_records(2)[-1].offset, RIGHT: None}
        task.run(4, commit=True)
        committed = {LEFT: reader.await_records(6)[-1].offset, RIGHT: right.await_records(2)[-1].offset}
        assert committed[LEFT] > 5
        assert offsets_without_files(tmp_path, task) == committed
        task.run(2)
        assert offsets_without_files(tmp_path, task) == committed
        with pytest.raises(Crash):
            task.run()
        assert offsets_without_files(tmp_path, task) == committed
        poisoned.clear()
        task.run(commit=True)
        committed = {LEFT: reader.await_records(12)[-1].offset, RIGHT: right.await_records(4)[-1].offset}
        assert offsets_without_files(tmp_path, task) == committed
    assert StateDirectory(tmp_path / "state").offsets(TASK) == committed
    with changelog(tmp_path) as log, counting_task(tmp_path, log, process=write_unevenly) as task:
        assert [report.records for report in task.restore_reports()] == [0, 0]
        assert offsets_without_files(tmp_path, task) == committed


def instance(folder: Path, name: str, log: Changelog) -> StreamTask:
    """Return an instance of the task with a state directory of its own."""
    return counting_task(folder / name, log)


def test_offset_sums_rank_instances_by_the_records_that_they_lack(tmp_path: Path, broker: Broker) -> None:
    """Each instance continues where the one before it has ended."""
    names = ("first", "second", "third")
    each = len(KEYS) // len(names)
    prepared(tmp_path, broker)
    with changelog(tmp_path) as log:
        running: dict[str, int] = {}
        for name in names:
            with instance(tmp_path, name, log) as task:
                assert task.run(each, commit=True) == each
                running[name] = offset_sum(task.changelog_offsets())
        with IndependentReader(broker, LEFT) as left, IndependentReader(broker, RIGHT) as right:
            ends = [reader.await_records(len(KEYS))[-1].offset for reader in (left, right)]
        sums = {name: StateDirectory(tmp_path / name / "state").offset_sums()[TASK] for name in names}
        assert sums == running
        assert sums["third"] == sum(ends)
        ranked = most_caught_up_first({"nothing": 0, **sums})
        assert ranked == ["third", "second", "first", "nothing"]
        lacking: list[int] = []
        for name in ranked:
            with instance(tmp_path, name, log) as task:
                lacking.append(sum(report.records for report in task.restore_reports()))
        assert lacking == [0, 2 * each, 4 * each, 6 * each]


def test_an_unknown_offset_counts_as_nothing_and_a_sum_ends_at_its_bound(tmp_path: Path, broker: Broker) -> None:
    prepared(tmp_path, broker)
    state = StateDirectory(tmp_path / "state")
    with changelog(tmp_path) as log, counting_task(tmp_path, log, process=write_left) as task:
        task.run(commit=True)
        with IndependentReader(broker, LEFT) as reader:
            last = reader.await_records(len(KEYS))[-1].offset
        offsets = task.changelog_offsets()
        assert offsets == {LEFT: last, RIGHT: None}
        assert offset_sum(offsets) == state.offset_sums({TASK: offsets})[TASK] == last
        assert offset_sum({**offsets, RIGHT: UNKNOWN_OFFSET}) == last
        assert offset_sum({**offsets, RIGHT: OFFSET_SUM_MAX}) == OFFSET_SUM_MAX
    assert f"{RIGHT.topic} 0 {UNKNOWN_OFFSET}" in checkpoint(tmp_path).path.read_text()
    assert state.offset_sums() == {TASK: last}
    checkpoint(tmp_path).write({**offsets, RIGHT: OFFSET_SUM_MAX})
    assert state.offset_sums() == {TASK: OFFSET_SUM_MAX}
    assert most_caught_up_first({"a": last, "b": state.offset_sums()[TASK]}) == ["b", "a"]
