"""The figures of throughput: medians over repeats, and the configuration that represents a level."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from harness.report import text
from harness.report.database import busy, interval_ends, medians
from harness.report.figures import Figure, columns
from harness.report.page import PageFinding

KEY = ("workload", "durability", "backend", "partitions", "records_per_commit")
REFERENCE_WORKLOADS = ("count", "flights", "event_log", "flights_by_hour", "aircraft_sessions")
REFERENCE_RECORDS_PER_COMMIT = 1_000
_MEDIANS = (
    "records",
    "records_per_s",
    "commit_p50_us",
    "commit_p99_us",
    "store_commit_p50_us",
    "store_commit_p99_us",
    "bytes_written",
    "bytes_on_disk",
    "peak_memory_bytes",
    "open_files",
    "open_after_kill_s",
    "replayed",
)
INTERVALS = ("records_per_s", "commit_p50_us", "commit_p99_us", "peak_memory_bytes", "bytes_on_disk")
"""The figures that have an interval of the median, as ``NAME_from`` and ``NAME_to``, if there are five repeats."""
_LOAD = ("seconds", "cpu_per_wall", "others_share", "steal_share", "load_average")


QUERY = f"""select {", ".join(KEY)}, count(*) as repeats, {medians(*_MEDIANS, *_LOAD)},
        min(records_per_s) as records_per_s_low, max(records_per_s) as records_per_s_high,
        {", ".join(map(interval_ends, INTERVALS))}, max(commit_max_us) as commit_max_us,
        sum({busy("throughput")}) as busy,
        case when max(end_state = 'different') then 'different' when max(end_state = 'not compared') then 'not compared'
            else 'equal' end as end_state
    from throughput group by {", ".join(KEY)} order by {", ".join(KEY)}"""
"""A line per configuration: medians over repeats, their intervals, the longest commit, and the number of busy repeats.
"""


def wrong_end_lines(figures: Iterable[Figure]) -> list[str]:
    """Return a sentence for every configuration whose end state is not the one that Spark SQL computes."""
    return [
        f"{figure['backend']} at {figure['durability']}, {figure['workload']}, {figure['records_per_commit']:,} "
        f"records per commit, {figure['partitions']} partitions: the end state is not what Spark SQL computes"
        for figure in figures
        if figure["end_state"] == "different"
    ]


def end_state_finding(figures: Iterable[Figure]) -> PageFinding:
    """Return how many configurations ended with the right state, of those that were compared."""
    states = [figure["end_state"] for figure in figures if figure["end_state"] != "not compared"]
    return PageFinding(
        "measured configurations", len(states), states.count("equal"), "ended with what Spark SQL computes"
    )


def width_sentences(figures: Iterable[Figure]) -> list[str]:
    """Return how wide the intervals of records per second are, in a sentence; nothing if there is none."""
    low, high = columns("records_per_s")
    widths = sorted(
        (((figure[high] - figure[low]) / figure["records_per_s"], figure) for figure in figures if figure.get(low)),
        key=lambda each: each[0],
    )
    if not widths:
        return []
    (narrowest, _), (widest, at) = widths[0], widths[-1]
    return [
        f"{text.exact(len(widths))} cells have an interval of records/s, from {narrowest:.1%} to {widest:.1%} of its "
        f"median wide (median {median(width for width, _ in widths):.1%}); the widest is that of {at['backend']} at "
        f"{at['durability']} with {text.exact(at['records_per_commit'])} records per commit."
    ]


@dataclass(frozen=True)
class Reference:
    """The configuration that represents a level where a table has room for only one."""

    workload: str
    durability: str
    partitions: int
    records_per_commit: int

    def holds(self, figure: Figure, records_per_commit: int | None = None) -> bool:
        """Return True for a throughput figure of this configuration, or with ``records_per_commit`` instead."""
        wanted = records_per_commit or self.records_per_commit
        return self._is_of_kind(figure) and figure["records_per_commit"] == wanted

    def sizes(self, figures: Iterable[Figure]) -> list[int]:
        """Return the numbers of records per commit that were measured with all else equal, smallest first."""
        return sorted({figure["records_per_commit"] for figure in figures if self._is_of_kind(figure)})

    @property
    def text(self) -> str:
        """The configuration in words."""
        partitions = f"{self.partitions} partition{'s' * (self.partitions != 1)}"
        return f"workload `{self.workload}`, {text.exact(self.records_per_commit)} records per commit, {partitions}"

    def _is_of_kind(self, figure: Figure) -> bool:
        return bool(
            figure["workload"] == self.workload
            and figure["durability"] == self.durability
            and figure["partitions"] == self.partitions
        )


def reference(figures: Sequence[Figure], durability: str) -> Reference | None:
    """Return the configuration that represents a level, nearest to 1,000 records per commit; None if none was run."""
    of_level = [figure for figure in figures if figure["durability"] == durability]
    if not of_level:
        return None

    def strangeness(figure: Figure) -> tuple[Any, ...]:
        distance = abs(figure["records_per_commit"] - REFERENCE_RECORDS_PER_COMMIT)
        place = workload_order(figure["workload"])
        return place, distance, abs(figure["partitions"] - 2), figure["partitions"], figure["workload"]

    best = min(of_level, key=strangeness)
    return Reference(best["workload"], durability, best["partitions"], best["records_per_commit"])


def workload_order(workload: str) -> int:
    """Return the place of a workload among those that may represent a level: the first one is the best."""
    return REFERENCE_WORKLOADS.index(workload) if workload in REFERENCE_WORKLOADS else len(REFERENCE_WORKLOADS)
