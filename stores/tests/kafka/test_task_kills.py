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
from stores.tests.tasks.setup import (
    INDEXED,
    INPUT,
    expected_outputs,
    expected_state,
    killed_at_each_step,
    over_both_forms,
    state,
)

pytestmark = pytest.mark.kafka

IN_THIRD_COMMIT = 3


def check_exactly_once(folder: Path, backend: str = INDEXED, batches: bool = False) -> None:
    """Finish the work in a new task, and compare its stores and the outputs with the model."""
    with changelog(folder) as log, task_over(folder, log, backend, batches) as task:
        task.run()
        task.commit()
        for name in ("left", "right"):
            with task.store(name, IsolationLevel.READ_COMMITTED).all() as pairs:
                assert dict(pairs) == expected_state(KEYS)
    assert committed_outputs(folder, len(KEYS)) == expected_outputs(KEYS)


@pytest.mark.parametrize(
    ("backend", "batches", "failpoint", "hit", "next_input", "in_doubt"),
    killed_at_each_step([(INDEXED, False), (INDEXED, True), ("lmdb-native", True)]),
)
def test_a_kill_at_any_step_repeats_and_loses_no_output(
    tmp_path: Path,
    broker: Broker,
    backend: str,
    batches: bool,
    failpoint: str,
    hit: int,
    next_input: int,
    in_doubt: int,
) -> None:
    """Source: KIP-129; KIP-844, "StateStore changes"."""
    prepared(tmp_path, broker)
    assert call_until_killed(work, tmp_path, failpoint, hit, backend, batches)
    with changelog(tmp_path) as log, task_over(tmp_path, log, backend, batches) as task:
        assert task.input_offsets() == {INPUT: next_input}
        for report in task.restore_reports():
            # The first of two stores may have had the commit before the kill.
            assert report.records >= (0 if failpoint == "task.between_stores" else in_doubt)
            assert not report.wiped
        assert state(task, "left") == state(task, "right") == expected_state(KEYS[:next_input])
    check_exactly_once(tmp_path, backend, batches)


@pytest.mark.parametrize(("backend", "batches"), [(INDEXED, False), ("lmdb-native", True)])
@pytest.mark.parametrize("failpoint", ["task.restore.before_write", "task.restore.after_write"])
def test_a_kill_in_a_restore_from_kafka_costs_another_restore(
    tmp_path: Path, broker: Broker, failpoint: str, backend: str, batches: bool
) -> None:
    prepared(tmp_path, broker)
    assert call_until_killed(work, tmp_path, "task.after_log_commit", IN_THIRD_COMMIT, backend, batches)
    assert call_until_killed(work, tmp_path, failpoint, 1, backend, batches)
    check_exactly_once(tmp_path, backend, batches)


def test_a_removed_store_is_restored_whole_from_the_brokers(tmp_path: Path, broker: Broker) -> None:
    prepared(tmp_path, broker)
    work(tmp_path)
    (tmp_path / "state").rename(tmp_path / "gone")
    with changelog(tmp_path) as log, task_over(tmp_path, log) as task:
        assert [report.records for report in task.restore_reports()] == [len(KEYS), len(KEYS)]
    check_exactly_once(tmp_path)


@over_both_forms
def test_without_transactions_a_kill_repeats_outputs_and_loses_none(
    tmp_path: Path, broker: Broker, batches: bool
) -> None:
    prepared(tmp_path, broker)
    assert call_until_killed(work_without_transactions, tmp_path, "task.after_log_commit", IN_THIRD_COMMIT, batches)
    work_without_transactions(tmp_path, batches)
    outputs = committed_outputs(tmp_path, len(KEYS) + RECORDS_PER_COMMIT)
    assert lost_and_repeated(outputs) == (0, RECORDS_PER_COMMIT)


def test_with_the_order_of_commits_turned_round_a_kill_loses_outputs(tmp_path: Path, broker: Broker) -> None:
    prepared(tmp_path, broker)
    assert call_until_killed(work_with_offsets_first, tmp_path, "changelog.before_commit", IN_THIRD_COMMIT)
    work_with_offsets_first(tmp_path)
    outputs = committed_outputs(tmp_path, len(KEYS) - RECORDS_PER_COMMIT)
    assert lost_and_repeated(outputs) == (RECORDS_PER_COMMIT, 0)
