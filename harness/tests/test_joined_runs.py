"""A later run measures what a run left out; the report has both, and says which figures are of which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.answer.history import HISTORY_FILE
from harness.answer.joined import REST_OF, finished_run, rest_of
from harness.answer.write import write_report
from harness.cli import USERS_MISTAKE, main
from harness.experiments.kafka.report import ratios as kafka_ratios
from harness.experiments.kafka.trial import BARE, KafkaTrial
from harness.experiments.registry import experiments, kinds
from harness.experiments.stateful.figures import ratios
from harness.experiments.stateful.trial import StatefulTrial
from harness.report.page import BROWSER_PAGE, FIRST_PAGE
from harness.report.rows import new_run, write_facts, write_rows
from harness.tests.made_up_rows import ENVIRONMENT, FACTS, Rows, made_up_rows
from harness.tests.test_kafka_experiment import DEFAULT
from harness.tests.test_kafka_experiment import row as task_row
from stores.errors import ConfigError

LATER = {"seed": 1, "profile": "smoke", "started": "2026-02-02 02:02 UTC"}
ORIGIN = "profile smoke, seed 1, 2026-02-02 02:02 UTC"
TITLE = experiments()["stateful"].title


def run_of(folder: Path, rows: Rows, **facts: Any) -> Path:
    run = new_run(folder / "runs", "made-up", FACTS | facts)
    for kind, of_kind in rows.items():
        write_rows(run, kind, of_kind, kinds())
    return run


def queries(keys: int, seconds: float = 1.0) -> Rows:
    timed = [
        {
            "kind": "stateful",
            "subject": subject,
            "keys": keys,
            "batch_events": 10_000,
            "partitions": 2,
            "seed": 1,
            "round": number,
            "seconds": seconds * times,
            "cpu_s": seconds * times,
            "others_share": 0.0,
            "steal_share": 0.0,
            "repeat": "again",
        }
        for subject, times in (("stateful-rocksdb", 1.0), ("groupBy-count", 3.0))
        for number in range(5)
    ]
    return {"stateful": timed, "ratio": ratios(timed)}


def with_queries(keys: int) -> Rows:
    rows, own = made_up_rows(), queries(keys)
    return {**rows, **own, "ratio": [*rows["ratio"], *own["ratio"]]}


def tasks(workload: str, partitions: int) -> Rows:
    own: dict[str, Any] = {"workload": workload, "partitions": partitions}
    timed = [task_row(subject, 1.0, number, **own) for subject in (DEFAULT, BARE) for number in range(5)]
    return {"kafka": timed, "ratio": kafka_ratios(timed)}


def with_tasks(workload: str, partitions: int) -> Rows:
    rows, own = made_up_rows(), tasks(workload, partitions)
    return {**rows, **own, "ratio": [*rows["ratio"], *own["ratio"]]}


def figures_of(results: Path, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (results / "figures.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def rest(folder: Path, run: Path, rows: Rows, **facts: Any) -> Path:
    return run_of(folder, rows, **{REST_OF: run.name, **LATER, **facts})


def test_the_rest_of_a_run_is_in_its_report_which_says_so(tmp_path: Path) -> None:
    run, alone, results = (
        run_of(
            tmp_path, with_queries(100_000), whole=True, commit="1" * 40, left_out={"stateful": {"rounds": [5, 13]}}
        ),
        tmp_path / "alone",
        tmp_path / "results",
    )
    write_report(run, alone)
    later = {**queries(2_000, seconds=0.5), "throughput": made_up_rows()["throughput"]}
    write_report(run, results, others=[rest(tmp_path, run, later)])
    seconds = {(row["subject"], row["keys"]): row["seconds"] for row in figures_of(results, "stateful")}
    assert seconds == {
        ("stateful-rocksdb", 100_000): 1.0,
        ("groupBy-count", 100_000): 3.0,
        ("stateful-rocksdb", 2_000): 0.5,
        ("groupBy-count", 2_000): 1.5,
    }
    assert len(figures_of(results, "ratio")) == len(figures_of(alone, "ratio")) + 1
    for kind in ("throughput", "crash", "scale"):
        assert figures_of(results, kind) == figures_of(alone, kind)
    told = f"Measured later on the same machine, in runs of their own: *{TITLE}* (2,000 keys; {ORIGIN})."
    assert told in (results / FIRST_PAGE).read_text()
    assert ORIGIN in (results / BROWSER_PAGE).read_text()
    page = (results / "stateful.md").read_text()
    assert f"A later run measured what this run had left out (2,000 keys): {ORIGIN}." in page
    assert "5 of 13 rounds" in (alone / "stateful.md").read_text()
    assert "left out the others" not in page
    assert ORIGIN not in (results / "throughput.md").read_text()
    assert (results / HISTORY_FILE).read_bytes() == (alone / HISTORY_FILE).read_bytes()


def test_what_the_later_run_left_out_as_well_is_told(tmp_path: Path) -> None:
    cut = {"stateful": {"rounds": [5, 13]}, "crash": {"trials": [3, 4]}}
    run = run_of(tmp_path, with_queries(100_000), left_out=cut, problems=["one"])
    later = rest(tmp_path, run, queries(2_000), left_out={"stateful": {"rounds": [5, 8]}}, problems=["another"])
    first = write_report(run, tmp_path / "results", others=[later]).read_text()
    assert f"10 of 13 rounds of *{TITLE}*" in first
    assert "3 of 4 trials" in first
    assert "one; another" in first


def test_a_stage_that_was_skipped_may_be_measured_later(tmp_path: Path) -> None:
    run = run_of(tmp_path, made_up_rows(), stateful_skipped="no Spark here")
    write_report(run, tmp_path / "results", others=[rest(tmp_path, run, queries(2_000))])
    assert "no Spark here" not in (tmp_path / "results" / "stateful.md").read_text()


def test_runs_that_cannot_be_joined_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    run = run_of(tmp_path, with_queries(100_000))
    unfinished = rest(tmp_path, run, queries(2_000))
    write_facts(unfinished, {name: fact for name, fact in FACTS.items() if name != "environment"})
    larger = {**ENVIRONMENT, "cpu": {**ENVIRONMENT["cpu"], "cores": 64}}
    good = rest(tmp_path, run, queries(2_000))
    for others, reason in (
        ([tmp_path], "not the folder of a run"),
        ([unfinished], "given up before its end"),
        ([run_of(tmp_path, queries(2_000))], "did not measure what"),
        ([rest(tmp_path, run, {})], "has no rows"),
        ([rest(tmp_path, run, queries(100_000))], "is joined already"),
        ([good, good], "is joined already"),
        ([rest(tmp_path, run, queries(2_000), environment=larger)], "another machine"),
    ):
        with pytest.raises(ConfigError, match=reason):
            write_report(run, tmp_path / "results", others=others)
    assert not (tmp_path / "results").exists()


def test_the_rest_of_a_plan_is_what_has_no_rows(tmp_path: Path) -> None:
    run = finished_run(run_of(tmp_path, with_queries(100_000)))
    trials = [StatefulTrial(keys, 1) for keys in (100_000, 2_000)]
    assert rest_of({"stateful": trials, "throughput": ["any"]}, run) == {"stateful": trials[1:]}
    with pytest.raises(ConfigError, match="left out nothing that a later run can measure"):
        rest_of({"stateful": trials[:1], "throughput": ["any"]}, run)


def test_a_workload_is_a_cell_by_its_name(tmp_path: Path) -> None:
    run = finished_run(run_of(tmp_path, with_tasks("count", 1)))
    trials = [KafkaTrial(name, partitions, 1) for name, partitions in (("count", 1), ("count", 2), ("flights", 1))]
    assert rest_of({"kafka": trials}, run) == {"kafka": trials[1:]}
    write_report(run.folder, tmp_path / "results", others=[rest(tmp_path, run.folder, tasks("count", 2))])
    said = f"(count (2 partitions)): {ORIGIN}."
    assert said in (tmp_path / "results" / "kafka.md").read_text()


def test_no_experiment_whose_figures_picks_use_has_cells() -> None:
    for name in ("throughput", "opening", "crash", "iofaults", "microbench", "latencies"):
        assert experiments()[name].cell == ()
    for experiment in experiments().values():
        assert all(set(experiment.cell) <= columns.keys() for columns in experiment.columns.values())


def test_the_command_joins_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path, with_queries(100_000))
    results = str(tmp_path / "results")
    command = ["report", "--run", str(run), "--results", results, "--join"]
    assert main([*command, str(rest(tmp_path, run, queries(2_000)))]) == 0
    assert ORIGIN in (tmp_path / "results" / FIRST_PAGE).read_text()
    assert main([*command, str(tmp_path)]) == USERS_MISTAKE
    assert "not the folder of a run" in capsys.readouterr().err


def test_a_bench_of_the_rest_takes_the_profile_and_the_seed_and_refuses_a_run_that_lacks_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path, with_queries(100_000))
    assert main(["bench", "--rest-of", str(run), "--runs", str(tmp_path / "new")]) == USERS_MISTAKE
    assert "left out nothing that a later run can measure" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert main(["bench", "--rest-of", str(tmp_path), "--runs", str(tmp_path / "new")]) == USERS_MISTAKE
    assert "not the folder of a run" in capsys.readouterr().err
