"""A transaction that a killed process has left open in a changelog hides no later commit from a restore."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import Changelog, MemoryChangelog, Producer
from stores.changelog.producer import BufferedProducer
from stores.errors import (
    ChangelogTimeoutError,
    CommitFailedError,
    CommitInDoubtError,
    ProducerFencedError,
    TransactionAbortedError,
)
from stores.strategies.store import Store
from stores.tasks import StreamTask, ThreadTransaction
from stores.tasks.stores.log_format import TRANSACTION_S
from stores.tests.changelog.records import MANY, await_sent
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    LEFT,
    RIGHT,
    TASK,
    counting_task,
    expected_state,
    feed,
    over_each_changelog,
    state,
)

KEYS = [number % 6 for number in range(20)]
OWN, ZOMBIE = f"app-{TASK}", "of another scope"
WRITTEN = {OWN: LEFT, ZOMBIE: RIGHT}
TIMEOUTS_S = {OWN: TRANSACTION_S, ZOMBIE: 1.0}
"""Kafka's brokers abort the transaction of the second one some seconds after this time, that of the first one never
within a test."""


def left_open(log: Changelog, transactional_id: str, visible: int) -> Producer:
    """Return a producer whose process seems to be dead, with records in a transaction."""
    producer = log.producer(transactional_id, TIMEOUTS_S[transactional_id])
    producer.begin()
    partition = WRITTEN[transactional_id]
    end = log.written_end(partition)
    for _ in range(MANY):
        producer.send(partition, b"open", b"")
    await_sent(log, producer, end + MANY, partition)
    assert (log.end_offset(partition) > 0) == (visible > 0)
    assert log.end_offset(partition) < log.written_end(partition)
    return producer


def check_restore(
    folder: Path, log: Changelog, transactional_id: str, visible: int, scope: str = "task", **settings: Any
) -> Producer:
    """Check that what is committed after the dead writer's records is restored whole. Return that writer."""

    def counting() -> StreamTask:
        shared: dict[str, Any] = {"transaction": ThreadTransaction(log, "thread")} if scope == "thread" else {}
        return counting_task(folder, log, **shared, **settings)

    feed(log, KEYS[:visible])
    with counting() as task:
        task.run(commit=True)
    dead = left_open(log, transactional_id, visible)
    feed(log, KEYS[visible:])
    with counting() as task:
        task.run(commit=True)
    shutil.rmtree(folder / "state")
    with counting() as task:
        assert state(task, "left") == state(task, "right") == expected_state(KEYS)
        for partition in (LEFT, RIGHT):
            assert log.end_offset(partition) == log.written_end(partition)
    return dead


@over_each_changelog
@pytest.mark.parametrize("visible", [0, 4])
@pytest.mark.parametrize("transactional_id", [OWN, ZOMBIE])
def test_commits_after_an_open_transaction_are_restored(
    tmp_path: Path, log: Changelog, transactional_id: str, visible: int
) -> None:
    dead = check_restore(tmp_path, log, transactional_id, visible)
    with pytest.raises((ProducerFencedError, TransactionAbortedError)):
        dead.send(WRITTEN[transactional_id], b"late", b"")
        dead.commit()
    with counting_task(tmp_path, log) as task:
        assert state(task, "left") == state(task, "right") == expected_state(KEYS)


@over_each_changelog
@pytest.mark.parametrize("transactional_id", [OWN, ZOMBIE])
def test_at_least_once_they_are_restored_as_well(tmp_path: Path, log: Changelog, transactional_id: str) -> None:
    """The dead instance may have been exactly once: its transaction may be open for long."""
    check_restore(tmp_path, log, transactional_id, 4, guarantee=AT_LEAST_ONCE)


@pytest.mark.parametrize("transactional_id", [OWN, ZOMBIE])
def test_in_a_transaction_of_the_thread_they_are_restored_as_well(
    tmp_path: Path, log: MemoryChangelog, transactional_id: str
) -> None:
    check_restore(tmp_path, log, transactional_id, 4, "thread")


def commit_in_doubt(patch: pytest.MonkeyPatch, task: StreamTask) -> None:
    """Let the changelog take a commit of the task without an answer."""
    commit = BufferedProducer.commit

    def without_answer(producer: BufferedProducer) -> None:
        commit(producer)
        raise CommitInDoubtError("the connection broke")

    patch.setattr(BufferedProducer, "commit", without_answer)
    with pytest.raises(CommitInDoubtError):
        task.commit()


def commit_that_fails(patch: pytest.MonkeyPatch, task: StreamTask) -> None:
    """Let the changelog take a commit of the task, and a store refuse it."""
    commit = Store.commit

    def refuse(store: Store, *given: Any) -> None:
        if store.name != "right":
            commit(store, *given)
            return
        patch.undo()
        raise CommitFailedError("the disk is full")

    patch.setattr(Store, "commit", refuse)
    task.commit()


def check_later_writer(folder: Path, log: Changelog, commit: Callable[[pytest.MonkeyPatch, StreamTask], None]) -> None:
    """Check that a running task has a commit which the open transaction of another process hides."""
    feed(log, KEYS)
    task = counting_task(folder, log)
    task.open()
    task.run(4, commit=True)
    dead = left_open(log, ZOMBIE, 4)
    task.run(6)
    with pytest.MonkeyPatch.context() as patch:
        commit(patch, task)
    task.run(commit=True)
    for store in ("left", "right"):
        assert state(task, store) == expected_state(KEYS)
    task.close()
    with suppress(ProducerFencedError, TransactionAbortedError):
        dead.close()


@over_each_changelog
@pytest.mark.parametrize("commit", [commit_in_doubt, commit_that_fails])
def test_a_running_task_that_replays_its_last_commit_has_all_of_it(
    tmp_path: Path, log: Changelog, commit: Callable[[pytest.MonkeyPatch, StreamTask], None]
) -> None:
    check_later_writer(tmp_path, log, commit)


@pytest.mark.parametrize("commit", [commit_in_doubt, commit_that_fails])
def test_a_running_task_that_does_not_wait_for_them_loses_its_last_commit(
    tmp_path: Path,
    log: MemoryChangelog,
    commit: Callable[[pytest.MonkeyPatch, StreamTask], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broken variant: the check finds it."""
    monkeypatch.setattr(MemoryChangelog, "await_decided", lambda *_: None)
    with pytest.raises(AssertionError, match="assert"):
        check_later_writer(tmp_path, log, commit)


def test_a_task_that_does_not_wait_for_them_loses_its_commits(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken variant: the check finds it."""
    monkeypatch.setattr(MemoryChangelog, "await_decided", lambda *_: None)
    with pytest.raises(AssertionError, match="Left contains 2 more items"):
        check_restore(tmp_path, log, ZOMBIE, 4)


def test_they_are_awaited_once_the_producer_has_fenced_an_older_instance(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any) -> Any:
            calls.append(name)
            return call(*given)

        return noted

    for name in ("producer", "await_decided", "read_columns"):
        monkeypatch.setattr(MemoryChangelog, name, noting(name, getattr(MemoryChangelog, name)))
    counting_task(tmp_path, log).open()
    assert calls == ["producer", *("await_decided", "read_columns") * 2]


@pytest.mark.parametrize("is_open", [False, True])
def test_at_least_once_only_an_open_transaction_asks_for_a_producer_with_an_id(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    """Kafka may allow the application no transactional ID."""
    with counting_task(tmp_path, log, guarantee=AT_LEAST_ONCE):
        pass
    dead = left_open(log, ZOMBIE, 0) if is_open else None
    ids: list[str | None] = []
    make = MemoryChangelog.producer

    def noted(changelog: MemoryChangelog, transactional_id: str | None = None, timeout_s: float | None = None) -> Any:
        ids.append(transactional_id)
        return make(changelog, transactional_id, timeout_s)

    monkeypatch.setattr(MemoryChangelog, "producer", noted)
    with counting_task(tmp_path, log, guarantee=AT_LEAST_ONCE):
        assert ids == [*([OWN] if dead else []), None]


@over_each_changelog
def test_an_instance_that_rebuilds_leaves_the_transaction_to_the_one_that_works(tmp_path: Path, log: Changelog) -> None:
    feed(log, KEYS)
    with counting_task(tmp_path, log) as task:
        task.run(4, commit=True)
        with left_open(log, ZOMBIE, 4) as working:
            counting_task(tmp_path / "new", log).rebuild()
            working.commit()
    assert sum(record.key == b"open" for record in log.read(RIGHT)) == MANY


@pytest.mark.kafka
@pytest.mark.parametrize("log", ["kafka"], indirect=True)
def test_a_task_says_that_it_waits_for_a_transaction_which_its_brokers_do_not_abort_in_time(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TIMEOUTS_S, ZOMBIE, TRANSACTION_S)
    feed(log, KEYS)
    with counting_task(tmp_path, log) as task:
        task.run(commit=True)
    dead = left_open(log, ZOMBIE, len(KEYS))
    monkeypatch.setattr(log._cluster, "timeout_s", 2.0)  # type: ignore[attr-defined]
    with pytest.raises(ChangelogTimeoutError, match="still open"), counting_task(tmp_path, log):
        pass
    dead.abort()
    with counting_task(tmp_path, log) as task:
        assert state(task, "left") == expected_state(KEYS)
