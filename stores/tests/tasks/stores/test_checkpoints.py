"""The checkpointable offsets in the checkpoint file, and the stores that opening wipes if it is missing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog
from stores.tasks.stores.earlier_store import Trust
from stores.tasks.stores.log_follower import BEFORE_WRITE
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    DIRECT,
    EXACTLY_ONCE,
    INDEXED,
    LEFT,
    RIGHT,
    checkpoint,
    counting_task,
    crashing_at,
    expected_state,
    feed,
    state,
    store_folder,
)


def test_a_direct_store_under_exactly_once_is_kept_after_a_clean_close_and_wiped_after_an_unclean_one(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Source: KIP-129, unclean shutdown; KIP-844, steps 1.1 and 5."""
    feed(log, [1, 2, 3])
    task = counting_task(tmp_path, log, DIRECT, INDEXED)
    task.open()
    task.run(2)
    task.commit()
    assert checkpoint(tmp_path).read() == {}
    task.close()
    assert checkpoint(tmp_path).read() == {LEFT: 1, RIGHT: 1}

    left, right = task.open()
    assert (left.wiped, left.records, right.wiped, right.records) == (False, 0, False, 0)
    assert checkpoint(tmp_path).read() == {RIGHT: 1}
    task.run()
    task.close(clean=False)
    assert checkpoint(tmp_path).read() == {RIGHT: 1}

    left, right = task.open()
    assert (left.wiped, left.records, right.wiped, right.records) == (True, 2, False, 0)
    assert isinstance(left.reason, str)
    assert right.reason is None
    assert state(task, "left") == state(task, "right") == expected_state([1, 2])
    task.close()


def test_without_the_wipe_a_direct_store_shows_what_was_never_committed(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: why the wipe is there. Source: KIP-892, "Motivation"."""
    monkeypatch.setattr(Trust, "is_checked", lambda self, origin: False)
    feed(log, [1, 2, 3])
    task = counting_task(tmp_path, log, DIRECT)
    task.open()
    task.run()
    task.close(clean=False)
    assert [report.wiped for report in task.open()] == [False, False]
    assert state(task, "left") == expected_state([1, 2, 3])
    assert list(log.read(LEFT)) == []
    task.close()


def test_at_least_once_a_direct_store_is_not_wiped_and_its_checkpoint_follows_each_commit(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Source: KIP-844, step 4."""
    feed(log, [1, 2, 3])
    task = counting_task(tmp_path, log, DIRECT, INDEXED, AT_LEAST_ONCE)
    task.open()
    assert checkpoint(tmp_path).read() == {}
    for commits in (1, 2):
        task.run(1)
        task.commit()
        assert checkpoint(tmp_path).read() == {LEFT: commits - 1, RIGHT: commits - 1}
    task.run()
    task.close(clean=False)
    left, right = task.open()
    assert (left.wiped, left.records, right.wiped, right.records) == (False, 0, False, 0)
    assert int(state(task, "left")[b"3"]) == 1
    task.close()


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_no_checkpoint_is_written_in_a_thousand_commits_of_stores_that_keep_their_offsets(
    tmp_path: Path, log: MemoryChangelog, guarantee: Any
) -> None:
    """Source: KIP-892, "Offsets for Consumer Rebalances"."""
    feed(log, [1] * 1_001)
    task = counting_task(tmp_path, log, guarantee=guarantee, commit_every_records=1)
    task.open()
    task.run(1)
    task.close()
    task.open()
    # All there is, but the engines' own files.
    files = [file for file in (tmp_path / "state").rglob("*") if file.is_file() and "data" not in file.parts]
    assert checkpoint(tmp_path).path in files
    for file in files:
        os.utime(file, ns=(1, 1))
    assert task.run() == 1_000
    assert files == [file for file in (tmp_path / "state").rglob("*") if file.is_file() and "data" not in file.parts]
    assert {file.stat().st_mtime_ns for file in files} == {1}
    assert checkpoint(tmp_path).read() == {LEFT: 0, RIGHT: 0}
    task.close()
    assert checkpoint(tmp_path).read() == {LEFT: 1_000, RIGHT: 1_000}


def test_the_stores_not_the_checkpoint_file_are_the_source_of_truth(tmp_path: Path, log: MemoryChangelog) -> None:
    """Source: KIP-892, "Offsets for Consumer Rebalances", 1."""
    feed(log, [1, 2])
    task = counting_task(tmp_path, log)
    task.open()
    task.run()
    task.close()
    checkpoint(tmp_path).write({LEFT: 0, RIGHT: 77})
    assert [(report.wiped, report.records) for report in task.open()] == [(False, 0)] * 2
    assert checkpoint(tmp_path).read() == {LEFT: 1, RIGHT: 1}
    task.close()


def test_a_damaged_checkpoint_makes_only_direct_stores_restore(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, [1, 2])
    task = counting_task(tmp_path, log, DIRECT, INDEXED)
    task.open()
    task.run()
    task.close()
    checkpoint(tmp_path).path.write_bytes(b"\xff\x00")
    assert [(report.wiped, report.records) for report in task.open()] == [(True, 2), (False, 0)]
    task.close()
    assert checkpoint(tmp_path).read() == {LEFT: 1, RIGHT: 1}


def test_a_store_that_was_found_damaged_is_out_of_the_checkpoint_until_it_is_restored(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Source: KIP-892, "Error Handling"."""
    feed(log, [1, 2])
    task = counting_task(tmp_path, log)
    task.open()
    task.run()
    task.close()
    (store_folder(tmp_path, INDEXED) / "store.json").write_text("garbage")
    with crashing_at(BEFORE_WRITE):
        task.open()
    assert checkpoint(tmp_path).read() == {RIGHT: 1}
    left, right = task.open()
    assert (left.records, right.records) == (2, 0)
    assert checkpoint(tmp_path).read() == {LEFT: 1, RIGHT: 1}
    task.close()
