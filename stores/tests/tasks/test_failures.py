"""Errors in a task's function and at each step of a commit, and how the task recovers from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stores import failpoints
from stores.changelog import MemoryChangelog, Record
from stores.errors import (
    CommitFailedError,
    ProducerFencedError,
    StoreClosedError,
    StoreError,
    StoreLockedError,
)
from stores.tasks import StreamTask, TaskContext
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    DIRECT,
    EXACTLY_ONCE,
    INDEXED,
    INPUT,
    LEFT,
    MEMORY,
    Crash,
    begun,
    count,
    counting_task,
    crashing_at,
    expected_outputs,
    expected_state,
    feed,
    outputs,
    raising_at,
    state,
)


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
@pytest.mark.parametrize("backend", [MEMORY, INDEXED, "rocksdb-dual-store"])
def test_what_the_function_raises_undoes_everything_since_the_last_commit_and_the_task_goes_on(
    tmp_path: Path, log: MemoryChangelog, backend: str, guarantee: Any
) -> None:
    keys = [1, 2, 3, 1]
    poisoned = [3]
    feed(log, keys)
    task = begun(counting_task(tmp_path, log, backend, process=raising_at(poisoned), guarantee=guarantee))
    with pytest.raises(Crash):
        task.run()
    assert task.input_offsets() == {INPUT: 1}
    assert state(task, "left") == state(task, "right") == expected_state([1])
    poisoned.clear()
    assert task.run() == 3
    task.close()
    assert outputs(log) == expected_outputs(keys)
    assert {record.key: record.value for record in log.read(LEFT)} == expected_state(keys)


def test_a_direct_store_is_wiped_when_the_function_raises_under_exactly_once(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """The store can't roll back its writes. Source: KIP-892, "Error Handling"."""
    poisoned = [2]
    keys = [1, 2, 3]
    feed(log, keys)
    task = begun(counting_task(tmp_path, log, DIRECT, process=raising_at(poisoned)))
    with pytest.raises(Crash):
        task.run()
    assert state(task, "left") == expected_state([1])
    poisoned.clear()
    task.run()
    assert state(task, "left") == expected_state(keys)
    task.close()
    assert outputs(log) == expected_outputs(keys)


@pytest.mark.parametrize("backend", [MEMORY, INDEXED, DIRECT])
@pytest.mark.parametrize(
    ("failpoint", "committed"),
    [("task.before_log_commit", 0), ("changelog.before_commit", 0), ("changelog.after_commit", 2)],
)
def test_an_error_in_the_changelogs_commit_leaves_the_task_at_what_the_changelog_has(
    tmp_path: Path, log: MemoryChangelog, backend: str, failpoint: str, committed: int
) -> None:
    """Also where the changelog took the commit before it raised. Source: KIP-844, step 3."""
    keys = [1, 1, 2]
    feed(log, keys)
    task = counting_task(tmp_path, log, backend)
    task.open()
    task.run(2)
    with crashing_at(failpoint):
        task.commit()
    assert task.input_offsets() == {INPUT: committed}
    assert state(task, "left") == state(task, "right") == expected_state(keys[:committed])
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(keys)


@pytest.mark.parametrize("failpoint", ["task.after_log_commit", "task.between_stores", "task.after_store_commit"])
def test_an_error_after_the_changelogs_commit_stops_the_task_until_it_is_opened_again(
    tmp_path: Path, log: MemoryChangelog, failpoint: str
) -> None:
    keys = [1, 1, 2]
    feed(log, keys)
    task = counting_task(tmp_path, log)
    task.open()
    task.run(2)
    with crashing_at(failpoint):
        task.commit()
    for call in (task.run, task.commit, task.input_offsets, lambda: task.store("left")):
        with pytest.raises(StoreError):
            call()
    task.close()
    replayed = {report.store: report.records for report in task.open()}
    assert replayed["right"] == (0 if failpoint == "task.after_store_commit" else 2)
    assert state(task, "left") == state(task, "right") == expected_state(keys[:2])
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(keys)


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize("backend", [MEMORY, INDEXED, DIRECT])
@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_store_that_fails_to_commit_gets_the_commit_from_the_changelog(
    tmp_path: Path, log: MemoryChangelog, backend: str, reopen: bool, guarantee: Any
) -> None:
    """Neither lost nor doubled. Source: KIP-892, "Error Handling"."""
    failing = iter([True])

    def fail() -> None:
        if next(failing, False):
            raise CommitFailedError("the disk is full", reopen=reopen)

    keys = [1, 1, 2, 3, 1]
    feed(log, keys)
    task = begun(counting_task(tmp_path, log, backend, guarantee=guarantee))
    failpoints.arm("direct.commit" if backend == DIRECT else "indexed_batch.before_write", fail)
    task.run(2)
    task.commit()
    assert state(task, "left") == state(task, "right") == expected_state(keys[:3])
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(keys)
    task.open()
    if backend != MEMORY:
        assert state(task, "left") == state(task, "right") == expected_state(keys)
    task.close()


@pytest.mark.parametrize("backend", [INDEXED, DIRECT])
def test_a_zombie_is_refused_and_its_stores_are_not_committed(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    """Source: KIP-98, zombie fencing; KIP-129."""
    keys = [1, 1, 2]
    feed(log, keys)
    zombie = begun(counting_task(tmp_path / "old", log, backend))
    zombie.run(1)
    owner = counting_task(tmp_path / "new", log, backend)
    assert [report.records for report in owner.open()] == [1, 1]
    with pytest.raises(ProducerFencedError):
        zombie.commit()
    for call in (zombie.run, zombie.commit):
        with pytest.raises(ProducerFencedError):
            call()
    zombie.close()
    owner.run()
    owner.close()
    assert outputs(log) == expected_outputs(keys)
    again = counting_task(tmp_path / "old", log, backend)
    # An indexed batch kept its first commit; a direct store mixed in what was fenced, and starts anew.
    assert [(report.wiped, report.records) for report in again.open()] == [
        (True, 3) if backend == DIRECT else (False, 2)
    ] * 2
    assert state(again, "left") == expected_state(keys)
    again.close()


@pytest.mark.parametrize("backend", [INDEXED, MEMORY])
def test_a_second_instance_on_the_same_folder_is_refused_without_fencing_the_first(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    """Also where no store of it has a lock of its own."""
    feed(log, [1])
    task = counting_task(tmp_path, log, backend)
    task.open()
    with pytest.raises(StoreLockedError):
        counting_task(tmp_path, log, backend).open()
    task.run()
    task.close()
    assert outputs(log) == expected_outputs([1])


@pytest.mark.parametrize("raising", [False, True])
def test_a_function_that_closes_its_own_task_has_nothing_to_roll_back_and_the_task_can_be_opened_again(
    tmp_path: Path, log: MemoryChangelog, raising: bool
) -> None:
    keys, closing = [1, 2, 1], [1]
    tasks: list[StreamTask] = []

    def process(record: Record, context: TaskContext) -> None:
        count(record, context)
        if record.offset in closing:
            closing.clear()
            tasks[0].close(clean=False)
            if raising:
                raise Crash

    feed(log, keys)
    task = begun(counting_task(tmp_path, log, INDEXED, process=process))
    tasks.append(task)
    with pytest.raises(Crash if raising else StoreClosedError) as error:
        task.run()
    assert not hasattr(error.value, "__notes__")
    for call in (task.run, task.commit, task.input_offsets, lambda: task.store("left")):
        with pytest.raises(StoreClosedError):
            call()
    task.open()
    task.run()
    assert state(task, "left") == state(task, "right") == expected_state(keys)
    task.close()
    assert outputs(log) == expected_outputs(keys)
