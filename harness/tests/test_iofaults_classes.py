"""Points at which the same thing happens are one class; one point of each class is tried before a second one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.experiment import Claim, Request
from harness.experiments.iofaults.case import IoFaultCase
from harness.experiments.iofaults.classes import PointClasses, Resolution, role
from harness.experiments.iofaults.detection import Drawing, drawing
from harness.experiments.iofaults.experiment import IoFaults, seen_in
from harness.experiments.iofaults.fault import IO_FAULTS, Guide
from harness.experiments.iofaults.plan import (
    FURTHER,
    KNOWN,
    NEW,
    PlannedCase,
    PlannedMutant,
    case_of,
    in_turn,
    planned_cases,
    resolution_of,
)
from harness.experiments.iofaults.report import DRAWINGS, drawings
from harness.experiments.iofaults.subjects import CHECKPOINT, modules_of, subjects
from harness.experiments.iofaults.subsets import Recorded, RecordedWriter, subsets_of
from harness.experiments.iofaults.workshop import Workshop
from harness.io_trace.call_sites import FRAMES
from harness.io_trace.recorder import Kind
from harness.processes.fork_server import ForkServer, fork_server
from harness.report.coverage import Coverage, Seen


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """A fork server under the recorder."""
    with fork_server(preload=True) as running:
        assert running is not None
        yield running


def recorded(subject: str, level: str, seed: int, server: ForkServer) -> PointClasses:
    with Workshop(IoFaultCase(subject, level, "kill", commits=12), seed, server) as shop:
        return PointClasses(shop.recording())


def test_each_operation_of_our_own_code_has_the_function_that_it_comes_from(server: ForkServer) -> None:
    recording = recorded("sqlite-native", "DISK", 1, server).recording
    sites = {each.site for each in recording if each.kind is Kind.RENAME}
    assert sites
    assert all(site.endswith(("> rename", "> replace")) and site.count(" > ") == FRAMES for site in sites)
    assert {each.site.rpartition(" > ")[2] for each in recording if each.path.endswith("-wal")} >= {
        "Connection.execute"
    }
    assert not any(each.site for each in recording if each.kind is Kind.NOTE)


def test_threads_of_an_engine_have_no_call_site_and_the_role_of_their_file(server: ForkServer) -> None:
    points = recorded("rocksdb-indexed-batch", "PROCESS", 1, server)
    assert any(name.endswith(".sst, by a thread of the engine") for name in points.of_operations(Resolution.SITE))


@pytest.mark.parametrize("fault", IO_FAULTS)
def test_recordings_of_other_seeds_have_the_same_classes(fault: str, server: ForkServer) -> None:
    first, second = (recorded("lmdb-native", "DISK", seed, server) for seed in (1, 2))
    variant, resolution = IO_FAULTS[fault].variants[0], resolution_of(IoFaultCase("lmdb-native", "DISK", fault))
    names = [{*IO_FAULTS[fault].classes(points, variant, 1, resolution).values()} for points in (first, second)]
    assert names[0]
    assert names[0] == names[1]


def test_a_second_operation_of_a_call_site_within_a_commit_is_a_class_of_its_own(server: ForkServer) -> None:
    names = recorded("sqlite-native", "DISK", 1, server).of_operations(Resolution.SITE)
    again = {name for name in names if name.endswith(", again")}
    assert again
    assert all(name.startswith("commit: ") and name.removesuffix(", again") in names for name in again)


def test_pending_changes_of_other_kinds_than_writes_are_apart(server: ForkServer) -> None:
    names = recorded("sqlite-native", "DISK", 1, server).of_positions(Resolution.SITE)
    assert any("truncate of " in name or "allocate of " in name for name in names)
    assert any("pending" in name and " of " not in name for name in names)


def test_coarser_resolutions_have_fewer_classes(server: ForkServer) -> None:
    points = recorded("sqlite-native", "DISK", 1, server)
    for of in (points.of_operations, points.of_positions):
        sizes = [len(set(of(resolution))) for resolution in Resolution]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] > sizes[-1]


@pytest.mark.parametrize(
    ("path", "name"), [("store/data.mdb", ".mdb"), ("a/000012.sst", ".sst"), ("MANIFEST-000005", "MANIFEST-#")]
)
def test_files_whose_names_differ_in_a_number_have_one_role(path: str, name: str) -> None:
    assert role(path) == name


CASE = IoFaultCase(CHECKPOINT, "DISK", "kill", commits=2)
CLASSES = {point: f"class {point % 10}" for point in range(100)}


def covering(*of_runs: list[str]) -> Coverage:
    """Return what was tried if each run has tried these classes."""
    coverage = Coverage()
    group = PlannedCase(CASE, 1).group
    for run, names in enumerate(of_runs, 1):
        coverage.add([Seen(group, name, modules_of(CHECKPOINT), 1) for name in names], run)
    return coverage


def test_one_point_of_each_class_comes_first_and_then_the_second_ones() -> None:
    order = [point for _, point in in_turn(PlannedCase(CASE, 1), range(100), (), CLASSES)]
    for at in range(0, 100, 10):
        assert {CLASSES[point] for point in order[at : at + 10]} == set(CLASSES.values())


def test_classes_that_no_run_has_tried_come_first_and_then_those_tried_longest_ago() -> None:
    coverage = covering(["class 1", "class 2"], ["class 3"], ["class 2"])
    turns = in_turn(PlannedCase(CASE, 1, coverage=coverage), range(100), (), CLASSES)
    assert [turn.part for turn, _ in turns[:11]] == [NEW] * 7 + [KNOWN] * 3 + [FURTHER]
    assert [CLASSES[point] for _, point in turns[7:10]] == ["class 1", "class 3", "class 2"]
    assert {CLASSES[point] for _, point in turns[:7]} == set(CLASSES.values()) - {"class 1", "class 2", "class 3"}


def test_points_that_have_no_class_are_not_tried() -> None:
    assert {point for _, point in in_turn(PlannedCase(CASE, 1), range(200), (), CLASSES)} == set(CLASSES)


def test_a_run_begins_with_new_classes_of_all_cases_and_new_mutants(tmp_path: Path) -> None:
    other = PlannedCase(IoFaultCase(CHECKPOINT, "DISK", "error", "EIO once", commits=2), 1)
    known = PlannedCase(CASE, 1, coverage=covering([f"class {number}" for number in range(10)]))
    points = {name: [point for point, of in CLASSES.items() if of == name] for name in CLASSES.values()}
    summary = Recorded({"kill": 100, "error EIO once": 100}, classes={"kill": points, "error EIO once": points})
    tried = PlannedMutant("no-sync", CHECKPOINT, "power", 1, last_tried=3)

    def each(function: object, writers: Sequence[Any], part: float) -> list[Any]:
        return [(summary.points, summary.guides, "", "", summary.classes) for _ in writers]

    prepared = IoFaults().prepare([known, other, tried], tmp_path, each)
    parts = [subset.turn.part for subset in prepared]  # type: ignore[union-attr]
    assert parts == sorted(parts)
    assert {subset.case.fault for subset in prepared if subset.turn.part == NEW} == {"error"}  # type: ignore[union-attr]


def test_only_explored_points_try_their_classes(tmp_path: Path) -> None:
    item = PlannedCase(CASE, 1)
    points = {name: [point for point, of in CLASSES.items() if of == name] for name in CLASSES.values()}
    planned = subsets_of([item], {RecordedWriter.of(item): Recorded({"kill": 100}, classes={"kill": points})}, tmp_path)
    rows = [row for subset in planned for row in IoFaults().untried(subset)]
    rows[1]["classes"] = json.dumps({"class 4": [4, 14], "class 5": []})
    trial = {"kind": "operation", **CASE.columns, "slice": rows[1]["slice"], "expected": False, "result": "lost"}
    rows.append({**trial, "scenario": "", "seed": 1, "point": 14, "repeat": "again"})
    seen = seen_in(IoFaults().finish([], rows, Claim("")))
    assert {each.name for each in seen} == set(CLASSES.values())
    assert [(each.name, each.points, each.kills, each.failure) for each in seen if each.points] == [
        ("class 4", 2, 1, "again")
    ]


def test_a_plan_with_a_coverage_knows_when_each_mutant_was_tried() -> None:
    mutant = next(each for each in IoFaults().plan(Request("night", 1)) if isinstance(each, PlannedMutant))
    coverage = Coverage()
    coverage.add([Seen(mutant.group, mutant.name, modules_of(mutant.subject), 1)], 7)
    plan = IoFaults().plan(Request("night", 1, coverage=coverage))
    known = {each.last_tried for each in plan if isinstance(each, PlannedMutant) and each == mutant}
    assert known == {7}


def test_kills_count_by_call_site_everywhere_but_in_tasks_below_disk() -> None:
    assert all(
        resolution_of(item.case) is Resolution.SITE
        for item in planned_cases("night", 1)
        if item.case.level == "DISK" and item.case.fault in ("kill", "tear")
    )
    assert resolution_of(IoFaultCase("stream-task", "PROCESS", "kill")) is Resolution.KIND
    assert len(subjects()) > 50


def test_points_drawn_by_classes_and_at_random_are_as_many_and_shared_ones_are_tried_once(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def explore(shop: Workshop, points: Sequence[int], only: str = "") -> Iterator[dict[str, Any]]:
        tried.extend(points)
        return iter(())

    monkeypatch.setattr(Workshop, "explore", explore)
    assert drawing("unsynced-rename", CHECKPOINT, 1, server) == Drawing(by_classes=False, at_random=False)
    with Workshop(case_of("unsynced-rename", CHECKPOINT), 1, server) as shop:
        classes = len(set(PointClasses(shop.recording()).of_positions(Resolution.SITE)))
    assert classes <= len(tried) == len(set(tried)) <= 2 * classes


def test_a_mutant_is_detected_by_a_point_of_each_class(server: ForkServer) -> None:
    assert drawing("write-per-key", "lmdb-native", 1, server).by_classes


def test_of_few_points_each_fourth_is_of_a_class_that_was_tried_longest_ago() -> None:
    coverage = covering([f"class {number}" for number in range(8)])
    item = PlannedCase(CASE, 1, 8, coverage=coverage)
    order = in_turn(item, range(100), [Guide(1, range(0, 100, 10))], CLASSES)
    assert len(order) == 8
    assert [CLASSES[point] for turn, point in order if turn.part == NEW] in (
        ["class 8", "class 9"],
        ["class 9", "class 8"],
    )
    assert sum(CLASSES[point] == "class 0" for _, point in order) == 6


def test_the_page_compares_points_drawn_by_classes_with_points_drawn_at_random() -> None:
    row = {"mutant": "no-sync", "backend": "lmdb-native", "fault": "power", "seed": 1}
    rows = [
        {**row, "by_classes": True, "at_random": False},
        {**row, "seed": 2, "by_classes": True, "at_random": True},
        {**row, "seed": 3, "by_classes": None, "at_random": None},
    ]
    [table] = DRAWINGS.tables({"drawing": drawings(rows)})
    assert [list(line[2:]) for line in table.rows] == [["1", "2 of 2", "1 of 2"]]
