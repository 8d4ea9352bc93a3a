"""The plots of throughput: records per second, and time per commit, of each level and number of records per commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.experiments.throughput.figures import workload_order
from harness.report.dots import Dot, dot_plot
from harness.report.drawing import Looks
from harness.report.figures import Figure
from harness.report.interval import columns
from harness.report.levels import level_order

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_MARKS = {"o": "median", "D": "99th percentile"}


def throughput_plot(figures: Sequence[Figure], looks: Looks) -> Canvas | None:
    """Plot records per second of tasks, with intervals."""
    panels = {title: [_dot(figure, "records_per_s") for figure in group] for title, group in _cells(figures).items()}
    return dot_plot(panels, looks, "records/s", more_is_better=True)


def commit_latency_plot(figures: Sequence[Figure], looks: Looks) -> Canvas | None:
    """Plot the median and the 99th percentile of the time per commit, of the changelog and the stores."""
    panels = {
        title: [
            *(_dot(figure, "commit_p50_us", "o", 1e-3) for figure in group),
            *(_dot(figure, "commit_p99_us", "D", 1e-3) for figure in group),
        ]
        for title, group in _cells([each for each in figures if each["commit_p50_us"] is not None]).items()
    }
    return dot_plot(panels, looks, "ms per commit", more_is_better=False, marks=_MARKS)


def _dot(figure: Figure, name: str, mark: str = "o", scale: float = 1.0) -> Dot:
    low, high = (None if figure[end] is None else figure[end] * scale for end in columns(name))
    return Dot(figure["backend"], figure["backend"], figure[name] * scale, low, high, mark)


def _cells(figures: Sequence[Figure]) -> dict[str, list[Figure]]:
    """Return the figures of each level and size of a commit, of the workload and partitions with the most of these.

    The tables have the others.
    """
    groups: dict[tuple[str, int], list[Figure]] = {}
    for figure in figures:
        groups.setdefault((figure["workload"], figure["partitions"]), []).append(figure)
    if not groups:
        return {}

    def place(figure: Figure) -> tuple[tuple[int, str], int]:
        return level_order(figure["durability"]), figure["records_per_commit"]

    def worth(key: tuple[str, int]) -> tuple[int, int, int]:
        return -len({place(figure) for figure in groups[key]}), workload_order(key[0]), key[1]

    chosen = min(groups, key=worth)
    cells: dict[str, list[Figure]] = {}
    for figure in sorted(groups[chosen], key=place):
        size = f"{figure['records_per_commit']:,} records per commit"
        cells.setdefault(f"{figure['durability']}, {size} ({chosen[0]})", []).append(figure)
    return cells
