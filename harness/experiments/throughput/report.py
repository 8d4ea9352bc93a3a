"""The tables, the charts and the page about the throughput of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from harness.experiments.throughput.figures import end_state_finding, width_sentences, workload_order
from harness.report import text
from harness.report.charts import Chart, Mark, Panel
from harness.report.figures import Figure, Figures, columns, distinct, grouped, with_interval
from harness.report.page import Page, Table, tables
from harness.report.text import level_order

_METHOD = """\
Spark partitions a workload's events by key and gives each partition to one task, with stores and a changelog of its
own. Every measurement runs in a fresh process, in rounds whose order is shuffled by the seed. Where n is 5 or more, the
log is processed again and again for at least two seconds, and medians have intervals (order statistics, 93.75 % for
five repeats). Where all of these have five repeats and time is left, the cells with the widest intervals of records/s
are measured again, up to four in turns. A repeat is busy if other processes or the hypervisor took more than 10 % of
the machine's CPU time. A commit is the whole of it: changelog, then stores. After the last record the process is killed
with a transaction open, and a fresh one opens the task. Its state is compared, key by key, with the state that Spark
SQL computes from the same events.
"""


def throughput_tables(figures: Figures) -> list[Table]:
    """Return one table per workload, level and number of partitions."""
    tables_of_levels = []
    for workload, durability, partitions in distinct(figures["throughput"], "workload", "durability", "partitions"):
        own = [
            figure
            for figure in figures["throughput"]
            if (figure["workload"], figure["durability"], figure["partitions"]) == (workload, durability, partitions)
        ]
        rows = [
            [
                figure["backend"],
                text.exact(figure["records_per_commit"]),
                text.exact(figure["records"]),
                text.exact(figure["repeats"]),
                text.exact(figure["busy"]),
                with_interval(figure, "records_per_s", text.count),
                with_interval(figure, "commit_p50_us", text.latency),
                with_interval(figure, "commit_p99_us", text.latency),
                text.latency(figure["commit_max_us"]),
                text.size(figure["bytes_written"]),
                with_interval(figure, "bytes_on_disk", text.size),
                with_interval(figure, "peak_memory_bytes", text.size),
                text.exact(figure["open_files"]),
                text.duration(figure["open_after_kill_s"]),
                figure["end_state"],
            ]
            for figure in own
        ]
        caption = (
            f"Workload `{workload}`, level {durability}, {partitions} partition{'s' * (partitions != 1)}, "
            "medians of n repeats, with intervals from 5 on"
        )
        head = (
            "backend",
            "records per commit",
            "records",
            "n",
            "busy",
            "records/s",
            "commit p50",
            "p99",
            "longest",
            "written",
            "on disk",
            "peak memory",
            "open files",
            "opened again",
            "end state against Spark SQL",
        )
        different = [place for place, figure in enumerate(own) if figure["end_state"] == "different"]
        tables_of_levels.append(Table(caption, head, rows, range(1, 14), (1, 2, 3, 4, 14), different))
    return tables_of_levels


def page(figures: Figures, failures: Sequence[str]) -> Page:
    """Return the page."""
    own = figures["throughput"]
    wrong = text.failures("Wrong end states", failures) if failures else ""
    return Page(
        "throughput",
        "Throughput of a task",
        (
            "Tasks with a changelog process the events of a workload, with each backend and several sizes of a commit.",
            "The tables show records per second, the time per commit, memory, disk, and the time to open after a kill.",
        ),
        [wrong, *(f"{each}\n" for each in width_sentences(own)), *tables(*throughput_tables(figures))] if own else (),
        _METHOD,
        (end_state_finding(own),),
        charts(own),
    )


def charts(figures: Sequence[Figure]) -> tuple[Chart, ...]:
    """Return speed, time per commit, memory and disk, of each level and size of a commit.

    Memory and disk are not printed: the tables have the same figures.
    """
    timed = [figure for figure in figures if figure["commit_p50_us"] is not None]
    commits = (
        _mark("commit_p50_us", 1e-3, measure="median", shape="circle"),
        _mark("commit_p99_us", 1e-3, measure="99th percentile", shape="diamond"),
    )
    return (
        Chart(
            "throughput",
            "Records per second of a task",
            "dots",
            _panels(figures, _mark("records_per_s")),
            "records/s",
            "records/s",
        ),
        Chart(
            "commit-latency",
            "Milliseconds per commit of a task",
            "dots",
            _panels(timed, *commits),
            "ms per commit",
            "ms",
            more_is_better=False,
        ),
        _of_size(figures, "peak_memory_bytes", "task-memory", "Peak memory of a task", "peak memory of a task, MiB"),
        _of_size(
            figures, "bytes_on_disk", "task-disk", "Size of a task's stores on disk", "stores of a task on disk, MiB"
        ),
    )


def _of_size(figures: Sequence[Figure], column: str, name: str, title: str, label: str) -> Chart:
    measured = [figure for figure in figures if figure[column] is not None]
    panels = _panels(measured, _mark(column, 2.0**-20), printed=False)
    return Chart(name, title, "dots", panels, label, "MiB", more_is_better=False)


_MakeMark = Callable[[Figure], Mark]


def _mark(name: str, scale: float = 1.0, measure: str = "", shape: str = "") -> _MakeMark:
    def mark(figure: Figure) -> Mark:
        low, high = (None if figure[end] is None else figure[end] * scale for end in columns(name))
        return Mark(
            figure["backend"], figure[name] * scale, low, high, hollow=low is None, measure=measure, shape=shape
        )

    return mark


def _panels(figures: Sequence[Figure], *marks: _MakeMark, printed: bool = True) -> list[Panel]:
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
                [mark(figure) for mark in marks for figure in map(dict, group)],
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
