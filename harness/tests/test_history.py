"""The history has one line for each whole run, whatever is reported again, and no line for another run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from harness.answer import write
from harness.answer.history import HISTORY_FILE, Line, read_history, timelines, with_run
from harness.answer.results import all_figures
from harness.answer.write import check_results, write_report
from harness.cli import USERS_MISTAKE, main
from harness.experiments.registry import kinds
from harness.report.environment import commit_of
from harness.report.page import BROWSER_PAGE
from harness.report.rows import new_run, write_rows
from harness.tests.made_up_rows import ENVIRONMENT, FACTS, SPEEDS, made_up_rows
from stores.errors import ConfigError


@pytest.fixture(autouse=True)
def _without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plot is drawn in this process: the history is beside them."""
    monkeypatch.setattr(write, "draw", lambda *given: [])


def run_of(folder: Path, **facts: Any) -> Path:
    run = new_run(folder / "runs", "default", FACTS | facts)
    write_rows(run, "opening", made_up_rows()["opening"], kinds())
    return run


def test_a_whole_run_has_one_line_however_often_it_is_reported(tmp_path: Path) -> None:
    results = tmp_path / "results"
    first = run_of(tmp_path, whole=True, commit="1" * 40)
    write_report(first, results)
    once = (results / HISTORY_FILE).read_bytes()
    write_report(first, results)
    assert (results / HISTORY_FILE).read_bytes() == once
    write_report(run_of(tmp_path, whole=True, started="2025-12-31 00:00 UTC", commit="2" * 40), results)
    lines = read_history(results / HISTORY_FILE)
    assert [line.commit[0] for line in lines] == ["2", "1"]
    assert (results / HISTORY_FILE).read_bytes().endswith(once)
    figure = lines[1].figures[0]
    assert (figure.measure, figure.level, figure.backend) == ("ready_s", "CHANGELOG", min(SPEEDS))
    assert figure.low is not None
    assert figure.high is not None
    assert figure.low <= figure.value <= figure.high


@pytest.mark.parametrize("facts", [{}, {"whole": False}])
def test_a_run_that_left_something_out_has_no_line(tmp_path: Path, facts: dict[str, bool]) -> None:
    report = write_report(run_of(tmp_path, **facts), tmp_path / "results")
    assert not (report.parent / HISTORY_FILE).exists()
    assert (report.parent / BROWSER_PAGE).exists()
    write_report(run_of(tmp_path, whole=True, started="2025-12-31 00:00 UTC"), report.parent)
    write_report(run_of(tmp_path, **facts), report.parent)
    assert [line.date for line in read_history(report.parent / HISTORY_FILE)] == ["2025-12-31 00:00 UTC"]


def test_a_whole_run_adds_its_line_and_leaves_the_published_report_as_it_is(tmp_path: Path) -> None:
    results = tmp_path / "results"
    write_report(run_of(tmp_path, whole=False, profile="night"), results)
    published = {file.name: file.read_bytes() for file in results.iterdir()}
    whole = run_of(tmp_path, whole=True, started="2025-12-31 00:00 UTC", commit="1" * 40)
    for _ in range(2):
        assert main(["history", "--run", str(whole), "--results", str(results)]) == 0
    assert [line.commit for line in read_history(results / HISTORY_FILE)] == ["1" * 40]
    assert {file.name: file.read_bytes() for file in results.iterdir() if file.name != HISTORY_FILE} == published


def test_a_run_that_is_not_whole_is_refused_by_the_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path, whole=False, profile="night")
    assert main(["history", "--run", str(run), "--results", str(tmp_path / "results")]) == USERS_MISTAKE
    assert "not whole" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_only_runs_on_machines_of_one_kind_are_beside_each_other() -> None:
    figures = all_figures(made_up_rows())
    other = {**ENVIRONMENT, "cpu": {**ENVIRONMENT["cpu"], "cores": 64}}
    history: list[Line] = []
    for day in ("2", "3"):
        facts = FACTS | {"whole": True, "started": f"2026-01-0{day} 00:00 UTC"}
        history = with_run(history, figures, facts | {"commit": "1" * 40}, ENVIRONMENT)
        assert bool(timelines(history, ENVIRONMENT)) == (day == "3")
        history = with_run(history, figures, facts | {"commit": "2" * 40 + "+"}, other)
    assert len(history) == 4
    for machine, label in ((ENVIRONMENT, "1111111"), (other, "2222222*")):
        chart = timelines(history, machine)[0]
        assert chart.name == "history-records-per-s"
        assert {mark.step.split("|")[1] for panel in chart.panels for mark in panel.marks} == {label}
        assert {panel.level for panel in chart.panels} == {"CHANGELOG", "DISK"}


LINE = {"date": "2026-01-01", "commit": "", "machine": "m", "profile": "p", "seed": 1, "figures": []}
FIGURE = {"measure": "ready_s", "level": "DISK", "cell": "c", "backend": "b", "value": 1.0, "low": None, "high": None}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "7",
        "[" * 100_000,
        json.dumps({"date": "today"}),
        json.dumps(LINE | {"date": 7}),
        json.dumps(LINE | {"figures": [FIGURE | {"value": "1.0"}]}),
        json.dumps(LINE | {"figures": [FIGURE | {"low": []}]}),
        json.dumps(LINE | {"figures": [FIGURE | {"level": None}]}),
        json.dumps(LINE | {"figures": [FIGURE | {"new": 1}]}),
        json.dumps(LINE) + "\n" + json.dumps(LINE)[:-9],
    ],
)
def test_a_damaged_history_is_refused_before_anything_is_written(tmp_path: Path, content: str) -> None:
    results = tmp_path / "results"
    results.mkdir()
    (results / HISTORY_FILE).write_text(content)
    with pytest.raises(ConfigError) as refused:
        write_report(run_of(tmp_path, whole=True), results)
    assert f"line {content.count(chr(10)) + 1} of {results / HISTORY_FILE}" in str(refused.value)
    with pytest.raises(ConfigError):
        check_results(results, whole=True)
    assert [file.name for file in results.iterdir()] == [HISTORY_FILE]
    assert (results / HISTORY_FILE).read_text() == content


def test_the_commit_is_that_of_the_clone_and_marked_if_files_were_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    assert commit_of(tmp_path) == ""
    git("init", "-q")
    assert commit_of(tmp_path) == ""
    (tmp_path / "results").mkdir()
    for name in ("code", "results/report.md"):
        (tmp_path / name).write_text("before")
    git("add", ".")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD")
    (tmp_path / "results/report.md").write_text("after")
    (tmp_path / "untracked").write_text("")
    assert commit_of(tmp_path) == commit
    assert commit_of(tmp_path / "results") == ""
    (tmp_path / "code").write_text("after")
    assert commit_of(tmp_path) == f"{commit}+"


REPORTING = """
import sys
from dataclasses import asdict
from pathlib import Path
from harness.answer import write
write.draw = lambda *given: []
print("ready", flush=True)
sys.stdin.readline()
write.write_report(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.long
def test_runs_that_are_reported_at_the_same_time_all_have_their_line(tmp_path: Path) -> None:
    results = tmp_path / "results"
    dates = [f"2026-02-0{day} 00:00 UTC" for day in range(1, 4)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", REPORTING, str(run_of(tmp_path, whole=True, started=date)), str(results)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for date in dates
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=600)
        assert process.returncode == 0
    assert [line.date for line in read_history(results / HISTORY_FILE)] == dates
    assert [file.name for file in results.iterdir() if file.name.startswith(".")] == []


def test_a_figure_that_is_no_number_is_not_kept() -> None:
    rows = made_up_rows()
    for row in rows["opening"]:
        row["ready_s"] = float("nan")
    [line] = with_run([], all_figures(rows), FACTS | {"whole": True}, ENVIRONMENT)
    assert {entry.measure for entry in line.figures} >= {"records_per_s"}
    json.dumps(asdict(line), allow_nan=False)
