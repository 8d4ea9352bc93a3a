"""A kill at each step of an upgrade leaves the old store or the new one, whole, and the next opening completes it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from stores.changelog import SqliteChangelog
from stores.errors import StoreIncompatibleError
from stores.tasks.directory import replacement as swap
from stores.tasks.stores import upgrading
from stores.tests.tasks.setup import DIRECT, INDEXED, checkpoint
from stores.tests.tasks.typed import feed_times
from stores.tests.tasks.upgrading import (
    ROLLING,
    expected,
    names_beside,
    new_task,
    old_task,
    online_task,
    run_upgrade_until_killed,
    shown,
    work,
)

POINTS = (*upgrading.FAILPOINTS, swap.SYNCED, *swap.FAILPOINTS)
BACKENDS = [INDEXED, "lmdb-indexed-batch", DIRECT]


def _begun(folder: Path, backend: str, count: int) -> None:
    with SqliteChangelog(folder / "log.sqlite") as log:
        feed_times(log, range(20))
        work(old_task(folder, log, backend), count)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("failpoint", [*POINTS, "task.restore.before_write", "task.restore.after_write"])
def test_a_kill_in_an_offline_upgrade(tmp_path: Path, failpoint: str, backend: str) -> None:
    _begun(tmp_path, backend, 12)
    assert run_upgrade_until_killed(tmp_path, failpoint, 1, "offline", backend)
    decided = failpoint in POINTS and POINTS.index(failpoint) >= POINTS.index(swap.DECIDED)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        if decided:
            with pytest.raises(StoreIncompatibleError):
                old_task(tmp_path, log, backend).open()
        elif backend != DIRECT:
            with closing(old_task(tmp_path, log, backend)) as old:
                [report] = old.open()
                assert (report.wiped, report.records) == (False, 0)
                assert len(shown(old)) == len(expected(12))
        with closing(new_task(tmp_path, log, backend)) as task:
            [report] = task.open()
            if backend != DIRECT:
                assert (report.wiped, report.records) == (False, 0)
                assert task.metrics.stores["s"].upgrade_total == (not decided)
            assert shown(task) == expected(12)
            task.run(commit=True)
            assert shown(task) == expected(20)
        assert names_beside(tmp_path) == []


@pytest.mark.parametrize("failpoint", [upgrading.BEGUN, upgrading.CAUGHT_UP, swap.DECIDED, swap.CLEARED])
def test_the_offset_of_the_old_store_does_not_count_for_the_new_one(tmp_path: Path, failpoint: str) -> None:
    """The checkpoint file alone has the offset of such a store."""
    _begun(tmp_path, DIRECT, 12)
    assert checkpoint(tmp_path).read()
    assert run_upgrade_until_killed(tmp_path, failpoint, 1, "offline", DIRECT)
    assert checkpoint(tmp_path).read() == {}
    with SqliteChangelog(tmp_path / "log.sqlite") as log, closing(new_task(tmp_path, log, DIRECT)) as task:
        [report] = task.open()
        assert report.from_offset == 0
        assert shown(task) == expected(12)


@pytest.mark.parametrize("hit", [1, 2, 3])
@pytest.mark.parametrize("failpoint", ["upgrade.begun", "upgrade.stepped", "task.restore.after_write"])
def test_a_kill_in_an_online_upgrade_leaves_the_task_its_store_and_the_steps_that_were_made(
    tmp_path: Path, failpoint: str, hit: int
) -> None:
    _begun(tmp_path, INDEXED, 12)
    killed = run_upgrade_until_killed(tmp_path, failpoint, hit, "online", INDEXED)
    assert killed == (failpoint != upgrading.BEGUN or hit == 1)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        with closing(online_task(tmp_path, log)) as old:
            [report] = old.open()
            assert not report.wiped
            done = sum(old.input_offsets().values())
            assert len(shown(old)) == len(expected(done))
        with closing(new_task(tmp_path, log)) as task:
            task.open()
            assert shown(task) == expected(done)
            task.run(commit=True)
            assert shown(task) == expected(20)
        assert names_beside(tmp_path) == []


@pytest.mark.parametrize(
    ("failpoint", "backend"),
    [
        ("create.built", INDEXED),
        ("task.restore.before_write", INDEXED),
        ("task.restore.after_write", INDEXED),
        ("task.restore.after_write", "sqlite-native"),
        ("task.restore.after_write", DIRECT),
    ],
)
def test_a_kill_of_a_new_instance_that_rebuilds_disturbs_nobody_and_is_made_up_for(
    tmp_path: Path, failpoint: str, backend: str
) -> None:
    _begun(tmp_path, backend, 12)
    assert run_upgrade_until_killed(tmp_path, failpoint, 1, ROLLING, backend)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        with closing(old_task(tmp_path, log, backend)) as old:
            [report] = old.open()
            assert (report.wiped, report.records) == (False, 0)
            old.run(4, commit=True)
            new = new_task(tmp_path / "new", log, backend, mode="roll_over")
            new.rebuild()
            old.run(2, commit=True)
        with closing(new):
            new.open()
            assert shown(new) == expected(18)
            new.run(commit=True)
            assert shown(new) == expected(20)


def test_a_second_kill_while_a_swap_is_completed_changes_nothing(tmp_path: Path) -> None:
    _begun(tmp_path, INDEXED, 12)
    assert run_upgrade_until_killed(tmp_path, swap.DECIDED, 1, "offline", INDEXED)
    for failpoint in (swap.RENAMED, swap.RENAMED, swap.PLACED, swap.CLEARED, swap.CLEARED):
        assert run_upgrade_until_killed(tmp_path, failpoint, 1, "offline", INDEXED)
    with SqliteChangelog(tmp_path / "log.sqlite") as log, closing(new_task(tmp_path, log, mode=None)) as task:
        [report] = task.open()
        assert (report.wiped, report.records) == (False, 0)
        assert shown(task) == expected(12)
