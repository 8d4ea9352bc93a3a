"""The page about I/O faults: counts by backend, level and model, broken promises, and skipped faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import run
from harness.answer.results import all_failures, all_figures, all_pages
from harness.answer.write import write_report
from harness.cli import main
from harness.experiments.iofaults.experiment import KINDS
from harness.experiments.iofaults.report import (
    DAMAGE,
    DETECTIONS,
    MUTANT_STATES,
    POWER,
    PROCESSES,
    PROMISES,
    SKIPPED,
    fault_findings,
    in_words,
    left_out,
)
from harness.report.rows import new_run, read_rows, write_facts, write_rows
from harness.tests.made_up_rows import FACTS
from stores.errors import ConfigError

REPEAT = "python -m harness repeat iofaults '{}'"


def operation(**settings: Any) -> dict[str, Any]:
    shared = {
        "kind": "operation",
        "scenario": "",
        "slice": 0,
        "backend": "lmdb-indexed-batch",
        "durability": "DISK",
        "fault": "power",
        "variant": "names",
        "records": "",
        "seed": 1,
        "point": 4,
        "only": "",
        "description": "power lost before operation 4",
        "digest": "",
        "states": 1,
        "acknowledged": 3,
        "state": 3,
        "attempted": 4,
        "result": "valid",
        "noticed": "",
        "unverified": "",
        "detail": "",
        "expected": True,
        "repeat": "",
    }
    return shared | settings


def rows() -> dict[str, list[dict[str, Any]]]:
    trials = [
        operation(digest="a"),
        operation(digest="a"),
        operation(digest="b"),
        operation(variant="strict", durability="PROCESS", state=1, result="lost", expected=False, repeat=REPEAT),
        operation(durability="CHANGELOG", state=0),
        operation(durability="CHANGELOG", state=None, result="detected"),
        operation(fault="damage", variant="flipped", state=None, result="phantom", expected=False, repeat=REPEAT),
        operation(fault="kill", variant="", state=None, result="torn", detail="half", expected=False, repeat=REPEAT),
    ]
    keys = dict.fromkeys((row["durability"], row["fault"], row["variant"]) for row in trials)
    subsets = [
        {
            **{name: operation()[name] for name in ("scenario", "slice", "backend", "seed")},
            "kind": "operation_slice",
            "durability": level,
            "fault": fault,
            "variant": variant,
            "records": "",
            "points": 10,
            "points_in_all": 25,
            "states": 40,
            "trials": 3,
            "seconds": 1.5,
            "blind_spots": "lock.mdb",
            "classes": "{}",
        }
        for level, fault, variant in keys
        for _ in range(2)
    ]
    shared = {
        name: operation()[name] for name in ("scenario", "slice", "backend", "durability", "variant", "records", "seed")
    }
    mutants = [
        {
            **shared,
            "kind": "mutant",
            "mutant": "no-sync",
            "meaning": "no syncs",
            "fault": fault,
            "states": states,
            "wanted": wanted,
            "by_gate": by_gate,
            "by_classes": True,
            "at_random": False,
            "result": result,
            "description": "",
            "detail": "",
            "expected": True,
            "repeat": "",
            "seconds": 1.0,
        }
        for fault, states, wanted, result, by_gate in (
            ("power", 7, "found", "lost", True),
            ("kill", 24, "not seen", "", None),
        )
    ]
    return {"operation": trials, "operation_slice": subsets, "mutant": mutants}


def page_of(made: dict[str, list[dict[str, Any]]]) -> str:
    figures = all_figures(made)
    (page,) = [page for page in all_pages(figures, made, {}) if page.name == "io-faults"]
    return page.markdown("", ())


def failure_lines(made: dict[str, list[dict[str, Any]]]) -> list[str]:
    return [str(failure) for failure in all_failures(all_figures(made), made)]


def figure(**wanted: str) -> dict[str, Any]:
    (found,) = [each for each in all_figures(rows())["operation"] if all(each[name] == wanted[name] for name in wanted)]
    return found


def test_rows_have_the_columns_of_their_kind_and_come_back_as_written(tmp_path: Path) -> None:
    run = new_run(tmp_path, "smoke", FACTS)
    for kind, given in rows().items():
        assert {name for row in given for name in row} == {"kind", *KINDS[kind]}
        write_rows(run, kind, given, KINDS)
        assert read_rows(run, kind, KINDS) == [{"kind": kind, **row} for row in given]


def test_equal_states_are_counted_once_and_costs_are_summed_up_over_slices() -> None:
    names = figure(durability="DISK", fault="power", variant="names")
    assert (names["points"], names["states"], names["trials"], names["distinct"], names["seconds"]) == (
        20,
        80,
        3,
        2,
        3.0,
    )


def test_a_trial_without_a_verdict_is_no_checked_state() -> None:
    made = rows()
    made["operation"] = [operation(digest="a"), *(operation(result="harness_error", expected=False) for _ in range(5))]
    (names,) = [each for each in all_figures(made)["operation"] if each["variant"] == "names" and each["trials"]]
    assert (names["trials"], names["distinct"], names["no_verdict"], names["wrong"]) == (6, 1, 5, 5)


def test_corruption_that_silently_loses_commits_is_not_called_harmless() -> None:
    made = rows()
    damaged = [operation(fault="damage", variant="flipped", result=result) for result in ("valid", "lost", "torn")]
    noticed = [
        operation(fault="damage", variant="flipped", result="detected", noticed=by)
        for by in ("open", "read", "read", "verify", "verify", "verify")
    ]
    made["operation"] = [*damaged, *noticed, noticed[-1] | {"unverified": "deadly"}]
    table = DAMAGE.table(in_words(all_figures(made)))
    shown = dict(zip(table.head, table.rows[0], strict=True))
    assert {name: shown[name] for name in table.head[3:-1]} == {
        "trials": "10",
        "harmless": "1",
        "detected by opening": "1",
        "by reading": "2",
        "by verifying only": "4",
        "of these harmful unverified": "1",
        "an earlier commit, undetected": "1",
        "wrong, undetected": "1",
        "other": "0",
    }


def test_kinds_of_failing_calls_share_a_line_unless_one_broke_a_promise() -> None:
    made = rows()
    ways = ["EIO once", "EIO lasting", "ENOSPC once"]
    made["operation"] = [operation(fault="error", variant=way) for way in ways]
    made["operation"].append(operation(fault="error", variant="EDQUOT once", result="lost", state=1, expected=False))
    counts = next(row for row in made["operation_slice"] if (row["fault"], row["durability"]) == ("kill", "DISK"))
    made["operation_slice"] = [counts | {"fault": "error", "variant": way} for way in (*ways, "EDQUOT once")]
    table = PROCESSES.table(in_words(all_figures(made)))
    shown = [(row[1], row[3], row[4], row[-1]) for row in table.rows]
    assert shown == [("a call fails: EDQUOT once", "1", "2", "**no: 1**"), ("a call fails: in 3 ways", "3", "0", "yes")]


def test_the_page_shows_how_many_points_were_explored_of_all() -> None:
    names = figure(durability="DISK", fault="power", variant="names")
    assert (names["points"], names["points_in_all"]) == (20, 25)
    assert "| 20 of 25 |" in page_of(rows())
    figures = all_figures(rows())
    assert left_out(figures).startswith(f"{20 * len(figures['operation'])} of {25 * len(figures['operation'])} ")
    whole = rows()
    for subset in whole["operation_slice"]:
        subset["points_in_all"] = subset["points"]
    assert left_out(all_figures(whole)) == ""


def test_losses_are_counted_in_commits() -> None:
    assert figure(durability="PROCESS", fault="power", variant="strict")["lost_at_most"] == 2
    below = figure(durability="CHANGELOG", fault="power", variant="names")
    assert (below["lost_at_most"], below["restored"], below["unexpected"]) == (3, 1, 0)


def test_only_a_broken_promise_fails_a_run() -> None:
    wrong = {
        (each["fault"], each["variant"]): each["wrong"] for each in all_figures(rows())["operation"] if each["wrong"]
    }
    assert wrong == {("damage", "flipped"): 1, ("kill", ""): 1}
    damaged, torn = failure_lines(rows())
    assert "phantom" in damaged
    assert "torn" in torn
    assert REPEAT in damaged
    assert REPEAT in torn
    (strict,) = [line for line in page_of(rows()).splitlines() if "| strict | 20 of 25 |" in line]
    assert strict.endswith("| no: 1, reported only |")
    (killed,) = [
        line for line in page_of(rows()).splitlines() if "| killed before each I/O operation | 20 of 25 |" in line
    ]
    assert killed.endswith("| **no: 1** |")


def test_a_failing_row_is_notable_in_its_table_and_counted_in_the_findings() -> None:
    made = rows()
    made["operation"].append(operation(digest="c", state=1, result="lost", expected=False))
    made["mutant"][1] = made["mutant"][1] | {"result": "lost", "expected": False}
    figures = all_figures(made)
    told = in_words(figures)
    tables = [table for each in (POWER, PROCESSES, DAMAGE, MUTANT_STATES) for table in each.tables(told)]
    assert [[table.rows[place][1] for place in table.notable] for table in tables] == [
        ["names"],
        [],
        [],
        ["killed before each I/O operation"],
        ["DISK"],
        ["no syncs"],
    ]
    assert [row[-1] for row in PROMISES.table(told).rows if row[1] == "corrupted at rest"] == ["**no: 1**"]
    operations, mutants = (finding.sentence() for finding in fault_findings(figures))
    assert operations.startswith("**4 of 7 ")
    assert mutants.startswith("**1 of 2 ")


def test_the_share_of_runs_that_detect_a_mutant_is_shown_and_a_miss_fails_none() -> None:
    made = rows()
    found = made["mutant"][0]
    missed = found | {"wanted": "measured", "result": "", "by_gate": False, "seed": 12}
    untold = found | {"by_gate": None, "mutant": "not-measured"}
    made["mutant"] += [missed, missed | {"by_gate": True, "result": "lost", "seed": 13}, untold]
    figures = all_figures(made)
    assert [(figure["found"], figure["runs"]) for figure in figures["detection"]] == [(2, 3)]
    table = DETECTIONS.table(figures)
    assert [row[3:5] for row in table.rows] == [["2 of 3", "67 %"]]
    assert list(table.notable) == [0]
    # What is only measured has no line of its own among the mutants that have to be found.
    assert [row[7] for row in MUTANT_STATES.table(in_words(figures)).rows] == ["2 of 3", "-", "-"]
    assert failure_lines({"mutant": made["mutant"]}) == []
    assert table.markdown() in page_of(made)
    assert "Mutants detected by the default profile" not in page_of({**made, "mutant": [untold]})


def test_a_mutant_that_was_not_found_is_a_failure() -> None:
    (found, _) = rows()["mutant"]
    assert failure_lines({"mutant": [found]}) == []
    (line,) = failure_lines({"mutant": [{**found, "result": "", "expected": False, "repeat": REPEAT}]})
    assert line.endswith(REPEAT)


def test_the_page_names_models_blind_spots_mutants_and_its_limits() -> None:
    section = page_of(rows())
    for word in ("| names |", "| strict |", "`lock.mdb`", "`no-sync`", "| passed | none |", "Not simulated", REPEAT):
        assert word in section
    for level in ("DISK", "CHANGELOG"):
        assert f"Power loss at level {level}" in section


def test_the_report_gives_the_reason_for_skipped_faults(tmp_path: Path) -> None:
    reason = "no C compiler works here"
    run = new_run(tmp_path / "runs", "smoke", FACTS)
    write_facts(run, {**FACTS, SKIPPED: reason})
    report = write_report(run, tmp_path / "results")
    assert f"| I/O faults | skipped: {reason} |" in report.read_text()
    assert not (report.parent / "io-faults.md").exists()


def test_without_a_compiler_a_bench_skips_the_stage_and_a_scenario_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> Path:
        raise ConfigError("no C compiler works here")

    monkeypatch.setattr("harness.experiments.iofaults.experiment.recorder_library", refuse)
    assert run.BenchRequest(only=("iofaults",)).skipped() == {"iofaults": "no C compiler works here"}
    assert run.BenchRequest(only=("crash",)).skipped() == {}
    case = '{"case":{"subject":"checkpoint-file","level":"DISK","fault":"kill"},"point":0,"seed":1}'
    for command in (["scenario", "torn_write", "--runs", str(tmp_path / "runs")], ["repeat", "iofaults", case]):
        assert main(command) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "case",
    [
        '{"case":{"subject":"checkpoint-file","level":"DISK","fault":"power"},"point":100000,"seed":1}',
        '{"case":{"subject":"checkpoint-file","level":"DISK","fault":"power"},"point":1,"seed":1,"only":"nothing"}',
        '{"case":{"subject":"checkpoint-file","level":"DISK","fault":"kill"},"point":-1,"seed":1}',
        '{"case":{"subject":"checkpoint-file","level":"DISK","fault":"kill"},"point":"one","seed":1}',
        '{"case":{"subject":"checkpoint-file","level":"DISK","fault":"kill","commits":"x"},"point":1,"seed":1}',
        '{"case":{"subject":"checkpoint-file","level":"DISK","fault":"tear","recording":"gone"},"point":1,"seed":1}',
        '{"case":[],"point":1}',
        '["case"]',
    ],
)
def test_a_trial_that_does_not_exist_is_one_sentence_and_status_2(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["repeat", "iofaults", case]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
