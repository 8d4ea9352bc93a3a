"""The figures, the ratios, the table and the page about tasks over Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from harness.experiment import RATIO
from harness.experiments.kafka.restart_report import METHOD as RESTART_METHOD
from harness.experiments.kafka.restart_report import RESTARTS
from harness.experiments.kafka.trial import BARE, KAFKA, READY_S, RECORDS, STREAMS
from harness.processes.load import is_busy, median_load
from harness.report import text
from harness.report.figures import Figure, Figures, grouped, in_order
from harness.report.listing import Column, Listing
from harness.report.page import Page, tables
from harness.report.ratios import ratio_of
from harness.report.rows import Row
from stores.config import StoreConfig

AT_LEAST: Mapping[str, float] = {BARE: 0.8, STREAMS: 1.3}
"""The least speed of the default backend over Kafka, relative to each yardstick."""
_CELL = ("workload", "partitions", "commit_interval_ms")

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


def figures(rows: Iterable[Row]) -> list[Figure]:
    """Return the medians over repeats for each subject and cell, with the ratios of speeds to the yardsticks."""
    made = [_figure(named, repeats) for named, repeats in grouped(rows, (*_CELL, "subject", "changelog"))]
    speeds = {(*(figure[name] for name in _CELL), figure["subject"]): figure["records_per_s"] for figure in made}
    for figure in made:
        cell = tuple(figure[name] for name in _CELL)
        for name, yardstick in (("bare", BARE), ("streams", STREAMS)):
            beside = speeds.get((*cell, yardstick)) if _is_compared(figure) else None
            figure[f"{name}_ratio"] = figure["records_per_s"] / beside if beside else None
    return in_order(made)


def ratios(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows of kind "ratio": the speed of each backend over Kafka, relative to each yardstick in its round."""
    speeds = {yardstick: {_round(row): row for row in rows if row["subject"] == yardstick} for yardstick in AT_LEAST}
    ours = [row for row in rows if _is_compared(row)]
    found = []
    for yardstick, beside in speeds.items():
        for cell, repeats in grouped([row for row in ours if _round(row) in beside], (*_CELL, "subject")):
            pairs = [(row, beside[_round(row)]) for row in repeats]
            busy = sum(is_busy(row) or is_busy(other) for row, other in pairs)
            found.append(
                {
                    "kind": RATIO,
                    "claim": _words(cell),
                    "subject": cell["subject"],
                    "yardstick": yardstick,
                    "durability": "CHANGELOG",
                    "records_per_commit": None,
                    "at_least": AT_LEAST[yardstick] if cell["subject"] == StoreConfig().backend else None,
                    **ratio_of([_speed(row) / _speed(other) for row, other in pairs], busy),
                }
            )
    return found


def _is_compared(row: Mapping[str, Any]) -> bool:
    """Return True for our backends over Kafka: the embedded changelog does other work than the yardsticks."""
    return row["subject"] not in AT_LEAST and row["changelog"] == KAFKA


def _round(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in (*_CELL, "seed", "repeat"))


def _speed(row: Row) -> float:
    return float(row["records"] / row["seconds"])


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


def page(figures: Figures, missing: str) -> Page:
    """Return the page. ``missing`` is the reason why nothing could be measured, or ""."""
    measured = [*SPEEDS.tables(figures), *RESTARTS.tables(figures)]
    return Page(
        "kafka",
        "Tasks over Kafka",
        (
            "Tasks process a topic of a real broker exactly once, beside a bare loop and Kafka Streams.",
            f"The goals are {AT_LEAST[BARE]:g} of the speed of the bare loop, and {AT_LEAST[STREAMS]:g} of that of "
            "Kafka Streams.",
            f"After a kill with {RECORDS:,} records in its store, a worker is to be ready in {READY_S:g} s.",
        ),
        tables(*measured) if measured else (),
        _METHOD + RESTART_METHOD,
        absent=f"not measured: {missing}" if missing else text.NOT_MEASURED,
    )


def _figure(named: Figure, repeats: Sequence[Row]) -> Figure:
    seconds = median(row["seconds"] for row in repeats)
    records = repeats[0]["records"]
    return {
        "kind": "kafka",
        **named,
        "repeats": len(repeats),
        "records": records,
        "seconds": seconds,
        "best_s": min(row["seconds"] for row in repeats),
        "worst_s": max(row["seconds"] for row in repeats),
        "cpu_s": median(row["cpu_s"] for row in repeats),
        "records_per_s": records / seconds,
        **median_load(repeats),
    }


def _words(figure: Figure) -> str:
    interval = text.duration(figure["commit_interval_ms"] / 1_000)
    return f"{figure['workload']} over Kafka, {partitions_text(figure['partitions'])}, a commit every {interval}"


def partitions_text(number: int) -> str:
    """Return a number of partitions in words."""
    return "one partition" if number == 1 else f"{number:,} partitions"
