"""The project's claims about the speed of stores: ratios of medians, each within one run and one durability level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from harness.experiments.microbench.case import (
    CHECKED,
    ENGINES,
    EXPIRED,
    GET,
    OPENED,
    PLAIN,
    PUT,
    RANGES,
    READER_WAITS,
    STAGED,
    STEPS,
    WAITED,
    WRITER_WAITS,
    Case,
    commits_counted,
    expiries,
    fetches,
    first_steps_over,
    iterators_over,
    openings,
    range_deletes,
    reads,
    records_as,
    steps,
    waits_over,
    with_checksums,
    with_unchecked_scans,
)
from stores import Durability

Row = Mapping[str, object]


@dataclass(frozen=True)
class Claim:
    """``subject`` processes ``at_least`` times as many records per second as ``yardstick``."""

    text: str
    subject: Case
    yardstick: Case
    at_least: float | None
    """The threshold; None if the ratio is only reported."""
    compares_sizes: bool = False
    """True if the two cases differ in their records per commit: that of the subject is reported."""


@dataclass(frozen=True)
class Limit:
    """A round of ``subject`` takes ``most_s`` seconds at most."""

    text: str
    subject: Case
    most_s: float


_WHOSE_WAITS = ((WRITER_WAITS, "the writer"), (READER_WAITS, "a reader"))


def limits() -> Iterator[Limit]:
    """Yield every claim without a comparison to another case, measured in a run or not."""
    for suite, whose in _WHOSE_WAITS:
        for staged in WAITED:
            yield Limit(
                f"longest wait of {whose} for the first step of a scan over {staged:,} staged records",
                waits_over(suite, staged),
                0.001,
            )


def claims() -> Iterator[Claim]:
    """Yield every claim with a comparison, measured in a run or not."""
    indexed, direct, plain = "rocksdb-indexed-batch", "rocksdb-direct", f"{PLAIN}-rocksdb"
    for size, at_least in ((100, 1.1), (1_000, 1.1), (10_000, 1.1), (500_000, 1.0)):
        commits = Case("commit", indexed, records_per_commit=size)
        if size > commits.records:
            commits = replace(commits, records=size, rounds=2)
        yield Claim(
            f"put and commit of {size:,} records, against writing them directly",
            commits,
            replace(commits, subject=direct),
            at_least,
        )
    for engine in ENGINES:
        yield Claim(
            "commits of an offset and a position alone, against the bare write of these entries by the engine",
            steps(f"{engine}-indexed-batch", 0),
            steps(f"{PLAIN}-{engine}", 0),
            0.35 if engine == "rocksdb" else None,
        )
    for size in STEPS[:-1]:
        yield Claim(
            f"records in commits of {size:,}, against records in commits of {STEPS[-1]:,}",
            steps(indexed, size),
            steps(indexed, STEPS[-1]),
            0.75 if size == 100 else None,
            compares_sizes=True,
        )
    yield Claim(
        "puts with a commit each 10,000, against a bare loop of rocksdict's put",
        Case("commit", indexed, records_per_commit=10_000),
        Case("commit", plain, records_per_commit=10_000),
        1.0,
    )
    for distribution, keys, wanted in (
        ("uniform", 1_000, 0.9),
        ("uniform", 100_000, 0.9),
        ("zipfian", 1_000, 4.0),
        ("zipfian", 100_000, None),
    ):
        updates = Case("update", indexed, distribution=distribution, keys=keys, records_per_commit=100_000,
                       records=100_000)  # fmt: skip
        yield Claim(
            f"read-modify-write of {keys:,} {distribution} keys, against a bare loop of rocksdict's get and put",
            updates,
            replace(updates, subject=plain),
            wanted,
        )
    for engine, best in (("lmdb", "sorted putmulti"), ("sqlite", "sorted executemany")):
        for durability in (Durability.PROCESS, Durability.DISK):
            yield Claim(
                f"put and commit of 1,000 records, against {best} in plain code",
                Case("commit", f"{engine}-indexed-batch", durability),
                Case("commit", f"{PLAIN}-{engine}", durability),
                0.85,
            )
    yield Claim(
        "put and commit of 1,000 records in the dual store, against writing them directly (KIP-844's prototype: 0.12)",
        Case("commit", "rocksdb-dual-store"),
        Case("commit", direct),
        0.4,
    )
    yield Claim(
        "a scan of committed and staged records, against rocksdict's items()",
        Case("scan", indexed, records_per_commit=10_000),
        Case("scan", plain, records_per_commit=10_000),
        0.5,
    )
    yield Claim(
        "making an iterator over 1,000,000 staged records, against one over 100 (Kafka's copies them)",
        iterators_over(STAGED[-1]),
        iterators_over(STAGED[0]),
        0.5,
    )
    yield Claim(
        "the first 100 steps of an iterator over 1,000,000 staged records, against one over 1,000",
        first_steps_over(STAGED[-1]),
        first_steps_over(STAGED[1]),
        0.25,
    )
    for suite, whose in _WHOSE_WAITS:
        yield Claim(
            f"longest wait of {whose} for the first step of a scan over {WAITED[1]:,} staged records, against the same "
            f"over {WAITED[0]:,}",
            waits_over(suite, WAITED[1]),
            waits_over(suite, WAITED[0]),
            0.25,
        )
    for count in RANGES[1:]:
        yield Claim(
            f"range deletes, {count:,} in one transaction, against {RANGES[0]:,}",
            range_deletes(count),
            range_deletes(RANGES[0]),
            0.4 if count == RANGES[1] else None,
            compares_sizes=True,
        )
    yield Claim(
        "lookups of committed data while a writer commits 1,000 records every 0.1 s, against the same alone",
        reads(indexed, commits_beside=True),
        reads(indexed, commits_beside=False),
        0.6,
    )
    yield Claim(
        "put and commit of 1,000 records while all metrics are collected every 0.1 s, against nobody watching",
        commits_counted(watched=True),
        commits_counted(watched=False),
        0.9,
    )
    for suite, words, form, yardstick, at_least in (
        (PUT, "put and commit of 1,000 values with their times", "timestamped", "bytes", 0.85),
        (GET, "lookups of committed values with their times", "timestamped", "bytes", 0.85),
        (PUT, "put and commit of 1,000 records, STR to INT64", "text-to-number", "short-bytes", 0.8),
    ):
        yield Claim(
            f"{words}, against plain bytes of the same size",
            records_as(suite, form),
            records_as(suite, yardstick),
            at_least,
        )

    for engine in ENGINES:
        yield Claim(
            "a fetch of 100 windows, against a prefix scan of 100 plain pairs",
            fetches(engine, "windows"),
            fetches(engine, "prefix"),
            0.7,
        )
        yield Claim(
            f"openings of a timestamped store of {OPENED:,} plain records, against one of records with timestamps",
            openings(engine, "bytes"),
            openings(engine, "timestamped"),
            0.83 if engine == "rocksdb" else None,
        )
        yield Claim(
            f"commits in which a segment of {EXPIRED[-1]:,} records expires, against one of {EXPIRED[0]:,}",
            expiries(engine, EXPIRED[-1]),
            expiries(engine, EXPIRED[0]),
            0.33 if engine == "rocksdb" else None,
        )

    for engine in CHECKED:
        for suite, words in (("commit", "put and commit of 1,000 records"), ("scan", "a scan")):
            yield Claim(
                f"the price of checksums: {words}, against the same without",
                with_checksums(suite, engine, checksums=True),
                with_checksums(suite, engine, checksums=False),
                None,
            )
        yield Claim(
            "the price of checking checksums in a scan (option scan_checksums), against a scan that leaves them out",
            with_checksums("scan", engine, checksums=True),
            with_unchecked_scans(engine),
            None,
        )


def ratios(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return a row of kind ``ratio`` for each claim and each limit whose cases were measured in one run."""
    speed = {str(row["name"]): float(str(row["records_per_s"])) for row in rows if row["kind"] == "benchmark"}
    compared: list[tuple[Claim | Limit, str, float, float | None]] = [
        (claim, claim.yardstick.subject, speed[claim.subject.id] / speed[claim.yardstick.id], claim.at_least)
        for claim in claims()
        if claim.subject.id in speed and claim.yardstick.id in speed
    ]
    limited: list[tuple[Claim | Limit, str, float, float | None]] = [
        (limit, f"{1_000 * limit.most_s:g} ms", limit.most_s * speed[limit.subject.id] / limit.subject.records, 1.0)
        for limit in limits()
        if limit.subject.id in speed
    ]
    return [
        {
            "kind": "ratio",
            "claim": claim.text,
            "subject": claim.subject.subject,
            "yardstick": yardstick,
            "durability": str(claim.subject.durability),
            "records_per_commit": claim.subject.records_per_commit,
            "ratio": ratio,
            "at_least": at_least,
        }
        for claim, yardstick, ratio, at_least in (*compared, *limited)
    ]
