"""Restores by files: what is measured, what is compared, and what is never taken for a restore."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.budget import DEFAULT, NIGHT, PROFILES, Deadline
from harness.experiment import Request
from harness.experiments.file_restore import steps
from harness.experiments.file_restore.experiment import (
    COPY_AT_LEAST,
    REPLAY_AT_LEAST,
    FileRestore,
    FileRestoreTrial,
    ratios,
    run_file_restore,
)
from harness.experiments.store_of_records import STORE, StoreOfRecords
from harness.processes.load import LOAD_COLUMNS, clocks
from stores.config import StoreConfig
from stores.errors import ConfigError, StoreUnavailableError
from stores.interface import TopicPartition
from stores.snapshots.taking import SnapshotTaker
from stores.strategies.store import Store

ROCKSDB = "rocksdb-indexed-batch"


def test_each_repeat_has_snapshots_a_restore_and_a_copy_and_counts_the_bytes_that_are_sent(tmp_path: Path) -> None:
    rows = run_file_restore(FileRestoreTrial("lmdb-indexed-batch", 3_000, 1, repeats=2, alone_s=0.2), tmp_path)
    assert [row["repeat"] for row in rows] == [0, 1]
    for row in rows:
        assert FileRestore.columns["file_restore"].keys() <= row.keys()
        assert min(row[name] for name in ("replay_s", "files_s", "copy_s", "file_bytes", "beside_per_s")) > 0
        assert row.keys() - {"kind", *LOAD_COLUMNS} <= FileRestore.columns["file_restore"].keys()
        assert row["changed_bytes"] == 30 * 116
        assert row["sent_bytes"] >= row["changed_bytes"]
    # Each repeat has measured both sides anew.
    assert rows[0]["replay_s"] != rows[1]["replay_s"]
    page = FileRestore().page(FileRestore().figures({"file_restore": rows}), {}, {})
    assert page is not None
    assert "lmdb-indexed-batch" in "".join(page.body)


@pytest.fixture
def restorable(tmp_path: Path) -> dict[str, Any]:
    """The order of a restore whose snapshot is there."""
    order: dict[str, Any] = {"backend": ROCKSDB, "durability": "CHANGELOG", "records": 500, "seed": 1}
    steps.log(tmp_path, **order)
    steps.fill(tmp_path, **order)
    changed = steps.change(tmp_path, repeat=0, **order)
    return {"repeat": 0, "sample": changed["sample"], **order}


def test_a_restore_is_only_timed_if_it_used_the_snapshot_and_has_the_records(
    tmp_path: Path, restorable: dict[str, Any]
) -> None:
    assert steps.restore(tmp_path, **restorable)["file_bytes"] > 0
    with pytest.raises(AssertionError):
        steps.restore(tmp_path, **{**restorable, "sample": "another"})
    shutil.rmtree(tmp_path / "snapshots-0")
    with pytest.raises(AssertionError):
        steps.restore(tmp_path, **restorable)


def test_a_snapshot_that_fails_is_taken_again_and_measured(
    tmp_path: Path, restorable: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    take = SnapshotTaker._take
    failures: list[int] = []

    def fail_once(self: SnapshotTaker, store: Store, offset: int) -> None:
        if not failures:
            failures.append(offset)
            raise StoreUnavailableError("the map has to grow")
        take(self, store, offset)

    monkeypatch.setattr(SnapshotTaker, "_take", fail_once)
    del restorable["repeat"], restorable["sample"]
    assert steps.work(tmp_path, repeat=1, alone_s=0.01, **restorable)["beside_per_s"] > 0
    assert len(failures) == 1


def test_replay_restore_and_copy_make_all_anew_and_begin_without_files_that_wait_for_a_sync(
    tmp_path: Path, restorable: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*given: Any) -> Any:
            done.append(" ".join([name, *(each.name for each in given)]))
            return call(*given)

        return noting

    monkeypatch.setattr(os, "sync", noted("sync", os.sync))
    monkeypatch.setattr(steps, "_read", noted("read", steps._read))
    monkeypatch.setattr(steps, "clocks", noted("clock", clocks))
    order = {name: value for name, value in restorable.items() if name != "sample"}
    for _ in range(2):
        steps.replay(tmp_path, **order)
        steps.restore(tmp_path, **restorable)
        steps.copy(tmp_path, **order)
    assert done == 2 * [
        *("read changelog.sqlite", "sync", "clock", "sync"),
        *("read changelog.sqlite", "read snapshots-0", "sync", "clock", "sync"),
        *("read restored", "sync", "clock", "sync"),
    ]


def test_a_snapshot_is_awaited_that_has_all_that_was_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one that is put in place was begun before the last commit."""
    monkeypatch.setattr(steps, "_PAUSE_S", 0.0)
    snapshots = iter((None, 5, 5, 9, 10))
    placed: list[int | None] = []

    class Task:
        @property
        def metrics(self) -> Any:
            placed.append(next(snapshots))
            metrics = SimpleNamespace(snapshot_offset=placed[-1], snapshot_total=len(placed), snapshot_failed_total=0)
            return SimpleNamespace(stores={STORE: metrics})

        def changelog_offsets(self) -> dict[TopicPartition, int]:
            return {TopicPartition("changelog", 0): 10}

        def input_offsets(self) -> dict[TopicPartition, int]:
            return {}

        def process(self, *_: object) -> None:
            """Process nothing."""

        def commit(self) -> None:
            """Commit nothing."""

    monkeypatch.setattr(steps._Worker, "check", lambda *_: None)
    task: Any = Task()
    steps._Worker(StoreOfRecords(tmp_path, ROCKSDB, "CHANGELOG", 10, 1), task).snap()
    assert placed[-1] == 10


def test_the_first_commits_of_a_task_do_not_count_as_work_alone() -> None:
    slow = [steps.Commit(5.0, 5.0), steps.Commit(10.0, 5.0)]
    alone = [steps.Commit(10.0 + number, 1.0) for number in range(1, 20)]
    beside = [steps.Commit(31.0, 2.0), steps.Commit(33.0, 2.0)]
    found = steps.speeds([*slow, *alone, *beside], 20.0)
    assert found == {"alone_per_s": 2_000, "beside_per_s": 1_000, "snapshot_s": 3.0}
    assert steps.speeds(beside, 20.0)["alone_per_s"] is None
    uneven = [steps.Commit(14.0, 4.0), steps.Commit(29.0, 1.0)]
    assert steps.speeds([*slow, *uneven, *beside], 20.0)["alone_per_s"] == 800


def test_no_repeat_begins_after_the_deadline(tmp_path: Path) -> None:
    trial = FileRestoreTrial(ROCKSDB, 500, 1)
    assert run_file_restore(trial, tmp_path, deadline=Deadline(0.0)) == []
    # A trial counts with all of its repeats only.
    assert [FileRestore().tried(trial, number * [{}]) for number in (0, 2, 3)] == [0, 0, 1]


@pytest.mark.parametrize("backend", ["memory-indexed-batch", "rocksdb-direct"])
def test_a_backend_without_snapshots_is_refused_and_planned_nowhere(backend: str) -> None:
    with pytest.raises(ConfigError):
        FileRestoreTrial(backend, 1_000, 1)
    assert all(FileRestore().plan(Request(profile, backends=(backend,))) == [] for profile in PROFILES)


def test_a_night_restores_five_million_records_of_the_default_backend_first() -> None:
    first, *others = FileRestore().plan(Request(NIGHT))
    assert (first.backend, first.records) == (StoreConfig().backend, 5_000_000)
    assert {trial.backend for trial in others} == {"lmdb-indexed-batch", "sqlite-indexed-batch"}
    # A night whose answer takes ten minutes has 312 s for them.
    assert sum(FileRestore().cost_s(trial) for trial in (first, *others)) < 312
    assert all(FileRestore().cost_s(trial) < 15 for trial in FileRestore().plan(Request(DEFAULT)))


def row(backend: str, records: int, **given: Any) -> dict[str, Any]:
    """A row of a restore by files that takes a second."""
    rates = {"alone_per_s": 100.0, "beside_per_s": 95.0}
    seconds = {"replay_s": 19.0, "files_s": 1.0, "copy_s": 0.4}
    seconds |= {"replay_synced_s": 40.0, "files_synced_s": 2.0, "copy_synced_s": 1.6}
    return {"backend": backend, "durability": "CHANGELOG", "records": records, **seconds, **rates, **given}


def test_only_large_restores_have_thresholds_and_only_the_default_backend_one_against_replay() -> None:
    rows = [row(name, size) for name in (ROCKSDB, "lmdb-indexed-batch") for size in (100_000, 1_000_000)]
    found = {(each["subject"], each["claim"], each["yardstick"]): each for each in ratios(3 * rows)}
    assert len(found) == 16
    thresholds = {
        (subject, yardstick): each["at_least"]
        for (subject, claim, yardstick), each in found.items()
        if "1,000,000" in claim
    }
    assert thresholds == {
        (ROCKSDB, "replay"): REPLAY_AT_LEAST,
        ("lmdb-indexed-batch", "replay"): None,
        **{(name, "`cp -r`"): None for name in (ROCKSDB, "lmdb-indexed-batch")},
        **{(name, "`cp -r` and a sync"): COPY_AT_LEAST for name in (ROCKSDB, "lmdb-indexed-batch")},
        **{(name, "processing alone"): 0.9 for name in (ROCKSDB, "lmdb-indexed-batch")},
    }
    assert all(each["at_least"] is None for (_, claim, _), each in found.items() if "100,000" in claim)
    assert {each["yardstick"]: each["ratio"] for each in found.values()} == {
        "replay": 20.0,
        "`cp -r`": 0.4,
        "`cp -r` and a sync": 0.8,
        "processing alone": 0.95,
    }
    assert all(each["repeats"] == 3 and each["ratio_from"] is not None for each in found.values())


def test_a_repeat_that_never_worked_alone_is_no_ratio_of_processing() -> None:
    found = ratios([row(ROCKSDB, 1_000_000, alone_per_s=None)])
    assert [each["yardstick"] for each in found] == ["replay", "`cp -r` and a sync", "`cp -r`"]
