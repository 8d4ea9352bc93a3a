"""A changelog that does not answer in time: the task returns to its last commit, keeps its stores, and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stores.changelog import Record, SqliteChangelog
from stores.errors import ChangelogTimeoutError, CommitInDoubtError, ConfigError, ProducerFencedError
from stores.interface import Durability, IsolationLevel
from stores.registry import backend_named, backends
from stores.tasks import TaskContext
from stores.tests.changelog.failing import Failing
from stores.tests.changelog.occupied import occupied
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    DIRECT,
    INDEXED,
    INPUT,
    OUTPUT,
    begun,
    counting_task,
    expected_outputs,
    expected_state,
    feed,
    keeping,
    outputs,
    state,
)

KEYS = [1, 1, 2, 3, 1]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteChangelog]:
    with SqliteChangelog(tmp_path / "log.sqlite", Durability.PROCESS, timeout_s=0.01) as changelog:
        feed(changelog, KEYS)
        yield changelog


@pytest.fixture
def spilling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions reach the log long before they are committed, so that aborting one takes the log, too."""
    monkeypatch.setattr("stores.changelog.producer.PENDING_RECORDS_MAX", 2)


@pytest.mark.parametrize("backend", backends())
def test_a_commit_that_times_out_costs_no_store_its_data_and_the_task_goes_on_from_its_last_commit(
    tmp_path: Path, log: SqliteChangelog, backend: str
) -> None:
    """But for a store that can't take back what it has written. Source: KIP-892, "Error Handling"."""
    task = begun(counting_task(tmp_path, log, backend))
    task.run(2)
    with occupied(log), pytest.raises(ChangelogTimeoutError):
        task.commit()
    assert task.input_offsets() == log.committed_offsets("app") == {INPUT: 1}
    assert state(task, "left") == state(task, "right") == expected_state(KEYS[:1])
    transactional = backend_named(backend).strategy != "direct"
    for report in task.restore_reports():
        assert report.wiped is not transactional
        assert (report.reason is None) is transactional
        assert report.records == (0 if transactional else 1)
    assert task.run() == 4
    task.close()
    assert outputs(log) == expected_outputs(KEYS)
    assert [report.wiped for report in task.open()] == [False, False]
    task.close()


@pytest.mark.usefixtures("spilling")
@pytest.mark.parametrize("backend", [INDEXED, "sqlite-native", DIRECT])
def test_each_call_tries_an_unreachable_changelog_again_and_shows_nothing_uncommitted(
    tmp_path: Path, log: SqliteChangelog, backend: str
) -> None:
    task = begun(counting_task(tmp_path, log, backend, task_timeout_s=0))
    task.run(2)
    with occupied(log):
        for call in (task.commit, task.commit, task.input_offsets, task.run):
            with pytest.raises(ChangelogTimeoutError):
                call()
        with pytest.raises(ChangelogTimeoutError):
            task.process(INPUT, Record(1, b"1", b"x"))
        with pytest.raises(ChangelogTimeoutError):
            task.store("left")
    assert task.input_offsets() == {INPUT: 1}
    metrics = task.metrics
    assert (metrics.rollback_total, metrics.rollback_records_total, metrics.process_total) == (1, 2, 1)
    assert state(task, "left") == state(task, "right") == expected_state(KEYS[:1])
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(KEYS)


@pytest.mark.usefixtures("spilling")
def test_what_is_undone_is_rolled_back_before_the_changelog_answers(tmp_path: Path, log: SqliteChangelog) -> None:
    contexts: list[TaskContext] = []
    task = begun(counting_task(tmp_path, log, process=keeping(contexts)))
    task.run(2)
    reader = contexts[0].store("left").read_only(IsolationLevel.READ_UNCOMMITTED)
    assert reader.get(b"2") == b"1"
    with occupied(log):
        with pytest.raises(ChangelogTimeoutError):
            task.commit()
        assert reader.get(b"2") is None
        assert reader.get(b"1") == b"1"
    task.close()


@pytest.mark.usefixtures("spilling")
@pytest.mark.parametrize("clean", [True, False])
def test_a_task_whose_changelog_stays_away_can_be_closed_and_has_its_last_commit_when_it_is_opened_again(
    tmp_path: Path, log: SqliteChangelog, clean: bool
) -> None:
    task = begun(counting_task(tmp_path, log))
    task.run(2)
    with occupied(log):
        with pytest.raises(ChangelogTimeoutError):
            task.commit()
        with pytest.raises(ChangelogTimeoutError):
            task.close(clean)
    assert [(report.wiped, report.records) for report in task.open()] == [(False, 0)] * 2
    assert task.input_offsets() == {INPUT: 1}
    assert state(task, "left") == state(task, "right") == expected_state(KEYS[:1])
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(KEYS)


@pytest.mark.usefixtures("spilling")
def test_a_write_of_the_function_that_times_out_is_undone_with_the_rest(tmp_path: Path, log: SqliteChangelog) -> None:
    task = begun(counting_task(tmp_path, log, task_timeout_s=0))
    with occupied(log), pytest.raises(ChangelogTimeoutError):
        task.run()
    assert task.input_offsets() == {INPUT: 1}
    assert state(task, "left") == state(task, "right") == expected_state(KEYS[:1])
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(KEYS)


def test_a_zombie_whose_commit_times_out_does_not_take_the_task_back(tmp_path: Path, log: SqliteChangelog) -> None:
    """Source: KIP-98, zombie fencing."""
    zombie = counting_task(tmp_path / "old", log)
    zombie.open()
    zombie.run(1)
    owner = counting_task(tmp_path / "new", log)
    owner.open()
    owner.run(2)
    with occupied(log), pytest.raises(ChangelogTimeoutError):
        zombie.commit()
    zombie.run(1)
    with pytest.raises(ProducerFencedError):
        zombie.commit()
    zombie.close()
    owner.run()
    owner.close()
    assert outputs(log) == expected_outputs(KEYS)


@pytest.mark.parametrize("taken", [False, True])
def test_a_commit_in_doubt_is_settled_once_the_changelog_answers(
    tmp_path: Path, log: SqliteChangelog, taken: bool
) -> None:
    """Source: KIP-98."""
    task = begun(counting_task(tmp_path, log, task_timeout_s=0))
    task.run(2)
    failing = Failing(log, "commit", "SQLITE_IOERR_FSYNC", done=taken)
    with failing, Failing(log, "insert into producer", "SQLITE_BUSY", times=9):
        with pytest.raises(CommitInDoubtError):
            task.commit()
        with pytest.raises(ChangelogTimeoutError):
            task.run()
    committed = 3 if taken else 1
    assert task.input_offsets() == {INPUT: committed}
    assert state(task, "left") == state(task, "right") == expected_state(KEYS[:committed])
    assert [report.wiped for report in task.restore_reports()] == [False, False]
    task.run()
    task.close()
    assert outputs(log) == expected_outputs(KEYS)


@pytest.mark.parametrize("at", ["the flush", "the input offsets"])
def test_at_least_once_a_timeout_repeats_and_loses_nothing(tmp_path: Path, log: SqliteChangelog, at: str) -> None:
    task = counting_task(tmp_path, log, guarantee=AT_LEAST_ONCE)
    task.open()
    task.run(2)
    statement = "begin" if at == "the flush" else "insert or replace into group_offset"
    with Failing(log, statement, "SQLITE_BUSY"), pytest.raises(ChangelogTimeoutError):
        task.commit()
    assert task.input_offsets() == {INPUT: 0}
    flushed = 0 if at == "the flush" else 2
    assert len(outputs(log)) == flushed
    assert task.run() == 5
    task.close()
    assert len(outputs(log)) == flushed + 5
    for name in ("left", "right"):
        assert task.open()
        assert int(state(task, name)[b"1"]) == 3 + flushed
        task.close()


def test_what_times_out_leaves_nothing_in_the_log_and_may_be_tried_again(log: SqliteChangelog) -> None:
    with log.producer("id") as producer:
        producer.begin()
        producer.send(OUTPUT, b"k", b"v")
        with occupied(log):
            with pytest.raises(ChangelogTimeoutError):
                producer.commit()
            with pytest.raises(ChangelogTimeoutError):
                log.producer("id")
        assert outputs(log) == []
        assert producer.commit() == {OUTPUT: 0}
        assert outputs(log) == [(b"k", b"v")]


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), float("inf"), "1", None])
def test_a_time_that_is_none_is_refused(tmp_path: Path, timeout_s: float) -> None:
    with pytest.raises(ConfigError):
        SqliteChangelog(tmp_path / "other.sqlite", timeout_s=timeout_s)
    assert not (tmp_path / "other.sqlite").exists()
