"""The figures, the ratios, the table and the page about the JVM beside a store."""

from __future__ import annotations

from collections.abc import Mapping

from harness.report import text
from harness.report.database import busy, ratio_columns
from harness.report.listing import Column, Listing, Report

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


QUERY = f"""with subject as (
        select distribution, records_per_commit, subject, durability, records, count(*) as repeats,
            median(seconds) as median_s, min(seconds) as best_s, median(cpu_s) as cpu_s,
            records / median(seconds) as records_per_s, median(load_average) as load_average
        from jvm group by distribution, records_per_commit, subject, durability, records
    )
    select subject.*, subject.median_s / store.median_s as median_ratio, subject.best_s / store.best_s as best_ratio,
        subject.cpu_s / store.cpu_s as cpu_ratio
    from subject left join subject as store on subject.subject like '{JVM}%' and store.subject not like '{JVM}%'
        and (store.distribution, store.records_per_commit) = (subject.distribution, subject.records_per_commit)"""
"""Medians and bests over repeats of each subject and work, with the times of the JVM over those of the store."""


_SHAPE = " ".join(f"when '{name}' then '{shape}'" for name, shape in SHAPES.items())
RATIOS = f"""select iif(
            theirs.distribution = 'fresh',
            'put and commit of ' || exact(theirs.records_per_commit) || ' records',
            'read-modify-write of ' || theirs.distribution || ' keys, a commit each '
                || exact(theirs.records_per_commit)
        ) || ', against ' || case theirs.subject {_SHAPE} end || ' in the JVM' as claim,
        store.subject as subject, theirs.subject as yardstick, theirs.durability as durability,
        theirs.records_per_commit as records_per_commit,
        iif(theirs.records_per_commit <= {_LEVEL_SIZE}, {_LEVEL}, {_FASTER}) as at_least,
        {ratio_columns("theirs.seconds / store.seconds", f"{busy('theirs')} or {busy('store')}")}
    from jvm as theirs join jvm as store using (repeat)
    where theirs.subject like '{JVM}%' and store.subject not like '{JVM}%'
    group by theirs.distribution, theirs.records_per_commit, theirs.subject, theirs.durability"""
"""The time of each shape over that of the store in the same repeat, with the goals."""


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


REPORT = Report(
    ("jvm",),
    "jvm",
    "A store beside RocksDB in the JVM",
    (
        "A store does the same work as a Java program that uses RocksDB as Kafka Streams does.",
        "A ratio above 1 says that the store is faster.",
        f"The goal is {_LEVEL:g} at {_LEVEL_SIZE} records per commit, and {_FASTER:g} above.",
    ),
    (_TIMES,),
    _METHOD,
)
