"""The tables, the charts and the page about the throughput of tasks."""

from __future__ import annotations

from collections.abc import Sequence

from harness.experiments.throughput.figures import end_state_finding, width_sentences, workload_order
from harness.report import text
from harness.report.charts import Chart
from harness.report.database import query
from harness.report.figures import Figure, Figures
from harness.report.listing import Column, Listing, Report, panels
from harness.report.page import Page

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


THROUGHPUT = Listing(
    "Workload `{workload}`, level {durability}, {partitions || iif(partitions = 1, ' partition', ' partitions')}, "
    "medians of n repeats, with intervals from 5 on",
    "throughput_figure",
    (
        Column("backend"),
        Column("records per commit", "records_per_commit", text.exact),
        Column("records", "records", text.exact),
        Column("n", "repeats", text.exact),
        Column("busy", "busy", text.exact),
        Column("records/s", "records_per_s", text.count, interval=True),
        Column("commit p50", "commit_p50_us", text.latency, interval=True),
        Column("p99", "commit_p99_us", text.latency, interval=True),
        Column("longest", "commit_max_us", text.latency),
        Column("written", "bytes_written", text.size),
        Column("on disk", "bytes_on_disk", text.size, interval=True),
        Column("peak memory", "peak_memory_bytes", text.size, interval=True),
        Column("open files", "open_files", text.exact),
        Column("opened again", "open_after_kill_s", text.duration),
        Column("end state against Spark SQL", "end_state"),
    ),
    notable="end_state = 'different'",
    shown_once=(1, 2, 3, 4, 14),
)


REPORT = Report(
    ("throughput",),
    "throughput",
    "Throughput of a task",
    (
        "Tasks with a changelog process the events of a workload, with each backend and several sizes of a commit.",
        "The tables show records per second, the time per commit, memory, disk, and the time to open after a kill.",
    ),
    (THROUGHPUT,),
    _METHOD,
)


def page(figures: Figures, failures: Sequence[str]) -> Page:
    """Return the page."""
    own = figures["throughput"]
    wrong = text.failures("Wrong end states", failures) if failures else ""
    words = [wrong, *(f"{each}\n" for each in width_sentences(own))]
    return REPORT.page(figures, before=words, findings=(end_state_finding(own),), plots=charts(figures))


def charts(figures: Figures) -> tuple[Chart, ...]:
    """Return speed, time per commit, memory and disk, of each level and size of a commit.

    Memory and disk are not printed: the tables have the same figures.
    """
    commits = [
        *_marks(figures, "commit_p50_us", 1e-3, "median", "circle"),
        *_marks(figures, "commit_p99_us", 1e-3, "99th percentile", "diamond"),
    ]
    speeds = panels(_marks(figures, "records_per_s"))
    return (
        Chart("throughput", "Records per second of a task", "dots", speeds, "records/s", "records/s"),
        Chart(
            "commit-latency",
            "Milliseconds per commit of a task",
            "dots",
            panels(commits),
            "ms per commit",
            "ms",
            more_is_better=False,
        ),
        _of_size(figures, "peak_memory_bytes", "task-memory", "Peak memory of a task", "peak memory of a task, MiB"),
        _of_size(
            figures, "bytes_on_disk", "task-disk", "Size of a task's stores on disk", "stores of a task on disk, MiB"
        ),
    )


def _of_size(figures: Figures, column: str, name: str, title: str, label: str) -> Chart:
    marks = ({**line, "printed": False} for line in _marks(figures, column, 2.0**-20))
    return Chart(name, title, "dots", panels(marks), label, "MiB", more_is_better=False)


_MARKS = """with measured as (
        select *, workload || ', ' || partitions || iif(partitions = 1, ' partition', ' partitions') as work
        from throughput_figure where {column} is not null
    ),
    shown as (
        select work as printed_work, count(distinct durability || records_per_commit) as cells
        from measured group by work order by cells desc, workload_place, partitions limit 1
    )
    select durability || ', ' || exact(records_per_commit) || ' records per commit ('
            || iif(work = printed_work, workload, work) || ')' as title,
        durability as level, workload, records_per_commit, work = printed_work as printed, backend,
        {column} * {scale} as value, {column}_from * {scale} as low, {column}_to * {scale} as high,
        '{measure}' as measure, '{shape}' as shape
    from measured, shown
    order by work <> printed_work, workload_place, workload, partitions, level_place(durability), durability,
        records_per_commit"""
"""A panel for each workload, level, number of partitions and size of a commit.

Printed are those of the workload and partitions with the most of these; the tables have the others.
"""


def _marks(figures: Figures, column: str, scale: float = 1.0, measure: str = "", shape: str = "") -> list[Figure]:
    placed = [{**each, "workload_place": workload_order(each["workload"])} for each in figures["throughput"]]
    sql = _MARKS.format(column=column, scale=scale, measure=measure, shape=shape)
    return query({"throughput": placed}, sql)
