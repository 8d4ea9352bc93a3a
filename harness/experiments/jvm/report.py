"""The figures, the ratios, the table and the page about the JVM beside a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from harness.experiment import RATIO
from harness.processes.load import is_busy
from harness.report import text
from harness.report.figures import Figure, Figures, grouped, in_order
from harness.report.listing import Column, Listing
from harness.report.page import Page, tables
from harness.report.ratios import ratio_of
from harness.report.rows import Row

JVM = "jvm-"
"""The prefix of the subjects in the JVM."""
SHAPES: Mapping[str, str] = {
    "jvm-map-and-batch": "a sorted map and a write batch",
    "jvm-indexed-batch": "WriteBatchWithIndex",
    "jvm-plain-puts": "plain puts without a transaction",
}
_LEVEL_SIZE = 100
"""At so many records per commit the goal is to be level, from larger ones on to be faster."""
_LEVEL, _FASTER = 1.0, 1.3

_METHOD = """\
A store (`rocksdb-indexed-batch`) and a program in Java do the same work, in turns, each in a fresh process. The program
uses the rocksdbjni of pyspark in three shapes. *map-and-batch* stages writes in a sorted map beside a write batch, as
in Kafka Streams' work on KIP-892. *indexed-batch* is RocksDB's WriteBatchWithIndex. *plain-puts* writes at once: it has
no transaction and no rollback. Every commit also writes a changelog offset to a second column family.

Both have the same version of RocksDB with the same options: write buffers, block cache, filters, atomic flush, and no
WAL. Both generate keys of 16 and values of 100 bytes from the same seed, before the clock runs and before a garbage
collection. Two rounds of 200,000 records are not timed, so that the JVM has compiled what it calls often; two rounds
are. The heap is limited to 1 GiB, and everything else of the JVM is as it comes. After the last round both sides read
all data, and compute a checksum; a difference fails the run.

With *fresh* keys every record is put. Otherwise there are 100,000 keys, and each record reads a key and writes its new
value. *zipf* is Zipf's law with exponent 1. A ratio is the JVM's time over the store's: above 1 the store is faster.
CPU time is that of all threads of a process, with compaction, garbage collection and compilation. On a busy machine
it says more than the time by the clock.
"""


def figures(rows: Iterable[Row]) -> list[Figure]:
    """Return medians and bests over repeats for each subject and work, with the times of the JVM over the store's."""
    work = ("distribution", "records_per_commit")
    made = [_figure(named, repeats) for named, repeats in grouped(rows, (*work, "subject", "durability", "records"))]
    own = {tuple(map(figure.get, work)): figure for figure in made if not figure["subject"].startswith(JVM)}
    for figure in made:
        store = own.get(tuple(map(figure.get, work)))
        for name in ("median", "best", "cpu"):
            compared = store is not None and store is not figure
            figure[f"{name}_ratio"] = figure[f"{name}_s"] / store[f"{name}_s"] if store and compared else None
    return in_order(made)


def ratios(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows of kind "ratio": the time of each shape over that of the store in the same repeat, with the goals."""
    own = {row["repeat"]: row for row in rows if not row["subject"].startswith(JVM)}
    theirs = [row for row in rows if row["subject"].startswith(JVM) and row["repeat"] in own]
    found = []
    for work, repeats in grouped(theirs, ("distribution", "records_per_commit", "subject", "durability")):
        size, stores = work["records_per_commit"], [own[row["repeat"]] for row in repeats]
        busy = sum(is_busy(row) or is_busy(store) for row, store in zip(repeats, stores, strict=True))
        found.append(
            {
                "kind": RATIO,
                "claim": f"{_words(work)}, against {SHAPES[work['subject']]} in the JVM",
                "subject": stores[0]["subject"],
                "yardstick": work["subject"],
                "durability": work["durability"],
                "records_per_commit": size,
                "at_least": _LEVEL if size <= _LEVEL_SIZE else _FASTER,
                **ratio_of(
                    [row["seconds"] / store["seconds"] for row, store in zip(repeats, stores, strict=True)], busy
                ),
            }
        )
    return found


def page(figures: Figures, missing: str) -> Page:
    """Return the page. ``missing`` is the reason why nothing could be measured, or ""."""
    return Page(
        "jvm",
        "A store beside RocksDB in the JVM",
        (
            "A store does the same work as a Java program that uses RocksDB as Kafka Streams does.",
            "A ratio above 1 says that the store is faster.",
            f"The goal is {_LEVEL:g} at {_LEVEL_SIZE} records per commit, and {_FASTER:g} above.",
        ),
        tables(*_TIMES.tables(figures)) if figures["jvm"] else (),
        _METHOD,
        absent=f"not measured: {missing}" if missing else text.NOT_MEASURED,
    )


def _figure(named: Figure, repeats: Sequence[Row]) -> Figure:
    middle = median(row["seconds"] for row in repeats)
    return {
        "kind": "jvm",
        **named,
        "repeats": len(repeats),
        "median_s": middle,
        "best_s": min(row["seconds"] for row in repeats),
        "cpu_s": median(row["cpu_s"] for row in repeats),
        "records_per_s": named["records"] / middle,
        "load_average": median(row["load_average"] for row in repeats),
    }


_TIMES = Listing(
    "Level CHANGELOG: times of the JVM over those of the store",
    "jvm_figure order by distribution, records_per_commit, subject",
    (
        Column("keys", "distribution"),
        Column("records per commit", "records_per_commit", text.exact, right=False),
        Column("subject"),
        Column("records/s", "records_per_s", text.count),
        Column("median", "median_s", text.duration),
        Column("best", "best_s", text.duration),
        Column("CPU time", "cpu_s", text.duration),
        Column("ratio of medians", "median_ratio", text.ratio),
        Column("of bests", "best_ratio", text.ratio),
        Column("of CPU times", "cpu_ratio", text.ratio),
        Column("repeats", "repeats", text.exact),
        Column("load", "load_average", text.count),
    ),
)


def _words(figure: Figure) -> str:
    size, keys = figure["records_per_commit"], figure["distribution"]
    if keys == "fresh":
        return f"put and commit of {size:,} records"
    return f"read-modify-write of {keys} keys, a commit each {size:,}"
