"""A task over Kafka that is killed at every step: outputs exactly once, stores as the model's; and broken variants."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores.changelog.kafka.testing.broker import Broker
from stores.interface import IsolationLevel
from stores.tests.forked_call import call_until_killed
from stores.tests.kafka.counting import (
    KEYS,
    RECORDS_PER_COMMIT,
    changelog,
    committed_outputs,
    lost_and_repeated,
    prepared,
    task_over,
    work,
    work_with_offsets_first,
    work_without_transactions,
)
from stores.tests.tasks.setup import INPUT, expected_outputs, expected_state

pytestmark = pytest.mark.kafka

IN_THIRD_COMMIT = 3


def check_exactly_once(folder: Path) -> None:
    """Finish the work in a new task, and compare its stores and the outputs with the model."""
    with changelog(folder) as log, task_over(folder, log) as task:
        task.run()
        task.commit()
        for name in ("left", "right"):
            with task.store(name, IsolationLevel.READ_COMMITTED).all() as pairs:
                assert dict(pairs) == expected_state(KEYS)
    assert committed_outputs(folder, len(KEYS)) == expected_outputs(KEYS)


@pytest.mark.parametrize(
    ("failpoint", "next_input"),
    [
        ("task.before_log_commit", 6),
        ("changelog.before_commit", 6),
        ("changelog.after_commit", 9),
        ("task.after_log_commit", 9),
        ("task.between_stores", 9),
        ("task.after_store_commit", 9),
        ("task.after_checkpoint", 9),
    ],
)
def test_a_kill_at_any_step_repeats_and_loses_no_output(
    tmp_path: Path, broker: Broker, failpoint: str, next_input: int
) -> None:
    """Source: KIP-129; KIP-844, "StateStore changes"."""
    prepared(tmp_path, broker)
    assert call_until_killed(work, tmp_path, failpoint, IN_THIRD_COMMIT)
    with changelog(tmp_path) as log, task_over(tmp_path, log) as task:
        assert task.input_offsets() == {INPUT: next_input}
    check_exactly_once(tmp_path)


@pytest.mark.parametrize("failpoint", ["task.restore.before_write", "task.restore.after_write"])
def test_a_kill_in_a_restore_from_kafka_costs_another_restore(tmp_path: Path, broker: Broker, failpoint: str) -> None:
    prepared(tmp_path, broker)
    assert call_until_killed(work, tmp_path, "task.after_log_commit", IN_THIRD_COMMIT)
    assert call_until_killed(work, tmp_path, failpoint)
    check_exactly_once(tmp_path)


def test_a_removed_store_is_restored_whole_from_the_brokers(tmp_path: Path, broker: Broker) -> None:
    prepared(tmp_path, broker)
    work(tmp_path)
    (tmp_path / "state").rename(tmp_path / "gone")
    with changelog(tmp_path) as log, task_over(tmp_path, log) as task:
        assert [report.records for report in task.restore_reports()] == [len(KEYS), len(KEYS)]
    check_exactly_once(tmp_path)


def test_without_transactions_a_kill_repeats_outputs_and_loses_none(tmp_path: Path, broker: Broker) -> None:
    prepared(tmp_path, broker)
    assert call_until_killed(work_without_transactions, tmp_path, "task.after_log_commit", IN_THIRD_COMMIT)
    work_without_transactions(tmp_path)
    outputs = committed_outputs(tmp_path, len(KEYS) + RECORDS_PER_COMMIT)
    assert lost_and_repeated(outputs) == (0, RECORDS_PER_COMMIT)


def test_with_the_order_of_commits_turned_round_a_kill_loses_outputs(tmp_path: Path, broker: Broker) -> None:
    prepared(tmp_path, broker)
    assert call_until_killed(work_with_offsets_first, tmp_path, "changelog.before_commit", IN_THIRD_COMMIT)
    work_with_offsets_first(tmp_path)
    outputs = committed_outputs(tmp_path, len(KEYS) - RECORDS_PER_COMMIT)
    assert lost_and_repeated(outputs) == (RECORDS_PER_COMMIT, 0)
