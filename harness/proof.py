"""The check of a scenario: it runs on Spark, is printed as tables, and holds or does not."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.answer.results import all_failures, all_figures
from harness.effect_scenario import EffectScenario
from harness.experiments.crash.tables import crash_tables
from harness.experiments.iofaults.tables import effect_tables, left_out
from harness.experiments.readers.report import reader_table
from harness.experiments.registry import kinds
from harness.experiments.throughput.tables import throughput_tables
from harness.folders import RUNS, SCENARIOS
from harness.io_trace.library import recorder_library
from harness.progress import Progress
from harness.readers_scenario import ReadersScenario
from harness.report.figures import Figure
from harness.report.rows import by_kind, new_run, write_rows
from harness.scale import scaled
from harness.scenario import EVENT_LOG, AtLeast, CrashScenario, Scenario, ThroughputScenario
from harness.spark.effects import effect_rows
from harness.spark.readers import finished_readers, run_readers
from harness.spark.stages import Planned, crash_rows, local_master, now_and_then, spark_session, throughput_rows
from harness.workloads.event_log import EventLog
from harness.workloads.suggestion import nearest
from stores.errors import ConfigError

PROBLEMS_SHOWN = 20


@dataclass(frozen=True)
class Claim:
    """The content of a scenario's file: its name, the claim in its docstring, and the scenario."""

    name: str
    text: str
    scenario: Scenario | EffectScenario | ReadersScenario


def read_claim(file: Path) -> Claim:
    """Return the scenario of a Python file. Raises: ConfigError if the file does not exist or contains none."""
    if not file.is_file():
        raise ConfigError(f"there is no scenario in {file}: the file does not exist")
    try:
        content: Mapping[str, Any] = runpy.run_path(str(file))
    except Exception as error:  # Whatever a user's file may do.
        raise ConfigError(f"{file} cannot be read as a scenario: {type(error).__name__}: {error}") from error
    scenario = content.get("SCENARIO")
    if not isinstance(scenario, CrashScenario | ThroughputScenario | EffectScenario | ReadersScenario):
        raise ConfigError(
            f"{file} is no scenario: it needs SCENARIO, a CrashScenario, a ThroughputScenario, an EffectScenario or a "
            "ReadersScenario"
        )
    return Claim(file.stem, inspect.cleandoc(content.get("__doc__") or ""), scenario)


def scenario_names() -> list[str]:
    """Return the names of the project's scenarios."""
    return sorted(file.stem for file in SCENARIOS.glob("[a-z]*.py"))


def scenario_file(name: str) -> Path:
    """Return the file of one of the project's scenarios, or the path of a user's own. Raises: ConfigError."""
    if name.endswith(".py"):
        return Path(name)
    names = scenario_names()
    if name not in names:
        raise ConfigError(f"no scenario {name!r}: there are {', '.join(names)}{nearest(name, names)}")
    return SCENARIOS / f"{name}.py"


def prove(
    claim: Claim,
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
    claim.scenario.plan(seed)  # A mistake in the file is told as it stands there.
    scenario = scaled(claim.scenario, profile)
    if isinstance(scenario, ThroughputScenario) and scenario.workload == EVENT_LOG:
        if log is None:
            raise ConfigError("this scenario needs your events: give --events PATH and --key COLUMN, or EVENTS and KEY")
        log.format()
    batches = scenario.plan(seed) if isinstance(scenario, ThroughputScenario) else []
    trials = scenario.plan(seed) if isinstance(scenario, CrashScenario) else []
    sweeps = scenario.plan(seed) if isinstance(scenario, EffectScenario) else []
    reading = scenario.plan(seed) if isinstance(scenario, ReadersScenario) else []
    if sweeps:
        recorder_library()  # Where effects can't be steered, say so now.
    print(f"{claim.name}\n\n{claim.text}\n\nSeed {seed}, profile {profile}.\n", flush=True)
    facts = {"profile": f"scenario {claim.name}, {profile}", "seed": seed}
    folder = new_run(runs, f"scenario-{claim.name}", facts)
    progress = Progress()
    progress.stage("starting Spark")
    with spark_session(claim.name, master or local_master(batch.partitions for batch in batches), folder) as spark:
        progress.stage(claim.name)
        if isinstance(scenario, CrashScenario):
            planned = [Planned(claim.name, trial, scenario.expected(trial)) for trial in trials]
            rows = crash_rows(spark, planned, folder / "trials", progress.say)
            problems: list[str] = []
        elif isinstance(scenario, EffectScenario):
            rows = effect_rows(spark, sweeps, folder / "effects", progress.say)
            problems = []
        elif isinstance(scenario, ReadersScenario):
            own = folder / "readers"
            with now_and_then(lambda: f"{finished_readers(own)}/{len(reading)} trials", progress.say):
                rows = run_readers(spark, reading, own)
            problems = []
        else:
            done = throughput_rows(spark, batches, seed, log, progress.say)
            rows, problems = done.rows, done.problems
    sorted_out = by_kind(rows, kinds())
    for kind, group in sorted_out.items():
        write_rows(folder, kind, group, kinds())
    figures = all_figures(sorted_out)
    tables = (
        crash_tables(figures, expected="valid") + crash_tables(figures, expected="anomaly") + throughput_tables(figures)
    )
    told = [table.plain() for table in tables] + [table.plain() for table in effect_tables(figures)]
    if "isolation" in sorted_out:
        told.append(reader_table(sorted_out["isolation"]).plain())
    print("\n\n".join(told), end="\n\n")
    if bounded := left_out(figures):
        print(f"{bounded} With --profile full (make: PROFILE=full) it is all of them.\n")
    problems += [str(failure) for failure in all_failures(figures, sorted_out)]
    if isinstance(scenario, ThroughputScenario):
        for wanted in scenario.at_least:
            problems += _missed(wanted, figures["throughput"])
    for problem in problems[:PROBLEMS_SHOWN]:
        print(problem)
    if len(problems) > PROBLEMS_SHOWN:
        print(f"and {len(problems) - PROBLEMS_SHOWN:,} more, with all rows in {folder}")
    print(f"{claim.name} {'does not hold' if problems else 'holds'} (seed {seed}).")
    return not problems


def _missed(wanted: AtLeast, figures: list[Figure]) -> list[str]:
    """Return a sentence for each place where the subject is slower than claimed, or that nothing could be compared.

    The fastest repeat of each counts, because other work on the machine makes a repeat slower, never faster.
    """

    def rates(backend: str) -> dict[tuple[Any, ...], float]:
        same = ("workload", "durability", "partitions", "records_per_commit")
        return {
            tuple(each[name] for name in same): each["records_per_s_high"]
            for each in figures
            if each["backend"] == backend
        }

    subject, yardstick = rates(wanted.subject), rates(wanted.yardstick)
    shared = sorted(subject.keys() & yardstick.keys())
    if not shared:
        return [f"{wanted.subject} was never measured beside {wanted.yardstick}"]
    return [
        f"{wanted.subject} reaches {subject[place] / yardstick[place]:.2f} of {wanted.yardstick}, not {wanted.ratio:g}"
        f", with {place[-1]:,} records per commit at level {place[1]}, each in its fastest repeat"
        for place in shared
        if subject[place] < wanted.ratio * yardstick[place]
    ]
