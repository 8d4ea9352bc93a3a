"""Stores of many records are filled, read and restored, and what they do not show is reported."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.budget import NEVER, TIME_OVER, Deadline, TimeOverError
from harness.experiment import Request, TrialWorker
from harness.experiments.registry import grid_of
from harness.experiments.scale import experiment as scale_module
from harness.experiments.scale import steps
from harness.experiments.scale.experiment import REPORT, Scale, ScaleGrid, ScaleTrial, findings, run_scale
from harness.experiments.store_of_records import STORE, StoreOfRecords
from harness.processes.apart import NoMemoryLimitError, memory_kills, memory_limit
from harness.processes.child import MeasurementFailedError, figures_in
from harness.progress import PROGRESS_FILE
from harness.run import prove
from harness.scenario import read_scenario, scenario_file
from harness.tests.clock import Clock
from stores.errors import ConfigError
from stores.records import Serde, Window, WindowStore
from stores.registry import backends, open_store
from stores.strategies.store import Store

RECORDS = 1_000
ORDER: dict[str, Any] = {"backend": "lmdb", "durability": "CHANGELOG", "records": RECORDS, "seed": 1}


def test_a_store_is_filled_read_and_restored_in_processes_of_its_own(tmp_path: Path) -> None:
    said: list[str] = []
    row, *parts = run_scale(ScaleTrial("lmdb", RECORDS, 1), tmp_path, say=said.append)
    assert row["problem"] == row["unlimited"] == ""
    measured = {name for name in Scale.columns["scale"] if name not in ("others_share", "steal_share")}
    assert measured <= row.keys()
    numbers = [row[name] for name in measured if name.endswith(("_s", "_bytes")) and name != "memory_max_bytes"]
    assert all(number > 0 for number in numbers)
    assert [part["records_there"] for part in parts] == [RECORDS // 10 * tenth for tenth in range(1, 11)]
    assert all(part["puts_per_s"] > 0 for part in parts)
    assert not (tmp_path / STORE).exists()
    assert not (tmp_path / steps.WINDOWS).exists()
    figures = Scale().figures({"scale": [row], "scale_part": parts})
    (figure,) = figures["scale"]
    assert figure["written_times"] == row["bytes_written"] / row["state_bytes"]
    assert figure["window_disk_times"] == row["window_bytes_on_disk"] / row["window_bytes_kept"]
    assert [len(table.rows) for table in REPORT.tables(figures)] == [1, 1]
    (marks,) = [panel.marks for panel in REPORT.plots[0].drawn(figures).panels]
    assert len(marks) == 10
    assert Scale().failures(figures, {"scale": [row]}) == []


@pytest.mark.parametrize("backend", [name for name, each in backends().items() if each.persistent])
def test_every_backend_with_files_shows_all_that_was_put(tmp_path: Path, backend: str) -> None:
    order = {**ORDER, "backend": backend}
    loaded = steps.load(tmp_path, **order)
    assert sum(count for count, _ in loaded["parts"]) == RECORDS
    assert loaded["bytes_on_disk"] > 100 * RECORDS
    assert loaded["bytes_written"] > 116 * RECORDS
    assert steps.read(tmp_path, **order)["read_wrong"] == ""
    assert steps.update(tmp_path, **order)["update_wrong"] == ""
    kept = steps.windows(tmp_path, **order)
    assert kept["window_wrong"] == ""
    assert kept["window_bytes_kept"] == RECORDS // 10 // 4 * 116
    assert kept["window_bytes_on_disk"] >= kept["window_bytes_kept"]


def test_updates_put_other_values_all_over_the_store(tmp_path: Path) -> None:
    steps.load(tmp_path, **ORDER)

    def content() -> dict[bytes, bytes]:
        with open_store("lmdb", tmp_path / STORE, name=STORE) as store:
            return dict(store.all())

    before = content()
    assert steps.update(tmp_path, **ORDER)["update_wrong"] == ""
    after = content()
    assert after.keys() == before.keys()
    # Of 1,000 keys drawn from 1,000, some are drawn twice.
    assert 500 < sum(after[key] != before[key] for key in before) < 1_000


def test_updates_that_read_another_value_are_found(tmp_path: Path) -> None:
    steps.load(tmp_path, **ORDER)
    with open_store("lmdb", tmp_path / STORE, name=STORE) as store:
        for key in [key for key, _ in store.all()]:
            changed(store, key)
        store.commit()
    # Of 1,000 keys drawn from 1,000, those that are drawn again have been put here.
    assert re.fullmatch(r"[56]\d\d updates read another value", steps.update(tmp_path, **ORDER)["update_wrong"])


def test_updates_that_are_lost_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps.load(tmp_path, **ORDER)
    monkeypatch.setattr(Store, "commit", lambda store, *_: None)
    assert "updates are lost" in steps.update(tmp_path, **ORDER)["update_wrong"]


def test_updates_keep_the_values_of_one_commit_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of the trial is limited: what it compares with must not count. The store keeps up to 16 MiB."""
    monkeypatch.setattr(steps, "COMMIT_BYTES_MAX", 1 << 18)
    order = {**ORDER, "records": 6_000, "value_bytes": 10_000}
    steps.load(tmp_path, **order)
    tracemalloc.start()
    try:
        assert steps.update(tmp_path, **order)["update_wrong"] == ""
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("step", [steps.update, steps.windows])
def test_the_time_of_commits_is_part_of_the_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Callable[..., dict[str, Any]]
) -> None:
    steps.load(tmp_path, **ORDER)
    commit = Store.commit

    def slow(store: Store, *given: Any) -> None:
        time.sleep(0.02)
        commit(store, *given)

    monkeypatch.setattr(Store, "commit", slow)
    found = step(tmp_path, **ORDER)
    # Commits have 100 records.
    (speed,) = [value for name, value in found.items() if name.endswith("_per_s")]
    assert speed < 100 / 0.02
    (longest,) = [value for name, value in found.items() if name.endswith("commit_max_s")]
    assert longest >= 0.02


def test_one_put_of_a_hundred_is_timed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now, put = 0.0, []

    def slow_put(key: bytes, value: bytes) -> None:
        nonlocal now
        put.append((key, value))
        now += len(put)

    monkeypatch.setattr(steps, "perf_counter", lambda: now)
    pairs = [(b"%d" % number, b"value") for number in range(250)]
    assert steps._puts(slow_put, pairs, [0, 99, 49]) == [1, 200, 250]
    assert put == pairs
    assert steps._puts(slow_put, pairs[:3], [3]) == []


def test_the_figures_of_puts_are_those_of_the_load_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").write_bytes(bytes(50 << 20))
    took = iter(range(1, RECORDS + 1))
    monkeypatch.setattr(steps, "_puts", lambda put, pairs, timed: [put(*pair) or next(took) for pair in pairs])
    loaded = steps.load(tmp_path, **ORDER)
    assert loaded["bytes_written"] < 50 << 20
    assert 998 < loaded["put_p999_s"] < 1_000


SOME_WINDOWS = {**ORDER, "records": 40_000}
"""The order of ten windows an hour, in eight commits."""


@pytest.mark.parametrize("hours", [-1, 1])
def test_windows_that_are_kept_too_long_or_not_long_enough_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    def kept_for_another_time(
        key: Serde[bytes], value: Serde[bytes], size_ms: int, retention_ms: int
    ) -> Window[bytes, bytes]:
        return Window(key, value, size_ms, retention_ms + hours * size_ms)

    monkeypatch.setattr(steps, "COMMIT_RECORDS", 500)
    assert steps.windows(tmp_path, **SOME_WINDOWS)["window_wrong"] == ""
    shutil.rmtree(tmp_path / steps.WINDOWS)
    monkeypatch.setattr(steps, "Window", kept_for_another_time)
    assert "windows are left, not 1,000" in steps.windows(tmp_path, **SOME_WINDOWS)["window_wrong"]


@pytest.mark.parametrize("place", range(3))
def test_windows_with_another_key_value_or_start_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    put = WindowStore.put

    def put_wrong(store: Any, *row: Any) -> None:
        if row[2] == 350 * steps.WINDOW_MS:
            row = tuple(each if at != place else each - 1 if place == 2 else each + b"x" for at, each in enumerate(row))
        put(store, *row)

    monkeypatch.setattr(WindowStore, "put", put_wrong)
    assert "other keys, starts or values" in steps.windows(tmp_path, **SOME_WINDOWS)["window_wrong"]


@pytest.mark.parametrize("name", ["read_wrong", "compact_wrong", "update_wrong", "window_wrong", "restore_wrong"])
def test_whatever_a_step_finds_wrong_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(steps, "STEPS", (steps.load,))
    monkeypatch.setattr(scale_module, "figures_in", lambda *_, **__: {"put_s": 2.0, name: "that is wrong"})
    row, *_ = run_scale(ScaleTrial("lmdb", RECORDS, 1), tmp_path)
    assert row["problem"] == "that is wrong"


def test_a_compaction_that_fails_or_loses_a_record_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps.load(tmp_path, **ORDER)
    compacted = steps.compact(tmp_path, **ORDER)
    assert compacted["compact_wrong"] == ""
    assert 100 * RECORDS < compacted["compacted_bytes"] < 2 * 116 * RECORDS

    def losing(arguments: list[str]) -> int:
        with StoreOfRecords(tmp_path, **ORDER).open() as store:
            with store.all() as pairs:
                key, _ = next(pairs)
            store.delete(key)
            store.commit({})
        return 2

    monkeypatch.setattr(steps, "main", losing)
    wrong = steps.compact(tmp_path, **ORDER)["compact_wrong"]
    assert "ended with 2" in wrong
    assert "999 records are left" in wrong


def lost(store: Any, key: bytes) -> None:
    store.delete(key)


def changed(store: Any, key: bytes) -> None:
    store.put(key, b"another")


def added(store: Any, key: bytes) -> None:
    store.put(key + b"more", b"another")


@pytest.mark.parametrize("damage", [lost, changed, added])
def test_a_store_that_shows_other_records_than_were_put_is_found(
    tmp_path: Path, damage: Callable[[Any, bytes], None]
) -> None:
    steps.load(tmp_path, **ORDER)
    with open_store("lmdb", tmp_path / STORE, name=STORE) as store:
        for key in [key for key, _ in store.all()]:
            damage(store, key)
        store.commit()
    assert steps.read(tmp_path, **ORDER)["read_wrong"] != ""


def test_the_working_process_reports_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SAY_EVERY_S", 0.0)
    (tmp_path / PROGRESS_FILE).touch()
    steps.load(tmp_path, **ORDER)
    lines = (tmp_path / PROGRESS_FILE).read_text().splitlines()
    assert len(lines) == 10
    assert lines[-1].startswith("put: 1,000 of 1,000 records")


def test_a_restore_of_too_few_records_is_found(tmp_path: Path) -> None:
    steps.log(tmp_path, **{**ORDER, "records": RECORDS - 1})
    assert steps.restore(tmp_path, **ORDER)["restore_wrong"] != ""
    shutil.rmtree(tmp_path / "state-of-task")
    assert steps.restore(tmp_path, **{**ORDER, "records": RECORDS - 1})["restore_wrong"] == ""


def test_a_process_that_fails_leaves_what_was_measured_and_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: dict[str, dict[str, Any]] = {"load": {"put_s": 2.0, "parts": [[10, 2.0]], "bytes_on_disk": 5_000}}

    def failing(folder: Path, step: Callable[..., Any], *_: object, **__: object) -> dict[str, Any]:
        if step.__name__ in figures:
            return figures[step.__name__]
        raise MeasurementFailedError("read was killed by signal 9")

    monkeypatch.setattr(scale_module, "figures_in", failing)
    row, *parts = Scale().run(ScaleTrial("lmdb", 10, 1), TrialWorker(tmp_path / "trial"))
    assert (row["puts_per_s"], row["bytes_on_disk"], row["restore_s"]) == (5.0, 5_000, None)
    by_kind = {"scale": [row], "scale_part": parts}
    (failure,) = Scale().failures(Scale().figures(by_kind), by_kind)
    assert "killed by signal 9" in failure.sentence
    assert Scale().page(Scale().figures(by_kind), by_kind, {}).findings[0].sentence().startswith("**0 of 1 stores of")
    assert len(REPORT.tables(Scale().figures(by_kind))) == 2


def test_a_trial_whose_time_is_over_keeps_what_was_measured_counts_as_left_out_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(folder: Path, step: Callable[..., Any], *_: object, **__: object) -> dict[str, Any]:
        if step is steps.load:
            return {"put_s": 2.0, "parts": [[10, 2.0]], "bytes_on_disk": 5_000}
        raise TimeOverError(TIME_OVER)

    monkeypatch.setattr(scale_module, "figures_in", cut)
    trial = ScaleTrial("lmdb", 10, 1)
    passed = Deadline(0.0, Clock())
    for deadline, puts in ((NEVER, 5.0), (passed, None)):
        row, *parts = rows = list(Scale().run(trial, TrialWorker(tmp_path / f"trial {puts}", deadline=deadline)))
        assert row.get("puts_per_s") == puts
        by_kind = {"scale": [row], "scale_part": parts}
        assert Scale().failures(Scale().figures(by_kind), by_kind) == []
        assert Scale().tried(trial, rows) == 0
        assert Scale().page(Scale().figures(by_kind), by_kind, {}).findings[0].number == 0
        assert TIME_OVER in REPORT.tables(Scale().figures(by_kind))[1].rows[0][-1]


def test_a_commit_has_few_bytes_where_records_are_large() -> None:
    for value_bytes in (100, 4_000, 10**7):
        subject = StoreOfRecords(Path(), "lmdb", "CHANGELOG", 280_000, 1, value_bytes)
        size = steps._commit_records(subject)
        assert size == 1 or size * (value_bytes + 16) <= steps.COMMIT_BYTES_MAX
        assert 1 <= size <= steps.COMMIT_RECORDS
        assert sum(steps._part_records(subject)) == 280_000


def test_where_no_memory_can_be_limited_the_row_says_why_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(num_bytes: int) -> None:
        raise NoMemoryLimitError("no cgroup can be made")

    monkeypatch.setattr(scale_module, "memory_limit", refuse)
    row, *parts = Scale().run(ScaleTrial("lmdb", 1_000, 1, memory_max_bytes=10), TrialWorker(tmp_path / "trial"))
    assert row["unlimited"] == "no cgroup can be made"
    assert not parts
    found = {"scale": [row]}
    assert Scale().failures(Scale().figures(found), found) == []
    assert any("no cgroup can be made" in cell for cell in REPORT.tables(Scale().figures(found))[1].rows[0])


def test_a_store_that_its_limit_on_memory_has_killed_is_a_finding_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without cgroups: the group is a folder, with the file that the kernel would write."""

    @contextlib.contextmanager
    def group(num_bytes: int) -> Iterator[Path]:
        (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
        yield tmp_path

    def killed(*arguments: object, **options: object) -> None:
        raise MeasurementFailedError("the step was killed by signal 9")

    monkeypatch.setattr(scale_module, "memory_limit", group)
    monkeypatch.setattr(scale_module, "figures_in", killed)
    trials = [ScaleTrial("lmdb", 1_000_000, 1, memory_max_bytes=limit) for limit in (10 << 20, 0)]
    rows = [row for each in trials for row in Scale().run(each, TrialWorker(tmp_path / f"{each.memory_max_bytes}"))]
    showed, limits = findings(rows)
    assert (showed.number, showed.good) == (1, 0)
    assert (limits.number, limits.good) == (1, 0)
    assert "lmdb" in limits.verdict
    assert "10 MiB" in limits.verdict
    (tmp_path / "memory.events").unlink()
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert memory_kills(tmp_path) == 3


def proc(root: Path, own: str, mounts: str) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(own)
    (root / "proc/self/mounts").write_text(mounts)


def test_a_limit_of_version_1_is_below_the_cgroup_of_this_process(tmp_path: Path) -> None:
    own = tmp_path / "groups/memory/mine"
    own.mkdir(parents=True)
    proc(tmp_path, "4:memory:/mine\n0::/\n", "cgroup /groups/memory cgroup rw,memory 0 0\n")
    with memory_limit(1 << 20, tmp_path) as group:
        assert group.parent == own
        assert (group / "memory.limit_in_bytes").read_text() == str(1 << 20)
        # In a real cgroup these files go with their folder.
        (group / "memory.limit_in_bytes").unlink()
    assert list(own.iterdir()) == []


def test_a_limit_of_version_2_is_where_the_control_of_memory_is_passed_on(tmp_path: Path) -> None:
    own = tmp_path / "groups/user/mine"
    own.mkdir(parents=True)
    (own / "cgroup.subtree_control").write_text("\n")
    proc(tmp_path, "0::/user/mine\n", "cgroup2 /groups cgroup2 rw 0 0\n")
    with pytest.raises(NoMemoryLimitError), memory_limit(1 << 20, tmp_path):
        pass
    (own.parent / "cgroup.subtree_control").write_text("cpu memory\n")
    with memory_limit(1 << 20, tmp_path) as group:
        assert group.parent == own.parent
        assert (group / "memory.max").read_text() == str(1 << 20)
        (group / "memory.max").unlink()
    assert not group.exists()


@pytest.mark.parametrize(
    ("own", "mounts"), [("", ""), ("4:memory:/\n", "tmpfs /groups tmpfs rw 0 0\n"), ("nonsense\n", "")]
)
def test_a_system_without_memory_cgroups_gets_an_error(tmp_path: Path, own: str, mounts: str) -> None:
    with pytest.raises(NoMemoryLimitError), memory_limit(1 << 20, tmp_path / "nothing"):
        pass
    proc(tmp_path, own, mounts)
    with pytest.raises(NoMemoryLimitError), memory_limit(1 << 20, tmp_path):
        pass


def test_the_processes_of_a_limited_trial_are_in_its_cgroup_from_their_first_import_on(tmp_path: Path) -> None:
    group = tmp_path / "group"
    group.mkdir()
    (group / "cgroup.procs").touch()
    folder = tmp_path / "trial"
    folder.mkdir()
    found = figures_in(folder, steps.load, ORDER, 60, group=group)
    assert found["put_s"] > 0
    assert int((group / "cgroup.procs").read_text()) != os.getpid()


def test_a_trial_that_makes_no_sense_is_refused() -> None:
    for wrong in (
        lambda: ScaleTrial("lmdb", 0, 1),
        lambda: ScaleTrial("memory", 10, 1),
        lambda: ScaleTrial("lmdb", 10, 1, memory_max_bytes=1 << 20),
        lambda: ScaleGrid(records=(0,)).plan(1),
        lambda: ScaleGrid(backends=("lmbd",)).plan(1),
        lambda: ScaleGrid(limited_backends="lmdb").plan(1),  # type: ignore[arg-type]
        lambda: ScaleGrid(records=()).plan(1),
        lambda: ScaleGrid(large=(("lmdb", 0),)).plan(1),
        lambda: ScaleGrid(large=(("lmbd", 1),)).plan(1),
    ):
        with pytest.raises(ConfigError):
            wrong()


def test_the_scenario_has_every_backend_with_files_a_limit_of_memory_and_a_hundred_million_records_at_night() -> None:
    scenario = grid_of(read_scenario(scenario_file("many_records")).scenario)
    trials = scenario.scaled("default").plan(1)
    with_files = {name for name, each in backends().items() if each.persistent}
    assert {trial.backend for trial in trials} == with_files
    assert {trial.records for trial in trials if not trial.memory_max_bytes} == {1_000_000}
    limited = [trial for trial in trials if trial.memory_max_bytes]
    assert len(limited) == 3
    assert all(trial.state_bytes >= 4 * trial.memory_max_bytes for trial in limited)
    night = scenario.scaled("night").plan(1)
    largest = [(trial.backend, trial.records) for trial in night if trial.records > 1_000_000]
    assert largest == 2 * [
        ("rocksdb-indexed-batch", 10_000_000),
        ("sqlite-indexed-batch", 10_000_000),
        ("rocksdb-indexed-batch", 50_000_000),
        ("lmdb-indexed-batch", 50_000_000),
        ("rocksdb-indexed-batch", 100_000_000),
    ]
    assert [trial.memory_max_bytes for trial in night[-5:]] == [trial.state_bytes // 4 for trial in night[-10:-5]]
    assert max(trial.records for trial in scenario.scaled("smoke").plan(1)) <= 20_000


def test_a_bench_fills_the_indexed_batch_of_each_engine_with_files() -> None:
    trials = Scale().plan(Request("default"))
    assert {(trial.backend, trial.records) for trial in trials} == {
        (f"{engine}-indexed-batch", 1_000_000) for engine in ("rocksdb", "lmdb", "sqlite")
    }
    assert Scale().plan(Request("default", backends=("memory-indexed-batch",))) == []
    night = Scale().plan(Request("night"))
    assert [trial.memory_max_bytes > 0 for trial in night] == [False] * 3 + [True] * 3 + [False] * 5 + [True] * 5
    assert [trial.records for trial in night if not trial.memory_max_bytes] == [
        *[1_000_000] * 3,
        *[10**7] * 2,
        *[50_000_000] * 2,
        10**8,
    ]
    assert {trial.backend for trial in night[3:6]} == {trial.backend for trial in trials}


def test_the_scenario_runs_without_spark_and_prints_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.run.spark_session", lambda *_: pytest.fail("Spark was started"))
    file = tmp_path / "few.py"
    file.write_text(
        '"""Few."""\nfrom harness.scenario import Scenario\n'
        f'SCENARIO = Scenario("scale", records=({RECORDS},), backends=("sqlite",))\n'
    )
    assert prove(read_scenario(file), seed=1, master=None, runs=tmp_path / "runs")
    assert "sqlite-indexed-batch" in capsys.readouterr().out


def test_a_trial_of_the_experiment_makes_its_folder_and_has_a_line(tmp_path: Path) -> None:
    rows = list(Scale().run(ScaleTrial("rocksdb", RECORDS, 1), TrialWorker(tmp_path / "trial")))
    assert "restored in" in Scale().line(ScaleTrial("rocksdb", RECORDS, 1), rows)
