"""A task that runs by itself goes on from its last commit where its changelog does not answer, and not for ever."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from stores.changelog import Record, SqliteChangelog
from stores.errors import ChangelogTimeoutError, ConfigError, ProducerFencedError, StoreClosedError
from stores.interface import Durability
from stores.registry import backend_named, backends
from stores.tasks import StateDirectory, TaskContext
from stores.tests.changelog.failing import Failing
from stores.tests.changelog.occupied import occupied
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    INDEXED,
    INPUT,
    TASK,
    Crash,
    count,
    counting_task,
    expected_outputs,
    expected_state,
    feed,
    outputs,
    state,
)

KEYS = [1, 1, 2, 3, 1, 4, 2]
COMMIT = "insert or replace into group_offset"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteChangelog]:
    with SqliteChangelog(tmp_path / "log.sqlite", Durability.PROCESS, timeout_s=0.01) as changelog:
        feed(changelog, KEYS)
        yield changelog


@pytest.fixture(autouse=True)
def pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stores.tasks.timing.PAUSE_S", 0.001)


@pytest.mark.parametrize("backend", backends())
def test_a_commit_that_times_out_is_repeated_from_the_last_one_by_run(
    tmp_path: Path, log: SqliteChangelog, backend: str
) -> None:
    """Source: KIP-572; KIP-892, "Error Handling"."""
    task = counting_task(tmp_path, log, backend, commit_every_records=3)
    task.open()
    with Failing(log, COMMIT, "SQLITE_BUSY", times=2) as failing:
        assert task.run(commit=True) == len(KEYS)
    assert failing.hits == 2
    assert task.input_offsets() == log.committed_offsets("app") == {INPUT: len(KEYS)}
    transactional = backend_named(backend).strategy != "direct"
    assert task.metrics.rollback_total == 2
    assert {store.wipe_total for store in task.metrics.stores.values()} == {0 if transactional else 2}
    assert state(task, "left") == state(task, "right") == expected_state(KEYS)
    task.close()
    assert outputs(log) == expected_outputs(KEYS)


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_changelog_that_comes_back_in_time_is_waited_for(
    tmp_path: Path, log: SqliteChangelog, guarantee: Any
) -> None:
    task = counting_task(tmp_path, log, commit_every_records=2, guarantee=guarantee)
    task.open()
    has_begun = Event()

    def occupy() -> None:
        with occupied(log):
            has_begun.set()
            # Until the task has met it: on a busy machine no fixed time is enough for that.
            waited_until = time.monotonic() + 600
            while not task.metrics.rollback_total and time.monotonic() < waited_until:
                time.sleep(0.001)

    other = Thread(target=occupy)
    other.start()
    has_begun.wait()
    assert task.run() == len(KEYS)
    other.join()
    assert task.metrics.rollback_total > 0
    task.close()
    assert outputs(log) == expected_outputs(KEYS)


def test_once_its_time_is_up_without_any_progress_the_task_raises_and_stands_at_its_last_commit(
    tmp_path: Path, log: SqliteChangelog, caplog: pytest.LogCaptureFixture
) -> None:
    task = counting_task(tmp_path, log, commit_every_records=2, task_timeout_s=0.1)
    task.open()
    task.run(2)
    began = time.monotonic()
    with occupied(log), caplog.at_level(logging.WARNING, "stores.tasks"), pytest.raises(ChangelogTimeoutError):
        task.run()
    assert 0.1 <= time.monotonic() - began < 5
    assert len(caplog.records) == 1
    assert task.input_offsets() == {INPUT: 2}
    assert state(task, "left") == expected_state(KEYS[:2])
    assert task.run(commit=True) == len(KEYS) - 2
    task.close()
    assert outputs(log) == expected_outputs(KEYS)


def test_progress_restarts_the_time_of_the_task(
    tmp_path: Path, log: SqliteChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("stores.tasks.timing.time.monotonic", lambda: now[0])
    monkeypatch.setattr("stores.tasks.timing.time.sleep", lambda _: None)

    def late(record: Record, context: TaskContext) -> None:
        count(record, context)
        now[0] += 20
        if now[0] % 40 == 0:
            raise ChangelogTimeoutError("every other record")

    task = counting_task(tmp_path, log, process=late, commit_every_records=1, task_timeout_s=30)
    task.open()
    assert task.run() == len(KEYS)
    task.close()
    assert outputs(log) == expected_outputs(KEYS)


def test_it_is_never_tried_again_where_no_time_is_given(tmp_path: Path, log: SqliteChangelog) -> None:
    task = counting_task(tmp_path, log, commit_every_records=2, task_timeout_s=0)
    task.open()
    with Failing(log, COMMIT, "SQLITE_BUSY") as failing, pytest.raises(ChangelogTimeoutError):
        task.run()
    assert failing.hits == 1
    assert task.input_offsets() == {INPUT: 0}
    task.close()


def test_a_run_that_is_cut_off_by_a_timeout_ends_where_it_would_have_ended_without(
    tmp_path: Path, log: SqliteChangelog
) -> None:
    """Records that an earlier call has left uncommitted are made up for, and not counted as the run's own."""
    task = counting_task(tmp_path, log, commit_every_records=4)
    task.open()
    assert task.run(2) == 2
    with Failing(log, COMMIT, "SQLITE_BUSY"):
        assert task.run(3) == 3
    assert task.input_offsets() == {INPUT: 5}
    assert log.committed_offsets("app") == {INPUT: 4}
    task.close()


def test_what_the_function_raises_is_raised_at_once_and_the_task_is_usable(
    tmp_path: Path, log: SqliteChangelog
) -> None:
    """Source: KIP-129."""
    calls = []

    def process(record: Record, context: TaskContext) -> None:
        count(record, context)
        calls.append(record.offset)
        if calls == [0, 1]:
            raise Crash

    task = counting_task(tmp_path, log, process=process)
    task.open()
    with pytest.raises(Crash):
        task.run()
    assert calls == [0, 1]
    assert state(task, "left") == {}
    assert task.run(commit=True) == len(KEYS)
    task.close()
    assert outputs(log) == expected_outputs(KEYS)


@pytest.mark.parametrize("backend", [INDEXED, "sqlite-native", "rocksdb-dual-store"])
def test_a_fenced_task_is_closed_and_never_tries_again(
    tmp_path: Path, log: SqliteChangelog, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its folder is free, and none of its stores is open. Source: KIP-98, zombie fencing."""
    zombie = counting_task(tmp_path / "old", log, backend, commit_every_records=2)
    zombie.open()
    zombie.run(1)
    view = zombie.store("left")
    owner = counting_task(tmp_path / "new", log, backend)
    owner.open()
    with caplog.at_level(logging.WARNING, "stores.tasks"), pytest.raises(ProducerFencedError):
        zombie.run()
    assert caplog.records == []
    with pytest.raises(StoreClosedError):
        view.get(b"1")
    for call in (zombie.run, zombie.commit, zombie.input_offsets):
        with pytest.raises(ProducerFencedError):
            call()
    StateDirectory(tmp_path / "old" / "state").lock(TASK, "another").release()
    zombie.close()
    owner.run()
    owner.close()
    assert outputs(log) == expected_outputs(KEYS)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 10**400])
def test_a_time_that_is_none_is_refused(tmp_path: Path, log: SqliteChangelog, seconds: float) -> None:
    with pytest.raises(ConfigError):
        counting_task(tmp_path, log, task_timeout_s=seconds)


@pytest.mark.parametrize("number", [-1, 1.5, "3", True])
def test_a_number_of_records_that_is_none_is_refused(tmp_path: Path, log: SqliteChangelog, number: Any) -> None:
    task = counting_task(tmp_path, log)
    task.open()
    with pytest.raises(ValueError):
        task.run(number, commit=True)
    assert task.input_offsets() == {INPUT: 0}
    task.close()
