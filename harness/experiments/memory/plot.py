"""The chart of memory: the peak of a large step, and the bound that was computed beforehand."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report import text
from harness.report.dots import Dot, DotChart, Panel
from harness.report.figures import Figure, grouped
from harness.report.levels import level_order

_MIB = 2.0**-20
_MARKS = {"o": "peak memory of step and commit", "D": "its bound"}


def large_step_chart(figures: Sequence[Figure]) -> DotChart:
    """Return a panel for each level and size of a step. It is not printed: the table has the same figures."""
    steps = sorted(
        grouped(figures, ("durability", "step_bytes", "limit_bytes")),
        key=lambda cell: (level_order(cell[0]["durability"]), cell[0]["step_bytes"], cell[0]["limit_bytes"]),
    )
    panels = [
        Panel(
            f"{cell['durability']}, a step of {text.size(cell['step_bytes'])}, limit {text.size(cell['limit_bytes'])}",
            [
                Dot(step["backend"], step["backend"], step[name] * _MIB, mark=mark)
                for mark, name in (("o", "peak_bytes"), ("D", "bound_bytes"))
                for step in group
                if step[name] is not None
            ],
            cell["durability"],
            printed=False,
        )
        for cell, group in steps
    ]
    return DotChart(panels, "memory, MiB", "MiB", more_is_better=False, marks=_MARKS, hollow="one step of each")
