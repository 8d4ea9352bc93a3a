"""The experiment that measures how soon readers on other threads see a write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from harness.budget import DEFAULT, NIGHT, SMOKE
from harness.experiment import Request, StoresAlone, check_counts
from harness.experiments import visibility_measured
from harness.report import text
from harness.report.listing import Column, Listing, Report
from stores.config import StoreConfig
from stores.registry import backends

_METHOD = """\
A writer numbers its writes to one key, about a hundred a second, and commits once per interval. A reader at each level
looks the key up all the time. Lookups beside commits and the cost of iterators are among the ratios and suites of a
store by itself.
"""


_LAGS = Listing(
    "Level {durability}: how long a write takes to be seen by a reader on another thread",
    "visibility_figure order by durability, isolation_level, backend, committed_by, commit_interval_s",
    (
        Column("backend"),
        Column("committed by", "committed_by"),
        Column("every", "commit_interval_s", text.duration),
        Column("isolation level", "isolation_level"),
        Column("writes", "writes", text.exact),
        Column("seen after, median", "lag_p50_s", text.duration),
        Column("p99", "lag_p99_s", text.duration),
        Column("longest", "lag_max_s", text.duration),
        Column("p99 / interval", "lag_p99_s / commit_interval_s", text.ratio),
    ),
)
_LATEST = (
    "The longest 99th percentile at READ_COMMITTED was {ratio(max(lag_p99_s / commit_interval_s))} commit intervals."
)


REPORT = Report(
    ("visibility",),
    "readers",
    "Readers on other threads",
    (
        "A reader at READ_COMMITTED sees a write once it is committed, which takes up to one commit interval.",
        "A reader at READ_UNCOMMITTED sees it at once.",
        (_LATEST, "visibility_figure where isolation_level = 'READ_COMMITTED'"),
    ),
    (_LAGS,),
    _METHOD,
)


SIZES: Mapping[str, tuple[tuple[tuple[float, ...], int], ...]] = MappingProxyType(
    {
        SMOKE: (((0.05,), 10),),
        DEFAULT: (((0.02, 0.1), 20),),
        NIGHT: (((0.02,), 50), ((0.1,), 50), ((1.0,), 10)),
    }
)
"""Commit intervals and commits of each trial of a backend.

0.1 s is the default of Kafka Streams under exactly once (``commit.interval.ms``).
"""
START_S = 3.0
"""The time in which a slow machine starts the process, and opens and closes the stores of an interval."""


@dataclass(frozen=True)
class VisibilityTrial:
    """One backend, with commits at each of ``intervals_s``, for ``commits`` intervals or a second."""

    backend: str
    intervals_s: tuple[float, ...]
    commits: int

    def __post_init__(self) -> None:
        """Raise ConfigError for a number that counts nothing."""
        check_counts(
            intervals=len(self.intervals_s),
            shortest_interval_s=min(self.intervals_s, default=1.0),
            commits=self.commits,
        )


class Visibility(StoresAlone[VisibilityTrial]):
    """The time until a write is seen, at each isolation level. Only the default backend, except in a night."""

    name = "visibility"
    words = "visibility to readers"
    trial = VisibilityTrial
    program = visibility_measured
    night_share = 8
    figures_by = {"visibility": "select * from visibility"}
    report = REPORT
    columns = {
        "visibility": {
            "backend": str,
            "durability": str,
            "committed_by": str,
            "isolation_level": str,
            "commit_interval_s": float,
            "writes": int,
            "lag_p50_s": float,
            "lag_p99_s": float,
            "lag_max_s": float,
        }
    }

    def plan(self, request: Request) -> list[VisibilityTrial]:
        """Return the trials of each backend. In a night the default one comes first, and the shortest intervals do."""
        default = StoreConfig().backend
        names = sorted(backends(), key=lambda name: name != default) if request.profile == NIGHT else [default]
        return [VisibilityTrial(name, *size) for size in SIZES[request.profile] for name in request.among(names)]

    def cost_s(self, trial: VisibilityTrial) -> float:
        """Return the time of all intervals, of a writer and of a task."""
        return sum(START_S + 2 * visibility_measured.writing_s(each, trial.commits) for each in trial.intervals_s)
