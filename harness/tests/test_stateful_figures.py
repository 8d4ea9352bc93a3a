"""Stateful queries beside Spark's own: the plan, ratios with goals, failures and the page. No Spark runs here."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from harness.budget import TimeOverError
from harness.experiment import Claim, Request
from harness.experiments.stateful import experiment as stateful
from harness.experiments.stateful.experiment import GOAL_KEYS, GOALS, Stateful, compared, page
from harness.experiments.stateful.trial import (
    APPLY,
    JVM,
    OURS,
    OURS_IN_ARROW,
    OURS_IN_BATCHES,
    PANDAS,
    ROWS,
    ROWS_FILE,
    SUBJECTS,
    StatefulTrial,
)
from harness.processes.child import MeasurementFailedError
from harness.processes.load import LoadWatch, tree_cpu_s
from harness.schedule import run_local
from harness.spark import stateful as measuring
from harness.spark.stateful import RoundTimes
from stores.errors import ConfigError


def a_row(subject: str, round_: int, seconds: float, **given: Any) -> dict[str, Any]:
    row = {
        "kind": "stateful",
        "subject": subject,
        "keys": GOAL_KEYS,
        "batch_events": 10_000,
        "partitions": 2,
        "seed": 1,
        "round": round_,
        "seconds": seconds,
        "cpu_s": 2 * seconds,
        "repeat": "the command",
        "cpu_per_wall": 1.0,
        "load_average": 1.0,
        "others_share": 0.0,
        "steal_share": 0.0,
    }
    return {**row, **given}


def a_state(subject: str, **given: Any) -> dict[str, Any]:
    row = {"kind": "stateful_state", "subject": subject, "keys": 10, "num_keys": 10, "num_events": 20}
    same = {"checksum": "10 20 7", "expected": "10 20 7", "filled_s": 1.0, "repeat": "the command"}
    return {**row, **same, **given}


def test_every_profile_that_measures_queries_has_all_subjects_and_the_keys_of_the_goals() -> None:
    assert Stateful().plan(Request("smoke")) == []
    planned = Stateful().plan(Request("night"))
    assert [trial.keys for trial in planned] == [GOAL_KEYS, 2_000, 1_000_000]
    assert {trial.subjects for trial in planned} == {tuple(SUBJECTS)}
    assert planned[-1].restarts > 0
    assert Stateful().plan(Request("default")) == planned


def test_chosen_backends_are_compared_with_all_that_spark_has() -> None:
    [trial, *_] = Stateful().plan(Request("night", backends=("lmdb-indexed-batch", "sqlite-native")))
    assert set(trial.subjects) == {"stateful-lmdb", "stateful-lmdb-arrow", APPLY, PANDAS, ROWS, JVM}
    assert Stateful().plan(Request("night", backends=("lmdb-native",))) == []


@pytest.mark.parametrize(
    "wrong", [{"keys": 0}, {"subjects": ()}, {"subjects": ("spark",)}, {"batch_events": ()}, {"restarts": -1}]
)
def test_a_trial_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        StatefulTrial(**{"keys": 10, "seed": 1, **wrong})


def test_a_ratio_is_the_time_over_ours_in_the_same_round() -> None:
    ours = [a_row(OURS, number, seconds) for number, seconds in enumerate((1.0, 2.0, 4.0))]
    theirs = [a_row(APPLY, number, seconds) for number, seconds in enumerate((3.0, 10.0, 16.0))]
    found = {each["subject"]: each for each in Stateful().figures({"stateful": [*ours, *theirs]})["stateful"]}
    assert (found[APPLY]["seconds_ratio"], found[APPLY]["cpu_s_ratio"], found[APPLY]["seconds"]) == (4.0, 4.0, 10.0)
    assert (found[OURS]["seconds_ratio"], found[OURS]["events_per_s"], found[OURS]["repeats"]) == (None, 5_000.0, 3)
    assert found[APPLY]["seconds_ratio_from"] is None


def test_five_rounds_give_intervals_of_times_and_of_ratios() -> None:
    rows = [a_row(OURS, number, 1.0) for number in range(5)]
    rows += [a_row(ROWS, number, 3.0 + number) for number in range(5)]
    found = {each["subject"]: each for each in Stateful().figures({"stateful": rows})["stateful"]}
    assert (found[ROWS]["seconds_from"], found[ROWS]["seconds_to"]) == (3.0, 7.0)
    assert (found[ROWS]["seconds_ratio_from"], found[ROWS]["seconds_ratio_to"]) == (3.0, 7.0)


def test_a_cpu_time_that_an_ended_process_took_away_counts_nowhere() -> None:
    rows = [a_row(subject, number, 2.0) for subject in (OURS, ROWS) for number in range(3)]
    rows[0]["cpu_s"] = rows[-1]["cpu_s"] = -16.5
    found = {each["subject"]: each for each in Stateful().figures({"stateful": rows})["stateful"]}
    assert (found[OURS]["cpu_s"], found[ROWS]["cpu_s"], found[ROWS]["cpu_s_ratio"]) == (4.0, 4.0, 1.0)
    assert found[ROWS]["seconds_ratio"] == 1.0
    for row in rows:
        row["cpu_s"] = -1.0
    found = {each["subject"]: each for each in Stateful().figures({"stateful": rows})["stateful"]}
    assert (found[OURS]["cpu_s"], found[ROWS]["cpu_s_ratio"]) == (None, None)
    assert page({"stateful": list(found.values()), "stateful_restart": []}, 0, 0, "").body


def test_goals_are_for_one_number_of_keys_and_for_what_spark_has() -> None:
    subjects = (OURS, OURS_IN_ARROW, OURS_IN_BATCHES, "stateful-lmdb", APPLY, PANDAS, ROWS, JVM)
    rows = [a_row(subject, 0, 4.0 if subject in GOALS else 1.0) for subject in subjects]
    rows += [a_row(subject, 0, 1.0, keys=2_000) for subject in subjects]
    made = [row for row in Stateful().finish([], rows, Claim("stateful")) if row["kind"] == "ratio"]
    asked = {(row["subject"], row["yardstick"]): row["at_least"] for row in made if row["at_least"] is not None}
    others = {(OURS_IN_ARROW, JVM): 0.7, (OURS_IN_BATCHES, JVM): 1.4}
    assert asked == {**{(OURS, yardstick): goal for yardstick, goal in GOALS.items()}, **others}
    assert GOALS == {APPLY: 10.0, PANDAS: 3.0, ROWS: 3.0, JVM: 0.7}
    assert {row["ratio"] for row in made if row["at_least"] is not None} == {4.0}
    assert len(made) == 2 * len(asked)


def test_a_ratio_counts_the_rounds_in_which_the_machine_was_busy() -> None:
    rows = [a_row(OURS, number, 1.0, others_share=0.9 * (number == 2)) for number in range(5)]
    rows += [a_row(ROWS, number, 3.0, others_share=0.9 * (number == 1)) for number in range(4)]
    [made] = [row for row in Stateful().finish([], rows, Claim("stateful")) if row["kind"] == "ratio"]
    assert (made["ratio"], made["repeats"], made["busy"]) == (3.0, 4, 2)


def test_the_time_of_the_first_round_of_larger_batches_is_expected_by_their_keys() -> None:
    few, many = (RoundTimes(keys, {10_000: 20.0}) for keys in (1_000, 10_000_000))
    assert few.expected_s(100_000) == pytest.approx(20.0, rel=0.01)
    assert many.expected_s(100_000) == pytest.approx(200.0, rel=0.01)
    many.add(100_000, 90.0)
    many.add(100_000, 70.0)
    assert (many.expected_s(10_000), many.expected_s(100_000)) == (20.0, 90.0)


class TimedQuery:
    """A query without Spark: each batch moves the clock on by a second for 10,000 events."""

    now = 0.0

    def __init__(self, spark: object, subject: str, folder: Path, partitions: int) -> None:
        self.subject, self.folder = subject, folder

    def start(self) -> None:
        """Make the folder of the batches."""
        (self.folder / measuring.INPUT).mkdir(parents=True, exist_ok=True)

    def stop(self) -> None:
        """Stop nothing."""

    def feed(self, batch: Path) -> dict[str, Any]:
        """Return the figures of a batch."""
        seconds = measuring.keys_in(batch)[0] / 10_000
        TimedQuery.now += seconds
        return {"seconds": seconds, "load": LoadWatch(tree_cpu_s).figures()}


class QueryThatStartsSlowly(TimedQuery):
    """Its start takes ten times as long as its small batches."""

    def start(self) -> None:
        """Start, and move the clock on."""
        super().start()
        TimedQuery.now += 0.1


def without_spark(monkeypatch: pytest.MonkeyPatch, query: type[TimedQuery]) -> None:
    """Measure queries of a class, on its clock, with no time for the check at the end."""
    monkeypatch.setattr(measuring, "StatefulQuery", query)
    monkeypatch.setattr(measuring, "session", lambda *_, **__: nullcontext(MagicMock()))
    monkeypatch.setattr(measuring, "state_of", lambda *_: None)
    monkeypatch.setattr(measuring, "_summary", lambda _: [1])
    monkeypatch.setattr(measuring, "monotonic", lambda: TimedQuery.now)
    monkeypatch.setattr(measuring, "CHECK_S", 0.0)
    monkeypatch.setattr(measuring, "CHECKED_KEYS_PER_S", math.inf)


@pytest.mark.parametrize(("rounds_s", "rounds"), [(0.2, 0), (0.3, 1)])
def test_the_first_round_is_expected_to_take_as_long_as_its_starts_and_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds_s: float, rounds: int
) -> None:
    without_spark(monkeypatch, QueryThatStartsSlowly)
    # Both queries are started twice before the rounds, which take 0.24 s each.
    seconds = 4 * 0.1 + 2 * (1_000 + 3 * 100) / 10_000 + rounds_s
    found = measuring.measured(1_000, 1, [100], 2, [OURS, JVM], 2, seconds, str(tmp_path), tmp_path)
    assert len(found["rows"]) == 2 * rounds


@pytest.mark.parametrize(
    ("rounds_s", "rounds"),
    [
        (None, [(100, 0), (100, 1), (10_000, 0), (10_000, 1)]),
        (3.0, [(100, 0), (100, 1), (10_000, 0)]),
        (0.5, [(100, 0), (100, 1)]),
        (0.01, []),
    ],
)
def test_rounds_of_small_batches_come_first_and_none_begins_that_may_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds_s: float | None, rounds: list[tuple[int, int]]
) -> None:
    without_spark(monkeypatch, TimedQuery)
    filled_s = 2 * (1_000 + 3 * 100) / 10_000
    seconds = None if rounds_s is None else filled_s + rounds_s
    found = measuring.measured(1_000, 1, [10_000, 100], 2, [OURS, JVM], 2, seconds, str(tmp_path), tmp_path)
    assert [(row["batch_events"], row["round"]) for row in found["rows"]] == [
        each for each in rounds for _ in (OURS, JVM)
    ]
    assert compared(tmp_path / ROWS_FILE) == found["rows"]
    assert (found["expected"], found["states"]) == ([1], {OURS: [1], JVM: [1]})


def killed_after(*rows: tuple[str, int], torn: str = "") -> str:
    """Return the file of a process that was killed after the rows of some subjects in a round."""
    lines = [{"subject": subject, "batch_events": 10_000, "round": number} for subject, number in rows]
    return "".join(json.dumps(line) + "\n" for line in lines) + torn


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (killed_after((OURS, 0), (JVM, 0), (JVM, 1), torn='{"sub'), [(OURS, 0), (JVM, 0)]),
        (killed_after((OURS, 0), (JVM, 0), (OURS, 1)), [(OURS, 0), (JVM, 0), (OURS, 1)]),
        (killed_after((OURS, 0)), []),
        (killed_after((JVM, 0), (APPLY, 0)), []),
        ("", []),
    ],
)
def test_of_a_round_that_was_cut_what_can_be_compared_is_kept(
    tmp_path: Path, text: str, kept: list[tuple[str, int]]
) -> None:
    (tmp_path / "rows").write_text(text)
    assert [(row["subject"], row["round"]) for row in compared(tmp_path / "rows")] == kept
    assert compared(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("rows", "kept"), [(((OURS, 0), (JVM, 0), (JVM, 1)), 2), (((OURS, 0), (JVM, 0), (OURS, 1)), 3), ((), 0)]
)
def test_a_trial_that_its_deadline_cuts_has_the_rounds_before_and_counts_those_of_all_subjects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: tuple[tuple[str, int], ...], kept: int
) -> None:
    def killed(work: str, kind: str, arguments: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        (Path(arguments["kept"]) / ROWS_FILE).write_text(killed_after(*rows))
        raise TimeOverError

    monkeypatch.setattr(stateful, "figures_apart", killed)
    monkeypatch.setattr(Stateful, "line", lambda *_: "")
    outcome = run_local(Stateful(), [StatefulTrial(10, 1, (10_000,), subjects=(OURS, JVM))], lambda _: None)
    assert [row["subject"] for row in outcome.rows] == [subject for subject, _ in rows[:kept]]
    assert outcome.extent == {"rounds": (min(1, len(rows)), 5)}
    assert outcome.problems == []


def test_a_state_that_differs_fails_the_run_with_the_command_of_its_trial() -> None:
    rows = {"stateful_state": [a_state(OURS), a_state(APPLY, checksum="10 19 7")]}
    [failure] = Stateful().failures(Stateful().figures(rows), rows)
    assert APPLY in failure.sentence
    assert failure.repeat == "the command"
    [finding] = Stateful().page(Stateful().figures(rows), rows, {}).findings
    assert finding.sentence().startswith("**1 of 2 states of stateful queries")


def test_the_page_shows_keys_batch_seconds_events_and_ratios() -> None:
    rows = {
        "stateful": [a_row(OURS, 0, 0.5), a_row(APPLY, 0, 8.0)],
        "stateful_state": [a_state(OURS), a_state(APPLY)],
        "stateful_restart": [
            {
                "kind": "stateful_restart",
                "subject": OURS,
                "keys": 1_000_000,
                "copies": "kept",
                "batch_events": 10_000,
                "seed": 1,
                "round": 0,
                "ready_s": 9.5,
                "start_s": 6.5,
                "first_batch_s": 2.5,
            }
        ],
    }
    page = Stateful().page(Stateful().figures(rows), rows, {})
    shown = "".join(page.body)
    assert "100,000 keys" in shown
    assert f"| 10,000 | `{OURS}` | `stateful`, each record | 500 ms | 20,000 | 1 s |" in shown
    assert (
        f"| 10,000 | `{APPLY}` | Python, a DataFrame for each key | 8 s | 1,250 | 16 s | 16.00 | 16.00 | 1 |" in shown
    )
    assert f"| 1,000,000 | `{OURS}` | kept | 9.5 s | 6.5 s | 2.5 s | 1 |" in shown
    assert page.plots[0].filled() != []


def test_without_rows_the_page_says_why() -> None:
    assert (
        Stateful().page(Stateful().figures({}), {}, {"stateful_skipped": "no Java"}).absent == "not measured: no Java"
    )
    assert Stateful().page(Stateful().figures({}), {}, {}).body == ()


@pytest.mark.parametrize(
    ("installed", "fits"), [("6.33.5", True), ("6.34.0", True), ("7.1.0", True), ("5.29.5", False)]
)
def test_an_old_protobuf_leaves_the_stage_out(monkeypatch: pytest.MonkeyPatch, installed: str, fits: bool) -> None:
    monkeypatch.setattr(stateful, "find_java", lambda: None)
    monkeypatch.setattr(stateful, "version", lambda name: installed)
    assert (Stateful().missing() == "") == fits


def test_without_protobuf_the_stage_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(stateful, "find_java", lambda: None)
    monkeypatch.setattr(stateful, "version", absent)
    assert "protobuf" in Stateful().missing()


def test_the_cpu_time_of_a_tree_has_that_of_a_process_below_that_still_runs() -> None:
    work = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\nsys.stdin.read()"
    before = tree_cpu_s()
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        while_it_runs = tree_cpu_s() - before
        process.communicate()
    assert while_it_runs >= 0.25
    assert tree_cpu_s() - before >= 0.25


def test_a_driver_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stateful, "RESTARTED", "harness.no_such_program:run")
    (tmp_path / "query").mkdir()
    (tmp_path / "work").mkdir()
    batches = (tmp_path / "0", tmp_path / "1")
    with pytest.raises(MeasurementFailedError, match="no_such_program"):
        stateful.restarted(OURS, tmp_path / "query", batches, 2, tmp_path / "work", keeps_copies=False)
