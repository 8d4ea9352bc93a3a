"""A bench runs all experiments and writes the report. A scenario runs one, for one claim, and prints its tables."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.answer.choice import busy_notice, choices
from harness.answer.coverage_file import CoverageFile, RunCoverage
from harness.answer.results import all_failures, all_figures, summary_table
from harness.answer.write import FAILURES, check_results, publish
from harness.budget import BUDGETS_S, SMOKE, WHOLE_PROFILES, budget_text, end_of
from harness.experiment import Claim, Experiment, Request, Rows, TrialPlacement
from harness.experiments.registry import experiments, grid_of, kinds, stages
from harness.folders import RUNS, SOURCE
from harness.interruption import interruption_status
from harness.progress import Progress
from harness.report.coverage import LEFT_OUT, TOO_SHORT, CoveredRun, coverage_rows, left_out, sentence_of
from harness.report.environment import commit_of, environment
from harness.report.ratios import ratio_table, undecided_sentence
from harness.report.rows import (
    by_kind,
    check_latest,
    name_latest,
    new_run,
    read_all,
    removed_if_refused,
    write_facts,
)
from harness.scenario import ScenarioFile
from harness.schedule import BenchRun, ExperimentRun, keep_rows
from harness.spark.session import Session, check_master, local_master, spark_session
from harness.workloads.event_log import EventLog
from stores.errors import ConfigError, nearest
from stores.java import find_java
from stores.registry import backend_named

PROBLEMS_SHOWN = 20
"""The number of problems that a scenario prints."""
PROBLEM_CHARS = 300
"""The characters of a problem on the first page of the report."""
Plan = Mapping[Experiment[Any], Sequence[Any]]
"""The trials of each experiment."""


@dataclass(frozen=True)
class BenchRequest(Request):
    """The options of `make bench`. ``only`` are the stages that run; empty means all.

    ``moves_on`` replaces the seed by the one after the largest in the coverage. ``ledger`` is what the run adds to the
    coverage.
    ``budget_s`` is the time for all of them, without that in which Spark starts; None for no bound.
    """

    only: tuple[str, ...] = ()
    master: str | None = None
    strict: bool = False
    budget_s: float | None = None
    moves_on: bool = False
    runs: Path = RUNS
    results: Path | None = None
    ledger: RunCoverage | None = None

    @property
    def is_whole(self) -> bool:
        """True if the report can represent the project: everything is planned, with at least the profile's budget."""
        everything = set(self.chosen_stages) == set(stages()) and self.backends is None and self.log is None
        enough = self.budget_s is None or self.budget_s >= BUDGETS_S[self.profile]
        return self.profile in WHOLE_PROFILES and everything and enough

    @property
    def chosen_stages(self) -> tuple[str, ...]:
        """The stages that run."""
        return self.only or stages()

    def checked(self) -> BenchRequest:
        """Return the request with the backends' full names. Raises: ConfigError for an unknown name."""
        for stage in self.only:
            if stage not in stages():
                raise ConfigError(f"no stage {stage!r}: there are {', '.join(stages())}{nearest(stage, stages())}")
        if self.log is not None:
            self.log.format()
        names = (
            None if self.backends is None else tuple(dict.fromkeys(backend_named(name).name for name in self.backends))
        )
        return replace(self, backends=names)

    def chosen(self) -> Iterator[Experiment[Any]]:
        """Yield the experiments whose stages run, in their order."""
        return (each for each in experiments().values() if each.stage in self.chosen_stages)

    def skipped(self) -> dict[str, str]:
        """Return the reasons why stages cannot run on this machine, by stage."""
        return {each.stage: reason for each in self.chosen() if (reason := each.missing())}


def bench(request: BenchRequest) -> int:
    """Run all that was requested, and print the main table. Return 0 if every promise was kept, else 1.

    Raises: ConfigError for a request that cannot be met, before anything is measured.
    """
    request = request.checked()
    find_java()
    check_master(request.master)
    check_latest(request.runs)
    check_results(request.results, whole=request.is_whole)
    skipped = request.skipped()
    started = datetime.now(UTC)
    coverage = CoverageFile(request.results)
    if request.profile != SMOKE:
        run = CoveredRun(f"{started:%Y-%m-%d %H:%M} UTC", commit_of(SOURCE), request.profile, request.seed)
        ledger = RunCoverage(coverage, run, moves_on=request.moves_on)
        request = replace(request, seed=ledger.seed, coverage=coverage.read(), ledger=ledger)
    plan = {each: each.plan(request) for each in request.chosen() if each.stage not in skipped}
    for each, trials in plan.items():
        each.check(trials)
    end = end_of(request.budget_s)
    progress = Progress(end)
    facts: dict[str, Any] = {
        "profile": request.profile,
        "seed": request.seed,
        "budget_s": request.budget_s,
        "started": f"{started:%Y-%m-%d %H:%M} UTC",
        "whole": request.is_whole,
        "commit": commit_of(SOURCE),
        **{f"{stage}_skipped": reason for stage, reason in skipped.items()},
    }
    ran_on = environment(Path(tempfile.gettempdir()))
    run_folder = new_run(request.runs, request.profile, facts, started)
    budgeted = f"budget {budget_text(request.budget_s)}"
    print(f"Profile {request.profile}, seed {request.seed}, {budgeted}. Rows go to {run_folder}.", flush=True)
    cover = request.ledger.add if request.ledger is not None else lambda seen: None
    parts = [
        ExperimentRun(each, trials, request, Claim(each.claim), run_folder, cover) for each, trials in plan.items()
    ]
    bench_run = BenchRun(parts, request.profile, progress, end, AnswerSoFar(ran_on["backends"]).show)
    interrupted = 0
    with removed_if_refused(run_folder):
        try:
            bench_run.run(lambda: spark_session("bench", _master(request, plan), run_folder))
        except KeyboardInterrupt:
            interrupted = interruption_status()
        progress.end_stage()
        bench_run.close()
    if interrupted:
        if not any(run_folder.rglob("*.parquet")):
            print("Interrupted before anything was measured.", file=sys.stderr)
            shutil.rmtree(run_folder, ignore_errors=True)
            return interrupted
        facts |= {"whole": False, "interrupted": True}
        print("\nInterrupted: writing the report of what was measured. Interrupt again to leave it out.", flush=True)
    progress.stage("report")
    keep_rows(run_folder, coverage_rows(coverage.read()))
    facts[LEFT_OUT] = cut = left_out({part.experiment.name: part.extents() for part in parts})
    facts[TOO_SHORT] = {part.experiment.name: part.share for part in parts if part.share.is_too_short}
    problems = [*(problem for part in parts for problem in part.outcome.problems), *bench_run.problems]
    facts["events"] = list(dict.fromkeys(note for part in parts for note in part.outcome.notes))
    facts["problems"] = [shortened(problem) for problem in problems]
    write_facts(run_folder, {**facts, "seconds": round(progress.seconds), "environment": ran_on})
    name_latest(run_folder)
    report = publish(run_folder, request.results)
    progress.end_stage()
    status = _conclude(request, read_all(run_folder, kinds()), ran_on["backends"], problems)
    for each in request.chosen():
        if each.stage in skipped:
            print(f"{each.title} were skipped: {skipped[each.stage]}")
    for name in cut:
        each = experiments()[name]
        print(f"{each.words or each.title}: {sentence_of(facts, name)}")
    if (run_folder / FAILURES).exists():
        print(f"Each failure is a file in {run_folder / FAILURES}, with the command that repeats it.")
    print(f"The report is {report}.")
    return interrupted or status


def _master(request: BenchRequest, plan: Plan) -> str:
    """Return the master of a bench: with a slot for each task that must run at the same time as others."""
    spread = (each.slots(trials) for each, trials in plan.items() if each.placement is not TrialPlacement.LOCAL)
    return request.master or local_master(spread)


def shortened(problem: str) -> str:
    """Return the first line of a problem, for the first page of the report."""
    line = problem.partition("\n")[0].rstrip(":")
    return line if len(line) <= PROBLEM_CHARS else f"{line[:PROBLEM_CHARS]} ..."


class AnswerSoFar:
    """Prints the table and the picks when a pick has changed or is decided."""

    def __init__(self, backends: Mapping[str, Mapping[str, Any]]) -> None:
        self._backends = backends
        self._told: list[tuple[str, str]] = []

    def show(self, rows: Rows) -> None:
        """Print what the rows so far say, if it is not what was printed last."""
        figures = all_figures(rows)
        picks = choices(figures, self._backends)
        told = [(pick.need, pick.answer) for pick in picks]
        if told != self._told:
            self._told = told
            print(f"\nSo far\n{summary_table(figures, self._backends).plain()}\n")
            width = max(len(pick.need) for pick in picks)
            lines = (f"{pick.need:{width}}  {pick.answer.replace('**', '')}" for pick in picks)
            print(*lines, sep="\n", end="\n\n", flush=True)


def _conclude(request: BenchRequest, rows: Rows, backends: Mapping[str, Any], problems: Sequence[str]) -> int:
    """Print the tables and all problems. Return the exit status."""
    figures = all_figures(rows)
    if notice := busy_notice(figures):
        print(f"\n{notice}")
    print(f"\n{summary_table(figures, backends).plain()}\n")
    with_threshold = [figure for figure in figures["ratio"] if figure["met"] is not None]
    missed = [figure for figure in with_threshold if not figure["met"]]
    if figures["ratio"]:
        print(ratio_table({**figures, "ratio": missed or figures["ratio"]}).plain())
        sentence = (
            f"Ratios missed: {len(missed)} of {len(with_threshold)}."
            if missed
            else f"Ratios reached: {len(with_threshold)}."
        )
        print(f"{sentence} {undecided_sentence(figures)}".rstrip(), end="\n\n")
    wrong = [*problems, *(str(failure) for failure in all_failures(figures, rows))]
    for line in wrong:
        print(f"WRONG  {line}")
    for each in experiments().values():
        if closing := each.closing(figures, rows, all_right=not wrong):
            print(closing)
    return 1 if wrong or (missed and request.strict) else 0


def prove(
    file: ScenarioFile,
    *,
    seed: int,
    master: str | None,
    log: EventLog | None = None,
    runs: Path = RUNS,
    profile: str = "default",
) -> bool:
    """Run the scenario as ``profile`` scales it, print its results, and return True if the claim holds.

    Raises: ConfigError for an unknown name in the scenario, before Spark starts.
    """
    grid = grid_of(file.scenario)
    grid.plan(seed)  # A mistake in the file is told as it stands there.
    grid = grid.scaled(profile)
    grid.check_events(log)
    experiment = experiments()[file.scenario.experiment]
    trials = grid.plan(seed)
    if reason := experiment.missing():
        raise ConfigError(reason)
    check_master(master)
    print(f"{file.name}\n\n{file.text}\n\nSeed {seed}, profile {profile}.\n", flush=True)
    started = datetime.now(UTC)
    facts = {
        "profile": f"scenario {file.name}, {profile}",
        "seed": seed,
        "started": f"{started:%Y-%m-%d %H:%M} UTC",
        "whole": False,
    }
    folder = new_run(runs, f"scenario-{file.name}", facts, started)
    progress = Progress()
    part = ExperimentRun(experiment, trials, Request(profile, seed, None, log), Claim(file.name, grid.expected), folder)
    with removed_if_refused(folder), _session_for(experiment, trials, file.name, master, folder, progress) as spark:
        progress.stage(file.name)
        part.run(trials, spark, progress.say)
        part.close()
        progress.end_stage()
    rows = by_kind(part.rows, kinds())
    ran_on = environment(Path(tempfile.gettempdir()))
    write_facts(folder, {**facts, "seconds": round(progress.seconds), "environment": ran_on})
    figures = all_figures(rows)
    print("\n\n".join(table.plain() for table in experiment.tables(figures, rows)), end="\n\n")
    if bounded := experiment.left_out(figures):
        print(f"{bounded} With --profile night (make: PROFILE=night) it is all of them.\n")
    undecided = grid.undecided(figures)
    if undecided:
        print(f"{undecided}\n")
    problems = [*part.outcome.problems, *map(str, experiment.failures(figures, rows)), *grid.missed(figures)]
    for problem in problems[:PROBLEMS_SHOWN]:
        print(problem)
    if len(problems) > PROBLEMS_SHOWN:
        print(f"and {len(problems) - PROBLEMS_SHOWN:,} more, with all rows in {folder}")
    print(f"{file.name} {verdict(problems, undecided)} (seed {seed}).")
    return not problems


def verdict(problems: Sequence[str], undecided: str) -> str:
    """Return whether a claim holds, in words. ``undecided`` is the sentence about what the run leaves open, or ""."""
    if problems:
        return "does not hold"
    return "holds as far as it is decided" if undecided else "holds"


@contextmanager
def _session_for(
    experiment: Experiment[Any], trials: Sequence[Any], name: str, master: str | None, folder: Path, progress: Progress
) -> Iterator[Session | None]:
    """Yield a session of Spark; None for an experiment whose trials need none."""
    if experiment.placement is TrialPlacement.LOCAL:
        yield None
        return
    progress.stage("starting Spark")
    with spark_session(name, master or local_master([experiment.slots(trials)]), folder) as spark:
        yield spark
