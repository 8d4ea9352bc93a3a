"""The progress of local copies: offset sums of the stores that are open, and of the files that others have left.

Source: KIP-892, "Offsets for Consumer Rebalances".
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stores.changelog import MemoryChangelog
from stores.interface import TopicPartition
from stores.tasks import TaskId
from stores.tests.worker.counting_app import PARTITIONS, app, count
from stores.tests.worker.places import Place
from stores.tests.worker.worker_thread import await_counted, await_true, running
from stores.worker import Application, Processor
from stores.worker.local_copies import LocalCopies
from stores.worker.settings import WorkerSettings

WORDS = [TopicPartition("words", number) for number in range(PARTITIONS)]
LOG = TopicPartition("counting-counts-changelog", 1)
FED = [b"to", b"be", b"or"]


@pytest.fixture
def settings(tmp_path: Path) -> WorkerSettings:
    return WorkerSettings.from_properties(app, {"changelog.file": "log", "state.dir": str(tmp_path / "state")})


def leave_files(settings: WorkerSettings) -> None:
    """Let a task of partition 1 count the words, and close it."""
    with MemoryChangelog() as log:
        for topic in ("words", "counted"):
            log.create_topic(topic, PARTITIONS)
        with log.producer() as producer:
            producer.send_all(WORDS[1], [(None, word, -1) for word in FED])
            producer.flush()
        stores = settings.stores({"counts": None})
        with settings.tasks.task(TaskId(0, 1), changelog=log, stores=stores, process=count, inputs=[WORDS[1]]) as task:
            task.run(commit=True)


def test_files_of_earlier_tasks_count_until_their_stores_are_open(settings: WorkerSettings) -> None:
    assert LocalCopies(app, settings.tasks, []).progress() == {}
    leave_files(settings)
    open_offsets: dict[TaskId, dict[TopicPartition, int | None]] = {}
    copies = LocalCopies(app, settings.tasks, [dict, lambda: open_offsets])
    assert copies.progress() == {WORDS[1]: len(FED) - 1}
    open_offsets[TaskId(0, 1)] = {LOG: 40}
    open_offsets[TaskId(0, 2)] = {LOG._replace(partition=2): None}
    assert copies.progress() == {WORDS[1]: 40, WORDS[2]: 0}
    open_offsets.clear()
    assert copies.progress() == {WORDS[1]: len(FED) - 1}


def test_files_that_a_store_leaves_are_read_when_it_is_closed(settings: WorkerSettings) -> None:
    open_offsets: dict[TaskId, dict[TopicPartition, int | None]] = {TaskId(0, 1): {LOG: 0}}
    copies = LocalCopies(app, settings.tasks, [lambda: open_offsets])
    assert copies.progress() == {WORDS[1]: 0}
    leave_files(settings)
    open_offsets.clear()
    assert copies.progress() == {WORDS[1]: len(FED) - 1}


def test_files_that_were_removed_do_not_count_any_more(settings: WorkerSettings) -> None:
    leave_files(settings)
    copies = LocalCopies(app, settings.tasks, [])
    assert copies.progress() == {WORDS[1]: len(FED) - 1}
    shutil.rmtree(settings.tasks.state_dir / "0_1")
    copies.read_again()
    assert copies.progress() == {}


def test_stores_of_one_task_are_counted_together(settings: WorkerSettings) -> None:
    both = Application("counting", Processor(["words"], count, {"counts": None, "others": None}))
    open_offsets = {TaskId(0, 1): {LOG: 40, TopicPartition("counting-others-changelog", 1): 2}}
    assert LocalCopies(both, settings.tasks, [lambda: open_offsets]).progress() == {WORDS[1]: 42}


def test_the_progress_of_a_worker_is_that_of_its_last_committed_records(place: Place) -> None:
    """Over each changelog: that of its open tasks, and then that of their files. One partition has no input."""
    fed = [word for word in (f"word-{number}" for number in range(30)) if sum(word.encode()) % PARTITIONS]
    with running(place, {}) as worker:
        place.feed(fed[:10])
        await_counted(place, 10)
        place.feed(fed[10:])
        await_counted(place, len(fed))
        expected = {partition: last_offset(place, worker.application.name, partition) for partition in WORDS}
        copies = LocalCopies(
            worker.application, worker.settings.tasks, [thread.changelog_offsets for thread in worker._threads]
        )
        await_true(lambda: copies.progress() == expected)
    closed_copies = LocalCopies(worker.application, worker.settings.tasks, [])
    assert closed_copies.progress() == expected


def last_offset(place: Place, application: str, partition: TopicPartition) -> int:
    """Return the offset of the last record in the changelog of a partition's task, 0 if there is none."""
    with place.open() as log:
        records = log.read(TopicPartition(f"{application}-counts-changelog", partition.partition))
        return max((record.offset for record in records), default=0)


def test_the_id_of_a_directory_outlasts_a_worker(settings: WorkerSettings, tmp_path: Path) -> None:
    first = LocalCopies(app, settings.tasks, []).directory
    assert LocalCopies(app, settings.tasks, []).directory == first
    other = WorkerSettings.from_properties(app, {"changelog.file": "log", "state.dir": str(tmp_path / "other")})
    assert LocalCopies(app, other.tasks, []).directory != first
