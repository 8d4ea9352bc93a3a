"""The command `make bench`: measure and crash every backend, keep the rows, write the report, and print the results."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.answer.results import all_failures, all_figures
from harness.answer.summary import summary_table
from harness.answer.write import publish
from harness.datasets.new_york_flights import departures
from harness.experiment import Placement
from harness.experiment import Request as PlanRequest
from harness.experiments.crash.plan import crash_matrix
from harness.experiments.crash.trial import Trial
from harness.experiments.iofaults import plan as sweeps
from harness.experiments.iofaults.report import SKIPPED
from harness.experiments.iofaults.tables import promise_table
from harness.experiments.opening import opening
from harness.experiments.registry import experiments, kinds
from harness.experiments.throughput import plan
from harness.experiments.throughput.plan import Batch, Sweep
from harness.folders import RUNS
from harness.io_trace.library import recorder_library
from harness.java import find_java
from harness.local import run_local
from harness.progress import Progress
from harness.report.environment import environment
from harness.report.ratios import ratio_table
from harness.report.rows import by_kind, name_latest, new_run, read_all, write_facts, write_rows
from harness.scenario import EVENT_LOG
from harness.spark.effects import effect_rows
from harness.spark.stages import (
    Planned,
    SparkFailedError,
    crash_rows,
    local_master,
    opening_rows,
    spark_session,
    throughput_rows,
)
from harness.workloads.departures import Departures
from harness.workloads.event_log import EventLog
from harness.workloads.registry import workload
from harness.workloads.suggestion import nearest
from stores.errors import ConfigError
from stores.registry import backend_named

Row = dict[str, Any]
Keep = Callable[[Sequence[Row], Sequence[str]], None]

STAGES = ("store", "throughput", "opening", "crash", "effects")
PROFILES = ("smoke", "default", "full")
WHOLE_PROFILES = ("default", "full")
"""The profiles whose reports go to ``results/`` if nothing was left out."""

CRASH_SEEDS: Mapping[str, int] = MappingProxyType({"smoke": 1, "default": 3, "full": 5})
"""The number of seeds in a profile's crash matrix."""


@dataclass(frozen=True)
class Request:
    """The options of `make bench`. ``backends`` None means all; ``log`` replaces the workloads by a user's events."""

    profile: str = "default"
    seed: int = 1
    only: tuple[str, ...] = STAGES
    backends: tuple[str, ...] | None = None
    log: EventLog | None = None
    master: str | None = None
    strict: bool = False
    runs: Path = RUNS
    results: Path | None = None

    @property
    def is_whole(self) -> bool:
        """True if nothing was left out, so that the report can represent the project."""
        return (
            self.profile in WHOLE_PROFILES
            and set(self.only) == set(STAGES)
            and self.backends is None
            and self.log is None
        )

    def checked(self) -> Request:
        """Return the request with the backends' full names. Raises: ConfigError for an unknown name."""
        if self.profile not in PROFILES:
            raise ConfigError(
                f"no profile {self.profile!r}: there are {', '.join(PROFILES)}{nearest(self.profile, PROFILES)}"
            )
        for stage in self.only:
            if stage not in STAGES:
                raise ConfigError(f"no stage {stage!r}: there are {', '.join(STAGES)}{nearest(stage, STAGES)}")
        if self.log is not None:
            self.log.format()
        names = None if self.backends is None else tuple(backend_named(name).name for name in self.backends)
        return replace(self, backends=names)


def bench(request: Request) -> int:
    """Run all that was requested, and print the main table. Return 0 if every promise was kept, else 1.

    Raises: ConfigError for a request that cannot be met, before anything is measured.
    """
    request = request.checked()
    find_java()
    if any(isinstance(workload(batch.workload), Departures) for batch in _batches(request)):
        departures()  # Missing, it should be missed now and not after the first stages.
    progress = Progress()
    started = datetime.now(UTC)
    facts = {
        "profile": request.profile,
        "seed": request.seed,
        "started": f"{started:%Y-%m-%d %H:%M} UTC",
        "whole": request.is_whole,
    }
    if reason := _cannot_steer(request):
        facts[SKIPPED] = reason
    run_folder = new_run(request.runs, request.profile, facts, started)
    print(f"Profile {request.profile}, seed {request.seed}. Rows go to {run_folder}.", flush=True)
    problems = _measure(request, run_folder, progress)
    progress.stage("report")
    ran_on = environment(Path(tempfile.gettempdir()))
    write_facts(run_folder, {**facts, "seconds": round(progress.seconds), "environment": ran_on})
    name_latest(run_folder)
    report = publish(run_folder, request.results)
    status = _conclude(request, read_all(run_folder, kinds()), ran_on["backends"], problems)
    print(f"The report is {report}.")
    return status


def _measure(request: Request, run_folder: Path, progress: Progress) -> list[str]:
    """Run the stages, the stores' own first, while no JVM runs beside them. Return the problems."""
    problems: list[str] = []

    def keep(rows: Sequence[Row], found: Sequence[str] = ()) -> None:
        for kind, group in by_kind(rows, kinds()).items():
            write_rows(run_folder, kind, group, kinds())
        problems.extend(found)

    if "store" in request.only:
        progress.stage("stores by themselves")
        keep(*_store_rows(request, progress.say))
    if set(request.only) - {"store"}:
        try:
            _measure_on_spark(request, run_folder, progress, keep)
        except SparkFailedError as error:
            problems.append(str(error))
    return problems


def _measure_on_spark(request: Request, run_folder: Path, progress: Progress, keep: Keep) -> None:
    progress.stage("starting Spark")
    batches = _batches(request)
    master = request.master or local_master(batch.partitions for batch in batches)
    with spark_session("bench", master, run_folder) as spark:
        if "throughput" in request.only:
            progress.stage("throughput of tasks")
            done = throughput_rows(spark, batches, request.seed, request.log, progress.say)
            keep(done.rows, done.problems)
        if "opening" in request.only:
            progress.stage("opening after a kill")
            done = opening_rows(spark, _openings(request), progress.say)
            keep([*done.rows, *opening.ratios(done.rows)], done.problems)
        if "crash" in request.only:
            progress.stage("crash trials")
            planned = [Planned("crash matrix", trial) for trial in _crash_trials(request)]
            keep(crash_rows(spark, planned, run_folder / "trials", progress.say), [])
        if "effects" in request.only and not _cannot_steer(request):
            progress.stage("I/O faults")
            keep(effect_rows(spark, _sweeps(request), run_folder / "effects", progress.say), [])


def _store_rows(request: Request, say: Callable[[str], None]) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    problems: list[str] = []
    asked = PlanRequest(request.profile, request.seed, request.backends)
    for experiment in experiments().values():
        if experiment.placement is Placement.LOCAL:
            done = run_local(experiment, asked, say)
            rows += done.rows
            problems += done.problems
    return rows, problems


def _batches(request: Request) -> list[Batch]:
    if "throughput" not in request.only:
        return []
    sweeps: Sequence[Sweep] = plan.PROFILES[request.profile]
    if request.log is not None:
        repeats = {"smoke": 1, "default": 3, "full": 5}[request.profile]
        sweeps = [Sweep(EVENT_LOG, None, records_per_commit=(100, 1_000, 10_000), repeats=repeats)]
    return plan.batches([replace(sweep, backends=request.backends) for sweep in sweeps], request.seed)


def _openings(request: Request) -> list[opening.OpeningTrial]:
    trials = opening.openings(request.profile, request.seed)
    return [trial for trial in trials if request.backends is None or trial.backend in request.backends]


def _crash_trials(request: Request) -> list[Trial]:
    seeds = range(request.seed, request.seed + CRASH_SEEDS[request.profile])
    return crash_matrix(request.backends, seeds=seeds, profile=request.profile)


def _cannot_steer(request: Request) -> str:
    """Return the reason why I/O faults cannot be injected on this machine; "" if they can, or are not requested."""
    if "effects" not in request.only:
        return ""
    try:
        recorder_library()
    except ConfigError as error:
        return str(error)
    return ""


def _sweeps(request: Request) -> list[sweeps.Swept | sweeps.Convicted]:
    return [
        *sweeps.profile(request.profile, request.seed, request.backends),
        *sweeps.convictions(request.profile, request.seed, request.backends),
    ]


def _conclude(
    request: Request, rows: Mapping[str, Sequence[Row]], backends: Mapping[str, Any], problems: Sequence[str]
) -> int:
    """Print the tables and all problems. Return the exit status."""
    figures = all_figures(rows)
    print(f"\n{summary_table(figures, backends).plain()}\n")
    asked = [figure for figure in figures["ratio"] if figure["met"] is not None]
    missed = [figure for figure in asked if not figure["met"]]
    if figures["ratio"]:
        print(ratio_table({**figures, "ratio": missed or figures["ratio"]}).plain())
        print(f"Ratios missed: {len(missed)} of {len(asked)}.\n" if missed else "All ratios are reached.\n")
    wrong = [*problems, *(str(failure) for failure in all_failures(figures, rows))]
    for line in wrong:
        print(f"WRONG  {line}")
    if rows["effect"]:
        print(promise_table(figures).plain())
    elif reason := _cannot_steer(request):
        print(f"I/O faults were skipped: {reason}")
    if rows["crash"] and not wrong:
        print("Every crash trial ended as expected, and every end state is right.")
    return 1 if wrong or (missed and request.strict) else 0
