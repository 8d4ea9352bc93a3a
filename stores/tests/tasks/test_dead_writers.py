"""A transaction that a killed process has left open in a changelog hides no later commit from a restore."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import Changelog, MemoryChangelog, Producer
from stores.errors import ChangelogTimeoutError, ProducerFencedError, TransactionAbortedError
from stores.tasks import ProcessingGuarantee, StreamTask, ThreadTransaction
from stores.tasks.stores.log_format import TRANSACTION_S, rewriter
from stores.tasks.stores.store_group import StoreGroup
from stores.tests.changelog.records import MANY, await_sent
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
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
REWRITER, ZOMBIE = rewriter(f"app-{TASK}", "left"), "of another scope"
WRITTEN = {REWRITER: LEFT, ZOMBIE: RIGHT}
TIMEOUTS_S = {REWRITER: TRANSACTION_S, ZOMBIE: 1.0}
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
@pytest.mark.parametrize("transactional_id", [REWRITER, ZOMBIE])
def test_commits_after_an_open_transaction_are_restored(
    tmp_path: Path, log: Changelog, transactional_id: str, visible: int
) -> None:
    dead = check_restore(tmp_path, log, transactional_id, visible)
    with pytest.raises((ProducerFencedError, TransactionAbortedError)):
        dead.send(WRITTEN[transactional_id], b"late", b"")
        dead.commit()
    with counting_task(tmp_path, log) as task:
        assert state(task, "left") == state(task, "right") == expected_state(KEYS)


@pytest.mark.parametrize(("scope", "guarantee"), [("thread", EXACTLY_ONCE), ("task", AT_LEAST_ONCE)])
def test_they_are_restored_in_each_scope_and_at_least_once(
    tmp_path: Path, log: MemoryChangelog, scope: str, guarantee: ProcessingGuarantee
) -> None:
    check_restore(tmp_path, log, ZOMBIE, 4, scope, guarantee=guarantee)


def test_a_task_that_does_not_wait_for_them_loses_its_commits(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken variant: the check finds it."""
    monkeypatch.setattr(StoreGroup, "await_decided", lambda *_: None)
    with pytest.raises(AssertionError, match="Left contains 2 more items"):
        check_restore(tmp_path, log, ZOMBIE, 4)


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
