"""The plot of records per second against records per commit, one panel per level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.report.drawing import Looks, Series, draw_lines, legend, log_axes, panels
from harness.report.figures import BASELINE, Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

PROTOTYPE_SHARE = 0.04
"""Throughput of the dual-store prototype relative to a plain RocksDB store. Source: KIP-844, "Test Plan"."""


def commit_size_plot(series: Series, label: str, looks: Looks, spreads: Sequence[Figure] = ()) -> Canvas | None:
    """Plot the lines of each level; None if there are none. ``spreads`` have the lowest and highest of repeats."""
    if not series:
        return None
    canvas, drawn = panels(series)
    for level, axes in drawn:
        draw_lines(axes, series[level], looks)
        if BASELINE in series[level]:
            xs, ys = zip(*series[level][BASELINE], strict=True)
            shares = [PROTOTYPE_SHARE * y for y in ys]
            share = f"{PROTOTYPE_SHARE:.0%} of {BASELINE}\n(KIP-844's prototype)"
            axes.plot(xs, shares, color="#444444", linestyle=":", marker="_", label=share)
        for figure in spreads:
            if figure["durability"] == level and figure["repeats"] > 1:
                axes.vlines(
                    figure["records_per_commit"],
                    figure["records_per_s_low"],
                    figure["records_per_s_high"],
                    color=looks.of(figure["backend"])["color"],
                    linewidth=1,
                )
        log_axes(axes, series[level], "records per commit", f"level {level}")
    drawn[0][1].set_ylabel(label)
    legend(canvas, drawn)
    return canvas
