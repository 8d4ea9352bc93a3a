"""The coverage of nights adds up over whole and interrupted runs, and never claims a point that was not tried."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.answer import write
from harness.answer.results import all_figures, all_pages
from harness.answer.write import add_to_file, next_run, read_coverage, write_coverage
from harness.experiment import Claim, Request
from harness.experiments.crash.experiment import Crash
from harness.experiments.iofaults.case import IoFaultCase
from harness.experiments.iofaults.experiment import IoFaults
from harness.experiments.iofaults.plan import PlannedCase
from harness.experiments.iofaults.subjects import CHECKPOINT
from harness.experiments.iofaults.subsets import Recorded, RecordedWriter, covered_key, subsets_of
from harness.report.coverage import Coverage, Covered, numbers, ranges
from harness.spark.runner import _rows_in
from stores.errors import ConfigError

KILL = Covered("iofaults", "a store at DISK", "kill", "one", 10, frozenset({0, 1, 5}))


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of coverage, which is not there yet."""
    monkeypatch.setattr(write, "COVERAGE_FILE", tmp_path / "results" / "coverage.json")
    return tmp_path / "results" / "coverage.json"


def test_runs_are_counted_from_1() -> None:
    assert [next_run(), next_run()] == [1, 2]
    assert read_coverage().runs == 2


def test_points_of_several_runs_add_up_and_are_read_as_they_were_written(file: Path) -> None:
    add_to_file([KILL], "Monday")
    add_to_file([KILL._replace(tried=frozenset({5, 6}))], "Tuesday")
    [line] = json.loads(file.read_text())["covered"]
    assert (line["points"], line["tried"], line["which"], line["when"]) == (10, 4, "0-1,5-6", "Tuesday")
    assert read_coverage().tried(*KILL[:4]) == {0, 1, 5, 6}
    assert read_coverage().totals() == {"iofaults": (4, 10)}
    assert [path.name for path in file.parent.iterdir()] == ["coverage.json"]


def test_a_run_that_tried_nothing_changes_no_time() -> None:
    add_to_file([KILL], "Monday")
    add_to_file([KILL._replace(tried=frozenset())], "Tuesday")
    assert read_coverage().entries[KILL[:3]] == (KILL, "Monday")


def test_points_of_another_definition_are_dropped() -> None:
    add_to_file([KILL], "Monday")
    add_to_file([KILL._replace(definition="two", points=12, tried=frozenset({3}))], "Tuesday")
    assert read_coverage().tried(*KILL[:3], "two") == {3}
    assert read_coverage().tried(*KILL[:4]) == frozenset()
    assert read_coverage().totals() == {"iofaults": (1, 12)}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 2, "runs": 1, "covered": []}', '{"version": 1}'])
def test_a_file_that_is_none_is_refused_and_kept(file: Path, content: str) -> None:
    file.parent.mkdir()
    file.write_text(content)
    with pytest.raises(ConfigError):
        next_run()
    assert file.read_text() == content


@pytest.mark.parametrize("which", [[], [4], [0, 1, 2], [0, 2, 3, 9]])
def test_ranges_are_read_as_the_numbers_they_were_made_of(which: list[int]) -> None:
    assert numbers(ranges(which)) == frozenset(which)


def test_points_that_no_night_has_tried_come_first(tmp_path: Path) -> None:
    case = IoFaultCase(CHECKPOINT, "DISK", "kill", commits=2)
    known = Covered(*covered_key(case), "one", 200, frozenset(range(185)))
    item = PlannedCase(case, 1, night=4, covered=known)
    recorded = {RecordedWriter.of(item): Recorded({"kill": 200}, definition="one")}
    first, *others = subsets_of([item], recorded, tmp_path)
    assert set(first.points) == set(range(185, 200))
    assert len([point for each in (first, *others) for point in each.points]) == 200
    changed = {RecordedWriter.of(item): replace(recorded[RecordedWriter.of(item)], definition="two")}
    assert set(subsets_of([item], changed, tmp_path)[0].points) != set(range(185, 200))


def test_the_points_of_a_night_move_on_with_its_seed_and_its_recordings_do_not() -> None:
    nights = [
        [each for each in IoFaults().plan(Request("night", seed)) if isinstance(each, PlannedCase)] for seed in (1, 2)
    ]
    assert [RecordedWriter.of(each) for each in nights[0]] == [RecordedWriter.of(each) for each in nights[1]]
    assert {each.night for each in nights[1]} == {2}
    assert {each.night for each in IoFaults().plan(Request("default", 2)) if isinstance(each, PlannedCase)} == {None}


def test_a_night_gets_the_coverage_of_earlier_nights() -> None:
    case = next(each.case for each in IoFaults().plan(Request("night", 1)) if isinstance(each, PlannedCase))
    known, earlier = Covered(*covered_key(case), "one", 200, frozenset({3})), Coverage()
    earlier.add([known], "Monday")
    plan = IoFaults().plan(Request("night", 2, coverage=earlier))
    assert {each.covered for each in plan if isinstance(each, PlannedCase) and each.case == case} == {known}


def test_only_explored_points_are_covered(tmp_path: Path) -> None:
    item = PlannedCase(IoFaultCase(CHECKPOINT, "DISK", "kill", commits=2), 1, night=1)
    planned = subsets_of([item], {RecordedWriter.of(item): Recorded({"kill": 100}, definition="one")}, tmp_path)
    rows = [row for subset in planned for row in IoFaults().untried(subset)]
    rows[1] |= {"points": 2, "explored": "7,9"}
    [found] = IoFaults().covered([], IoFaults().finish([], rows, Claim("")))
    assert (found.points, found.definition) == (100, "one")
    assert found.tried == {7, 9}


def test_only_cells_of_the_crash_matrix_that_ran_are_covered() -> None:
    trials = Crash().plan(Request("night", 1, ("sqlite-native",)))
    assert all(not each.tried for each in Crash().covered(trials, []))
    found = Crash().covered(trials, [{"trial_id": trials[0].id}])
    assert sum(len(each.tried) for each in found) == 1
    assert {each.subject.partition(" ")[0] for each in found} == {"sqlite-native"}


def test_an_interrupted_run_keeps_the_rows_of_finished_trials(tmp_path: Path) -> None:
    done: dict[str, Any] = {"rows": json.dumps([{"kind": "operation_slice", "explored": "1"}])}
    (tmp_path / "3.json").write_text(json.dumps(done))
    (tmp_path / "4-1.new").write_text("half a fi")
    assert _rows_in(tmp_path) == [{"kind": "operation_slice", "explored": "1"}]


def test_the_pages_say_what_nights_have_tried() -> None:
    pages = {page.name: page for page in all_pages(all_figures({}), {}, {"coverage": {"crash": [120, 600]}})}
    assert any("120 of 600 points" in sentence for sentence in pages["crashes"].shows)
    assert not any("night" in sentence for sentence in pages["io-faults"].shows)


def test_writing_and_reading_nothing_is_nothing() -> None:
    write_coverage(Coverage())
    assert read_coverage() == Coverage()
