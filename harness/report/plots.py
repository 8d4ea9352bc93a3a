"""The plots of a report, as SVG files. The same figures give the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, NullFormatter

from harness.report.choice import REFERENCE_WORKLOADS, level_order
from harness.report.crash_plot import crash_matrix
from harness.report.figures import BASELINE, Figure

Figures = Mapping[str, Sequence[Figure]]

YARDSTICK = "plain-"
"""The prefix of the names of subjects that are no backends."""
PROTOTYPE_SHARE = 0.04
"""Throughput of the dual-store prototype relative to a plain RocksDB store. Source: KIP-844, "Test Plan"."""

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8C564B", "#7F7F7F")
"""Distinguishable by colour-blind readers. Source: Okabe and Ito, "Color Universal Design" (the first six)."""
_MARKERS = "osD^vPX*"
_STYLE: Any = {
    "svg.hashsalt": "report",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "font.size": 9,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "lines.markersize": 4.5,
}


def draw(figures: Figures, folder: Path, file_type: str = "svg") -> list[str]:
    """Draw every plot that has figures into ``folder``. Return the names of the files."""
    drawn = []
    plots: Mapping[str, Callable[[Figures], Canvas | None]] = {
        "store-throughput": _store_throughput,
        "throughput": _task_throughput,
        "commit-latency": _commit_latency,
        "put-and-commit-latency": _call_latency,
        "opening": _opening,
        "crash-matrix": crash_matrix,
    }
    with mpl.rc_context(_STYLE):
        for name, plot in plots.items():
            canvas = plot(figures)
            if canvas is not None:
                metadata = {"Date": None, "Creator": None} if file_type == "svg" else None
                canvas.savefig(folder / f"{name}.{file_type}", metadata=metadata, bbox_inches="tight", dpi=110)
                drawn.append(f"{name}.{file_type}")
    return drawn


def _store_throughput(figures: Figures) -> Canvas | None:
    """Plot records per second against records per commit, of a store alone, one panel per level."""
    rows = [
        figure
        for figure in figures["benchmark"]
        if figure["suite"] == "commit" and not figure["subject"].startswith(YARDSTICK)
    ]
    points = _points(rows, "subject", "records_per_commit", "records_per_s")
    return _commit_size_plot(figures, points, "records/s of a store by itself, put and commit")


def _task_throughput(figures: Figures) -> Canvas | None:
    rows = _sweep(figures)
    points = _points(rows, "backend", "records_per_commit", "records_per_s")
    return _commit_size_plot(figures, points, f"records/s of tasks with their changelogs{_workload(rows)}", rows)


def _commit_size_plot(figures: Figures, points: _Series, label: str, spreads: Sequence[Figure] = ()) -> Canvas | None:
    if not points:
        return None
    canvas, panels = _panels(points)
    for level, axes in panels:
        _draw_lines(axes, points[level], figures)
        if BASELINE in points[level]:
            xs, ys = zip(*points[level][BASELINE], strict=True)
            shares = [PROTOTYPE_SHARE * y for y in ys]
            share = f"{PROTOTYPE_SHARE:.0%} of {BASELINE}\n(KIP-844's prototype)"
            axes.plot(xs, shares, color="#444444", linestyle=":", marker="_", label=share)
        for figure in spreads:
            if figure["durability"] == level and figure["repeats"] > 1:
                axes.vlines(
                    figure["records_per_commit"],
                    figure["records_per_s_low"],
                    figure["records_per_s_high"],
                    color=_look(figure["backend"], figures)["color"],
                    linewidth=1,
                )
        _log_axes(axes, points[level], "records per commit", f"level {level}")
    panels[0][1].set_ylabel(label)
    _legend(canvas, panels)
    return canvas


def _commit_latency(figures: Figures) -> Canvas | None:
    rows = [figure for figure in _sweep(figures) if figure["commit_p50_us"] is not None]
    middle = _points(rows, "backend", "records_per_commit", "commit_p50_us", scale=1e-3)
    tail = _points(rows, "backend", "records_per_commit", "commit_p99_us", scale=1e-3)
    if not middle:
        return None
    canvas, panels = _panels(middle)
    for level, axes in panels:
        _draw_lines(axes, middle[level], figures)
        for backend, line in tail[level].items():
            look = _look(backend, figures) | {"linestyle": "--", "linewidth": 0.9}
            axes.plot(*zip(*line, strict=True), **look)
        _log_axes(axes, middle[level], "records per commit", f"level {level}")
    panels[0][1].set_ylabel(
        f"ms per commit, changelog and stores{_workload(rows)}\nsolid: median, dashed: 99th percentile"
    )
    _legend(canvas, panels)
    return canvas


def _call_latency(figures: Figures) -> Canvas | None:
    """Plot percentiles of puts and of commits: a panel for each, a line per backend."""
    rows = figures["latency"]
    if not rows:
        return None
    operations = list(dict.fromkeys(figure["operation"] for figure in rows))
    percentiles = {"p50_us": "50", "p90_us": "90", "p99_us": "99", "p999_us": "99.9", "max_us": "100"}
    canvas = Canvas(figsize=(2.2 + 3.6 * len(operations), 3.8))
    panels = list(zip(operations, canvas.subplots(1, len(operations), squeeze=False)[0], strict=True))
    for operation, axes in panels:
        for figure in (figure for figure in rows if figure["operation"] == operation):
            heights = [figure[name] for name in percentiles]
            axes.plot(range(len(heights)), heights, label=figure["backend"], **_look(figure["backend"], figures))
        axes.set_yscale("log")
        axes.set_xticks(range(len(percentiles)), list(percentiles.values()))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("percentile")
        axes.set_title(f"{operation}, level {rows[0]['durability']}", fontsize=9, loc="left")
    panels[0][1].set_ylabel("microseconds")
    _legend(canvas, panels)
    return canvas


def _opening(figures: Figures) -> Canvas | None:
    points = _points(figures["opening"], "backend", "records", "ready_s")
    if not points:
        return None
    canvas, panels = _panels(points)
    for level, axes in panels:
        _draw_lines(axes, points[level], figures)
        axes.axhline(1, color="#444444", linestyle=":", linewidth=1)
        _log_axes(axes, points[level], "records in the store", f"level {level}")
    panels[0][1].set_ylabel("seconds until the store is open and restored\nafter a kill (dotted: one second)")
    _legend(canvas, panels)
    return canvas


Lines = Mapping[str, Sequence[tuple[float, float]]]
"""The points of each line by its name, with ascending x."""
_Series = Mapping[str, Lines]
"""The lines of each level."""


def _points(rows: Sequence[Figure], name: str, x: str, y: str, scale: float = 1) -> _Series:
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in sorted(rows, key=lambda row: (level_order(row["durability"]), row[name], row[x])):
        if row.get(y) is not None:
            found.setdefault(row["durability"], {}).setdefault(row[name], []).append((row[x], row[y] * scale))
    return found


def _sweep(figures: Figures) -> list[Figure]:
    """Return the figures of the workload and partitions with the most sizes of commits; the tables have the others."""
    groups: dict[tuple[str, int], list[Figure]] = {}
    for figure in figures["throughput"]:
        groups.setdefault((figure["workload"], figure["partitions"]), []).append(figure)

    def worth(key: tuple[str, int]) -> tuple[int, int, int]:
        known = REFERENCE_WORKLOADS.index(key[0]) if key[0] in REFERENCE_WORKLOADS else len(REFERENCE_WORKLOADS)
        return -len({figure["records_per_commit"] for figure in groups[key]}), known, key[1]

    return groups[min(groups, key=worth)] if groups else []


def _workload(rows: Sequence[Figure]) -> str:
    return f"\nworkload {rows[0]['workload']}, partitions: {rows[0]['partitions']}" if rows else ""


def _panels(points: _Series) -> tuple[Canvas, list[tuple[str, Axes]]]:
    canvas = Canvas(figsize=(2.2 + 3.6 * len(points), 3.8))
    axes = canvas.subplots(1, len(points), sharey=True, squeeze=False)[0]
    return canvas, list(zip(points, axes, strict=True))


def _draw_lines(axes: Axes, lines: Lines, figures: Figures) -> None:
    for backend, line in lines.items():
        axes.plot(*zip(*line, strict=True), label=backend, **_look(backend, figures))


def _look(backend: str, figures: Figures) -> dict[str, Any]:
    """Return a backend's colour and marker, which are the same in every plot of a report."""
    place = _backends(figures).index(backend)
    return {"color": _COLOURS[place % len(_COLOURS)], "marker": _MARKERS[place % len(_MARKERS)], "linewidth": 1.5}


def _backends(figures: Figures) -> list[str]:
    tasks = {figure["backend"] for kind in ("throughput", "opening", "crash", "latency") for figure in figures[kind]}
    stores = {figure["subject"] for figure in figures["benchmark"] if not figure["subject"].startswith(YARDSTICK)}
    return sorted(tasks | stores)


def _log_axes(axes: Axes, points: Lines, label: str, title: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    measured = sorted({x for line in points.values() for x, _ in line})
    axes.set_xticks(measured, [f"{x:,.0f}" for x in measured], minor=False)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}"))
    low, high = axes.get_ylim()
    if high < 20 * low:
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}" if f"{y:e}"[0] in "25" else ""))
    else:
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(label)
    axes.set_title(title, fontsize=9, loc="left")


def _legend(canvas: Canvas, panels: Sequence[tuple[str, Axes]]) -> None:
    found = {
        label: handle for _, axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    labels = sorted(found, key=lambda label: (label[0].isdigit(), label))
    handles = [found[label] for label in labels]
    canvas.legend(handles, labels, loc="center left", bbox_to_anchor=(0.91, 0.5), frameon=False)
