"""The tables and the page about stateful queries."""

from __future__ import annotations

from collections.abc import Sequence

from harness.experiments.stateful.figures import GOAL_KEYS, GOALS
from harness.experiments.stateful.trial import APPLY, IN_ARROW, JVM, OURS, PANDAS, ROWS, SUBJECTS
from harness.report import text
from harness.report.charts import Chart, Mark, Panel
from harness.report.figures import Figure, Figures, columns, distinct, with_interval
from harness.report.page import Page, PageFinding, Table, tables

_METHOD = f"""\
A streaming query counts events by key, and gives out the new count of each key of the batch. Every subject reads the
same files, has the same trigger (0 seconds) and the same sink (`noop`, which drops the rows), and has as many
partitions as Spark has cores. All of them run in one session, whose JVM has no limits but a heap of 3 GB. Spark's own
state is in its RocksDB provider with changelog checkpointing. Ours is in the log of `stateful`, on the same disk.

First the state of each subject is filled: each key once. Three batches warm up. Then rounds follow. In each round every
subject has its turn, in an order shuffled by the seed: its query starts, has one batch that is not timed, and then one
batch of each size. All get the same batches. *Seconds* are Spark's own for the batch (`triggerExecution`). *CPU time*
is that of all processes: driver, JVM and Python workers. A ratio is the time of a subject over that of `{OURS}` in the
same round: above 1 ours is faster. On a busy machine only the ratios of CPU times are meaningful.

`{ROWS}`, `{PANDAS}` and `{APPLY}` call a Python function for each key. `{JVM}` is `groupBy("key").count()`, without
Python. *{IN_ARROW}* means that the function of `stateful` counts in Arrow first, and touches each key once; else it
reads and writes the state for each record.

At the end the state of each subject is read as a table, and compared with what Spark SQL computes from all events. Each
batch must have read all of its events, and given out a row for each of their keys. A difference fails the run.

For a restart, a query goes on in a session of its own. After a batch its driver, the JVM and the Python workers are
killed, and another driver is started at once. *Ready* is the time from the kill to the end of the new driver's first
batch. *Start* is the part until Spark has started. Copies of our stores on the local disk are *lost* with Spark's own
folder, as by default, or *kept*, in a folder that was given as `local`.
"""


def batch_tables(figures: Figures) -> list[Table]:
    """Return a table for each number of keys."""
    head = (
        "events in a batch",
        "subject",
        "function",
        "seconds",
        "events/s",
        "CPU time",
        f"time over {OURS}",
        "of CPU times",
        "n",
    )
    return [
        Table(
            f"{keys:,} keys: the time of a batch",
            head,
            [_batch_line(figure) for figure in _shown(figures["stateful"]) if figure["keys"] == keys],
            range(3, len(head)),
        )
        for (keys,) in sorted(distinct(figures["stateful"], "keys"))
    ]


def restart_table(figures: Figures) -> Table:
    """Return the table of restarts."""
    head = ("keys", "subject", "local copies", "ready", "start", "first batch", "n")
    rows = [
        [
            text.exact(figure["keys"]),
            f"`{figure['subject']}`",
            figure["copies"] or text.NONE,
            with_interval(figure, "ready_s", text.duration),
            text.duration(figure["start_s"]),
            text.duration(figure["first_batch_s"]),
            text.exact(figure["repeats"]),
        ]
        for figure in _shown(figures["stateful_restart"])
    ]
    caption = "From the kill of the driver to the end of the first new batch"
    return Table(caption, head, rows, (0, *range(3, len(head))))


def chart(figures: Sequence[Figure]) -> Chart:
    """Return the seconds of a batch, a panel for each number of keys and size of a batch."""
    panels: dict[tuple[int, int], list[Mark]] = {}
    for figure in _shown(figures):
        low, high = (figure[end] for end in columns("seconds"))
        mark = Mark(figure["subject"], figure["seconds"], low, high, hollow=low is None)
        panels.setdefault((figure["keys"], figure["batch_events"]), []).append(mark)
    titles = {cell: f"{cell[0]:,} keys, {cell[1]:,} events in a batch" for cell in panels}
    return Chart(
        "stateful",
        "Seconds of a batch of a stateful query",
        "dots",
        [Panel(titles[cell], marks) for cell, marks in sorted(panels.items())],
        "seconds of a batch",
        "s",
        more_is_better=False,
    )


def page(figures: Figures, states: int, wrong: int, missing: str) -> Page:
    """Return the page. ``wrong`` of ``states`` differ; ``missing`` is why nothing could be measured, or ""."""
    own = figures["stateful"]
    made = [*batch_tables(figures), *([restart_table(figures)] if figures["stateful_restart"] else [])]
    goals = ", ".join(f"{goal:g} against `{subject}`" for subject, goal in GOALS.items())
    return Page(
        "stateful",
        "Stateful queries on Spark",
        (
            "Streaming queries count events by key, with the state in our stores and in Spark's own.",
            f"A ratio above 1 says that `{OURS}` is faster.",
            f"The goals at {GOAL_KEYS:,} keys are {goals}.",
        ),
        tables(*made) if own else (),
        _METHOD,
        [
            PageFinding(
                "states of stateful queries",
                states,
                states - wrong,
                "equal what Spark SQL computes",
            )
        ],
        (chart(own),) if own else (),
        absent=f"not measured: {missing}" if missing else text.NOT_MEASURED,
    )


def _batch_line(figure: Figure) -> list[str]:
    return [
        text.exact(figure["batch_events"]),
        f"`{figure['subject']}`",
        SUBJECTS[figure["subject"]].called,
        with_interval(figure, "seconds", text.duration),
        text.count(figure["events_per_s"]),
        text.duration(figure["cpu_s"]),
        with_interval(figure, "seconds_ratio", text.ratio),
        with_interval(figure, "cpu_s_ratio", text.ratio),
        text.exact(figure["repeats"]),
    ]


def _shown(figures: Sequence[Figure]) -> list[Figure]:
    order = list(SUBJECTS)
    return sorted(figures, key=lambda one: (one["keys"], one["batch_events"], order.index(one["subject"])))
