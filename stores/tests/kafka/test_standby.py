"""A standby copy over Kafka: it has committed records only, and control records do not keep it from the end."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.broker import Broker
from stores.tests.changelog.records import MANY, await_sent
from stores.tests.kafka.counting import KEYS, changelog, committed_outputs, prepared
from stores.tests.tasks.followed import follow, kept
from stores.tests.tasks.setup import (
    LEFT,
    RIGHT,
    Crash,
    all_raising_at,
    counting_task,
    expected_outputs,
    expected_state,
    feed,
    over_both_forms,
    raising_at,
    state,
)

MORE = [1, 7, 1]
DEADLINE_S = 600.0


def await_uncommitted(log: KafkaChangelog) -> None:
    """Wait until the changelog has records beyond its last stable offset."""
    deadline = time.monotonic() + DEADLINE_S
    while log.written_end(LEFT) <= log.end_offset(LEFT):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def await_commits(log: KafkaChangelog, other: KafkaChangelog) -> None:
    """Wait until ``other`` sees all that was committed through ``log``: Kafka moves the end a moment later."""
    deadline = time.monotonic() + DEADLINE_S
    while other.end_offset(LEFT) < log.end_offset(LEFT):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.kafka
@pytest.mark.parametrize("visible", [0, 4])
def test_a_store_is_kept_whose_commit_is_not_visible_yet(tmp_path: Path, broker: Broker, visible: int) -> None:
    """Kafka writes the marker of a commit a moment later. Here an open transaction has hidden it for longer."""
    prepared(tmp_path, broker, KEYS[:visible])
    with changelog(tmp_path) as log, counting_task(tmp_path, log) as task, log.producer("open") as still_open:
        task.run(commit=True)
        hidden = log.end_offset(LEFT)
        assert bool(hidden) == bool(visible)
        still_open.begin()
        for partition in (LEFT, RIGHT):
            for _ in range(MANY):
                still_open.send(partition, b"open", b"")
            await_sent(log, still_open, hidden + MANY, partition)
        feed(log, KEYS[visible:])
        task.run(commit=True)
        task.close()
        with changelog(tmp_path) as other, closing(counting_task(tmp_path, other).standby()) as copy:
            assert other.end_offset(LEFT) == hidden
            copy.open()
            follow(copy)
            assert kept(copy) == kept(copy, 1) == expected_state(KEYS)
        still_open.abort()
    with changelog(tmp_path) as log, counting_task(tmp_path, log) as task:
        assert [(report.wiped, report.records) for report in task.restore_reports()] == [(False, 0)] * 2
        assert state(task, "left") == state(task, "right") == expected_state(KEYS)


@pytest.mark.kafka
@over_both_forms
def test_a_standby_over_kafka_never_has_uncommitted_or_aborted_records_and_takes_over(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch, batches: bool
) -> None:
    # The client gets records before the commit.
    monkeypatch.setattr("stores.changelog.kafka.producer._HELD_RECORDS", 1)
    prepared(tmp_path, broker)
    with changelog(tmp_path) as log, changelog(tmp_path) as other:
        poisoned = {len(KEYS) + 2}
        failing: dict[str, Any] = {"process": raising_at(poisoned)}
        if batches:
            failing = {"process_batch": all_raising_at(poisoned)}
        with counting_task(tmp_path / "active", log, **failing) as task:
            task.run(commit=True)
            with closing(counting_task(tmp_path / "other", other).standby()) as copy:
                copy.open()
                await_commits(log, other)
                follow(copy)
                assert kept(copy) == expected_state(KEYS)
                feed(log, MORE)
                assert task.run(2) == 2
                await_uncommitted(log)
                follow(copy)
                assert kept(copy) == expected_state(KEYS)
                with suppress(Crash):
                    task.run()
                follow(copy)
                assert kept(copy) == expected_state(KEYS)
                assert task.run(2, commit=True) == 2
                await_commits(log, other)
                follow(copy)
                assert kept(copy) == expected_state(KEYS + MORE[:2])
        with counting_task(tmp_path / "other", other, batches=batches) as task:
            assert [(report.wiped, report.records) for report in task.restore_reports()] == [(False, 0)] * 2
            assert task.run(commit=True) == 1
            assert state(task, "left") == state(task, "right") == expected_state(KEYS + MORE)
        assert committed_outputs(tmp_path, len(KEYS + MORE)) == expected_outputs(KEYS + MORE)
