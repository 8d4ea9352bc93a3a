"""The page about the throughput of tasks."""

from __future__ import annotations

from collections.abc import Sequence

from harness.experiments.throughput.figures import end_state_finding, width_sentences
from harness.experiments.throughput.plot import commit_latency_chart, disk_chart, memory_chart, throughput_chart
from harness.experiments.throughput.tables import throughput_tables
from harness.report import text
from harness.report.drawing import Plot
from harness.report.figures import Figures
from harness.report.page import Page, tables

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


def page(figures: Figures, failures: Sequence[str]) -> Page:
    """Return the page."""
    own = figures["throughput"]
    wrong = text.failures("Wrong end states", failures) if failures else ""
    rates, commits = (
        "Records per second of a task",
        "Milliseconds per commit of a task",
    )
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
        (
            Plot("throughput", rates, throughput_chart(own)),
            Plot("commit-latency", commits, commit_latency_chart(own)),
            Plot("task-memory", "Peak memory of a task", memory_chart(own)),
            Plot("task-disk", "Size of a task's stores on disk", disk_chart(own)),
        ),
    )
