"""The plots of throughput: records per second, and time per commit, against records per commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.experiments.throughput.figures import workload_order
from harness.report.commit_sizes import commit_size_plot
from harness.report.drawing import Looks, draw_lines, legend, log_axes, panels, points
from harness.report.figures import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def throughput_plot(figures: Sequence[Figure], looks: Looks) -> Canvas | None:
    """Plot records per second of tasks, with the spread of repeats."""
    rows = _most_sizes(figures)
    series = points(rows, "backend", "records_per_commit", "records_per_s")
    return commit_size_plot(series, f"records/s of tasks with their changelogs{_workload(rows)}", looks, rows)


def commit_latency_plot(figures: Sequence[Figure], looks: Looks) -> Canvas | None:
    """Plot the median and the 99th percentile of the time per commit."""
    rows = [figure for figure in _most_sizes(figures) if figure["commit_p50_us"] is not None]
    middle = points(rows, "backend", "records_per_commit", "commit_p50_us", scale=1e-3)
    tail = points(rows, "backend", "records_per_commit", "commit_p99_us", scale=1e-3)
    if not middle:
        return None
    canvas, drawn = panels(middle)
    for level, axes in drawn:
        draw_lines(axes, middle[level], looks)
        draw_lines(axes, tail[level], looks, label=None, linestyle="--", linewidth=0.9)
        log_axes(axes, middle[level], "records per commit", f"level {level}")
    drawn[0][1].set_ylabel(
        f"ms per commit, changelog and stores{_workload(rows)}\nsolid: median, dashed: 99th percentile"
    )
    legend(canvas, drawn)
    return canvas


def _most_sizes(figures: Sequence[Figure]) -> list[Figure]:
    """Return the figures of the workload and partitions with the most sizes of commits; the tables have the others."""
    groups: dict[tuple[str, int], list[Figure]] = {}
    for figure in figures:
        groups.setdefault((figure["workload"], figure["partitions"]), []).append(figure)

    def worth(key: tuple[str, int]) -> tuple[int, int, int]:
        return -len({figure["records_per_commit"] for figure in groups[key]}), workload_order(key[0]), key[1]

    return groups[min(groups, key=worth)] if groups else []


def _workload(rows: Sequence[Figure]) -> str:
    return f"\nworkload {rows[0]['workload']}, partitions: {rows[0]['partitions']}" if rows else ""
