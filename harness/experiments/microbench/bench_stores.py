"""The suites, for pytest-benchmark: ``pytest`` with the path of this file times the cases of a profile.

``--profile`` chooses smoke (the default), default or night. The harness runs some cases in each process, and gets their
seconds by ``--seconds-file``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from statistics import fmean
from time import process_time
from types import MappingProxyType
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
    READ_WRITE,
    READER_WAITS,
    SHARING,
    WRITER_WAITS,
    YCSB,
    Case,
    Load,
    batches,
)
from harness.experiments.microbench.claim import rounds_of
from harness.experiments.microbench.readers import (
    READ,
    StagedStores,
    WriterBeside,
    longest_waits,
    look_up,
    make_iterators,
    step_iterators,
)
from harness.experiments.microbench.records import (
    opening_seconds,
    time_expiries,
    time_fetches,
    time_lookups,
    time_puts,
    time_reads_and_writes,
)
from harness.experiments.microbench.yardstick import Pairs, TimedStore, Watcher, Yardstick, open_subject
from harness.processes.load import SpeedMeter
from harness.workloads.ycsb import CORE_WORKLOADS, Ycsb, YcsbOperation, core_workload
from harness.workloads.ycsb import load as ycsb_load
from stores import KeyValueStore

YCSB_VALUE_BYTES = 1_000
"""The size of a YCSB value: ten fields of 100 bytes. Source: YCSB, CoreWorkload (fieldcount, fieldlength)."""


@dataclass(frozen=True)
class Bench:
    """A case with what its suite times it with."""

    case: Case
    subject: Yardstick | None
    """The open backend or yardstick; None for the suites of ``_OPENED_BY_SUITE``."""
    staged: StagedStores
    folder: Path
    seed: int
    benchmark: Any
    """The fixture of pytest-benchmark."""

    @property
    def store(self) -> KeyValueStore:
        """The open store, in a suite without yardsticks."""
        assert isinstance(self.subject, TimedStore)
        return self.subject.store

    @property
    def load(self) -> Load:
        """A new stream of records, always the same."""
        return Load(self.seed)

    def timed(
        self, work: Callable[..., object], arguments: Callable[[], tuple[Any, ...]], warm_up_rounds: int = 1
    ) -> None:
        """Time the rounds of the case: ``arguments`` are made again for each, before the clock runs."""
        rounds, cpu_s, meter = rounds_of(self.case), list[float](), SpeedMeter()
        turns: list[float] = []

        def on_cpu(*arguments: Any) -> None:
            began = process_time()
            work(*arguments)
            cpu_s.append(process_time() - began)

        def made() -> tuple[tuple[Any, ...], dict[str, Any]]:
            turns.append(meter.turn())
            return arguments(), {}

        self.benchmark.pedantic(on_cpu, setup=made, rounds=rounds, warmup_rounds=warm_up_rounds)
        turns.append(meter.turn())
        if self.case.works_alone:
            self.benchmark.extra_info["cpu_seconds"] = cpu_s[-rounds:]
            # Before and after each round.
            self.benchmark.extra_info["machine_speeds"] = list(map(fmean, pairwise(turns[-rounds - 1 :])))

    def report(self, seconds: Callable[[], list[float]]) -> None:
        """Report the seconds that a suite measures itself, because they are not those of its work."""
        self.benchmark.extra_info["seconds"] = self.benchmark.pedantic(seconds)


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
    if case.suite in _OPENED_BY_SUITE:
        yield None
        return
    timed_subject = open_subject(case, tmp_path)
    with Watcher(timed_subject.store) if case.watched and isinstance(timed_subject, TimedStore) else nullcontext():
        yield timed_subject
    timed_subject.close()


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
    SUITES[case.suite](Bench(case, subject, staged, tmp_path, load_seed, benchmark))
    if seconds_file is not None:
        seconds = benchmark.extra_info.get("seconds") or list(benchmark.stats.stats.data)
        nothing = [None] * len(seconds)
        cpu_seconds, speeds = (benchmark.extra_info.get(name) or nothing for name in ("cpu_seconds", "machine_speeds"))
        with seconds_file.open("a") as lines:
            rounds = list(zip(seconds, cpu_seconds, speeds, strict=True))
            lines.write(json.dumps({"case": case.id, "rounds": rounds}) + "\n")


def _time_commits(bench: Bench) -> None:
    case, load = bench.case, bench.load
    bench.timed(
        _write,
        lambda: (bench.subject, batches(load.fresh(case.records), case.records_per_commit)),
        case.warm_up_rounds,
    )


def _time_steps(bench: Bench) -> None:
    case, load, numbers = bench.case, bench.load, count(1)

    def arguments() -> tuple[Any, ...]:
        size = case.records_per_commit
        work = batches(load.fresh(case.records), size) if size else [[]] * case.records
        return bench.subject, list(zip(work, numbers, strict=False))

    bench.timed(_step, arguments, case.warm_up_rounds)


def _time_updates(bench: Bench) -> None:
    case, load = bench.case, bench.load
    keys = _commit_known(bench, load)

    def arguments() -> tuple[Any, ...]:
        pairs = load.of(keys, case.records, case.distribution)
        return bench.subject, batches(pairs, case.records_per_commit)

    bench.timed(_update, arguments, case.warm_up_rounds)


def _time_scans(bench: Bench) -> None:
    case, load = bench.case, bench.load
    keys = _commit_known(bench, load)
    assert bench.subject is not None
    _stage(bench.subject, load.of(keys, case.records_per_commit, "uniform"))
    bench.timed(_scan, lambda: (bench.subject, len(keys)), case.warm_up_rounds)


def _time_reads(bench: Bench) -> None:
    case, load = bench.case, bench.load
    pairs = load.fresh(case.keys)
    with WriterBeside(case, bench.folder / "subject", pairs, load) as beside:
        keys = [key for key, _ in load.of([key for key, _ in pairs], case.records, case.distribution)]
        bench.timed(look_up, lambda: (beside.view, keys))
    assert bool(beside.commits) is case.commits_beside


def _time_ranges(bench: Bench) -> None:
    store, load = bench.store, bench.load

    def arguments() -> tuple[Any, ...]:
        store.rollback()
        return store, load.fresh(bench.case.records)

    bench.timed(delete_ranges, arguments, warm_up_rounds=0)


def _time_waits(bench: Bench) -> None:
    staged = bench.staged
    bench.report(lambda: longest_waits(bench.case, bench.store, staged.keys, staged.load))


def _time_ycsb(bench: Bench) -> None:
    case = bench.case
    ycsb = Ycsb(core_workload(case.suite.removeprefix(YCSB)), case.keys, bench.seed, value_bytes=YCSB_VALUE_BYTES)
    ycsb_load(bench.store, ycsb.load_records())
    operations = batches(ycsb.operations(case.records * (rounds_of(case) + 1)), case.records)
    rounds = iter(operations)
    bench.timed(_operate, lambda: (bench.subject, batches(next(rounds), case.records_per_commit)))


SUITES: Mapping[str, Callable[[Bench], None]] = MappingProxyType(
    {
        "commit": _time_commits,
        "watch": _time_commits,
        "step": _time_steps,
        "update": _time_updates,
        "scan": _time_scans,
        "ranges": _time_ranges,
        READ: _time_reads,
        ITERATORS: lambda bench: bench.timed(make_iterators, lambda: (bench.store, bench.case.records)),
        FIRST_STEPS: lambda bench: bench.timed(step_iterators, lambda: (bench.store, bench.case.records)),
        WRITER_WAITS: _time_waits,
        READER_WAITS: _time_waits,
        PUT: lambda bench: time_puts(bench.case, bench.store, bench.load, bench.timed),
        GET: lambda bench: time_lookups(bench.case, bench.store, bench.load, bench.timed),
        GET_RECENT: lambda bench: time_lookups(bench.case, bench.store, bench.load, bench.timed),
        READ_WRITE: lambda bench: time_reads_and_writes(bench.case, bench.store, bench.load, bench.timed),
        FETCH: lambda bench: time_fetches(bench.case, bench.store, bench.load, bench.timed),
        EXPIRE: lambda bench: time_expiries(bench.case, bench.store, bench.load, bench.timed),
        OPEN: lambda bench: bench.report(lambda: opening_seconds(bench.case, bench.folder, bench.load)),
        **{f"{YCSB}{letter.lower()}": _time_ycsb for letter in CORE_WORKLOADS},
    }
)
"""The suites by name, see ``Case.suite``."""
_OPENED_BY_SUITE = (READ, OPEN)
"""Suites whose store belongs to a thread of its own, or is opened again and again."""


def _commit_known(bench: Bench, load: Load) -> list[bytes]:
    """Commit records with new keys, as many as the case updates or scans, and return the keys."""
    assert bench.subject is not None
    keys = [key for key, _ in load.fresh(bench.case.keys or bench.case.records)]
    for batch in batches([(key, b"-" * 100) for key in keys], 10_000):
        bench.subject.write(batch)
    return keys


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
    pairs = 0
    for _ in subject.pairs():
        pairs += 1
    assert pairs == expected


def _stage(subject: Yardstick, pairs: Pairs) -> None:
    """Stage ``pairs`` without a commit if the subject is a store, else write them."""
    if isinstance(subject, TimedStore):
        subject.store.put_all(pairs)
    else:
        subject.write(pairs)


def delete_ranges(store: KeyValueStore, pairs: Pairs) -> None:
    """Stage each pair, and delete the range that contains the key before it. Each delete must cost the same."""
    before = pairs[-1][0]
    for key, value in pairs:
        store.put(key, value)
        store.delete_range(before, before + b"\xff")
        before = key
