"""The state that a task finds after the one before it was killed: at each step of a commit, and in a restore."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores.changelog import SqliteChangelog
from stores.interface import Durability
from stores.tasks import ProcessingGuarantee
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    DIRECT,
    EXACTLY_ONCE,
    INDEXED,
    INPUT,
    changelog_of,
    counting_task,
    expected_outputs,
    expected_state,
    feed,
    killed_at_each_step,
    outputs,
    run_until_killed,
    state,
)

KEYS = [number % 4 for number in range(12)]
DUAL = "rocksdb-dual-store"
COMMITS_BEFORE = 2
"""The process is killed in its third commit; three records each."""


def opened_after_kill(
    folder: Path,
    failpoint: str,
    backends: tuple[str, str],
    guarantee: ProcessingGuarantee = EXACTLY_ONCE,
    durability: Durability = Durability.CHANGELOG,
    batches: bool = False,
    hit: int = COMMITS_BEFORE + 1,
) -> SqliteChangelog:
    log = SqliteChangelog(folder / "log.sqlite")
    feed(log, KEYS)
    log.close()
    arguments = (*backends, guarantee, durability, batches)
    assert run_until_killed(counting_task, folder, failpoint, hit, *arguments, commit_every_records=3)
    return SqliteChangelog(folder / "log.sqlite")


@pytest.mark.parametrize(
    ("backend", "batches", "failpoint", "hit", "next_input", "in_doubt"),
    killed_at_each_step(
        [
            (INDEXED, False),
            (DUAL, False),
            ("sqlite-indexed-batch", False),
            ("lmdb-indexed-batch", False),
            (INDEXED, True),
            ("lmdb-native", True),
        ]
    ),
)
def test_a_kill_at_any_step_costs_a_replay_of_the_tail_and_nothing_else(
    tmp_path: Path, backend: str, batches: bool, failpoint: str, hit: int, next_input: int, in_doubt: int
) -> None:
    """Source: KIP-844, "StateStore changes", crashes between steps 1, 3, 4a and 4b."""
    with opened_after_kill(tmp_path, failpoint, (backend, backend), batches=batches, hit=hit) as log:
        task = counting_task(tmp_path, log, backend, batches=batches, commit_every_records=3)
        reports = task.open()
        # At the level CHANGELOG a store of an engine without a log of its own is at some earlier commit.
        for report in reports:
            left_out = failpoint == "task.between_stores" and report.store == "left"
            at_least = 0 if left_out else in_doubt
            assert at_least <= report.records <= next_input
            assert not report.wiped
            assert report.to_offset == log.end_offset(changelog_of(report.store)) == next_input
            if backend.startswith(("lmdb", "sqlite")):
                assert report.records == at_least
        assert task.input_offsets() == {INPUT: next_input}
        assert state(task, "left") == state(task, "right") == expected_state(KEYS[:next_input])
        assert task.run() == len(KEYS) - next_input
        task.close()
        assert outputs(log) == expected_outputs(KEYS)


def test_after_an_unclean_end_a_direct_store_is_wiped_and_restored_whole_under_exactly_once(tmp_path: Path) -> None:
    """Source: KIP-129, unclean shutdown; KIP-844, step 1.1."""
    # At the level PROCESS the engine still has the writes of the open transaction after the kill.
    level = Durability.PROCESS
    with opened_after_kill(tmp_path, "task.before_log_commit", (DIRECT, INDEXED), EXACTLY_ONCE, level) as log:
        task = counting_task(tmp_path, log, DIRECT, INDEXED, durability=level, commit_every_records=3)
        left, right = task.open()
        assert (left.wiped, left.records, left.to_offset) == (True, 6, 6)
        assert (right.wiped, right.reason, right.records) == (False, None, 0)
        assert state(task, "left") == state(task, "right") == expected_state(KEYS[:6])
        task.run()
        task.close()
        assert outputs(log) == expected_outputs(KEYS)


@pytest.mark.parametrize(
    ("backends", "batches"), [((INDEXED, INDEXED), False), ((DIRECT, DIRECT), False), ((INDEXED, "lmdb-native"), True)]
)
@pytest.mark.parametrize(
    "failpoint",
    [
        "task.before_log_commit",
        "task.after_log_commit",
        "task.between_stores",
        "task.after_store_commit",
        "task.after_checkpoint",
    ],
)
def test_at_least_once_may_repeat_after_a_kill_but_never_loses(
    tmp_path: Path, failpoint: str, backends: tuple[str, str], batches: bool
) -> None:
    """Source: KIP-129, at_least_once."""
    with opened_after_kill(tmp_path, failpoint, backends, AT_LEAST_ONCE, batches=batches) as log:
        task = counting_task(tmp_path, log, *backends, AT_LEAST_ONCE, batches=batches, commit_every_records=3)
        task.open()
        # The input offsets come last, so at each of these steps they were not committed yet.
        assert task.input_offsets() == {INPUT: 6}
        assert task.run() == 6
        for name in ("left", "right"):
            counts = {key: int(value) for key, value in state(task, name).items()}
            assert all(counts[key] >= int(value) for key, value in expected_state(KEYS).items())
            logged = {record.key: record.value for record in log.read(changelog_of(name))}
            assert logged == state(task, name)
        task.close()
        assert {key for key, _ in expected_outputs(KEYS)} == {key for key, _ in outputs(log)}
        assert len(outputs(log)) in (12, 15)


@pytest.mark.parametrize("failpoint", ["task.restore.before_write", "task.restore.after_write"])
@pytest.mark.parametrize("left", [DIRECT, INDEXED, DUAL])
def test_a_kill_while_restoring_is_made_good_by_the_next_restore(tmp_path: Path, failpoint: str, left: str) -> None:
    with opened_after_kill(tmp_path, "task.after_log_commit", (left, INDEXED)) as log:
        log.close()
    assert run_until_killed(counting_task, tmp_path, failpoint, 2, left, INDEXED, commit_every_records=3)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        task = counting_task(tmp_path, log, left, INDEXED, commit_every_records=3)
        task.open()
        assert state(task, "left") == state(task, "right") == expected_state(KEYS[:9])
        task.run()
        task.close()
        assert outputs(log) == expected_outputs(KEYS)
