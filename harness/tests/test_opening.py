"""Openings after a kill: what is opened, with what it is compared, and what a run of them leaves out."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import lmdb
import pytest

from harness.budget import Deadline
from harness.experiment import Outcome, Request
from harness.experiments.opening import bare, steps
from harness.experiments.opening import experiment as opening
from harness.experiments.opening.bare import bare_seconds
from harness.experiments.opening.experiment import Opening, OpeningTrial, run_opening
from harness.experiments.opening.report import ratios
from harness.experiments.opening.steps import TAIL_COMMIT_RECORDS, TAIL_COMMITS
from harness.experiments.store_of_records import StoreOfRecords
from harness.processes.load import Clocks
from harness.tests.test_jvm import options_of
from stores.engines.sqlite import engine as sqlite_engine
from stores.errors import ConfigError
from stores.interface import Durability
from stores.registry import backends, open_store
from stores.tests.store_process import StoreProcess

PERSISTENT = [name for name, each in backends().items() if each.persistent]


COMMITS_LOST = {"rocksdb-indexed-batch": TAIL_COMMITS, "lmdb-indexed-batch": 0}


def test_an_opening_is_timed_without_the_waits_for_a_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = {"backend": "memory-indexed-batch", "durability": Durability.CHANGELOG, "records": 100, "seed": 1}
    (tmp_path / "store").mkdir()
    steps.log(tmp_path, **order)
    assert steps.fill(tmp_path / "store", **order)["open_s"] > 0
    monkeypatch.setattr(steps, "waited_ns", itertools.count(step=10**15).__next__)
    assert {name: steps.reopen(tmp_path / "store", **order)[name] for name in ("open_s", "restore_s")} == {
        "open_s": 0.0,
        "restore_s": 0.0,
    }


def test_openings_come_in_rounds_and_each_replays_the_tail_and_has_its_load_and_the_bare_engine_beside_it() -> None:
    rows = run_opening(OpeningTrial(tuple(COMMITS_LOST), Durability.CHANGELOG, 3_000, 2, 1))
    assert [row["repeat"] for row in rows] == [0, 0, 1, 1]
    assert {row["backend"] for row in rows[:2]} == {row["backend"] for row in rows[2:]} == set(COMMITS_LOST)
    for row in rows:
        assert row["replayed"] == (COMMITS_LOST[row["backend"]] + 1) * TAIL_COMMIT_RECORDS
    assert all(row["open_s"] > 0 and row["restore_s"] > 0 for row in rows)
    assert all(row["alone_s"] > 0 and row["bare_s"] > 0 and row["cpu_per_wall"] > 0 for row in rows)
    assert all(row["whole_restore_s"] > 0 for row in rows)


def filled(path: Path, backend: str) -> Path:
    """A closed store of one record."""
    with open_store(backend, path) as store:
        store.put(b"key", b"value")
        store.commit()
    return path


@pytest.mark.parametrize("backend", PERSISTENT)
def test_the_bare_engine_opens_the_files_of_every_backend_and_reads_a_record(tmp_path: Path, backend: str) -> None:
    path = filled(tmp_path / "store", backend)
    seconds = bare_seconds(path, Durability.CHANGELOG, b"key")
    assert seconds is not None
    assert seconds.wall_s > 0
    assert seconds.cpu_s > 0
    with pytest.raises(LookupError):
        bare_seconds(path, Durability.CHANGELOG, b"another key")
    assert bare_seconds(tmp_path / "elsewhere", Durability.CHANGELOG, b"key") is None


@pytest.mark.parametrize("level", Durability)
def test_the_bare_lmdb_is_opened_as_the_store_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: Durability
) -> None:
    path, opened, seen = filled(tmp_path / "store", "lmdb"), lmdb.open, []

    def spied(name: str, **given: Any) -> Any:
        seen.append({"metasync": True, "writemap": False, **given})
        return opened(name, **given)

    monkeypatch.setattr(lmdb, "open", spied)
    open_store("lmdb", path, durability=level).close()
    bare_seconds(path, level, b"key")
    assert seen[0] == seen[1]


@pytest.mark.parametrize("level", Durability)
def test_the_bare_sqlite_is_opened_as_the_store_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: Durability
) -> None:
    path, seen = filled(tmp_path / "store", "sqlite"), []

    class Spied:
        """A connection that notes its settings when it is closed."""

        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

        def close(self) -> None:
            names = ("journal_mode", "synchronous", "cache_size", "mmap_size", "wal_autocheckpoint")
            found = {name: self._connection.execute(f"pragma {name}").fetchall() for name in names}
            seen.append(found)
            self._connection.close()

    for module in (sqlite_engine, bare):
        connect = module.connect
        monkeypatch.setattr(module, "connect", lambda *given, connect=connect: Spied(connect(*given)))
    open_store("sqlite", path, durability=level).close()
    bare_seconds(path, level, b"key")
    assert seen[0] == seen[1]
    assert len(seen) == 2


def test_the_bare_rocksdb_is_opened_as_the_store_opens_it(tmp_path: Path) -> None:
    path = filled(tmp_path / "store", "rocksdb")
    with open_store("rocksdb", path):
        options = options_of(path)
    bare_seconds(path, Durability.CHANGELOG, b"key")
    assert options_of(path) == options


def test_a_killed_store_is_opened_in_its_place_and_by_the_bare_engine_from_a_copy_and_is_then_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: dict[str, Any] = {"backend": "lmdb-indexed-batch", "durability": "CHANGELOG", "records": 1, "seed": 1}
    path = tmp_path / "state/store"
    with StoreProcess() as process:
        process.call("open", order["backend"], path, order["durability"], {})
        process.call("put", steps._KEY, b"value")
        process.call("commit")
    files = {file.name: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    seen = []
    alone, without = steps._alone_seconds, bare.bare_seconds

    def spied(path: Path, subject: StoreOfRecords) -> Clocks:
        seen.append(("alone", path.parent.name, (path / "open").exists()))
        return alone(path, subject)

    def spied_bare(path: Path, level: Durability, key: bytes) -> Clocks | None:
        seen.append(("bare", path.name, (path / "store/open").exists()))
        return without(path, level, key)

    monkeypatch.setattr(steps, "_alone_seconds", spied)
    monkeypatch.setattr(bare, "bare_seconds", spied_bare)
    for repeat in (0, 1):
        figures = steps.apart(tmp_path, repeat, **order)
        assert figures["alone_s"] > 0
        assert figures["bare_s"] > 0
        assert figures["mark_s"] is None
    measured = [each for each in seen if each[2]]
    first, second = ("alone", "state", True), ("bare", "copy-bare", True)
    assert measured == [first, second, second, first]
    assert [each[0] for each in seen].count("alone") == [each[0] for each in seen].count("bare")
    assert list(tmp_path.iterdir()) == [tmp_path / "state"]
    assert {file.name: file.read_bytes() for file in path.rglob("*") if file.is_file()} == files


def test_an_opening_that_writes_a_mark_is_measured_beside_one(tmp_path: Path) -> None:
    order: dict[str, Any] = {"backend": "rocksdb-indexed-batch", "durability": "CHANGELOG", "records": 1, "seed": 1}
    with open_store("rocksdb-indexed-batch", tmp_path / "state/store") as store:
        store.put(steps._KEY, b"value")
        store.commit()
    assert steps.apart(tmp_path, 0, **order)["mark_s"] > 0


def test_a_trial_fills_each_store_once_from_one_changelog_and_keeps_its_files_for_every_repeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[tuple[str, str]] = []

    def stepped(trial: OpeningTrial, folder: Path, code: str | None, step: str, order: object) -> dict[str, Any]:
        done.append((step, folder.name))
        return {"restore_s": 1.0} if step == "fill" else {}

    monkeypatch.setattr(opening, "_step", stepped)
    two = ("sqlite-native", "lmdb-indexed-batch")
    rows = run_opening(OpeningTrial(two, Durability.CHANGELOG, 1_000, 3, 1))
    assert [step for step, _ in done].count("log") == 1
    assert sorted(name for step, name in done if step == "fill") == sorted(two)
    for step in ("tail", "apart", "reopen"):
        assert sorted(name for each, name in done if each == step) == sorted(3 * two)
    assert [row["whole_restore_s"] for row in rows] == [1.0] * 6


def test_a_deadline_between_two_stores_leaves_the_openings_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def stepped(trial: OpeningTrial, folder: Path, code: str | None, step: str, order: object) -> dict[str, Any]:
        now[0] += step == "fill"
        return {"restore_s": 1.0} if step == "fill" else {}

    monkeypatch.setattr(opening, "_step", stepped)
    trial = OpeningTrial(("sqlite-native", "lmdb-indexed-batch"), Durability.CHANGELOG, 1_000, 3, 1)
    rows = run_opening(trial, deadline=Deadline(0.5, lambda: now[0]))
    assert [row["repeat"] for row in rows] == [0]


def test_a_store_without_transactions_is_restored_whole_after_a_kill() -> None:
    (row,) = run_opening(OpeningTrial(("rocksdb-direct",), Durability.CHANGELOG, 3_000, 1, 1))
    assert row["replayed"] == 3_000 + (TAIL_COMMITS + 1) * TAIL_COMMIT_RECORDS


def test_an_opening_is_compared_with_the_bare_engine_without_the_replay_of_the_tail() -> None:
    shared = {
        "backend": "lmdb-indexed-batch",
        "durability": "CHANGELOG",
        "replayed": 10,
        "open_s": 0.1,
        "restore_s": 9.0,
    }
    small = [{**shared, "records": 100, "alone_s": seconds, "bare_s": 0.01} for seconds in (0.02, 0.019, 0.5)]
    large = [{**shared, "records": 1_000, "alone_s": 0.08, "bare_s": 0.02}]
    wiped = [{**shared, "backend": "rocksdb-direct", "records": 10, "alone_s": 1.0, "bare_s": 0.01}]
    found = {(row["yardstick"], row["claim"].split()[3]): row for row in ratios([*small, *large, *wiped])}
    assert {row["subject"] for row in found.values()} == {"lmdb-indexed-batch"}
    assert [found["bare lmdb", size]["ratio"] for size in ("100", "1,000")] == [0.5, 0.25]
    assert {row["at_least"] for row in found.values() if row["yardstick"] == "bare lmdb"} == {0.5}
    assert sorted(yardstick for yardstick, _ in found) == ["bare lmdb", "bare lmdb", "one second"]
    assert ratios([{**small[0], "bare_s": None}])[0]["yardstick"] == "one second"


def test_an_opening_that_takes_longer_than_twice_the_bare_engine_says_what_takes_the_time() -> None:
    row = {
        "backend": "lmdb-indexed-batch",
        "durability": "CHANGELOG",
        "records": 100,
        "replayed": 10,
        "open_s": 0.1,
        "restore_s": 0.01,
        "alone_s": 0.004,
        "bare_s": 0.001,
        "mark_s": 0.002,
    }
    found = {each["yardstick"]: each for each in ratios([row])}
    assert found["bare lmdb"]["ratio"] == 0.25
    assert found["bare lmdb"]["reason"] == "4 ms: bare 1 ms, mark 2 ms, rest 1 ms"
    assert found["bare lmdb and a mark"]["ratio"] == 0.75
    assert {each["at_least"] for name, each in found.items() if name != "one second"} == {0.5}
    (missed,) = (each for each in ratios([{**row, "mark_s": None}]) if each["yardstick"] != "one second")
    assert (missed["yardstick"], missed["reason"]) == ("bare lmdb", "4 ms: bare 1 ms, rest 3 ms")
    (level,) = (each for each in ratios([{**row, "bare_s": 0.002}]) if each["yardstick"] == "bare lmdb")
    assert level["reason"] is None
    on_cpu = {"alone_cpu_s": 0.004, "bare_cpu_s": 0.0004, "mark_cpu_s": 0.0001}
    ratio_by_yardstick = {each["yardstick"]: each for each in ratios([{**row, "bare_s": 0.002, **on_cpu}])}
    assert ratio_by_yardstick["bare lmdb"]["cpu_ratio"] == pytest.approx(0.1)
    assert ratio_by_yardstick["bare lmdb"]["reason"] == "4 ms: bare 2 ms, mark 2 ms, rest 0 us"
    assert ratio_by_yardstick["bare lmdb and a mark"]["cpu_ratio"] == pytest.approx(0.125)


def test_the_replay_of_a_tail_is_compared_with_the_restore_that_filled_the_store() -> None:
    row = {
        "backend": "rocksdb-indexed-batch",
        "durability": "CHANGELOG",
        "records": 50_000,
        "replayed": 20_000,
        "open_s": 0.1,
        "restore_s": 0.2,
        "alone_s": 0.004,
        "bare_s": None,
        "whole_restore_s": 1.0,
    }
    found = {each["yardstick"]: each for each in ratios([row])}
    assert found["its restore"]["ratio"] == pytest.approx(2.0)
    assert found["its restore"]["at_least"] == 0.8
    # The fixed costs of a restore are most of the time of a small one.
    found = {each["yardstick"]: each for each in ratios([{**row, "replayed": 1_000}])}
    assert found["its restore"]["at_least"] is None


def test_a_night_opens_every_backend_with_files_at_each_size() -> None:
    trials = Opening().plan(Request("night"))
    for records in (50_000, 500_000, 5_000_000):
        assert {name for trial in trials if trial.records == records for name in trial.backends} == set(PERSISTENT)


def test_what_cannot_be_opened_is_refused() -> None:
    with pytest.raises(ConfigError):
        OpeningTrial(("memory-indexed-batch",), Durability.CHANGELOG, 100, 1, 1)
    with pytest.raises(ConfigError):
        Opening().plan(Request("quick", 1))


def test_stores_that_a_kill_wipes_are_opened_once_and_apart_from_the_others() -> None:
    trials = Opening().plan(Request("default"))
    assert {trial.records for trial in trials} == {50_000, 500_000, 5_000_000}
    for trial in trials:
        wiped = {name for name in trial.backends if not backends()[name].transactional}
        assert (wiped, trial.repeats) == ((set(trial.backends), 1) if wiped else (set(), 5))
    assert [trial.backends for trial in Opening().plan(Request("smoke", backends=("rocksdb-direct",)))] == [
        ("rocksdb-direct",)
    ]


def test_a_trial_of_openings_that_is_cut_counts_those_that_it_made() -> None:
    trial = OpeningTrial(("lmdb-indexed-batch", "sqlite-native"), Durability.CHANGELOG, 100, 5, 1)
    assert Opening().extent(trial) == ("openings", 10)
    assert [Opening().tried(trial, [{}] * made) for made in (0, 3, 10)] == [0, 3, 10]


def opened_rows(ready_s: dict[str, float], repeats: int) -> list[dict[str, Any]]:
    """Rows of openings of stores that are always ready after these seconds."""
    shared = {"kind": "opening", "durability": "CHANGELOG", "records": 50_000, "seed": 1, "replayed": 1_000}
    return [
        {
            **shared,
            **opening.NOT_COMPARED,
            "backend": name,
            "repeat": repeat,
            "open_s": seconds * noise,
            "restore_s": 0.0,
        }
        for repeat in range(repeats)
        for name, seconds in ready_s.items()
        for noise in [1.5 if name == "lmdb-native" and repeat % 2 else 1.0]
    ]


def test_stores_that_may_be_ready_first_are_opened_until_it_is_decided() -> None:
    recovering = tuple(name for name in PERSISTENT if backends()[name].transactional)
    plan = [
        OpeningTrial(recovering, Durability.CHANGELOG, 50_000, 5, 1),
        OpeningTrial(recovering, Durability.CHANGELOG, 500_000, 5, 1),
    ]
    slow = dict.fromkeys(recovering, 1.0)
    assert Opening().next_round(plan, [], 60.0) == [replace(plan[0], repeats=1)]
    assert Opening().next_round(plan, opened_rows(slow, 1), 60.0) == [replace(plan[0], repeats=4, first=1)]
    undecided = opened_rows({**slow, "lmdb-native": 0.1, "lmdb-indexed-batch": 0.12}, 5)
    (more,) = Opening().next_round(plan, undecided, 60.0)
    assert (set(more.backends), more.first, more.compared) == ({"lmdb-native", "lmdb-indexed-batch"}, 5, False)
    assert Opening().next_round(plan, undecided, inf) == []
    assert Opening().next_round(plan, opened_rows({**slow, "sqlite-native": 0.1}, 5), 60.0) == []


def test_openings_beyond_the_plan_do_not_stand_for_those_that_it_lacks() -> None:
    plan = [OpeningTrial(("sqlite-native",), Durability.CHANGELOG, records, 5, 1) for records in (50_000, 500_000)]
    outcome = Outcome(opened_rows({"sqlite-native": 0.1}, 9))
    assert Opening().extents(plan, outcome) == {"openings": (5, 10)}


def test_a_store_that_is_not_compared_is_opened_with_its_task_alone() -> None:
    trial = OpeningTrial(("lmdb-indexed-batch",), Durability.CHANGELOG, 3_000, 1, 1, first=7, compared=False)
    (row,) = run_opening(trial)
    assert (row["repeat"], row["alone_s"], row["bare_s"], row["mark_s"]) == (7, None, None, None)
    assert row["open_s"] > 0
    assert row["replayed"] == TAIL_COMMIT_RECORDS
