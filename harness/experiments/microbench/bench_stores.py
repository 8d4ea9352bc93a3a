"""The suites, for pytest-benchmark: ``pytest`` with the path of this file times the cases of a profile.

``--profile`` chooses smoke (the default), default or night. The harness runs some cases in each process, and gets their
seconds by ``--seconds-file``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from harness.experiments.microbench.case import (
    EXPIRE,
    FETCH,
    FIRST_STEPS,
    GET,
    GET_RECENT,
    ITERATORS,
    OPEN,
    PUT,
    READER_WAITS,
    SHARING,
    WRITER_WAITS,
    YCSB,
    Case,
)
from harness.experiments.microbench.load import Load, batches
from harness.experiments.microbench.openings import opening_seconds
from harness.experiments.microbench.readers import (
    READ,
    WriterBeside,
    look_up,
    make_iterators,
    step_iterators,
)
from harness.experiments.microbench.records import time_records
from harness.experiments.microbench.staged import StagedStores
from harness.experiments.microbench.subject import TimedStore, open_subject
from harness.experiments.microbench.waits import longest_waits
from harness.experiments.microbench.watcher import Watcher
from harness.experiments.microbench.windows import time_windows
from harness.experiments.microbench.yardstick import Pairs, Yardstick
from harness.workloads.ycsb import Ycsb, YcsbOperation, core_workload
from harness.workloads.ycsb import load as ycsb_load
from stores import KeyValueStore

RANGES = "ranges"
YCSB_VALUE_BYTES = 1_000
"""The size of a YCSB value: ten fields of 100 bytes. Source: YCSB, CoreWorkload (fieldcount, fieldlength)."""


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory, load_seed: int) -> Iterator[StagedStores]:
    stores = StagedStores(tmp_path_factory.mktemp("staged"), load_seed)
    yield stores
    stores.close()


@pytest.fixture
def subject(case: Case, tmp_path: Path, staged: StagedStores) -> Iterator[Yardstick | None]:
    if case.suite in SHARING:
        yield staged.opened(case)
        return
    staged.close()  # No other store is open while one is timed.
    if case.suite in (READ, OPEN):
        yield None  # The store belongs to a thread of its own, or is opened again and again.
        return
    opened = open_subject(case, tmp_path)
    with Watcher(opened.store) if case.watched and isinstance(opened, TimedStore) else nullcontext():
        yield opened
    opened.close()


def test_case(
    case: Case,
    subject: Yardstick | None,
    staged: StagedStores,
    tmp_path: Path,
    load_seed: int,
    seconds_file: Path | None,
    benchmark: Any,
) -> None:
    """Time one case. Each round does the same amount of work with new records."""
    _time(case, subject, staged, tmp_path, load_seed, benchmark)
    if seconds_file is not None:
        # A suite that does not measure the time of its work reports its seconds itself.
        seconds = benchmark.extra_info.get("seconds") or list(benchmark.stats.stats.data)
        with seconds_file.open("a") as lines:
            lines.write(json.dumps({"case": case.id, "seconds": seconds}) + "\n")


def _time(
    case: Case, subject: Yardstick | None, staged: StagedStores, tmp_path: Path, load_seed: int, benchmark: Any
) -> None:
    if case.suite == OPEN:
        seconds = benchmark.pedantic(opening_seconds, args=(case, tmp_path, Load(load_seed)))
        benchmark.extra_info["seconds"] = seconds
        return
    if subject is None:
        _time_reads(case, tmp_path / "subject", Load(load_seed), benchmark)
        return
    if case.suite in (WRITER_WAITS, READER_WAITS):
        assert isinstance(subject, TimedStore)
        waits = benchmark.pedantic(longest_waits, args=(case, subject.store, staged.keys, staged.load))
        benchmark.extra_info["seconds"] = waits
        return
    if case.suite in (ITERATORS, FIRST_STEPS):
        assert isinstance(subject, TimedStore)
        work = make_iterators if case.suite == ITERATORS else step_iterators
        benchmark.pedantic(work, args=(subject.store, case.records), rounds=case.rounds, warmup_rounds=1)
        return
    if case.suite in (PUT, GET, GET_RECENT):
        assert isinstance(subject, TimedStore)
        time_records(case, subject.store, Load(load_seed), benchmark)
        return
    if case.suite in (FETCH, EXPIRE):
        assert isinstance(subject, TimedStore)
        time_windows(case, subject.store, Load(load_seed), benchmark)
        return
    if case.suite == RANGES:
        assert isinstance(subject, TimedStore)
        _time_ranges(case, subject, Load(load_seed), benchmark)
        return
    if case.suite.startswith(YCSB):
        assert isinstance(subject, TimedStore)
        _time_ycsb(case, subject, load_seed, benchmark)
        return
    load = Load(load_seed)
    timed = {"commit": _write, "watch": _write, "step": _step, "update": _update, "scan": _scan}[case.suite]
    if case.suite in ("commit", "watch"):

        def setup() -> Any:
            return (subject, batches(load.fresh(case.records), case.records_per_commit)), {}

    elif case.suite == "step":
        numbers = count(1)

        def setup() -> Any:
            size = case.records_per_commit
            work = batches(load.fresh(case.records), size) if size else [[]] * case.records
            return (subject, list(zip(work, numbers, strict=False))), {}

    else:
        known = [key for key, _ in load.fresh(case.keys or case.records)]
        for batch in batches([(key, b"-" * 100) for key in known], 10_000):
            subject.write(batch)
        if case.suite == "scan":
            _stage(subject, load.of(known, case.records_per_commit, "uniform"))

        def setup() -> Any:
            if case.suite == "scan":
                return (subject, len(known)), {}
            pairs = load.of(known, case.records, case.distribution)
            return (subject, batches(pairs, case.records_per_commit)), {}

    benchmark.pedantic(timed, setup=setup, rounds=case.rounds, warmup_rounds=case.warm_up_rounds)


def _time_ycsb(case: Case, subject: TimedStore, seed: int, benchmark: Any) -> None:
    ycsb = Ycsb(core_workload(case.suite.removeprefix(YCSB)), case.keys, seed, value_bytes=YCSB_VALUE_BYTES)
    ycsb_load(subject.store, ycsb.load_records())
    operations = ycsb.operations(case.records * (case.rounds + 1))
    rounds = iter(range(0, len(operations), case.records))

    def setup() -> Any:
        first = next(rounds)
        mine = operations[first : first + case.records]
        size = case.records_per_commit
        return (subject, [mine[at : at + size] for at in range(0, len(mine), size)]), {}

    benchmark.pedantic(_operate, setup=setup, rounds=case.rounds, warmup_rounds=1)


def _time_ranges(case: Case, subject: TimedStore, load: Load, benchmark: Any) -> None:
    def setup() -> Any:
        subject.store.rollback()
        return (subject.store, load.fresh(case.records)), {}

    benchmark.pedantic(delete_ranges, setup=setup, rounds=case.rounds, warmup_rounds=0)


def _time_reads(case: Case, path: Path, load: Load, benchmark: Any) -> None:
    known = load.fresh(case.keys)
    with WriterBeside(case, path, known, load) as beside:
        keys = [key for key, _ in load.of([key for key, _ in known], case.records, case.distribution)]
        benchmark.pedantic(look_up, args=(beside.view, keys), rounds=case.rounds, warmup_rounds=1)
    assert bool(beside.commits) is case.commits_beside


def _operate(subject: TimedStore, work: list[list[YcsbOperation]]) -> None:
    for batch in work:
        subject.operate(batch)


def _write(subject: Yardstick, work: list[Pairs]) -> None:
    for batch in work:
        subject.write(batch)


def _step(subject: Yardstick, work: list[tuple[Pairs, int]]) -> None:
    for batch, number in work:
        subject.step(batch, number)


def _update(subject: Yardstick, work: list[Pairs]) -> None:
    for batch in work:
        subject.update(batch)


def _scan(subject: Yardstick, expected: int) -> None:
    count = 0
    for _ in subject.pairs():
        count += 1
    assert count == expected


def _stage(subject: Yardstick, pairs: Pairs) -> None:
    """Stage ``pairs`` without a commit if the subject is a store, else write them."""
    store = getattr(subject, "store", None)
    if store is None:
        subject.write(pairs)
    else:
        store.put_all(pairs)


def delete_ranges(store: KeyValueStore, pairs: Pairs) -> None:
    """Stage each pair, and delete the range that contains the key before it. Each delete must cost the same."""
    before = pairs[-1][0]
    for key, value in pairs:
        store.put(key, value)
        store.delete_range(before, before + b"\xff")
        before = key
