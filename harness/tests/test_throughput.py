from __future__ import annotations

import itertools
import os
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time, sleep
from typing import cast

import pytest

from harness import replay
from harness.budget import PROFILES
from harness.experiment import Request
from harness.experiments.store_of_records import log_durability
from harness.experiments.throughput import measurement
from harness.experiments.throughput.experiment import Throughput, throughput_row
from harness.experiments.throughput.measurement import Configuration, Stopwatch, histogram, read_pairs, write_pairs
from harness.experiments.throughput.plan import ThroughputGrid as Grid
from harness.experiments.throughput.plan import ThroughputTrial, throughput_trials
from harness.processes.load import SPEED_UNIT, LoadWatch, SpeedMeter, clocks, cpu_times, is_busy, waited_ns
from harness.progress import ProgressFile, note_progress
from harness.report.figures import rounds
from stores.changelog.interface import Record
from stores.errors import ConfigError
from stores.interface import Durability, TopicPartition
from stores.registry import backends
from stores.tasks import StreamTask

BACKEND = "memory-indexed-batch"
CONFIGURATION = Configuration(BACKEND, Durability.CHANGELOG, "count", 100, 2, 0, 7)


def profile(name: str, seed: int) -> list[ThroughputTrial]:
    return Throughput().plan(Request(name, seed))


def figures(**changed: object) -> dict[str, object]:
    return {
        "records": 1_000,
        "seconds": 2.0,
        "waited_s": 0.0,
        "commits": histogram(array("q", [100_000] * 99)),
        "store_commits": histogram(array("q", [50_000] * 99)),
        "bytes_written": 10,
        "bytes_on_disk": 20,
        "peak_memory_bytes": 30,
        "open_files": 5,
        "replayed": 4,
        "open_after_kill_s": 0.1,
        "wall_s": 2.5,
        "cpu_s": 2.0,
        "load_average": 3.0,
        **changed,
    }


def test_picks_rest_on_rates_and_times_at_one_speed_of_the_processor() -> None:
    """It had half the speed in the second round. A row without a speed is left as it is."""
    rows = [
        {
            **dict.fromkeys(Throughput.columns["throughput"]),
            **throughput_row(CONFIGURATION, [figures(seconds=2.0 * slow)], "equal"),
            "commit_p99_us": 100 * slow,
            "repeat": repeat,
            "machine_speed": speed,
        }
        for repeat, slow, speed in ((0, 1, 2 * SPEED_UNIT), (1, 2, SPEED_UNIT), (2, 1, None))
    ]
    [figure] = Throughput().figures({"throughput": rows})["throughput"]
    assert rounds(figure, "records_per_s") == {0: 250.0, 1: 250.0, 2: 500.0}
    assert rounds(figure, "commit_p99_us") == {0: 200.0, 1: 200.0, 2: 100.0}
    assert (figure["records_per_s"], figure["commit_p99_us"]) == (500.0, 100.0)


def test_a_speed_is_measured_in_turns_whose_time_is_in_no_figure() -> None:
    meter = SpeedMeter()
    assert meter.pairs_per_s() is None
    first = meter.turn()
    assert meter.pairs_per_s() == pytest.approx(first)
    second, together = meter.turn(), meter.pairs_per_s()
    assert together is not None
    assert min(first, second) <= together <= max(first, second)
    assert 0 < meter.cpu_s <= process_time()
    assert meter.wall_s >= 0.5 * meter.cpu_s
    began = clocks()
    meter = SpeedMeter()
    meter.turn_if_due()
    meter.turn_if_due()  # It is not due again.
    meter.wall_s, meter.cpu_s = meter.wall_s + 10.0, meter.cpu_s + 20.0
    columns = meter.columns_since(began)
    assert columns["machine_speed"] == meter.pairs_per_s()
    assert -10.0 < (columns["seconds"] or 0.0) < 0.0
    assert -20.0 < (columns["cpu_s"] or 0.0) < -10.0
    given = [figures(cpu_s=2.0, fixed_cpu_s=0.5, machine_speed=1.0), figures(seconds=3.0, machine_speed=2.0)]
    row = throughput_row(CONFIGURATION, given, "equal")
    assert (row["cpu_s"], row["machine_speed"], row["cpu_per_wall"]) == (3.5, 2.0, 1.6)


def test_pairs_come_back_as_they_were_written(tmp_path: Path) -> None:
    pairs = [(b"k", b"", -1), (b"\x00" * 300, b"v" * 100_000, 1 << 40)]
    assert write_pairs(tmp_path / "pairs", pairs) == 2
    assert list(read_pairs(tmp_path / "pairs")) == pairs


def test_a_file_that_ends_within_a_pair_is_noticed(tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs", [(b"key", b"value", 1)])
    whole = (tmp_path / "pairs").read_bytes()
    for end in range(1, len(whole)):
        (tmp_path / "torn").write_bytes(whole[:end])
        with pytest.raises(EOFError):
            list(read_pairs(tmp_path / "torn"))


def test_the_same_seed_plans_the_same_order_and_another_one_another() -> None:
    assert profile("default", 1) == profile("default", 1)
    first, other = (trial.configurations for trial in (profile("default", 1)[1], profile("default", 2)[1]))
    assert [each.backend for each in first] != [each.backend for each in other]


@pytest.mark.parametrize("name", PROFILES)
def test_every_backend_is_measured_in_every_profile(name: str) -> None:
    for trial in profile(name, 1)[:2]:
        assert {each.backend for each in trial.configurations} == set(backends())


def test_a_level_that_a_backend_cannot_carry_is_left_out() -> None:
    (trial,) = throughput_trials([Grid("count", 100, durabilities=(Durability.CHANGELOG, Durability.DISK))], 1)
    assert (BACKEND, Durability.DISK) not in {(each.backend, each.durability) for each in trial.configurations}
    with pytest.raises(ConfigError):
        throughput_trials([Grid("count", 100, durabilities=(Durability.DISK,), backends=(BACKEND,))], 1)


def test_laps_of_a_trial_that_is_repeated_are_one_number_for_each_configuration() -> None:
    (trial,) = throughput_trials([Grid("count", 100, backends=(BACKEND,))], 1)
    given = replace(trial, laps=(3,))
    assert Throughput().read(replay.text_of(given)) == given
    for wrong in ((3, 4), (0,)):
        with pytest.raises(ConfigError):
            Throughput().read(replay.text_of(replace(trial, laps=wrong)))


def test_overlapping_plans_measure_a_configuration_once() -> None:
    grids = [
        Grid("count", 100, records_per_commit=(10, 100)),
        Grid("count", 100, records_per_commit=(100,)),
    ]
    (trial,) = throughput_trials(grids, 1)
    assert len(trial.configurations) == len(set(trial.configurations)) == 2 * len(backends())


def test_every_cell_of_a_default_run_that_picks_rest_on_is_measured_five_times_for_a_second() -> None:
    found: dict[tuple[str, int], set[tuple[int, float]]] = {}
    for trial in profile("default", 1):
        for each in trial.configurations if (trial.workload, trial.partitions) == ("count", 2) else ():
            cell = found.setdefault((str(each.durability), each.records_per_commit), set())
            cell.add((each.repeat, trial.work_s))
    for wanted in (("CHANGELOG", 1_000), ("PROCESS", 1_000), ("DISK", 1_000), ("CHANGELOG", 10_000)):
        assert found[wanted] == {(repeat, 1.0) for repeat in range(5)}


def test_each_round_has_every_configuration_in_an_order_of_its_own() -> None:
    (trial,) = throughput_trials([Grid("count", 100, repeats=5)], 1)
    size = len(backends())
    rounds = [[each.backend for each in trial.configurations[at : at + size]] for at in range(0, 5 * size, size)]
    assert all(set(each) == set(backends()) for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1


def test_a_short_budget_completes_the_repeats_of_the_first_level() -> None:
    levels = (Durability.CHANGELOG, Durability.DISK)
    (trial,) = throughput_trials([Grid("count", 100, durabilities=levels, repeats=5)], 1)
    order = [each.durability for each in trial.configurations]
    assert order == [Durability.CHANGELOG] * order.count(Durability.CHANGELOG) + [Durability.DISK] * order.count(
        Durability.DISK
    )


def test_repeats_of_a_configuration_lie_apart() -> None:
    (trial,) = throughput_trials([Grid("count", 100, repeats=3)], 1)
    assert [each.repeat for each in trial.configurations] == sorted(each.repeat for each in trial.configurations)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Grid("cuont", 100),
        lambda: Grid("count", 100, backends=("rocksdb-indexed-bath",)),
        lambda: Grid("count", 0),
        lambda: Grid("count", 100, records_per_commit=(0,)),
        lambda: throughput_trials([Grid("count", 100, options=(("no_such_option", 1),))], 1),
        lambda: profile("quick", 1),
    ],
)
def test_what_does_not_exist_is_refused(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError):
        wrong()


def test_a_changelog_survives_what_its_stores_survive() -> None:
    survives_more = [Durability.PROCESS, Durability.PROCESS, Durability.DISK]
    levels = [Durability.CHANGELOG, Durability.PROCESS, Durability.DISK]
    assert [log_durability(level) for level in levels] == survives_more


def test_a_row_sums_its_partitions_and_takes_the_slowest_ones_time() -> None:
    slow = figures(records=500, seconds=4.0, commits=histogram(array("q", [9_000_000])), open_after_kill_s=0.3)
    row = throughput_row(CONFIGURATION, [figures(), slow], "equal")
    assert (row["records"], row["seconds"]) == (1_500, 4.0)
    assert row["records_per_s"] == 375.0
    assert (row["bytes_written"], row["bytes_on_disk"], row["peak_memory_bytes"], row["replayed"]) == (20, 40, 60, 8)
    assert row["open_files"] == 10
    assert row["open_after_kill_s"] == 0.3
    assert row["commit_p50_us"] == 100
    assert row["commit_p99_us"] == 100
    assert row["commit_max_us"] == pytest.approx(9_000, rel=0.001)
    assert (row["kind"], row["durability"]) == ("throughput", "CHANGELOG")


def test_a_row_has_the_load_of_the_machine_without_that_of_its_own_partitions() -> None:
    machine = {"machine_s": 10.0, "machine_busy_s": 6.0, "machine_steal_s": 1.0}
    row = throughput_row(CONFIGURATION, [figures(**machine), figures(wall_s=5.0, cpu_s=3.0, **machine)], "equal")
    assert (row["cpu_per_wall"], row["others_share"], row["steal_share"], row["load_average"]) == (1.0, 0.1, 0.1, 3.0)
    assert is_busy(row)
    assert not is_busy({**row, "steal_share": 0.0})
    unknown = throughput_row(CONFIGURATION, [figures()], "equal")
    assert (unknown["others_share"], is_busy(unknown)) == (None, False)


def test_the_times_of_the_machine_are_read_without_counting_waits_as_work(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  100 20 30 400 50 6 7 80 0 0\ncpu0 1 2\n")
    ticks = os.sysconf("SC_CLK_TCK")
    assert cpu_times(tmp_path / "stat") == (693 / ticks, 163 / ticks, 80 / ticks)
    (tmp_path / "stat").write_text("cpu 1 2\n")
    assert cpu_times(tmp_path / "stat") is None
    assert cpu_times(tmp_path / "missing") is None


def test_a_watch_counts_the_cpu_time_of_its_process() -> None:
    watch = LoadWatch()
    began = process_time()
    while process_time() - began < 0.05:
        pass
    found = watch.figures()
    assert found["cpu_s"] >= 0.05
    assert found["wall_s"] > 0


def test_rates_are_without_the_time_in_which_a_partition_had_no_processor(tmp_path: Path) -> None:
    row = throughput_row(CONFIGURATION, [figures(seconds=5.0), figures(seconds=8.0, waited_s=6.0)], "equal")
    assert (row["seconds"], row["waited_share"], row["records_per_s"]) == (8.0, 0.75, row["records"] / 5.0)
    (tmp_path / "schedstat").write_text("5000000000 1500000000 7\n")
    assert waited_ns(tmp_path / "schedstat") == 1_500_000_000
    (tmp_path / "schedstat").write_text("\n")
    assert waited_ns(tmp_path / "schedstat") == waited_ns(tmp_path / "missing") == 0


def test_a_stopwatch_counts_no_time_in_which_its_thread_had_no_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Task:
        def process_all(self, partition: TopicPartition, records: Sequence[Record]) -> None:
            pass

        def commit(self) -> None:
            pass

    records = [Record(offset, b"k", b"v", 0) for offset in range(4)]
    for waits, shares in ((itertools.count(step=10**12), 1.0), (itertools.repeat(7), 0.0)):
        monkeypatch.setattr(measurement, "waited_ns", waits.__next__)
        stopwatch = Stopwatch(cast(StreamTask, Task()), TopicPartition("events", 0))
        stopwatch.run(iter(records), every=2)
        assert stopwatch.records == 4
        assert stopwatch.busy_ns > 0
        assert stopwatch.waited_ns == shares * stopwatch.busy_ns
        assert [commit == 0 for commit in stopwatch.commits_ns] == [shares == 1.0] * 2


def test_a_partition_without_events_has_no_rate() -> None:
    empty = histogram(array("q"))
    row = throughput_row(CONFIGURATION, [figures(records=0, seconds=0.0, commits=empty, store_commits=empty)], "equal")
    assert (row["records_per_s"], row["commit_p50_us"], row["commit_max_us"]) == (0.0, 0, 0)


def test_progress_is_said_line_by_line_and_in_order(tmp_path: Path) -> None:
    said: list[str] = []
    with ProgressFile(tmp_path / "progress", said.append) as progress:
        for number in range(3):
            note_progress(progress.path, f"line {number}")
        note_progress(tmp_path / "elsewhere", "lost")
    assert said == ["line 0", "line 1", "line 2"]
    assert not (tmp_path / "elsewhere").exists()


def test_turns_of_fixed_work_are_between_commits_and_in_no_time() -> None:
    done: list[str] = []

    class Task:
        def process_all(self, partition: TopicPartition, records: Sequence[Record]) -> None:
            done.append("records")
            sleep(0.03)

        def commit(self) -> None:
            done.append("commit")

    class Slow(SpeedMeter):
        def turn(self) -> float:
            done.append("turn")
            sleep(0.3)
            return 1.0

    stopwatch = Stopwatch(cast(StreamTask, Task()), TopicPartition("events", 0))
    stopwatch.run((Record(offset, b"k", b"v", 0) for offset in range(8)), 2, Slow())
    pieces = ["records", "commit"]
    # One at first, and then after 50 ms of work each.
    assert done == [*pieces, "turn", *pieces, *pieces, "turn", *pieces]
    assert 0.1 < stopwatch.busy_ns / 1e9 < 0.3
