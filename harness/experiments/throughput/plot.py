"""The charts of throughput: speed, time per commit, memory and disk, of each level and size of a commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from harness.experiments.throughput.figures import workload_order
from harness.report.dots import Dot, DotChart, Panel
from harness.report.figures import Figure, grouped
from harness.report.interval import columns
from harness.report.levels import level_order

_MARKS = {"o": "median", "D": "99th percentile"}
_MIB = 2.0**-20


def throughput_chart(figures: Sequence[Figure]) -> DotChart:
    """Return records per second of tasks, with intervals."""
    return DotChart(_panels(figures, _dots("records_per_s")), "records/s", "records/s", more_is_better=True)


def commit_latency_chart(figures: Sequence[Figure]) -> DotChart:
    """Return the median and the 99th percentile of the time per commit, of the changelog and the stores."""
    timed = [figure for figure in figures if figure["commit_p50_us"] is not None]
    dots = _dots("commit_p50_us", "o", 1e-3), _dots("commit_p99_us", "D", 1e-3)
    return DotChart(_panels(timed, *dots), "ms per commit", "ms", more_is_better=False, marks=_MARKS)


def memory_chart(figures: Sequence[Figure]) -> DotChart:
    """Return the peak memory of a task. It is not printed: the tables have the same figures."""
    return _of_size(figures, "peak_memory_bytes", "peak memory of a task, MiB")


def disk_chart(figures: Sequence[Figure]) -> DotChart:
    """Return the bytes on disk of a task's stores. They are not printed: the tables have the same figures."""
    return _of_size(figures, "bytes_on_disk", "stores of a task on disk, MiB")


def _of_size(figures: Sequence[Figure], name: str, label: str) -> DotChart:
    measured = [figure for figure in figures if figure[name] is not None]
    return DotChart(_panels(measured, _dots(name, "o", _MIB), printed=False), label, "MiB", more_is_better=False)


_MakeDot = Callable[[Figure], Dot]


def _dots(name: str, mark: str = "o", scale: float = 1.0) -> _MakeDot:
    def dot(figure: Figure) -> Dot:
        low, high = (None if figure[end] is None else figure[end] * scale for end in columns(name))
        return Dot(figure["backend"], figure["backend"], figure[name] * scale, low, high, mark)

    return dot


def _panels(figures: Sequence[Figure], *dots: _MakeDot, printed: bool = True) -> list[Panel]:
    """Return a panel for each workload, level, number of partitions and size of a commit.

    Printed are those of the workload and partitions with the most of these; the tables have the others.
    """
    chosen = _most_measured(figures)
    names = ("workload", "partitions", "durability", "records_per_commit")
    cells = sorted(
        grouped(figures, names),
        key=lambda cell: (
            (cell[0]["workload"], cell[0]["partitions"]) != chosen,
            workload_order(cell[0]["workload"]),
            cell[0]["workload"],
            cell[0]["partitions"],
            level_order(cell[0]["durability"]),
            cell[0]["records_per_commit"],
        ),
    )
    panels = []
    for cell, group in cells:
        of_chosen = (cell["workload"], cell["partitions"]) == chosen
        size, partitions = cell["records_per_commit"], cell["partitions"]
        which = (
            cell["workload"] if of_chosen else f"{cell['workload']}, {partitions} partition{'s' * (partitions != 1)}"
        )
        panels.append(
            Panel(
                f"{cell['durability']}, {size:,} records per commit ({which})",
                [dot(figure) for dot in dots for figure in map(dict, group)],
                cell["durability"],
                cell["workload"],
                size,
                printed=printed and of_chosen,
            )
        )
    return panels


def _most_measured(figures: Iterable[Figure]) -> Any:
    """Return the workload and partitions that have the most levels and sizes; None without figures."""
    groups: dict[tuple[str, int], set[tuple[str, int]]] = {}
    for figure in figures:
        place = figure["durability"], figure["records_per_commit"]
        groups.setdefault((figure["workload"], figure["partitions"]), set()).add(place)
    return min(groups, key=lambda key: (-len(groups[key]), workload_order(key[0]), key[1]), default=None)
