"""The store-level benchmarks measure what is claimed, and nothing is compared across levels of durability."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness.budget import Deadline
from harness.experiment import Request
from harness.experiments.microbench.case import (
    ENGINES,
    EXPIRE,
    GET,
    GET_RECENT,
    INDEXED,
    OPEN,
    READER_WAITS,
    WRITER_WAITS,
    Case,
    Load,
    batches,
    commits_counted,
    commits_of,
    openings,
    reads,
    waits_over,
)
from harness.experiments.microbench.claim import RatioClaim, cases, claims, limits, ratios
from harness.experiments.microbench.claim import rounds_of as rounds_of_case
from harness.experiments.microbench.experiment import Microbench, MicrobenchTrial
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
)
from harness.experiments.microbench.run import Round, _compared, _plan, measure, planned, summarized
from harness.experiments.microbench.yardstick import TimedStore, open_subject
from harness.processes.load import SPEED_UNIT
from harness.tests.clock import Clock
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


def rounds_of(seconds: dict[str, list[float]], busy: int = 0) -> list[dict[str, Any]]:
    """Rows of two rounds in each repeat; the machine was busy in the first ``busy`` repeats."""
    return [
        {"profile": "default", "case": case, "seed": repeat, "seconds": took, "others_share": 0.5 * (repeat < busy)}
        for case, repeats in seconds.items()
        for repeat, second in enumerate(repeats)
        for took in (second, second)
    ]


def test_a_ratio_has_the_interval_of_its_repeats_and_the_number_of_busy_ones() -> None:
    claim = next(claims())
    seconds = {claim.subject.id: [1.0, 1.0, 1.0, 1.0, 10.0], claim.yardstick.id: [1.2, 1.3, 1.1, 1.4, 15.0]}
    [row] = [row for row in summarized(rounds_of(seconds, busy=2)) if row["kind"] == "ratio"]
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
        for line in rounds_of({claim.subject.id: [1.0, 1.0, 2.0], claim.yardstick.id: [2.0, 2.0, 2.0]})
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


def test_what_is_compared_is_measured_first_side_by_side_and_five_times() -> None:
    chosen = cases("default")
    plan = _plan(chosen, (5, 5, 1), Random(1))
    order = [(case, batch.repeat) for batch in plan for case in batch.cases]
    assert len(set(order)) == len(order)
    assert {case for case, _ in order} == set(chosen)
    gates, in_open_claims = _of_thresholds(chosen), _of_claims(chosen, with_threshold=False)
    first, second = 5 * len(gates), 5 * len(gates) + 5 * len(in_open_claims)
    assert Counter(case for case, _ in order[:first]) == Counter(dict.fromkeys(gates, 5))
    assert Counter(case for case, _ in order[first:second]) == Counter(dict.fromkeys(in_open_claims, 5))
    assert Counter(case for case, _ in order[second:]) == Counter(set(chosen) - gates - in_open_claims)
    assert [batch.for_thresholds for batch in plan for _ in batch.cases] == [
        place < first for place in range(len(order))
    ]
    for claim in claims():
        both = {claim.subject, claim.yardstick}
        if both <= set(chosen):
            part = gates if claim.at_least else in_open_claims
            group = _group(claim.subject, [case for case in chosen if case in part])
            own = [batch for batch in plan if both & set(batch.cases) and batch.for_thresholds is bool(claim.at_least)]
            assert len(own) == 5
            for batch in own:
                places = [batch.cases.index(case) for case in group]
                assert max(places) - min(places) == len(places) - 1
    assert _plan(chosen, (5, 5, 1), Random(1)) == plan
    assert _plan(chosen, (5, 5, 1), Random(2)) != plan
    assert len({batch.cases for batch in plan[:5]}) > 1


def test_three_repeats_of_a_batch_come_one_after_the_other_and_further_ones_in_rounds() -> None:
    plan = planned("default", 1)
    assert [batch.repeat for batch in plan[:6]] == [0, 1, 2] * 2
    assert set(plan[0].cases) == set(plan[2].cases)
    assert not set(plan[0].cases) & set(plan[3].cases)
    fourth = next(place for place, batch in enumerate(plan) if batch.repeat == 3)
    assert set(plan[fourth].cases) == set(plan[0].cases)
    assert set(plan[fourth + 1].cases) == set(plan[3].cases)


def test_the_cases_of_thresholds_come_first_in_all_their_repeats() -> None:
    plan = planned("default", 1)
    gates = _of_thresholds(cases("default"))
    last = next(place for place, batch in enumerate(plan) if not set(batch.cases) <= gates)
    measured = [case for batch in plan[:last] for case in batch.cases]
    assert Counter(measured) == Counter(dict.fromkeys(gates, 5))


@pytest.mark.parametrize(("profile", "most"), [("default", 5), ("night", 15)])
def test_a_night_has_more_repeats_for_thresholds_and_no_seed_is_that_of_another_night(profile: str, most: int) -> None:
    seeds = [{trial.seed for trial in Microbench().plan(Request(profile, seed=seed))} for seed in (1, 2)]
    assert not seeds[0] & seeds[1]
    repeats = Counter(
        name for trial in Microbench().plan(Request(profile)) if trial.for_thresholds for name in trial.cases
    )
    assert set(repeats.values()) == {most}


def _of_claims(chosen: list[Case], *, with_threshold: bool) -> set[Case]:
    own = [claim for claim in claims() if bool(claim.at_least) is with_threshold]
    return {case for claim in own for case in (claim.subject, claim.yardstick)} & set(chosen)


def _of_thresholds(chosen: list[Case]) -> set[Case]:
    return {limit.subject for limit in limits()} | _of_claims(chosen, with_threshold=True)


CLEAR, NEAR = [2.0, 2.1, 1.9], [0.7, 1.2, 1.6]


def _gated_rounds(ratios_by_claim: Mapping[RatioClaim, list[float]]) -> list[dict[str, Any]]:
    """Rows in which each claim has these ratios to its threshold, and every limit is far from its own."""
    seconds: dict[str, list[float]] = {limit.subject.id: [limit.most_s / 5] * 3 for limit in limits()}
    for claim, of_repeats in ratios_by_claim.items():
        work = claim.subject.records / claim.yardstick.records
        seconds[claim.yardstick.id] = [1.0] * 3
        seconds[claim.subject.id] = [work / (claim.at_least or 1) / ratio for ratio in of_repeats]
    return [{**line, "profile": "night"} for line in rounds_of(seconds)]


def _trial(repeat: int, *compared: RatioClaim, for_thresholds: bool = True) -> MicrobenchTrial:
    names = [case.id for claim in compared for case in (claim.subject, claim.yardstick)]
    return MicrobenchTrial(tuple(names), "night", 7_000 + repeat, for_thresholds)


def _thresholds(text: str) -> list[RatioClaim]:
    return [claim for claim in claims() if claim.at_least and claim.text.startswith(text)]


def test_only_ratios_that_are_not_clear_are_measured_more_than_three_times() -> None:
    claim, other, _ = _thresholds("get_many and put_many of 1,000 records")
    needed = Microbench().still_needed
    rows = _gated_rounds({claim: NEAR, other: CLEAR})
    assert needed(_trial(2, claim, other), rows) == _trial(2, claim, other)
    assert needed(_trial(3, claim, other), rows) == _trial(3, claim)
    assert needed(_trial(3, claim, other), _gated_rounds({claim: CLEAR, other: CLEAR})) is None
    assert needed(_trial(3, claim, other), _gated_rounds({other: CLEAR})) == _trial(3, claim)
    # A yardstick whose backend is left out has nothing to be compared with.
    alone = replace(_trial(3, claim), cases=(claim.yardstick.id,))
    assert needed(alone, []) is None


def test_a_limit_is_measured_until_it_is_clear() -> None:
    limit, trial = next(limits()), MicrobenchTrial((next(limits()).subject.id,), "night", 7_003, True)
    near = rounds_of({limit.subject.id: [limit.most_s / ratio for ratio in NEAR]})
    assert Microbench().still_needed(trial, [{**line, "profile": "night"} for line in near]) == trial
    assert Microbench().still_needed(trial, _gated_rounds({})) is None


def test_a_ratio_at_one_level_does_not_stand_for_that_at_another() -> None:
    process, disk = _thresholds("put and commit of 1,000 records, against sorted putmulti")
    rows = _gated_rounds({process: CLEAR, disk: NEAR})
    assert Microbench().still_needed(_trial(3, process, disk), rows) == _trial(3, disk)


@pytest.mark.parametrize("profile", ["default", "night"])
def test_all_ratios_without_a_threshold_keep_all_their_repeats(profile: str) -> None:
    """Some of their cases are those of thresholds as well, which may be clear long before."""
    gates = {claim: CLEAR for claim in claims() if claim.at_least}
    rows = [{**line, "profile": profile} for line in _gated_rounds(gates)]
    planned_trials = Microbench().plan(Request(profile))
    kept = [trial for trial in planned_trials if Microbench().still_needed(trial, rows) == trial]
    measured = {case.id for case in cases(profile)}
    for claim in claims():
        both = {claim.subject.id, claim.yardstick.id}
        if claim.at_least is None and both <= measured:
            assert len({trial.seed for trial in kept if both <= set(trial.cases)}) >= 5, claim.text
    assert [trial.seed % 1_000 for trial in planned_trials if trial not in kept and trial.seed % 1_000 < 3] == []


def test_both_sides_of_a_ratio_have_as_many_rounds() -> None:
    for claim in claims():
        if claim.at_least and claim.subject.suite != EXPIRE:
            rounds = rounds_of_case(claim.subject)
            assert rounds == rounds_of_case(claim.yardstick)
            assert rounds == 12 or claim.subject.rounds
    assert rounds_of_case(commits_of("lmdb-native", 1_000)) == 3
    assert rounds_of_case(commits_of(INDEXED, 200_000)) == 1


def test_cases_over_the_same_staged_records_share_a_store(tmp_path: Path) -> None:
    few, many = waits_over(WRITER_WAITS, 10), waits_over(WRITER_WAITS, 20)
    with closing(StagedStores(tmp_path, 1)) as staged:
        first = staged.opened(few)
        assert staged.opened(waits_over(READER_WAITS, 10)) is first
        assert staged.opened(many) is not first
        assert len(staged.keys) == len(list(staged.opened(many).store.all())) == 20
        assert not {key for key, _ in staged.load.fresh(20)} & set(staged.keys)


@pytest.mark.parametrize("seed", range(20))
def test_cases_over_the_same_staged_records_come_one_after_the_other(seed: int) -> None:
    plan = planned("default", seed)
    fills = [[case.fill for case in batch.cases if case.fill] for batch in plan if batch.repeat == 0]
    for batch in fills:
        changes = sum(before != after for before, after in pairwise(batch))
        assert changes == max(0, len(set(batch)) - 1)


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


def _group(member: Case, chosen: list[Case]) -> list[Case]:
    return next(group for group in _compared(chosen) if member.id in [case.id for case in group])


def test_the_night_has_the_sizes_that_were_asked_for_and_smaller_rows_say_that_they_are_narrowed() -> None:
    night, default = ({(case.suite, case.staged) for case in cases(profile)} for profile in ("night", "default"))
    for suite, asked, narrowed in (("open", 1_000_000, 200_000), ("expire", 1_000_000, 100_000)):
        assert {(suite, asked), (suite, narrowed)} <= night
        assert (suite, narrowed) in default
        assert (suite, asked) not in default
        of_suite = [claim for claim in claims() if claim.subject.suite == suite]
        assert {"narrowed" in claim.text for claim in of_suite if claim.subject.staged == narrowed} == {True}
        assert {"narrowed" in claim.text for claim in of_suite if claim.subject.staged == asked} == {False}
