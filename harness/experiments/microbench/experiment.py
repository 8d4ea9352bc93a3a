"""The experiment that times single stores, and compares them with each other and with plain code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, cast

from harness import replay
from harness.budget import check_profile
from harness.experiment import Request, Rows, StoresAlone, TrialWorker
from harness.experiments.microbench import run as timing
from harness.experiments.microbench.claim import case_named
from harness.report import text
from harness.report.charts import Chart
from harness.report.figures import Figures, distinct
from harness.report.listing import Column, Listing, Plot, Report
from harness.report.page import FIRST_PAGE, Page, TextTable
from harness.report.rows import Row

YARDSTICK = "plain-"
"""The prefix of the names of subjects that are no backends."""
UNCHECKED = "-unchecked"
"""The end of the names of benchmarks of a store without checksums."""
_SEEDS = 1_000
"""The seed of a trial is that of the plan times this, and the repeat."""
_YCSB = "ycsb-"
QUERY = """select * from benchmark order by distribution, durability, iqr_s, median_s, name, records,
    records_per_commit, records_per_s, rounds, subject, suite"""
_METHOD = """\
A store alone, no task, changelog or Spark, timed with pytest-benchmark, some cases in each process. YCSB: each core
workload on 10,000 records of 1,000 bytes, with a commit after 1,000 operations.
"""


def ycsb_tables(figures: Figures) -> list[TextTable]:
    """Return one table per level: a line per backend, a column per core workload."""
    measured = [figure for figure in figures["benchmark"] if figure["suite"].startswith(_YCSB)]
    suites = sorted({figure["suite"] for figure in measured})
    speed = {
        (figure["subject"], figure["durability"], figure["suite"]): text.count(figure["records_per_s"])
        for figure in measured
    }
    return [
        TextTable(
            f"YCSB's core workloads, level {durability}, operations/s",
            ["backend", *(suite.removeprefix(_YCSB).upper() for suite in suites)],
            [
                [subject, *(speed.get((subject, durability, suite), text.NONE) for suite in suites)]
                for (subject, level) in distinct(measured, "subject", "durability")
                if level == durability
            ],
            range(1, 1 + len(suites)),
        )
        for (durability,) in distinct(measured, "durability")
    ]


BENCHMARKS = Listing(
    f"Suite `{{suite}}`, level {{coalesce(durability, '{text.NONE}')}}",
    f"benchmark_figure where suite not like '{_YCSB}%'",
    (
        Column("benchmark", "name"),
        Column("subject"),
        Column("records per commit", "records_per_commit", text.exact),
        Column("keys", f"coalesce(nullif(distribution, ''), '{text.NONE}')"),
        Column("records/s", "records_per_s", text.count),
        Column("median of a round", "median_s", text.duration),
        Column("interquartile range", "iqr_s", text.duration),
        Column("rounds", "rounds", text.exact),
    ),
)
_MARKS = f"""select durability || ', ' || exact(records_per_commit) || ' records per commit' as title,
    durability as level, records_per_commit, subject as backend, records_per_s as value,
    subject || iif(name like '%{UNCHECKED}', ', no checksums', '') as subject,
    iif(rounds > 1, records / (median_s + iqr_s / 2), null) as low,
    iif(rounds > 1, records / (median_s - iqr_s / 2), null) as high
    from benchmark_figure where suite = 'commit' and subject not like '{YARDSTICK}%'
    order by level_place(durability), durability, records_per_commit"""


REPORT = Report(
    ("benchmark",),
    "stores",
    "Throughput of a store by itself",
    (
        "Each backend is timed as a store alone: puts and commits, lookups, scans, iterators and YCSB's workloads.",
        "A suite may have a yardstick: the engine without this library, or another backend.",
        f"The [ratios]({FIRST_PAGE}#ratios) on the first page compare them.",
    ),
    (BENCHMARKS,),
    _METHOD,
    (
        # The line of a dot is the interquartile range of its rounds.
        Plot(
            Chart(
                "store-throughput",
                "Records per second of a store against records per commit",
                "dots",
                (),
                "records/s of puts and commits",
                "records/s",
                spread="interquartile range of rounds",
                hollow="a single round",
            ),
            _MARKS,
        ),
    ),
)


@dataclass(frozen=True)
class MicrobenchTrial:
    """A measurement of some cases of a profile, in one process. Their rounds, each with its seconds, are rows."""

    cases: tuple[str, ...]
    profile: str
    seed: int
    for_thresholds: bool = False
    """True if it is made for ratios with a threshold, and left out once these are clear."""


class Microbench(StoresAlone[MicrobenchTrial]):
    """Records per second of stores by themselves, and the project's claims about them."""

    name = "microbench"
    trial = MicrobenchTrial
    share = 36
    night_share = 120
    figures_by = {"benchmark": QUERY, "round": lambda _: []}
    derived_by = timing.summarized
    columns = {
        "round": {
            "case": str,
            "profile": str,
            "seed": int,
            "seconds": float,
            "cpu_seconds": float,
            "machine_speed": float,
        },
        "benchmark": {
            "suite": str,
            "name": str,
            "subject": str,
            "durability": str,
            "records_per_commit": int,
            "distribution": str,
            "median_s": float,
            "iqr_s": float,
            "rounds": int,
            "records": int,
            "records_per_s": float,
        },
    }

    def plan(self, request: Request) -> list[MicrobenchTrial]:
        """Return all measurements in shuffled order; those that are compared with each other are adjacent."""
        return [
            MicrobenchTrial(
                tuple(case.id for case in batch.cases),
                request.profile,
                request.seed * _SEEDS + batch.repeat,
                batch.for_thresholds,
            )
            for batch in timing.planned(request.profile, request.seed, request.backends)
        ]

    def still_needed(self, trial: MicrobenchTrial, rows: Sequence[Row]) -> MicrobenchTrial | None:
        """Return the trial without the cases whose ratios have no need of it; None if there is no other."""
        if not trial.for_thresholds:
            return trial
        left = timing.still_needed(trial.cases, trial.seed % _SEEDS, rows)
        return replace(trial, cases=left) if left else None

    def extent(self, trial: MicrobenchTrial) -> tuple[str, int]:
        """Return the number of its cases."""
        return "measurements", len(trial.cases)

    def tried(self, trial: MicrobenchTrial, rows: Sequence[Row]) -> int:
        """Return the number of cases that were measured before the time was over."""
        return len({row["case"] for row in rows})

    def run(self, trial: MicrobenchTrial, worker: TrialWorker) -> Iterable[Row]:
        """Return a row for each round of each case. Raises: RuntimeError with the command that repeats it."""
        try:
            rounds_by_case = timing.measure(trial.cases, trial.profile, trial.seed, worker.deadline)
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n  repeat it with: {replay.command(self.name, trial)}") from error
        return [
            {"kind": "round", "case": case, "profile": trial.profile, "seed": trial.seed, **each._asdict()}
            for case, rounds in rounds_by_case.items()
            for each in rounds
        ]

    def read(self, text: str) -> MicrobenchTrial:
        """Return the trial. Raises: ConfigError, as of any experiment, and for an unknown profile or case."""
        trial = super().read(text)
        check_profile(trial.profile)
        for name in trial.cases:
            case_named(name, trial.profile)
        return cast(MicrobenchTrial, trial)

    def line(self, trial: MicrobenchTrial, rows: Sequence[Row]) -> str:
        """Return the last case and its median rate."""
        name = rows[-1]["case"]
        rate = case_named(name, trial.profile).records / median(row["seconds"] for row in rows if row["case"] == name)
        return f"{len({row['case'] for row in rows})} measurements, the last one {name}: {rate:,.0f} records/s"

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about stores by themselves."""
        return REPORT.page(figures, more=ycsb_tables(figures))
