"""The figures, the ratios, the table and the page about tasks over Kafka."""

from __future__ import annotations

from collections.abc import Mapping

from harness.experiments.kafka.restart_report import METHOD as RESTART_METHOD
from harness.experiments.kafka.restart_report import RESTARTS
from harness.experiments.kafka.trial import BARE, KAFKA, READY_S, RECORDS, STREAMS
from harness.processes.load import LOAD_COLUMNS
from harness.report import text
from harness.report.database import busy, medians, ratio_columns
from harness.report.listing import Column, Listing, Report
from stores.config import StoreConfig

AT_LEAST: Mapping[str, float] = {BARE: 0.8, STREAMS: 1.3}
"""The least speed of the default backend over Kafka, relative to each yardstick."""
_CELL = ("workload", "partitions", "commit_interval_ms")
_OURS = f"ours.changelog = '{KAFKA}' and ours.subject not in ('{BARE}', '{STREAMS}')"
_CELL_OF_OURS = "(ours.workload, ours.partitions, ours.commit_interval_ms)"

_METHOD = """\
A broker of Apache Kafka runs on this machine, with a folder of its own. A topic has the events of a workload. Each
measurement is a fresh process and an application of its own, which processes all of them, exactly once. In every round
each subject is measured at each commit interval, in shuffled order, one interval after the other. A ratio is the median
of those of the rounds. The first fifth of the records is not timed. The
clock stops when the last record is committed.

* A *backend* is a task of ours for each partition. All tasks take turns in one thread. *Kafka* and *embedded* say where
  its changelog, its input and its outputs are. With *one transaction* all tasks commit together, as in a worker with
  `transaction.scope=thread`; otherwise each task has its own.
* *Bare loop* consumes, calls the workload with a dictionary as its store, and produces each change and each output. It
  uses the same client with the same settings, and has its input offsets in its transactions.
* *Kafka Streams* 4.1 does the workload `count` in Java: one thread, `exactly_once_v2`, a persistent store, no cache.

At the end all subjects must have the same pairs in their stores; a difference fails the run. *CPU time* is that of the
process alone: the broker's is not in it. The broker has the same cores, so the wall time has its work as well. Keys of
`count` are drawn from 20,000.
"""


QUERY = f"""with subject as (
        select {", ".join(_CELL)}, subject, changelog, count(*) as repeats, records, {medians("seconds", "cpu_s")},
            min(seconds) as best_s, max(seconds) as worst_s, records / median(seconds) as records_per_s,
            {medians(*LOAD_COLUMNS)}
        from kafka group by {", ".join(_CELL)}, subject, changelog
    )
    select ours.*, ours.records_per_s / bare.records_per_s as bare_ratio,
        ours.records_per_s / streams.records_per_s as streams_ratio
    from subject as ours
        left join subject as bare on bare.subject = '{BARE}' and {_OURS}
            and (bare.workload, bare.partitions, bare.commit_interval_ms) = {_CELL_OF_OURS}
        left join subject as streams on streams.subject = '{STREAMS}' and {_OURS}
            and (streams.workload, streams.partitions, streams.commit_interval_ms) = {_CELL_OF_OURS}"""
"""Medians over repeats for each subject and cell, with the ratios of speeds to the yardsticks.

They are for backends over Kafka only: the embedded changelog does other work than the yardsticks.
"""


_SPEED = "ours.records / ours.seconds / (theirs.records / theirs.seconds)"
RATIOS = f"""select workload || ' over Kafka, '
            || iif(partitions = 1, 'one partition', exact(partitions) || ' partitions')
            || ', a commit every ' || duration(commit_interval_ms / 1000.0) as claim,
        ours.subject as subject, theirs.subject as yardstick, 'CHANGELOG' as durability, null as records_per_commit,
        iif(ours.subject = '{StoreConfig().backend}',
            iif(theirs.subject = '{BARE}', {AT_LEAST[BARE]}, {AT_LEAST[STREAMS]}), null) as at_least,
        {ratio_columns(_SPEED, f"{busy('ours')} or {busy('theirs')}")}
    from kafka as ours join kafka as theirs using ({", ".join(_CELL)}, seed, repeat)
    where {_OURS} and theirs.subject in ('{BARE}', '{STREAMS}')
    group by {", ".join(_CELL)}, ours.subject, theirs.subject"""
"""The speed of each backend over Kafka, relative to each yardstick in its round."""


SPEEDS = Listing(
    "`{workload}` at level CHANGELOG, exactly once: medians over the rounds",
    "kafka_figure order by workload, partitions, commit_interval_ms, subject, changelog",
    (
        Column("partitions", "partitions", text.exact),
        Column("commit interval", "commit_interval_ms / 1000.0", text.duration),
        Column("subject"),
        Column("changelog"),
        Column("records/s", "records_per_s", text.count),
        Column("best", "records / best_s", text.count),
        Column("worst", "records / worst_s", text.count),
        Column("CPU time per record", "cpu_s / records", text.duration),
        Column("of the bare loop", "bare_ratio", text.ratio),
        Column("of Kafka Streams", "streams_ratio", text.ratio),
        Column("repeats", "repeats", text.exact),
        Column("load", "load_average", text.count),
    ),
)


REPORT = Report(
    ("kafka", "kafka_restart"),
    "kafka",
    "Tasks over Kafka",
    (
        "Tasks process a topic of a real broker exactly once, beside a bare loop and Kafka Streams.",
        f"The goals are {AT_LEAST[BARE]:g} of the speed of the bare loop, and {AT_LEAST[STREAMS]:g} of that of "
        "Kafka Streams.",
        f"After a kill with {RECORDS:,} records in its store, a worker is to be ready in {READY_S:g} s.",
    ),
    (SPEEDS, RESTARTS),
    _METHOD + RESTART_METHOD,
)


def partitions_text(number: int) -> str:
    """Return a number of partitions in words."""
    return "one partition" if number == 1 else f"{number:,} partitions"
