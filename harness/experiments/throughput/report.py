"""The figures, the tables, the charts and the page about the throughput of tasks, and what represents a level."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from harness.experiments import nexmark_cores
from harness.experiments.nexmark_cores import BY_NUMBER, OF_QUERIES
from harness.experiments.throughput.record_parts import PARTS
from harness.processes.load import SPEED_UNIT
from harness.report import text
from harness.report.charts import BAR, Chart
from harness.report.database import busy, by_round, interval_ends, medians, query
from harness.report.figures import Figure, Figures, columns
from harness.report.listing import Column, Listing, Report, panels
from harness.report.page import PageFinding

CELL = ("workload", "durability", "partitions", "records_per_commit")
"""The columns whose values the rivals of a cell have in common."""
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
_LOAD = ("seconds", "waited_share", "cpu_per_wall", "others_share", "steal_share", "load_average")


_SPEED = f"coalesce(machine_speed / {SPEED_UNIT}, 1)"
_BY_ROUND = {
    "records_per_s": f"records_per_s / {_SPEED}",
    "commit_p99_us": f"commit_p99_us * {_SPEED}",
    "peak_memory_bytes": "peak_memory_bytes",
    "bytes_on_disk": "bytes_on_disk",
}
"""The values that picks rest on. What takes time is as on a machine of one speed: see ``SpeedMeter``."""
_KEY, _CELL = ", ".join(KEY), ", ".join(CELL)


QUERY = f"""with done as (
            select {_KEY}, max(coalesce(records, 0)) as most, case when max(end_state = 'different') then 'different'
                when max(end_state = 'not compared') then 'not compared' else 'equal' end as worst_end
            from throughput group by {_KEY}
        ),
        shared as (select {_CELL}, min(most) as least from done group by {_CELL})
    select {_KEY}, count(*) as repeats, {medians(*_MEDIANS, *PARTS, *_LOAD)},
        median(1e6 * cpu_s / nullif(records, 0)) as cpu_us_per_record,
        min(records_per_s) as records_per_s_low, max(records_per_s) as records_per_s_high,
        {", ".join(map(interval_ends, INTERVALS))}, max(commit_max_us) as commit_max_us,
        {", ".join(by_round(*each) for each in _BY_ROUND.items())},
        sum({busy("throughput")}) as busy, max(worst_end) as end_state
    from throughput join shared using ({_CELL}) join done using ({_KEY}) where coalesce(records, 0) >= least
    group by {_KEY} order by {_KEY}"""
"""A line per configuration: medians over repeats, their intervals, the longest commit, and the number of busy repeats.

A round may process fewer records than later ones. It counts until each backend of its cell has processed more. Its end
state always counts. The values by round are those that picks rest on.
"""


WRONG_ENDS = f"""select backend || ' at ' || durability || ', ' || workload || ', ' || exact(records_per_commit) ||
        ' records per commit, ' || partitions || ' partitions: the end state is not what Spark SQL computes' as sentence
    from throughput where end_state = 'different' group by {_KEY} order by {_KEY}"""


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
        size = records_per_commit or self.records_per_commit
        return self._is_of_kind(figure) and figure["records_per_commit"] == size

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


_METHOD = """\
Spark partitions a workload's events by key and gives each partition to one task, with stores and a changelog of its
own. Every measurement runs in a fresh process, in rounds whose order is shuffled by the seed. In the first round the
log is processed once, in later ones again and again for at least a second. Rounds go on until every pick is decided,
as far as there is time. From five repeats on, medians have intervals (order statistics, 93.75 % for five). Records/s
and the time per commit are without the time in which a task was ready to run and had no processor; *waited* is its
share. A repeat is busy if other processes or the hypervisor took more than 10 % of the machine's CPU time. A commit is
the whole of it: changelog, then stores. After the last record the process is killed with a transaction open, and a
fresh one opens the task. Its state is compared, key by key, with the state that Spark SQL computes from the same
events.

Where the time of a record goes is measured in that fresh process, after the comparison, with up to 10,000 more records:
the function's stores and context read the CPU time of the thread around each call, which adds about half a microsecond
to a call. *Stores* has what they log, *outputs* the calls of `forward`. Waits for the disk and other threads do not
count.
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
        Column("waited", "waited_share", text.share),
        Column("CPU per record", "cpu_us_per_record", text.latency),
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
    shown_once=(1, 2, 3, 4, 16),
)


FORM = "iif(substr(workload, -8) = '_batches', 'batches', 'records')"
"""The form of the function that a workload is measured with."""
NEXMARK = Listing(
    "Nexmark: events per second and core, level {durability}; Flink's are published figures of other machines",
    f"throughput_figure {OF_QUERIES} order by level_place(durability), {BY_NUMBER}, backend, workload",
    (
        Column("query", "substr(query, 9)"),
        Column("backend"),
        Column("form", FORM),
        Column("records per commit", "records_per_commit", text.exact),
        Column("n", "repeats", text.exact),
        Column("read events/s", "records_per_s", text.count),
        Column("CPU per read event", "cpu_us_per_record", text.latency),
        Column("all events/s and core", "1e6 / cpu_us_per_record / share", text.count),
        Column("Flink 1.13", "flink", text.count),
    ),
    shown_once=(2, 3, 4),
)


WHERE_TIME_GOES = Listing(
    "Where the time of a record goes, workload `{replace(workload, '_batches', '')}`, level {durability}, "
    "{exact(records_per_commit)} records per commit",
    """throughput_figure where function_us is not null and durability = 'CHANGELOG' and workload not like 'nexmark%'
        order by replace(workload, '_batches', ''), records_per_commit, backend, workload""",
    (
        Column("backend"),
        Column("form", FORM),
        Column("function", "function_us", text.latency),
        Column("stores", "stores_us", text.latency),
        Column("outputs", "outputs_us", text.latency),
        Column("rest of the task", "task_us", text.latency),
        Column("commit of the changelog", "log_commit_us", text.latency),
        Column("commit of the stores", "store_commit_us", text.latency),
    ),
)


REPORT = Report(
    ("throughput",),
    "throughput",
    "Throughput of a task",
    (
        "Tasks with a changelog process the events of a workload, with each backend and several sizes of a commit.",
        "The tables show records per second, the time per commit, memory, disk, and the time to open after a kill.",
    ),
    (THROUGHPUT, WHERE_TIME_GOES, NEXMARK),
    _METHOD + nexmark_cores.METHOD,
)


def charts(figures: Figures) -> tuple[Chart, ...]:
    """Return speed, time per commit, memory and disk, of each level and size of a commit.

    Memory and disk are not printed: the tables have the same figures.
    """
    commits = [
        *_marks(figures, "commit_p50_us", 1e-3, "median"),
        *_marks(figures, "commit_p99_us", 1e-3, "99th percentile", BAR),
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
