"""The coverage adds up over whole and interrupted runs, and never claims a class that was not tried with this code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.answer.coverage_file import CoverageFile, RunCoverage
from harness.answer.results import all_figures, all_pages, proven, unproven
from harness.experiment import Request
from harness.experiments.broker_faults.experiment import BrokerFaults
from harness.experiments.crash.experiment import Crash, class_of, group_of
from harness.experiments.judged import Judged
from harness.experiments.query_faults.experiment import QueryFaults
from harness.experiments.readers.experiment import Readers
from harness.report import coverage as coverage_module
from harness.report.coverage import Coverage, CoveredRun, Group, Seen, coverage_rows
from harness.report.rows import by_kind
from harness.spark.runner import _rows_in
from stores.errors import ConfigError

GROUP = Group("iofaults", "a-store", "DISK", "kill")
MODULES = ("stores.errors",)
MONDAY = CoveredRun("2026-01-05 08:00 UTC", "abc123", "night", 1)


def seen(name: str, points: int = 0, **more: Any) -> Seen:
    return Seen(GROUP, name, MODULES, points, **more)


@pytest.fixture
def file(tmp_path: Path) -> CoverageFile:
    """The file of coverage, which is not there yet."""
    return CoverageFile(tmp_path / "results")


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The digest of all code, which can be replaced."""
    digest = ["one"]
    monkeypatch.setattr(coverage_module, "digest_of", lambda _: digest[0])
    return digest


def added(file: CoverageFile, *of_runs: Sequence[Seen]) -> Coverage:
    """Let a run for each of ``of_runs`` add what it has met."""
    for each in of_runs:
        RunCoverage(file, MONDAY, moves_on=True).add(each)
    return file.read()


def test_seeds_of_runs_that_move_on_count_from_1_and_continue_after_the_largest(file: CoverageFile) -> None:
    assert [RunCoverage(file, MONDAY, moves_on=True).seed for _ in range(2)] == [1, 2]
    RunCoverage(file, replace(MONDAY, seed=7)).add([seen("a", 1)])
    assert RunCoverage(file, MONDAY, moves_on=True).seed == 8


def test_a_run_that_meets_no_class_adds_nothing(file: CoverageFile) -> None:
    RunCoverage(file, MONDAY).add([])
    assert file.read() == Coverage()


def test_points_of_several_runs_add_up_and_are_read_as_they_were_written(file: CoverageFile) -> None:
    coverage = added(file, [seen("a", 2, kills=2), seen("b")], [seen("a", 1, kills=1, losses=4, failure="again")])
    entry = coverage.groups[GROUP]
    assert (entry.kills, entry.losses, entry.since) == (3, 4, 1)
    assert (entry.classes["a"].points, entry.classes["a"].run, entry.classes["a"].failure) == (3, 2, "again")
    assert (entry.classes["b"].points, entry.classes["b"].run) == (0, 0)
    assert [coverage.last_tried(GROUP, name) for name in ("a", "b", "c")] == [2, 0, 0]
    assert len(coverage.runs) == 2


def test_classes_are_out_when_their_code_has_changed_until_they_are_tried_again(
    file: CoverageFile, code: list[str]
) -> None:
    coverage = added(file, [seen("a", 5, kills=5), seen("b", 1), seen("gone", 1)])
    code[0] = "two"
    assert coverage.last_tried(GROUP, "a") == 0
    [row] = by_kind(coverage_rows(coverage), coverage_module.COVERAGE_KINDS)["coverage"]
    assert (row["classes"], row["tried"], row["taken_out"], row["points"], row["kills"]) == (3, 0, 3, 0, 0)
    coverage = added(file, [seen("a", 1, kills=1), seen("b")])
    [row] = by_kind(coverage_rows(coverage), coverage_module.COVERAGE_KINDS)["coverage"]
    assert (row["classes"], row["tried"], row["taken_out"], row["points"], row["kills"]) == (2, 1, 1, 1, 1)
    assert [coverage.last_tried(GROUP, name) for name in ("a", "b")] == [2, 0]


def test_a_file_of_another_version_is_read_as_nothing_tried(file: CoverageFile, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "coverage.json").write_text('{"version": 1, "runs": 5, "covered": []}')
    assert file.read() == Coverage()
    assert added(file, [seen("a", 1)]).last_tried(GROUP, "a") == 1


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 2, "runs": 1, "groups": []}', '{"version": 2}'])
def test_a_file_that_is_none_is_refused_and_kept(file: CoverageFile, tmp_path: Path, content: str) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "coverage.json").write_text(content)
    with pytest.raises(ConfigError):
        RunCoverage(file, MONDAY, moves_on=True)
    assert (tmp_path / "results" / "coverage.json").read_text() == content


def test_crash_trials_that_did_not_run_are_known_and_not_tried() -> None:
    trials = Crash().plan(Request("night", 1, ("sqlite-native",)))
    known = Crash().covered(trials[:1], [])
    assert {each.points for each in known} == {0}
    assert {(each.group, each.name) for each in known} >= {(group_of(each), class_of(each)) for each in trials}
    result = {"trial_id": trials[0].id, "result": "valid", "expected": "valid", "checker": "course", "detail": ""}
    row = {**dict.fromkeys(Crash.columns["crash"]), **result}
    tried = [each for each in Crash().covered(trials, [row | {"seed": 1, "repeat_command": ""}]) if each.points]
    assert [(each.group, each.name) for each in tried] == [(group_of(trials[0]), class_of(trials[0]))]


def test_classes_of_crash_trials_that_no_run_has_tried_come_first_then_the_oldest(file: CoverageFile) -> None:
    request = Request("night", 1, ("sqlite-native",))
    trials = Crash().plan(request)
    classes = list(dict.fromkeys((group_of(each), class_of(each)) for each in trials))
    oldest, new = classes[3], classes[5]
    others = [each for each in classes if each not in (oldest, new)]
    coverage = added(file, *([Seen(*each, MODULES, 1) for each in part] for part in ([oldest], others)))
    first, second = Crash().plan(replace(request, coverage=coverage))[:2]
    assert [(group_of(each), class_of(each)) for each in (first, second)] == [new, oldest]


def test_a_default_run_draws_as_many_crash_trials_from_the_classes_of_all_levels() -> None:
    request = Request("default", 1, ("sqlite-native",))
    drawn = Crash().plan(replace(request, coverage=Coverage()))
    assert len(drawn) == len(Crash().plan(request))
    assert len({(group_of(each), class_of(each)) for each in drawn}) == len(drawn)


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("experiment", [BrokerFaults(), QueryFaults(), Readers()])
def test_each_class_of_judged_trials_is_tried_by_a_verdict_and_then_comes_last(experiment: Judged[Any]) -> None:
    request = Request("night", 1)
    trials = experiment.plan(request)
    known = experiment.covered(trials, [])
    assert {each.points for each in known} == {0}
    assert {each.group.experiment for each in known} == {experiment.name, "mutants"}
    row = {**dict.fromkeys(experiment.columns[experiment.kind]), "mutant": "", **experiment.settings(trials[0])}
    row |= {"result": "anomaly", "expected": "valid", "repeat_command": "again"}
    [tried] = [each for each in experiment.covered(trials, [row]) if each.points]
    assert (tried.group, tried.name, tried.failure) == (known[0].group, known[0].name, "again")
    assert not any(each.points for each in experiment.covered(trials, [row | {"result": "unknown"}]))
    coverage = Coverage()
    coverage.add([*known, tried], 1)
    later = experiment.plan(replace(request, coverage=coverage))
    assert sorted(map(repr, later)) == sorted(map(repr, trials))
    [last] = [each for each in experiment.covered(later[-1:], []) if not each.points]
    assert (last.group, last.name) == (tried.group, tried.name)


def test_an_interrupted_run_keeps_the_rows_of_finished_trials(tmp_path: Path) -> None:
    done: dict[str, Any] = {"rows": json.dumps([{"kind": "operation_slice", "classes": "{}"}])}
    (tmp_path / "3.json").write_text(json.dumps(done))
    (tmp_path / "4-1.new").write_text("half a fi")
    assert _rows_in(tmp_path) == [{"kind": "operation_slice", "classes": "{}"}]


def test_the_first_sentences_about_what_was_proven_and_a_page_say_what_all_runs_have_tried(file: CoverageFile) -> None:
    coverage = added(file, [seen("a", 1_200, kills=3, failure="repeat it"), seen("b")])
    figures = all_figures(by_kind(coverage_rows(coverage), coverage_module.COVERAGE_KINDS))
    pages = all_pages(figures, {}, {})
    first, second, failure, *_ = proven(figures, pages)
    assert "1 of 2 [classes" in first
    assert "1,200 points" in first
    assert "2026-01-05" in second
    assert "`repeat it`" in failure
    [page] = [page for page in pages if page.name == "coverage"]
    assert any("`a-store`" in part for part in page.body)


def test_a_run_says_what_it_left_out_after_all_that_it_lacks() -> None:
    facts = {"left_out": {"crash": {"trials": [4, 68]}}}
    figures = all_figures({})
    assert "4 of 68" in unproven(all_pages(figures, {}, facts), facts)[-1]
    assert not any("classes" in sentence for sentence in proven(figures, []))
