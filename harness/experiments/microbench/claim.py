"""The project's claims about the speed of stores: ratios within one run and level. Also the cases of each profile."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from harness.experiments.microbench.case import (
    CHECKED,
    CURVE,
    DIRECT,
    ENGINES,
    EXPIRED,
    GET,
    GET_RECENT,
    INDEXED,
    LARGEST,
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
    commits_of,
    expiries,
    fetches,
    first_steps_over,
    iterators_over,
    openings,
    range_deletes,
    read_and_written,
    reads,
    records_as,
    scans_of,
    steps,
    updates_of,
    waits_over,
    with_checksums,
    with_unchecked_scans,
    ycsb_of,
)
from harness.report.ratios import ratio_of
from stores import Durability
from stores.errors import ConfigError
from stores.registry import backends

Seconds = Mapping[str, Mapping[int, float]]
"""The seconds of a round, by case and repeat."""
Measured = tuple[str, int]
"""A case and a repeat."""


@dataclass(frozen=True)
class RatioClaim:
    """``subject`` processes ``at_least`` times as many records per second as ``yardstick``."""

    text: str
    subject: Case
    yardstick: Case
    at_least: float | None
    """The threshold; None if the ratio is only reported."""
    for_night: bool = False
    """True if only the profile night has its cases."""


@dataclass(frozen=True)
class Limit:
    """A round of ``subject`` takes ``most_s`` seconds at most."""

    text: str
    subject: Case
    most_s: float


ROUNDS, THRESHOLD_ROUNDS = 3, 12
"""The rounds of a case in a process, and of one that a threshold rests on.

Three rounds of 50 ms made the ratios of two processes differ by 13 % (standard deviation, on two shared cores), and
fifteen by 5 %, in twice the time. A process with its stores takes a second for each case anyway. Both sides of a ratio
have as many, because a store that has grown works in another way.
"""


def rounds_of(case: Case) -> int:
    """Return the number of rounds that are timed in a process."""
    return case.rounds or (THRESHOLD_ROUNDS if case.id in threshold_cases() else ROUNDS)


@cache
def threshold_cases() -> frozenset[str]:
    """Return the IDs of the cases that a threshold rests on."""
    gates = (claim for claim in claims() if claim.at_least is not None)
    compared = (case.id for claim in gates for case in (claim.subject, claim.yardstick))
    return frozenset([*compared, *(limit.subject.id for limit in limits())])


def cases(profile: str) -> list[Case]:
    """Return the cases of ``smoke``, ``default`` or ``night``, each once: those of the claims, and some curves."""
    all_cases = _few_cases() if profile == "smoke" else _cases(night=profile == "night")
    return list({case.id: case for case in all_cases}.values())


def case_named(name: str, profile: str) -> Case:
    """Return the case of a profile with that id. Raises: ConfigError for an unknown one."""
    for case in cases(profile):
        if case.id == name:
            return case
    raise ConfigError(f"the profile {profile!r} has no case {name!r}")


def _few_cases() -> Iterator[Case]:
    for subject in (INDEXED, DIRECT, "rocksdb-dual-store"):
        yield commits_of(subject, 1_000)
    for subject in (INDEXED, f"{PLAIN}-rocksdb"):
        yield scans_of(subject)


def _cases(*, night: bool) -> Iterator[Case]:
    for claim in claims():
        if night or not claim.for_night:
            yield from (claim.subject, claim.yardstick)
    yield from (limit.subject for limit in limits())
    for staged in STAGED:
        yield from (iterators_over(staged), first_steps_over(staged))
    for subject, backend in backends().items():
        if night:
            yield from (steps(subject, size) for size in (0, *STEPS))
            yield from (reads(subject, commits_beside=commits) for commits in (False, True))
        yield from (ycsb_of(subject, letter) for letter in ("ABCDEF" if night else "ACE"))
        for durability in sorted(backend.durabilities) if night else (Durability.CHANGELOG,):
            yield from (commits_of(subject, size, durability) for size in CURVE)


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


def claims() -> Iterator[RatioClaim]:
    """Yield every claim with a comparison, measured in a run or not."""
    indexed, direct, plain = INDEXED, DIRECT, f"{PLAIN}-rocksdb"
    for size, at_least in ((100, 1.1), (1_000, 1.1), (10_000, 1.1), (LARGEST, 1.0)):
        yield RatioClaim(
            f"put and commit of {size:,} records, against writing them directly",
            commits_of(indexed, size),
            commits_of(direct, size),
            at_least,
        )
    for engine in ENGINES:
        yield RatioClaim(
            "commits of an offset and a position alone, against the bare write of these entries by the engine",
            steps(f"{engine}-indexed-batch", 0),
            steps(f"{PLAIN}-{engine}", 0),
            0.35 if engine == "rocksdb" else None,
        )
    for size in STEPS[:-1]:
        yield RatioClaim(
            f"records in commits of {size:,}, against records in commits of {STEPS[-1]:,}",
            steps(indexed, size),
            steps(indexed, STEPS[-1]),
            0.8 if size == 100 else None,
        )
    # Nothing is asked: most of it is the engine's own, as its yardstick shows.
    for subject in (plain, *(name for engine in CHECKED for name in (f"{engine}-indexed-batch", f"{PLAIN}-{engine}"))):
        yield RatioClaim(
            f"records in commits of {STEPS[2]:,}, against records in commits of {STEPS[-1]:,}",
            steps(subject, STEPS[2]),
            steps(subject, STEPS[-1]),
            None,
            for_night=True,
        )
    yield RatioClaim(
        "puts with a commit each 10,000, against a bare loop of rocksdict's put",
        commits_of(indexed, 10_000),
        commits_of(plain, 10_000),
        1.0,
    )
    for distribution, keys, threshold in (
        ("uniform", 1_000, 0.9),
        ("uniform", 100_000, 0.9),
        ("zipfian", 1_000, 4.0),
        ("zipfian", 100_000, None),
    ):
        yield RatioClaim(
            f"read-modify-write of {keys:,} {distribution} keys, against a bare loop of rocksdict's get and put",
            updates_of(indexed, distribution, keys),
            updates_of(plain, distribution, keys),
            threshold,
            for_night=threshold is None,
        )
    for engine, best in (("lmdb", "sorted putmulti"), ("sqlite", "sorted executemany")):
        for durability in (Durability.PROCESS, Durability.DISK):
            yield RatioClaim(
                f"put and commit of 1,000 records, against {best} in plain code",
                commits_of(f"{engine}-indexed-batch", 1_000, durability),
                commits_of(f"{PLAIN}-{engine}", 1_000, durability),
                0.85,
            )
    yield RatioClaim(
        "put and commit of 1,000 records in the dual store, against writing them directly (KIP-844's prototype: 0.12)",
        commits_of("rocksdb-dual-store", 1_000),
        commits_of(direct, 1_000),
        0.4,
    )
    for durability in (Durability.CHANGELOG, Durability.DISK):
        for size in CURVE:
            yield RatioClaim(
                f"put and commit of {size:,} records as an ingested file, against the indexed batch",
                commits_of("rocksdb-sst-ingest", size, durability),
                commits_of(indexed, size, durability),
                None,
                for_night=durability is Durability.DISK,
            )
    yield RatioClaim(
        "a scan of committed and staged records, against rocksdict's items()",
        scans_of(indexed),
        scans_of(plain),
        0.5,
    )
    yield RatioClaim(
        "making an iterator over 1,000,000 staged records, against one over 100 (Kafka's copies them)",
        iterators_over(STAGED[-1]),
        iterators_over(STAGED[0]),
        0.5,
    )
    yield RatioClaim(
        "the first 100 steps of an iterator over 1,000,000 staged records, against one over 1,000",
        first_steps_over(STAGED[-1]),
        first_steps_over(STAGED[1]),
        0.25,
    )
    for suite, whose in _WHOSE_WAITS:
        yield RatioClaim(
            f"longest wait of {whose} for the first step of a scan over {WAITED[1]:,} staged records, against the same "
            f"over {WAITED[0]:,}",
            waits_over(suite, WAITED[1]),
            waits_over(suite, WAITED[0]),
            0.25,
        )
    for count in RANGES[1:]:
        yield RatioClaim(
            f"range deletes, {count:,} in one transaction, against {RANGES[0]:,}",
            range_deletes(count),
            range_deletes(RANGES[0]),
            0.4 if count == RANGES[1] else None,
            for_night=count != RANGES[1],
        )
    yield RatioClaim(
        "lookups of committed data while a writer commits 1,000 records every 0.1 s, against the same alone",
        reads(indexed, commits_beside=True),
        reads(indexed, commits_beside=False),
        0.6,
    )
    yield RatioClaim(
        "put and commit of 1,000 records while all metrics are collected every 0.1 s, against nobody watching",
        commits_counted(watched=True),
        commits_counted(watched=False),
        0.9,
    )
    for suite, words, form, yardstick, threshold in (
        (PUT, "put and commit of 1,000 values with their times", "timestamped", "bytes", 0.85),
        # Nothing is asked: a lookup in memory takes so little time that making the result is a large part of it.
        (GET_RECENT, "lookups, in memory, of values of the last commit with their times", "timestamped", "bytes", None),
        (PUT, "put and commit of 1,000 records, STR to INT64", "text-to-number", "short-bytes", 0.8),
    ):
        yield RatioClaim(
            f"{words}, against plain bytes of the same size",
            records_as(suite, form),
            records_as(suite, yardstick),
            threshold,
        )

    yield from _many_records()
    for engine in ENGINES:
        yield RatioClaim(
            "lookups, in the engine, of committed values with their times, against plain bytes of the same size",
            records_as(GET, "timestamped", engine),
            records_as(GET, "bytes", engine),
            0.85,
        )
        yield RatioClaim(
            "a fetch of 100 windows, against a prefix scan of 100 plain pairs",
            fetches(engine, "windows"),
            fetches(engine, "prefix"),
            0.7,
        )
        for size in OPENED:
            yield RatioClaim(
                f"openings of a timestamped store of {size:,} plain records, against one of records with timestamps"
                f"{_narrowed(size, OPENED)}",
                openings(engine, "bytes", size),
                openings(engine, "timestamped", size),
                0.83 if engine == "rocksdb" else None,
                for_night=engine != "rocksdb" or size == OPENED[-1],
            )
        for size in EXPIRED[1:]:
            yield RatioClaim(
                f"commits in which a segment of {size:,} records expires, against one of {EXPIRED[0]:,}"
                f"{_narrowed(size, EXPIRED)}",
                expiries(engine, size),
                expiries(engine, EXPIRED[0]),
                0.33 if engine == "rocksdb" else None,
                for_night=engine != "rocksdb" or size == EXPIRED[-1],
            )

    for engine in CHECKED:
        for suite, words in (("commit", "put and commit of 1,000 records"), ("scan", "a scan")):
            yield RatioClaim(
                f"the price of checksums: {words}, against the same without",
                with_checksums(suite, engine, checksums=True),
                with_checksums(suite, engine, checksums=False),
                None,
            )
        yield RatioClaim(
            "the price of checking checksums in a scan (option scan_checksums), against a scan that leaves them out",
            with_checksums("scan", engine, checksums=True),
            with_unchecked_scans(engine),
            None,
        )


_MANY_AT_LEAST = {"rocksdb-indexed-batch": 3.0, "lmdb-indexed-batch": 3.0, "sqlite-indexed-batch": 4.0}


def _many_records() -> Iterator[RatioClaim]:
    """Yield the claims about calls for many records, of CPU time."""
    forms = (("timestamped", "values with their times"), ("text-to-number", "records, STR to INT64"))
    subjects = [(name, "bytes", "records", _MANY_AT_LEAST.get(name)) for name in backends()]
    for subject, form, words, at_least in [*subjects, *((INDEXED, form, words, None) for form, words in forms)]:
        yield RatioClaim(
            f"get_many and put_many of 1,000 {words}, against as many get and put",
            read_and_written(subject, form, at_once=True),
            read_and_written(subject, form, at_once=False),
            at_least,
        )


def ratios(
    seconds: Seconds, busy: Collection[Measured] = (), cpu_seconds: Seconds = MappingProxyType({})
) -> list[dict[str, object]]:
    """Return a row of kind ``ratio`` for each claim and each limit whose cases were measured in one repeat or more.

    ``seconds`` are those of a round of each case in each repeat. The two sides of a claim are measured in the same
    process, one right after the other, so each repeat has a ratio of its own. ``busy`` are the measurements during
    which the machine was busy with other work. ``cpu_seconds`` has the cases that work alone in their process.
    """
    measured_claims = []
    for claim in claims():
        subject, yardstick = claim.subject, claim.yardstick
        paired, on_cpu = _paired(claim, seconds), _paired(claim, cpu_seconds)
        disturbed = sum((subject.id, each) in busy or (yardstick.id, each) in busy for each in paired)
        measured_claims.append((claim.text, subject, yardstick.subject, claim.at_least, paired, disturbed, on_cpu))
    for limit in limits():
        subject = limit.subject
        paired = {repeat: limit.most_s / taken_s for repeat, taken_s in seconds.get(subject.id, {}).items()}
        disturbed = sum((subject.id, each) in busy for each in paired)
        measured_claims.append((limit.text, subject, f"{1_000 * limit.most_s:g} ms", 1.0, paired, disturbed, {}))
    return [
        {
            "kind": "ratio",
            "claim": words,
            "subject": subject.subject,
            "yardstick": yardstick,
            "durability": str(subject.durability),
            "records_per_commit": subject.records_per_commit,
            "at_least": at_least,
            **ratio_of(list(paired.values()), disturbed, list(on_cpu.values())),
        }
        for words, subject, yardstick, at_least, paired, disturbed, on_cpu in measured_claims
        if paired
    ]


def _paired(claim: RatioClaim, seconds: Seconds) -> dict[int, float]:
    """Return the ratio of each repeat in which both sides were measured."""
    subject_s, yardstick_s = (seconds.get(case.id, {}) for case in (claim.subject, claim.yardstick))
    work = claim.subject.records / claim.yardstick.records
    return {repeat: work * yardstick_s[repeat] / subject_s[repeat] for repeat in subject_s if repeat in yardstick_s}


def _narrowed(size: int, sizes: Sequence[int]) -> str:
    """Return what a row of a smaller size says about the size that was asked for."""
    return "" if size == sizes[-1] else f" (narrowed for the time: {sizes[-1]:,} are asked for, as in the night)"
