"""The figures, the ratios and the table about restarts over Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from harness.experiment import RATIO
from harness.experiments.kafka.trial import READY_S, RECORDS, STREAMS
from harness.processes.load import is_busy, median_load
from harness.report import text
from harness.report.figures import Figure, grouped, in_order, median_of
from harness.report.listing import Column, Listing
from harness.report.ratios import ratio_of
from harness.report.rows import Row

KIND = "kafka_restart"
PROMISED = "one second"
"""The yardstick that is a time, not a subject."""

METHOD = f"""
For restarts, a worker of ours and an instance of Kafka Streams (`exactly_once_v2`) each keep the latest value of every
key in a store, both with a commit every 100 ms. Each is killed (SIGKILL) after its last commit, 1,000 more records are
put into the topic, and it is started again. *Ready* is the time from the assignment of its partitions to its first
processed record. *From the start* is the time from the start of its process, in which it also waits until the session
of the killed one is over (6 s). The worker opens its store, and replays the tail that the kill has cost. After the
first kill, the checkpoint file of Kafka Streams has no offset: it removes the store and restores all of it (*worst*).
That restore leaves a checkpoint, and after the later kills Kafka Streams restores the rest alone. The promise is
{READY_S:g} s with {RECORDS:,} records; smaller stores decide nothing.
"""


def figures(rows: Iterable[Row]) -> list[Figure]:
    """Return the medians over repeats for each subject and size."""
    return in_order(
        {
            "kind": KIND,
            **named,
            "repeats": len(repeats),
            "ready_s": median(row["ready_s"] for row in repeats),
            "best_s": min(row["ready_s"] for row in repeats),
            "worst_s": max(row["ready_s"] for row in repeats),
            "start_s": median_of(repeats, "start_s"),
            "replayed": median_of(repeats, "replayed"),
            **median_load(repeats),
        }
        for named, repeats in grouped(rows, ("records", "subject"))
    )


def ratios(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows of kind "ratio": the promised time, and that of Kafka Streams, over that of each backend."""
    theirs = {_round(row): row for row in rows if row["subject"] == STREAMS}
    found = []
    for named, repeats in grouped([row for row in rows if row["subject"] != STREAMS], ("records", "subject")):
        at_least = 1.0 if named["records"] >= RECORDS else None
        own = [(row, row, READY_S) for row in repeats]
        beside = [(row, other, other["ready_s"]) for row in repeats if (other := theirs.get(_round(row)))]
        for yardstick, pairs, wanted in ((PROMISED, own, at_least), (STREAMS, beside, None)):
            if pairs:
                found.append(
                    {
                        "kind": RATIO,
                        "claim": f"ready over Kafka after a kill, with {named['records']:,} records",
                        "subject": named["subject"],
                        "yardstick": yardstick,
                        "durability": "CHANGELOG",
                        "records_per_commit": None,
                        "at_least": wanted,
                        **ratio_of(
                            [seconds / row["ready_s"] for row, _, seconds in pairs],
                            sum(is_busy(row) or is_busy(other) for row, other, _ in pairs),
                        ),
                    }
                )
    return found


RESTARTS = Listing(
    "From the assignment to the first processed record, after a kill: medians over the rounds",
    f"{KIND}_figure",
    (
        Column("records", "records", text.exact),
        Column("subject"),
        Column("ready", "ready_s", text.duration),
        Column("best", "best_s", text.duration),
        Column("worst", "worst_s", text.duration),
        Column("from the start", "start_s", text.duration),
        Column("replayed", "replayed", text.count),
        Column("repeats", "repeats", text.exact),
        Column("load", "load_average", text.count),
    ),
)


def _round(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["records"], row["seed"], row["repeat"]
