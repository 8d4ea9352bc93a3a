"""A bench runs all experiments and writes the report. A scenario runs one, for one claim, and prints its tables."""

from __future__ import annotations

import math
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from harness.answer.choice import busy_notice
from harness.answer.coverage_file import CoverageFile, RunCoverage
from harness.answer.results import all_failures, all_figures, summary_table
from harness.answer.write import check_results, publish
from harness.budget import (
    BUDGETS_S,
    NEVER,
    SMOKE,
    WHOLE_PROFILES,
    Budget,
    Deadline,
    TimeOverError,
    budget_text,
    end_of,
    ended_by,
)
from harness.experiment import Claim, Experiment, Outcome, Request, Row, Rows, TrialPlacement, TrialWorker
from harness.experiments.registry import experiments, grid_of, kinds, stages
from harness.folders import RUNS, SOURCE, temporary_folder
from harness.processes.child import MeasurementFailedError
from harness.processes.load import LoadWatch, load_columns
from harness.progress import Progress
from harness.report.coverage import LEFT_OUT, CoveredRun, Extents, coverage_rows, left_out, left_out_sentence
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
    write_rows,
)
from harness.scenario import ScenarioFile
from harness.spark.gang import run_gangs
from harness.spark.runner import run_trials
from harness.spark.session import Session, SparkFailedError, check_master, local_master, spark_session
from harness.workloads.event_log import EventLog
from stores.errors import ConfigError, nearest
from stores.java import find_java
from stores.registry import backend_named

PROBLEMS_MAX = 3
"""After so many trials have failed, no further one runs: they may all fail for the same reason."""
PROBLEMS_SHOWN = 20
"""The number of problems that a scenario prints."""
PROBLEM_CHARS = 300
"""The characters of a problem on the first page of the report."""
Plan = Mapping[str, Sequence[Any]]
"""The trials of each experiment, by its name."""


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
    plan = {each.name: each.plan(request) for each in request.chosen() if each.stage not in skipped}
    for name, trials in plan.items():
        experiments()[name].check(trials)
    end = end_of(request.budget_s)
    progress = Progress(_titles(plan), end)
    facts: dict[str, Any] = {
        "profile": request.profile,
        "seed": request.seed,
        "budget_s": request.budget_s,
        "started": f"{started:%Y-%m-%d %H:%M} UTC",
        "whole": request.is_whole,
        "commit": commit_of(SOURCE),
        **{f"{stage}_skipped": reason for stage, reason in skipped.items()},
    }
    run_folder = new_run(request.runs, request.profile, facts, started)
    budgeted = f"budget {budget_text(request.budget_s)}"
    print(f"Profile {request.profile}, seed {request.seed}, {budgeted}. Rows go to {run_folder}.", flush=True)
    with removed_if_refused(run_folder):
        problems, extents = _measure(request, plan, run_folder, progress, end)
    progress.step("report")
    _keep(run_folder, coverage_rows(coverage.read()))
    facts[LEFT_OUT] = cut = left_out(extents)
    facts["problems"] = [shortened(problem) for problem in problems]
    ran_on = environment(Path(tempfile.gettempdir()))
    write_facts(run_folder, {**facts, "seconds": round(progress.seconds), "environment": ran_on})
    name_latest(run_folder)
    report = publish(run_folder, request.results)
    status = _conclude(request, read_all(run_folder, kinds()), ran_on["backends"], problems)
    for each in request.chosen():
        if each.stage in skipped:
            print(f"{each.title} were skipped: {skipped[each.stage]}")
    for name, extent in cut.items():
        each = experiments()[name]
        print(f"{each.words or each.title}: {left_out_sentence(extent)}")
    print(f"The report is {report}.")
    return status


def shortened(problem: str) -> str:
    """Return the first line of a problem, for the first page of the report."""
    line = problem.partition("\n")[0].rstrip(":")
    return line if len(line) <= PROBLEM_CHARS else f"{line[:PROBLEM_CHARS]} ..."


def _titles(plan: Plan) -> list[str]:
    """Return the stages of a plan in progress lines, in the order in which they run: the local ones first."""
    names = sorted(plan, key=lambda name: experiments()[name].placement is not TrialPlacement.LOCAL)
    return [title for title, _ in groupby(experiments()[name].title for name in names)]


def budget_of(profile: str, names: Iterable[str], end: Deadline) -> Budget:
    """Return the budget of these experiments, with the shares that they have in a profile."""
    return Budget(end, {name: experiments()[name].share_in(profile) for name in names})


def _measure(
    request: BenchRequest, plan: Plan, run_folder: Path, progress: Progress, end: Deadline = NEVER
) -> tuple[list[str], Extents]:
    """Run the experiments, the local ones first, while no JVM runs beside them.

    Return the problems, and what was tried of what was planned.
    """
    problems: list[str] = []
    extents: dict[str, Mapping[str, Sequence[int]]] = {}
    budget = budget_of(request.profile, plan, end)
    local = [name for name in plan if experiments()[name].placement is TrialPlacement.LOCAL]

    def run(names: Sequence[str], spark: Session | None) -> None:
        for title, group in groupby(names, key=lambda name: experiments()[name].title):
            progress.stage(title)
            for name in group:
                claim, deadline = Claim(experiments()[name].claim), budget.deadline(name)
                outcome = _outcome(name, plan[name], request, claim, run_folder, progress.say, spark, deadline)
                problems.extend(outcome.problems)
                extents[name] = outcome.extent
                _cover(request, name, plan[name], outcome.rows)

    run(local, None)
    spread = [name for name in plan if name not in local]
    if spread:
        progress.step("starting Spark")
        master = request.master or local_master(experiments()[name].slots(plan[name]) for name in spread)
        try:
            with spark_session("bench", master, run_folder) as spark:
                run(spread, spark)
        except SparkFailedError as error:
            problems.append(str(error))
    return problems, extents


def _outcome(
    name: str,
    trials: Sequence[Any],
    request: Request,
    claim: Claim,
    run_folder: Path,
    say: Callable[[str], None],
    spark: Session | None,
    deadline: Deadline = NEVER,
) -> Outcome:
    """Run the trials of an experiment where it says. Write the rows for the report into the run's folder.

    Rows of local trials are written when a trial ends, so that a run that is killed keeps them.
    """
    experiment = experiments()[name]

    def salvage(rows: list[Row]) -> None:
        _cover(request, name, trials, experiment.finish(trials, rows, claim))

    if spark is None:
        outcome = run_local(experiment, trials, say, deadline, partial(_keep, run_folder))
        rows = experiment.finish(trials, outcome.rows, claim)
        row_ids = set(map(id, outcome.rows))
        _keep(run_folder, [row for row in rows if id(row) not in row_ids])
        return replace(outcome, rows=rows)
    if experiment.placement is TrialPlacement.GANG:
        outcome = run_gangs(spark, experiment, trials, request.seed, request.log, say, deadline)
    else:
        outcome = run_trials(spark, experiment, trials, run_folder / "trials" / name, say, deadline, salvage)
    rows = experiment.finish(trials, outcome.rows, claim)
    _keep(run_folder, rows)
    return replace(outcome, rows=rows)


def run_local(
    experiment: Experiment[Any],
    trials: Sequence[Any],
    say: Callable[[str], None],
    deadline: Deadline = NEVER,
    keep: Callable[[list[Row]], object] = lambda _: None,
) -> Outcome:
    """Run the trials, and then those of further rounds, until ``deadline``; see ``Experiment.next_round``.

    At the deadline the processes of a trial are killed, and it counts as left out. A trial that fails is a problem, and
    the next one runs; after ``PROBLEMS_MAX`` problems none does. ``say`` gets lines of progress, ``keep`` the rows of
    each trial when it ends. Each row has the load of the machine during its trial (``load_columns``), unless the
    experiment has measured that of a part.
    """
    outcome = Outcome()
    sizes: dict[int, int] = {}
    with temporary_folder(experiment.name) as folder, ended_by(deadline):
        number, round_ = 0, list(trials)
        while round_:
            for trial in round_:
                number += 1
                if len(outcome.problems) == PROBLEMS_MAX or deadline.remaining_s <= experiment.cost_s(trial):
                    continue
                watch = LoadWatch()
                try:
                    rows = list(experiment.run(trial, TrialWorker(folder / f"{number}", deadline=deadline, say=say)))
                except TimeOverError:
                    continue
                except (MeasurementFailedError, RuntimeError, subprocess.TimeoutExpired) as error:
                    outcome.problems.append(f"a trial of {experiment.words or experiment.title} failed: {error}")
                    continue
                load = load_columns([watch.figures()])
                rows = [{**load, **row} for row in rows]
                keep(rows)
                outcome.rows.extend(rows)
                sizes[number] = experiment.tried(trial, rows)
                if rows and (line := experiment.line(trial, rows)):
                    say(f"{number}/{max(number, len(trials))}  {line}")
            goes_on = math.isfinite(deadline.at) and not deadline.passed and not outcome.problems
            round_ = experiment.next_round(trials, outcome.rows, deadline.remaining_s) if goes_on else []
    for number, trial in enumerate(trials, 1):
        unit, size = experiment.extent(trial)
        outcome.count(unit, sizes.get(number, 0), size)
    return outcome


def _cover(request: Request, name: str, trials: Sequence[Any], rows: Sequence[Row]) -> None:
    """Add the classes that a bench has met to the coverage of all runs."""
    if isinstance(request, BenchRequest) and request.ledger is not None:
        request.ledger.add(experiments()[name].covered(trials, rows))


def _keep(run_folder: Path, rows: Sequence[Row]) -> None:
    for kind, group in by_kind(rows, kinds()).items():
        write_rows(run_folder, kind, group, kinds())


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
    with removed_if_refused(folder), _session_for(experiment, trials, file.name, master, folder, progress) as spark:
        progress.stage(file.name)
        request, claim = Request(profile, seed, None, log), Claim(file.name, grid.expected)
        outcome = _outcome(experiment.name, trials, request, claim, folder, progress.say, spark)
        progress.end_stage()
    rows = by_kind(outcome.rows, kinds())
    ran_on = environment(Path(tempfile.gettempdir()))
    write_facts(folder, {**facts, "seconds": round(progress.seconds), "environment": ran_on})
    figures = all_figures(rows)
    print("\n\n".join(table.plain() for table in experiment.tables(figures, rows)), end="\n\n")
    if bounded := experiment.left_out(figures):
        print(f"{bounded} With --profile night (make: PROFILE=night) it is all of them.\n")
    if undecided := undecided_sentence(figures):
        print(f"{undecided}\n")
    problems = [*outcome.problems, *map(str, experiment.failures(figures, rows)), *grid.missed(figures)]
    for problem in problems[:PROBLEMS_SHOWN]:
        print(problem)
    if len(problems) > PROBLEMS_SHOWN:
        print(f"and {len(problems) - PROBLEMS_SHOWN:,} more, with all rows in {folder}")
    print(f"{file.name} {'does not hold' if problems else 'holds'} (seed {seed}).")
    return not problems


@contextmanager
def _session_for(
    experiment: Experiment[Any], trials: Sequence[Any], name: str, master: str | None, folder: Path, progress: Progress
) -> Iterator[Session | None]:
    """Yield a session of Spark; None for an experiment whose trials run before Spark starts."""
    if experiment.placement is TrialPlacement.LOCAL:
        yield None
        return
    progress.step("starting Spark")
    with spark_session(name, master or local_master([experiment.slots(trials)]), folder) as spark:
        yield spark
