from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.experiments.throughput import measurement
from harness.experiments.throughput.experiment import run
from harness.experiments.throughput.measurement import Configuration, PartitionWork, read_pairs, write_pairs
from harness.experiments.throughput.record_parts import PARTS
from harness.processes.child import ARGUMENTS_FILE, MeasurementFailedError, figures_in, write_figures
from harness.workloads.tasks import Count
from stores.interface import Durability
from stores.registry import ALIASES, backends

EVENTS = 1_500
COUNT = Count(keys=200)
REFUSED_OPTIONS = (("max_write_buffer_number", 0),)
"""No store of RocksDB opens with them."""


def work_of(
    folder: Path,
    backend: str,
    durability: Durability = Durability.CHANGELOG,
    events: int = EVENTS,
    options: tuple[tuple[str, str | int | bool], ...] = (),
) -> PartitionWork:
    configuration = Configuration(backend, durability, "count", 100, 1, 0, 1, options)
    write_pairs(folder / "events", COUNT.events(1, events))
    return PartitionWork(configuration, COUNT, 0, folder / "events", events)


def counted(events: int) -> dict[bytes, bytes]:
    state: dict[bytes, tuple[int, bytes]] = {}
    for event in COUNT.events(1, events):
        state[event.key] = (state.get(event.key, (0, b""))[0] + 1, event.value)
    return {key: count.to_bytes(8, "big") + value for key, (count, value) in state.items()}


OF_EACH_KIND = {*ALIASES.values(), "rocksdb-direct"}
"""One backend of each engine, and the one that is restored from the start after a kill."""


@pytest.mark.parametrize(
    "backend", [pytest.param(name, marks=[] if name in OF_EACH_KIND else pytest.mark.long) for name in backends()]
)
def test_the_state_after_the_kill_is_that_of_the_committed_events_alone(tmp_path: Path, backend: str) -> None:
    states: list[list[tuple[bytes, bytes]]] = []
    figures = run(
        work_of(tmp_path, backend), lambda digest, dump: states.append([pair[:2] for pair in read_pairs(dump)])
    )
    assert states == [sorted(counted(EVENTS).items())]
    assert figures["records"] == EVENTS - EVENTS // 10
    assert figures["seconds"] > 0
    assert figures["open_after_kill_s"] > 0
    assert figures["bytes_written"] > figures["records"] * 200
    assert figures["peak_memory_bytes"] > 1 << 20
    assert figures["open_files"] > 3


def test_laps_are_one_log_in_which_each_lap_is_later(tmp_path: Path) -> None:
    work = replace(work_of(tmp_path, "memory-indexed-batch", events=3), laps=2, span_ms=1_000)
    first = list(COUNT.events(1, 3))
    again = [each._replace(timestamp_ms=each.timestamp_ms + 1_000) for each in first]
    assert [(each.key, each.value, each.timestamp_ms) for each in work.records()] == [*first, *again]
    assert [each.offset for each in work.records()] == list(range(6)) == list(range(work.records_number))


def test_the_state_after_some_laps_has_counted_each_event_in_every_lap(tmp_path: Path) -> None:
    states: list[dict[bytes, bytes]] = []
    work = replace(work_of(tmp_path, "lmdb"), laps=3, span_ms=EVENTS)
    figures = run(work, lambda digest, dump: states.append({key: value for key, value, _ in read_pairs(dump)}))
    (state,) = states
    assert figures["records"] == 3 * EVENTS - EVENTS // 10
    assert {key: int.from_bytes(value[:8], "big") for key, value in state.items()} == {
        key: 3 * int.from_bytes(value[:8], "big") for key, value in counted(EVENTS).items()
    }


def test_the_parts_of_a_record_are_measured_in_the_first_two_rounds(tmp_path: Path) -> None:
    found = []
    for number in range(4):
        work = work_of(tmp_path, "memory-indexed-batch", events=10)
        found.append(run(replace(work, configuration=replace(work.configuration, repeat=number))))
    assert [PARTS[0] in each for each in found] == [True, True, False, False]
    assert all(each["open_after_kill_s"] > 0 for each in found)


def test_the_partitions_meet_between_the_processes_and_also_if_the_first_one_fails(tmp_path: Path) -> None:
    met: list[bool] = []
    run(work_of(tmp_path, "memory-indexed-batch", events=10), meet=lambda: met.append(True))
    assert met == [True]
    with pytest.raises(MeasurementFailedError):
        broken = work_of(tmp_path, "rocksdb-indexed-batch", options=REFUSED_OPTIONS)
        run(broken, meet=lambda: met.append(False))
    assert met == [True, False]


def test_all_backends_end_with_the_same_digest(tmp_path: Path) -> None:
    digests = {run(work_of(tmp_path, backend))["state_digest"] for backend in ("lmdb", "memory-indexed-batch")}
    assert len(digests) == 1


def test_a_level_that_survives_a_kill_has_nothing_to_replay(tmp_path: Path) -> None:
    figures = run(work_of(tmp_path, "rocksdb-indexed-batch", Durability.PROCESS))
    assert figures["replayed"] == 0
    assert figures["bytes_on_disk"] > 0


def test_a_partition_without_events_is_measured_too(tmp_path: Path) -> None:
    figures = run(work_of(tmp_path, "rocksdb-indexed-batch", events=0))
    assert (figures["records"], figures["seconds"]) == (0, 0)


def test_a_process_that_fails_is_reported(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailedError):
        run(work_of(tmp_path, "rocksdb-indexed-batch", options=REFUSED_OPTIONS))


def asleep(folder: Path) -> dict[str, Any]:
    """Take longer than the deadline."""
    time.sleep(60)
    return {}


def test_a_process_that_hangs_is_killed_at_its_deadline(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(MeasurementFailedError):
        figures_in(tmp_path, asleep, {}, 0.5)
    assert time.monotonic() - began < 30


def test_a_measured_process_ends_with_its_parent(tmp_path: Path) -> None:
    work_of(tmp_path, "rocksdb-indexed-batch", Durability.DISK, events=200_000).write(tmp_path)
    write_figures(tmp_path / ARGUMENTS_FILE, {})
    command = [sys.executable, "-m", "harness.processes.apart", f"{measurement.__name__}:measured", str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(600) not in (0, -signal.SIGKILL)
    finally:
        process.kill()
        process.wait()


def test_a_measured_process_imports_neither_spark_nor_pyarrow() -> None:
    code = f"import sys, {measurement.__name__}; print(sorted({{'pyspark', 'pyarrow', 'pandas'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=os.environ)
    assert done.stdout.strip() == "[]"
