"""Runs of real stores are compared: one that sleeps in each put is found, and two of the same store do not differ.

The rows are those of the measured process, made in this one: a task, a changelog and a store, five repeats of each run
in turns. Memory and disk are left out, because they are those of a whole process. The clock is the CPU time of this
process and what the store sleeps, so that other processes change little.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.experiments.registry import kinds
from harness.experiments.throughput import measurement
from harness.experiments.throughput.experiment import throughput_row
from harness.experiments.throughput.measurement import Configuration, PartitionWork, timed, write_pairs
from harness.folders import temporary_folder
from harness.report.rows import new_run, write_facts, write_rows
from harness.tests.made_up_rows import FACTS
from harness.workloads.tasks import Count
from stores import failpoints
from stores.interface import Durability
from stores.strategies.store import Store

BACKENDS = ("lmdb-indexed-batch", "memory-indexed-batch")
EVENTS, REPEATS, SLEEP_S = 1_000, 5, 20e-6
COUNT = Count(keys=500)
SLEPT_S = [0.0]
Make = Callable[[Configuration], dict[str, Any]]


@pytest.fixture(autouse=True)
def _clock_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "perf_counter_ns", lambda: time.process_time_ns() + round(SLEPT_S[0] * 1e9))
    # CPU time has no waits for a processor.
    monkeypatch.setattr(measurement, "waited_ns", lambda: 0)


def row_of(configuration: Configuration) -> dict[str, Any]:
    with temporary_folder("comparison") as folder:
        events = write_pairs(folder / "events", COUNT.events(1, EVENTS))
        work = PartitionWork(configuration, COUNT, 0, folder / "events", events)
        changelog = work.changelog(folder)
        task = work.task(folder, changelog)
        task.open()
        try:
            figures = timed(task, work)
        finally:
            failpoints.disarm("task.after_log_commit")
        task.close()
        changelog.close()
    unknown = {"bytes_on_disk": 0, "replayed": 0, "open_after_kill_s": 0.0}
    row = throughput_row(configuration, [{**figures, **unknown}], "not compared")
    return {**row, "bytes_on_disk": None, "peak_memory_bytes": None}


def two_runs(folder: Path, a: Make, b: Make) -> tuple[str, str]:
    """Make two runs whose repeats alternate, so that a slow moment of the machine affects both."""
    made: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for repeat in range(REPEATS):
        for backend in BACKENDS:
            cell = Configuration(backend, Durability.CHANGELOG, COUNT.name, 100, 1, repeat, 1)
            turns = [(made[0], a), (made[1], b)]
            for rows, make in turns if repeat % 2 else reversed(turns):
                rows.append(make(cell))
    runs = [new_run(folder, "default", FACTS) for _ in made]
    for run, rows in zip(runs, made, strict=True):
        write_facts(run, FACTS)
        write_rows(run, "throughput", rows, kinds())
    before, after = map(str, runs)
    return before, after


@pytest.mark.long
def test_a_store_that_sleeps_20_microseconds_in_put_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def sleeping(configuration: Configuration) -> dict[str, Any]:
        put = Store.put

        def slow(store: Store, key: bytes, value: bytes | None) -> None:
            SLEPT_S[0] += SLEEP_S
            put(store, key, value)

        with monkeypatch.context() as patched:
            patched.setattr(Store, "put", slow)
            return row_of(configuration)

    before, after = two_runs(tmp_path, row_of, sleeping)
    assert main(["compare", before, after, "--fail=5%"]) == 1
    assert _records_per_s(capsys.readouterr().out, "worse") == set(BACKENDS)
    main(["compare", after, before])
    assert _records_per_s(capsys.readouterr().out, "better") == set(BACKENDS)


def test_two_runs_of_the_same_store_do_not_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Of 100 comparisons of equal runs 95 show no difference. Three others in a row are a defect.
    for _ in range(3):
        before, after = two_runs(tmp_path, row_of, row_of)
        assert main(["compare", before, after]) == 0
        said = capsys.readouterr().out
        if "No difference." in said:
            return
    pytest.fail(said)


def _records_per_s(said: str, verdict: str) -> set[str]:
    """Return the backends whose records per second have this verdict."""
    lines = [line for line in said.splitlines() if "records/s" in line and verdict in line.split("  ")[-1]]
    return {backend for backend in BACKENDS for line in lines if line.startswith(backend)}
