"""The store-level benchmarks measure what is claimed, and nothing is compared across levels of durability."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.budget import Deadline
from harness.experiments.microbench.case import (
    ENGINES,
    EXPIRE,
    GET,
    GET_RECENT,
    INDEXED,
    OPEN,
    READ_WRITE,
    READER_WAITS,
    WRITER_WAITS,
    Case,
    Load,
    batches,
    commits_counted,
    openings,
    reads,
    waits_over,
)
from harness.experiments.microbench.claim import RatioClaim, cases, claims, limits, ratios
from harness.experiments.microbench.readers import StagedStores, longest_waits
from harness.experiments.microbench.records import (
    FORMS,
    commit_known,
    expire,
    expiring,
    fetch_all,
    filled,
    get_records,
    opening_seconds,
    put_records,
    time_reads_and_writes,
)
from harness.experiments.microbench.run import Round, measure, planned, summarized
from harness.experiments.microbench.yardstick import TimedStore, open_subject
from harness.processes.load import SPEED_UNIT
from harness.tests.clock import Clock
from harness.tests.made_up_rows import timed_rounds
from harness.workloads.ycsb import Ycsb, core_workload
from stores.batch.buffer import IndexedBatch, Layer
from stores.errors import ConfigError
from stores.records import BYTES, TimestampedKeyValue
from stores.registry import backends
from stores.strategies.store import Store


def of_the_night(claim: RatioClaim) -> bool:
    """Return True for the sizes of openings and expiries that the default profile has no time for."""
    return claim.subject.staged == 1_000_000 and claim.subject.suite in (OPEN, EXPIRE)


def test_the_default_profile_measures_whatever_is_claimed_and_the_full_one_whatever_is_compared() -> None:
    for profile, compared in (
        ("default", [claim for claim in claims() if claim.at_least is not None and not of_the_night(claim)]),
        ("night", list(claims())),
    ):
        measured = {case.id for case in cases(profile)}
        assert {case.id for claim in compared for case in (claim.subject, claim.yardstick)} <= measured


def test_a_claim_compares_one_suite_at_one_level_and_size() -> None:
    for claim in claims():
        assert claim.subject.suite == claim.yardstick.suite
        assert claim.subject.durability is claim.yardstick.durability
        same_size = claim.subject.records_per_commit == claim.yardstick.records_per_commit
        assert same_size is not claim.text.startswith(("records in commits of", "range deletes"))
        assert claim.subject.distribution == claim.yardstick.distribution
        assert claim.subject.keys == claim.yardstick.keys


def test_a_ratio_is_the_quotient_of_two_measured_rates() -> None:
    claim = next(claims())
    subject, yardstick = claim.subject.id, claim.yardstick.id
    seconds = {subject: {1: 2.0, 2: 4.0, 4: 9.0}, yardstick: {1: 3.0, 2: 4.0, 3: 9.0}}
    [row] = ratios(seconds)
    assert (row["ratio"], row["ratio_from"], row["repeats"]) == (1.25, None, 2)
    assert ratios({subject: seconds[subject]}) == []


def test_cases_of_different_size_are_compared_by_their_rate() -> None:
    claim = next(claim for claim in claims() if claim.subject.records != claim.yardstick.records)
    per_record = {case.id: {1: 1e-6 * case.records} for case in (claim.subject, claim.yardstick)}
    assert [row["ratio"] for row in ratios(per_record)] == [pytest.approx(1.0)]


def test_a_ratio_has_the_interval_of_its_repeats_and_the_number_of_busy_ones() -> None:
    claim = next(claims())
    seconds = {claim.subject.id: [1.0, 1.0, 1.0, 1.0, 10.0], claim.yardstick.id: [1.2, 1.3, 1.1, 1.4, 15.0]}
    [row] = [row for row in summarized(timed_rounds(seconds, busy=2)) if row["kind"] == "ratio"]
    assert (row["ratio"], row["ratio_from"], row["ratio_to"]) == (1.3, 1.1, 1.5)
    assert (row["repeats"], row["busy"]) == (5, 2)


@pytest.mark.parametrize("disturbed", ["subject", "yardstick"])
def test_a_repeat_is_busy_if_one_side_of_the_ratio_was(disturbed: str) -> None:
    claim = next(claims())
    seconds = {claim.subject.id: {1: 1.0, 2: 1.0}, claim.yardstick.id: {1: 1.0, 2: 1.0}}
    case = claim.subject if disturbed == "subject" else claim.yardstick
    assert [row["busy"] for row in ratios(seconds, {(case.id, 2), ("another case", 1)})] == [1]


def test_a_ratio_of_cpu_times_is_that_of_the_cases_that_work_alone() -> None:
    claim = next(claims())
    rounds = [
        {**line, "cpu_seconds": line["seconds"] / (4 if line["case"] == claim.subject.id else 2)}
        for line in timed_rounds({claim.subject.id: [1.0, 1.0, 2.0], claim.yardstick.id: [2.0, 2.0, 2.0]})
    ]
    [row] = [row for row in summarized(rounds) if row["kind"] == "ratio"]
    assert (row["ratio"], row["cpu_ratio"]) == (2.0, 4.0)
    # The yardstick had a processor of half the speed in one repeat, and took as long all the same.
    slow = [
        {**line, "machine_speed": SPEED_UNIT / (2 if (line["case"], line["seed"]) == (claim.yardstick.id, 1) else 1)}
        for line in rounds
    ]
    [row] = [row for row in summarized(slow) if row["kind"] == "ratio"]
    assert (row["ratio"], row["cpu_ratio"]) == (2.0, 2.0)
    [row] = [row for row in summarized([{**line, "cpu_seconds": None} for line in rounds]) if row["kind"] == "ratio"]
    assert (row["ratio"], row["cpu_ratio"]) == (2.0, None)
    assert [case.id for case in cases("default") if not case.works_alone] == [
        reads(INDEXED, commits_beside=True).id,
        commits_counted(watched=True).id,
    ]


def test_a_limit_is_compared_with_the_time_of_a_round() -> None:
    limit = next(limits())
    rate = limit.subject.records / (limit.most_s / 4)
    [row] = ratios({limit.subject.id: {1: limit.subject.records / rate}})
    assert (row["claim"], row["ratio"], row["at_least"]) == (limit.text, pytest.approx(4.0), 1.0)


def test_every_limit_is_measured_by_default() -> None:
    assert {limit.subject for limit in limits()} <= set(cases("default"))


@pytest.mark.parametrize("suite", [WRITER_WAITS, READER_WAITS])
def test_a_wait_is_seen(tmp_path: Path, suite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan whose first step is one that lets no other thread run."""
    freeze = IndexedBatch.freeze

    def slow(batch: IndexedBatch, pins: int = 1) -> tuple[Layer, ...]:
        sum(range(3_000_000))
        return freeze(batch, pins)

    monkeypatch.setattr(IndexedBatch, "freeze", slow)
    case = replace(waits_over(suite, 1_000), rounds=2)
    with closing(StagedStores(tmp_path, 1)) as staged:
        store = staged.opened(case).store
        waits = longest_waits(case, store, staged.keys, staged.load)
    assert (len(waits), min(waits) > 0.01) == (2, True)


def test_the_same_seed_makes_the_same_records_and_no_value_twice() -> None:
    first, second = Load(7).fresh(1_000), Load(7).fresh(1_000)
    assert first == second
    assert Load(8).fresh(1_000) != first
    assert len({value for _, value in first}) == 1_000
    assert {(len(key), len(value)) for key, value in first} == {(16, 100)}
    assert sum(map(len, batches(first, 300))) == 1_000


@pytest.mark.parametrize("name", ["plain-rocksdb", "plain-lmdb", "plain-sqlite", "rocksdb-indexed-batch"])
def test_every_subject_keeps_what_it_is_timed_for(name: str, tmp_path: Path) -> None:
    pairs = Load(1).fresh(500)
    subject = open_subject(Case("commit", name), tmp_path)
    try:
        subject.write(pairs)
        subject.update([(key, value[::-1]) for key, value in pairs[:100]])
        stepped = Load(2).fresh(10)
        subject.step(stepped, 11)
        subject.step([], 12)
        expected = {**dict(pairs), **{key: value[::-1] for key, value in pairs[:100]}, **dict(stepped)}
        assert list(subject.pairs()) == sorted(expected.items())
    finally:
        subject.close()


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(ConfigError):
        planned("smokey", 1)


@pytest.mark.parametrize(("profile", "letters"), [("default", "ace"), ("night", "abcdef")])
def test_core_workloads_of_ycsb_run_on_every_backend(profile: str, letters: str) -> None:
    measured = {(case.suite, case.subject) for case in cases(profile)}
    assert {(f"ycsb-{letter}", name) for letter in letters for name in backends()} <= measured


def test_operations_of_ycsb_are_committed(tmp_path: Path) -> None:
    ycsb = Ycsb(core_workload("a"), 100, seed=1)
    operations = ycsb.operations(500)
    updates = {operation.key: operation.value for operation in operations if operation.value is not None}
    with closing(open_subject(Case("ycsb-a", "memory-indexed-batch"), tmp_path)) as subject:
        assert isinstance(subject, TimedStore)
        subject.operate(operations)
        assert dict(subject.store.read_only().all()) == updates
    assert len(updates) > 50


@pytest.mark.parametrize("form", FORMS)
def test_records_of_each_form_are_read_as_they_were_put_and_take_as_many_bytes(form: str, tmp_path: Path) -> None:
    pairs = Load(1).fresh(100)
    with closing(open_subject(Case("record-put", "memory-indexed-batch"), tmp_path)) as subject:
        assert isinstance(subject, TimedStore)
        typed = FORMS[form].over(subject.store)
        records = [FORMS[form].arguments(key, value) for key, value in pairs]
        put_records(typed, batches(records, 30))
        get_records(typed, [record[0] for record in records])
        expected = {record[0]: record[1] if len(record) == 2 else record[1:] for record in records}
        assert dict(typed.all()) == expected
        kept = [len(key) + len(value) for key, value in subject.store.all()]
    assert kept == [116 if form in ("bytes", "timestamped") else 24] * 100


@pytest.mark.parametrize(("suite", "in_memory"), [(GET, False), (GET_RECENT, True)])
@pytest.mark.parametrize("backend", [f"{engine}-indexed-batch" for engine in ENGINES])
def test_a_suite_of_lookups_is_answered_by_the_engine_or_from_memory(
    backend: str, suite: str, in_memory: bool, tmp_path: Path
) -> None:
    with closing(open_subject(Case(suite, backend), tmp_path)) as subject:
        assert isinstance(subject, TimedStore)
        known = commit_known(Case(suite, backend, keys=100), subject.store, Load(1))
        assert [subject.store.get(key) for key, _ in known] == [value for _, value in known]
        assert isinstance(subject.store, Store)
        batch = subject.store.staging.batch
        assert batch is not None
        assert all((key in batch.recent) is in_memory for key, _ in known)
    assert len(known) == 100


@pytest.mark.parametrize("at_once", [False, True])
def test_lookups_of_many_records_are_answered_by_the_engine(at_once: bool, tmp_path: Path) -> None:
    case = Case(READ_WRITE, "rocksdb-indexed-batch", records=50, keys=100, at_once=at_once)
    with closing(open_subject(case, tmp_path)) as subject:
        assert isinstance(subject, TimedStore)
        store = subject.store
        assert isinstance(store, Store)
        recent: list[int] = []

        def timed(work: Callable[..., object], arguments: Callable[[], tuple[Any, ...]]) -> None:
            for _ in range(3):
                given = arguments()
                batch = store.staging.batch
                assert batch is not None
                recent.append(len(batch.recent))
                work(*given)

        time_reads_and_writes(case, store, Load(1), timed)
        assert recent == [0, 0, 0]
        assert store.approximate_num_uncommitted_bytes() > 0


@pytest.mark.parametrize("form", ["windows", "prefix"])
def test_a_fetch_runs_through_as_many_windows_as_a_prefix_scan_through_pairs(form: str, tmp_path: Path) -> None:
    with closing(open_subject(Case("fetch", "memory-indexed-batch"), tmp_path)) as subject:
        assert isinstance(subject, TimedStore)
        fetch_all(filled(form, subject.store, [b"%016d" % number for number in range(3)]), [b"%016d" % 1] * 2)
        kept = {(len(key), len(value)) for key, value in subject.store.all()}
    assert kept == {(33, 100)}


@pytest.mark.parametrize(("form", "timestamp_ms"), [("bytes", -1), ("timestamped", 1)])
def test_openings_are_those_of_a_store_in_the_form_that_is_named(form: str, timestamp_ms: int, tmp_path: Path) -> None:
    case = replace(openings("lmdb", form, 30), staged=30, rounds=2)
    assert len(opening_seconds(case, tmp_path, Load(1))) == 2
    with closing(open_subject(case, tmp_path)) as subject:
        assert isinstance(subject, TimedStore)
        assert subject.store.timestamps.is_split is (form == "bytes")
        with TimestampedKeyValue(BYTES, BYTES).over(subject.store).all() as pairs:
            assert [found.timestamp_ms for _, found in pairs] == [timestamp_ms] * 30


def test_a_segment_that_expires_is_gone_with_the_commit(tmp_path: Path) -> None:
    with closing(open_subject(Case("expire", "rocksdb-indexed-batch"), tmp_path)) as subject:
        assert isinstance(subject, TimedStore)
        segments = expiring(subject.store, 50)
        for _ in range(3):
            let_expire = next(segments)
            assert sum(1 for _ in subject.store.all()) >= 51
            expire(let_expire)
            assert sum(1 for _ in subject.store.all()) == 1


SUITES = (
    *("scan", "watch", "step", "ycsb-e", "iterators", "first-steps", "writer-waits", "reader-waits", "ranges", "read"),
    *("record-put", "record-get", "fetch", "expire"),
)


@pytest.mark.long
def test_the_suites_run_under_plain_pytest(tmp_path: Path) -> None:
    """One case of each: a process for each would mostly start."""
    suites = Path(__file__).parents[1] / "experiments" / "microbench" / "bench_stores.py"
    chosen = [next(case.id for case in cases("default") if case.suite == suite) for suite in SUITES]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(f"{suites}::test_case[{case}]" for case in chosen),
         "--benchmark-disable", "--profile", "default",
         "--basetemp", str(tmp_path / "work"), "-p", "no:cacheprovider"],
        capture_output=True, text=True, check=False, timeout=600, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(SUITES)} passed" in done.stdout


def test_cases_over_the_same_staged_records_share_a_store(tmp_path: Path) -> None:
    few, many = waits_over(WRITER_WAITS, 10), waits_over(WRITER_WAITS, 20)
    with closing(StagedStores(tmp_path, 1)) as staged:
        first = staged.opened(few)
        assert staged.opened(waits_over(READER_WAITS, 10)) is first
        assert staged.opened(many) is not first
        assert len(staged.keys) == len(list(staged.opened(many).store.all())) == 20
        assert not {key for key, _ in staged.load.fresh(20)} & set(staged.keys)


def test_measurements_end_at_the_deadline_and_those_before_it_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = {"seconds": 0.0}

    def killed(command: list[str], **given: Any) -> None:
        ran["seconds"] = given["timeout"]
        lines = Path(command[command.index("--seconds-file") + 1])
        lines.write_text('{"case": "a", "rounds": [[0.5, 0.4, 1e6], [0.25, null, null]]}\n{"case": "b", "rou')
        clock.now += given["timeout"]
        raise subprocess.TimeoutExpired(command, given["timeout"])

    clock = Clock()
    monkeypatch.setattr(subprocess, "run", killed)
    assert measure(["a", "b"], "default", 1, Deadline(clock.now + 7, clock)) == {
        "a": [Round(0.5, 0.4, 1e6), Round(0.25, None, None)]
    }
    assert ran["seconds"] == 7
    with pytest.raises(subprocess.TimeoutExpired):
        measure(["a", "b"], "default", 1)


def test_the_night_has_the_sizes_that_were_asked_for_and_smaller_rows_say_that_they_are_narrowed() -> None:
    night, default = ({(case.suite, case.staged) for case in cases(profile)} for profile in ("night", "default"))
    for suite, asked, narrowed in (("open", 1_000_000, 200_000), ("expire", 1_000_000, 100_000)):
        assert {(suite, asked), (suite, narrowed)} <= night
        assert (suite, narrowed) in default
        assert (suite, asked) not in default
        of_suite = [claim for claim in claims() if claim.subject.suite == suite]
        assert {"narrowed" in claim.text for claim in of_suite if claim.subject.staged == narrowed} == {True}
        assert {"narrowed" in claim.text for claim in of_suite if claim.subject.staged == asked} == {False}
