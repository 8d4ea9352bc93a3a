"""Two tasks in one transaction, killed at each step of its commit: both continue from one commit, and nothing repeats.

Broken variants show that the check finds a wrong order, and offsets that are left out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stores.changelog import SqliteChangelog
from stores.errors import OffsetOutOfRangeError
from stores.tasks.task_transaction import TaskTransaction
from stores.tests.forked_call import WITHIN_PUT_MANY, call_until_killed
from stores.tests.tasks.sharing import ROUND, check_exactly_once, feed_both, offsets, sharing_tasks, work

SECOND_COMMIT = ROUND, 2 * ROUND
"""The next input offsets before it, and after it."""


STEPS = [
    # The failpoint, its hit in the second commit, and whether the changelog has that commit.
    ("task.before_log_commit", 3, False),
    ("task.before_log_commit", 4, False),
    ("changelog.before_commit", 2, False),
    ("changelog.after_commit", 2, True),
    ("task.after_log_commit", 3, True),
    ("task.after_store_commit", 3, True),
    ("task.between_tasks", 2, True),
    ("task.after_log_commit", 4, True),
    ("task.after_checkpoint", 4, True),
]


def prepared(folder: Path) -> None:
    with SqliteChangelog(folder / "log.sqlite") as log:
        feed_both(log)


@pytest.mark.parametrize(
    ("batches", "failpoint", "hit", "committed"),
    [
        (True, WITHIN_PUT_MANY, 1, False),
        *((batches, *step) for batches in (False, True) for step in STEPS),
    ],
)
def test_a_kill_at_any_step_leaves_both_tasks_at_one_commit(
    tmp_path: Path, batches: bool, failpoint: str, hit: int, committed: bool
) -> None:
    """Source: KIP-447; KIP-844, "StateStore changes"."""
    prepared(tmp_path)
    assert call_until_killed(work, tmp_path, failpoint, hit, batches)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        tasks = sharing_tasks(tmp_path, log, batches=batches)
        assert offsets(tasks) == [SECOND_COMMIT[committed]] * 2
        for task in tasks:
            task.close()
        check_exactly_once(tmp_path, log)


def work_with_stores_first(folder: Path) -> None:
    """Work with the order of commits turned round: the stores of each task commit before the changelog."""
    prepare = TaskTransaction.prepare

    def stores_first(transaction: TaskTransaction) -> None:
        prepare(transaction)
        transaction.stores.commit({}, {})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskTransaction, "prepare", stores_first)
        work(folder)


def work_without_the_offsets_of_one(folder: Path) -> None:
    """Work with a common transaction that has the input offsets of the first task only."""
    send_offsets = TaskTransaction._send_offsets

    def of_the_first(transaction: TaskTransaction) -> None:
        if not transaction.task_id.partition:
            send_offsets(transaction)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskTransaction, "_send_offsets", of_the_first)
        work(folder)


@pytest.mark.parametrize(
    ("broken", "failpoint", "found"),
    [
        (work_with_stores_first, "changelog.before_commit", AssertionError),
        (work_without_the_offsets_of_one, "task.between_tasks", OffsetOutOfRangeError),
    ],
)
def test_a_wrong_order_and_offsets_left_out_are_found(
    tmp_path: Path, broken: object, failpoint: str, found: type[Exception]
) -> None:
    prepared(tmp_path)
    assert callable(broken)
    assert call_until_killed(broken, tmp_path, failpoint, 2)
    with SqliteChangelog(tmp_path / "log.sqlite") as log, pytest.raises(found):
        check_exactly_once(tmp_path, log)
