"""The experiment that measures the latency of each put and each commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from harness.budget import DEFAULT, NIGHT, SMOKE
from harness.experiment import Request, StoresAlone, check_counts
from harness.experiments import latencies_measured
from harness.report import text
from harness.report.charts import Chart
from harness.report.figures import BASELINE
from harness.report.listing import Column, Listing, Plot, Report
from stores.registry import backends

_METHOD = """\
A store by itself, with random keys of 16 bytes and values of 100. Puts are timed one by one, and commits of a fixed
number of puts.
"""


QUERY = f"""select latency.*, latency.p50_us / baseline.p50_us as against_baseline
    from latency left join latency as baseline on baseline.backend = '{BASELINE}'
        and (baseline.durability, baseline.operation) = (latency.durability, latency.operation)
    order by latency.durability, latency.operation <> 'put', latency.backend"""
"""Percentiles of puts and of commits, with the ratio of medians to the backend without isolation at the same level."""
LATENCIES = Listing(
    "Level {durability}: how long a put and a commit take",
    "latency_figure",
    (
        Column("call", "operation"),
        Column("backend"),
        Column("records per commit", "records_per_commit", text.exact),
        Column("calls", "operations", text.exact),
        Column("median", "p50_us", text.latency),
        Column("p90", "p90_us", text.latency),
        Column("p99", "p99_us", text.latency),
        Column("p99.9", "p999_us", text.latency),
        Column("longest", "max_us", text.latency),
        Column(f"median / {BASELINE}", "against_baseline", text.ratio),
    ),
)
_PERCENTILES = """with percentile(step) as (values ('50'), ('90'), ('99'), ('99.9'), ('100'))
    select operation || ', level ' || durability as title, durability as level, backend, step, step as measure,
        case step when '50' then p50_us when '90' then p90_us when '99' then p99_us when '99.9' then p999_us
            else max_us end as value
    from latency_figure, percentile order by latency_figure.rowid, cast(step as real)"""


REPORT = Report(
    ("latency",),
    "latency",
    "Latency of puts and commits",
    (
        "The time that a put takes, and a commit, from the median to the longest.",
        "A store that stages its writes does less in a put and more in a commit than one that writes at once "
        '(KIP-892, "Compatibility").',
        "A commit writes all staged records, so its time grows with their number.",
    ),
    (LATENCIES,),
    _METHOD,
    (
        Plot(
            Chart(
                "put-and-commit-latency",
                "Percentiles of the time that a put takes, and a commit",
                "lines",
                (),
                "microseconds",
                "us",
                "percentile",
            ),
            _PERCENTILES,
        ),
    ),
)


COMMITS: Mapping[str, int] = MappingProxyType({SMOKE: 20, DEFAULT: 100, NIGHT: 500})


@dataclass(frozen=True)
class LatencyTrial:
    """One backend, and the number of commits whose latencies are measured."""

    backend: str
    commits: int
    seed: int

    def __post_init__(self) -> None:
        """Raise ConfigError for a number that counts nothing."""
        check_counts(commits=self.commits)


class Latencies(StoresAlone[LatencyTrial]):
    """Percentiles of the latency of puts, and of commits."""

    name = "latencies"
    words = "latencies of puts and commits"
    trial = LatencyTrial
    program = latencies_measured
    figures_by = {"latency": QUERY}
    report = REPORT
    columns = {
        "latency": {
            "backend": str,
            "durability": str,
            "operation": str,
            "records_per_commit": int,
            "operations": int,
            "p50_us": float,
            "p90_us": float,
            "p99_us": float,
            "p999_us": float,
            "max_us": float,
        }
    }

    def plan(self, request: Request) -> list[LatencyTrial]:
        """Return a trial for each backend."""
        return [LatencyTrial(name, COMMITS[request.profile], request.seed) for name in request.among(backends())]
