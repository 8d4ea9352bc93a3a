"""The figures, the ratios, the tables and the page about stateful queries."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from harness.experiments.stateful.trial import (
    APPLY,
    IN_ARROW,
    IN_BATCHES,
    JVM,
    OURS,
    OURS_IN_ARROW,
    OURS_IN_BATCHES,
    PANDAS,
    ROWS,
    SUBJECTS,
)
from harness.report import text
from harness.report.charts import Chart
from harness.report.database import busy, interval_ends, medians, ratio_columns
from harness.report.figures import Figure, Figures
from harness.report.listing import Column, Listing, Plot, Report
from harness.report.page import Page, PageFinding

GOAL_KEYS = 100_000
"""The number of keys for which the goals hold."""
GOALS = {APPLY: 10.0, PANDAS: 3.0, ROWS: 3.0, JVM: 0.7}
"""The least ratio of the time of a batch over that of ``OURS``."""
BATCH_GOAL = 1.4
"""The least ratio of the time of a batch in the JVM over that of ``OURS_IN_BATCHES``."""
_CELL = "keys, batch_events, partitions, seed"
_TIMES = f"iif(one.subject = '{OURS}', null, one.seconds / ours.seconds)"
# A process that ends in a batch takes all of its CPU time away, which is then unknown.
_CPU_TIMES = f"iif(one.subject <> '{OURS}' and one.cpu_s > 0 and ours.cpu_s > 0, one.cpu_s / ours.cpu_s, null)"
QUERIES = MappingProxyType(
    {
        "stateful": f"""select {_CELL}, one.subject as subject, count(*) as repeats, sum({busy("one")}) as busy,
                median(one.seconds) as seconds, {interval_ends("seconds", "one.seconds")},
                median(iif(one.cpu_s > 0, one.cpu_s, null)) as cpu_s,
                median({_TIMES}) as seconds_ratio, {interval_ends("seconds_ratio", _TIMES)},
                median({_CPU_TIMES}) as cpu_s_ratio, {interval_ends("cpu_s_ratio", _CPU_TIMES)},
                batch_events / median(one.seconds) as events_per_s
            from stateful as one left join (select * from stateful where subject = '{OURS}') as ours
                using ({_CELL}, round)
            group by {_CELL}, one.subject""",
        "stateful_restart": f"""select subject, keys, copies, batch_events, seed, count(*) as repeats,
                {medians("ready_s", "start_s", "first_batch_s")}, {interval_ends("ready_s")}
            from stateful_restart group by subject, keys, copies, batch_events, seed""",
    }
)
"""Medians of each subject, keys and batch size, with the ratios of its times over those of ``OURS``, and of restarts.
"""
_BUSY = f"{busy('theirs')} or {busy('ours')}"
_CPU = "iif(theirs.cpu_s > 0 and ours.cpu_s > 0, theirs.cpu_s / ours.cpu_s, null)"
_GOAL = " ".join(f"when '{yardstick}' then {goal}" for yardstick, goal in GOALS.items())
_LEAST = f"iif(ours.subject = '{OURS_IN_BATCHES}', {BATCH_GOAL}, case theirs.subject {_GOAL} end)"
RATIOS = f"""select 'a batch of ' || exact(batch_events) || ' events, with ' || exact(keys) || ' keys' as claim,
        ours.subject as subject, theirs.subject as yardstick, null as durability, batch_events as records_per_commit,
        iif(keys = {GOAL_KEYS}, {_LEAST}, null) as at_least, '' as reason,
        {ratio_columns("theirs.seconds / ours.seconds", _BUSY, _CPU)}
    from stateful as ours join stateful as theirs using ({_CELL}, round)
    where case theirs.subject {_GOAL} end is not null
        and (ours.subject = '{OURS}'
             or theirs.subject = '{JVM}' and ours.subject in ('{OURS_IN_ARROW}', '{OURS_IN_BATCHES}'))
    group by {_CELL}, ours.subject, theirs.subject"""
"""Times of Spark's own ways over ours in the same round, with the goals."""


_METHOD = f"""\
A streaming query counts events by key, and gives out the new count of each key of the batch. Every subject reads the
same files, has the same trigger (0 seconds) and the same sink (`noop`, which drops the rows), and has as many
partitions as Spark has cores. All of them run in one session, whose JVM has no limits but a heap of 3 GB. Spark's own
state is in its RocksDB provider with changelog checkpointing. Ours is in the log of `stateful`, on the same disk.

First the state of each subject is filled: each key once. Three batches warm up. Then rounds follow. In each round every
subject has its turn, in an order shuffled by the seed: its query starts, has one batch that is not timed, and one that
is. All get the same batches. The rounds of small batches come first. *Seconds* are Spark's own for the batch
(`triggerExecution`). *CPU time* is that of all processes: driver, JVM and Python workers. A ratio is the time of a
subject over that of `{OURS}` in the same round: above 1 ours is faster. On a busy machine only the ratios of CPU times
are meaningful.

`{ROWS}`, `{PANDAS}` and `{APPLY}` call a Python function for each key. `{JVM}` is `groupBy("key").count()`, without
Python. *{IN_ARROW}* means that the function of `stateful` counts in Arrow first, and touches each key once. So does the
one of *{IN_BATCHES}*, which is that of a task (`process_batch`). Else it reads and writes the state for each record.

At the end the state of each subject is read as a table, and compared with what Spark SQL computes from all events. Each
batch must have read all of its events, and given out a row for each of their keys. A difference fails the run. Where
the time of a run was over before the states were read, its rounds count without that.

For a restart, a query goes on in a session of its own. After a batch its driver, the JVM and the Python workers are
killed, and another driver is started at once. *Ready* is the time from the kill to the end of the new driver's first
batch. *Start* is the part until Spark has started. Copies of our stores on the local disk are *lost* with Spark's own
folder, as by default, or *kept*, in a folder that was given as `local`.
"""


_BATCHES = Listing(
    "{exact(keys)} keys: the time of a batch",
    "stateful_figure order by keys, batch_events, place",
    (
        Column("events in a batch", "batch_events", text.exact, right=False),
        Column("subject", "'`' || subject || '`'"),
        Column("function", "called"),
        Column("seconds", "seconds", text.duration, interval=True),
        Column("events/s", "events_per_s", text.count),
        Column("CPU time", "cpu_s", text.duration),
        Column(f"time over {OURS}", "seconds_ratio", text.ratio, interval=True),
        Column("of CPU times", "cpu_s_ratio", text.ratio, interval=True),
        Column("n", "repeats", text.exact),
    ),
)
_RESTARTS = Listing(
    "From the kill of the driver to the end of the first new batch",
    "stateful_restart_figure order by keys, batch_events, place",
    (
        Column("keys", "keys", text.exact),
        Column("subject", "'`' || subject || '`'"),
        Column("local copies", f"coalesce(nullif(copies, ''), '{text.NONE}')"),
        Column("ready", "ready_s", text.duration, interval=True),
        Column("start", "start_s", text.duration),
        Column("first batch", "first_batch_s", text.duration),
        Column("n", "repeats", text.exact),
    ),
)
_MARKS = """select exact(keys) || ' keys, ' || exact(batch_events) || ' events in a batch' as title, subject as backend,
    seconds as value, seconds_from as low, seconds_to as high
    from stateful_figure order by keys, batch_events, place"""


_GOALS = ", ".join(f"{goal:g} against `{subject}`" for subject, goal in GOALS.items())
REPORT = Report(
    ("stateful",),
    "stateful",
    "Stateful queries on Spark",
    (
        "Streaming queries count events by key, with the state in our stores and in Spark's own.",
        f"A ratio above 1 says that `{OURS}` is faster.",
        f"The goals at {GOAL_KEYS:,} keys are {_GOALS}, and {BATCH_GOAL:g} of `{OURS_IN_BATCHES}` against `{JVM}`.",
    ),
    (_BATCHES, _RESTARTS),
    _METHOD,
    (
        Plot(
            Chart(
                "stateful",
                "Seconds of a batch of a stateful query",
                "dots",
                (),
                "seconds of a batch",
                "s",
                more_is_better=False,
            ),
            _MARKS,
        ),
    ),
)


def page(figures: Figures, states: int, wrong: int, absent: str) -> Page:
    """Return the page. ``wrong`` of ``states`` differ; ``absent`` says why nothing was measured."""
    placed = {kind: _placed(figures[kind]) for kind in ("stateful", "stateful_restart")}
    finding = PageFinding("states of stateful queries", states, states - wrong, "equal what Spark SQL computes")
    return REPORT.page(placed, absent=absent, findings=[finding])


def _placed(figures: Sequence[Figure]) -> list[Figure]:
    """Return the figures with the place of each subject, and what calls its function."""
    order = list(SUBJECTS)
    return [{**one, "place": order.index(one["subject"]), "called": SUBJECTS[one["subject"]].called} for one in figures]
