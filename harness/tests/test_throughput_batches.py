"""The batch form of a workload is compared with its record form, cell by cell and repeat by repeat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.experiments.throughput import record_parts
from harness.experiments.throughput.experiment import batch_ratios, run
from harness.experiments.throughput.measurement import Configuration, PartitionWork, write_pairs
from harness.experiments.throughput.plan import ThroughputGrid as Grid
from harness.experiments.throughput.record_parts import PARTS, PartClock
from harness.experiments.throughput.report import WHERE_TIME_GOES
from harness.report.ratios import ratios
from harness.workloads.tasks import workload
from stores.errors import ConfigError
from stores.interface import Durability


def measured(workload: str, repeat: int, records: int, cpu_s: float, size: int = 1_000) -> dict[str, Any]:
    return {
        "kind": "throughput", "workload": workload, "backend": "lmdb", "durability": "CHANGELOG", "partitions": 1,
        "records_per_commit": size, "repeat": repeat, "records": records, "cpu_s": cpu_s,
        "records_per_s": records / cpu_s, "others_share": 0.0, "steal_share": 0.0,
    }  # fmt: skip


def test_a_ratio_is_of_the_cpu_time_of_a_record_in_repeats_with_both_forms() -> None:
    rows = [measured("flights", repeat, 100, 1.0) for repeat in range(4)]
    rows += [measured("flights_batches", repeat, 200, 2.0 / (3 + repeat)) for repeat in range(3)]
    rows += [measured("flights", 0, 100, 1.0, size=9), measured("count_batches", 0, 100, 1.0)]
    # A measurement without a record has no rate, and is in no ratio.
    rows += [{**measured("flights", 4, 100, 1.0), "records": 0}, measured("flights_batches", 4, 100, 1.0)]
    rows[0]["others_share"] = rows[5]["steal_share"] = 0.5
    (ratio,) = batch_ratios(rows)
    assert (ratio["subject"], ratio["records_per_commit"], ratio["repeats"]) == ("lmdb", 1_000, 3)
    assert (ratio["ratio"], ratio["cpu_ratio"], ratio["busy"]) == (pytest.approx(4.0), pytest.approx(4.0), 2)


@pytest.mark.parametrize(("times", "met"), [(4.0, True), (2.0, False)])
def test_a_count_in_commits_of_1000_is_promised_to_be_three_times_as_fast(times: float, met: bool) -> None:
    rows = [measured("count", repeat, 100, 1.0) for repeat in range(3)]
    rows += [measured("count_batches", repeat, 100, 1.0 / times) for repeat in range(3)]
    (figure,) = ratios(batch_ratios(rows))
    assert figure["met"] is met
    missed = Grid("count", 1, both_forms=True).missed({"throughput": [], "ratio": [figure]})
    assert len(missed) == (not met)


def test_a_grid_of_both_forms_measures_each_in_the_same_cells() -> None:
    trials = Grid("flights", 9, repeats=2, backends=("lmdb",), both_forms=True).plan(1)
    assert [trial.workload for trial in trials] == ["flights", "flights_batches"]
    assert [len(trial.configurations) for trial in trials] == [2, 2]


def test_a_workload_without_a_batch_form_is_refused() -> None:
    with pytest.raises(ConfigError):
        Grid("event_log", 9, both_forms=True)


def test_no_time_of_a_record_is_in_two_parts() -> None:
    clock = PartClock()
    clock.process_ns, clock.function_ns, clock.called_ns = 100, 60, {"stores": 30, "outputs": 10}
    clock.log_commit_ns, clock.store_commit_ns = 7, 3
    assert dict(zip(PARTS, clock.parts_ns(), strict=True)) == {
        "function_us": 20, "stores_us": 30, "outputs_us": 10, "task_us": 40, "log_commit_us": 7, "store_commit_us": 3
    }  # fmt: skip


def test_the_parts_of_a_records_time_add_up_to_it(tmp_path: Path) -> None:
    """Those of the function and its calls are measured, in both forms, after the kill."""
    for name in ("flights_by_hour", "flights_by_hour_batches"):
        folder = tmp_path / name
        folder.mkdir()
        by_name: Any = workload(name)
        write_pairs(folder / "events", by_name.events(1, 6_000))
        configuration = Configuration("lmdb", Durability.CHANGELOG, name, 1_000, 1, 0, 1)
        figures = run(PartitionWork(configuration, by_name, 0, folder / "events", 6_000))
        assert all(figures[part] > 0 for part in PARTS), figures
        assert sum(figures[part] for part in PARTS) < 1_000
        assert figures["stores_us"] > figures["outputs_us"]


def test_the_parts_of_a_records_time_leave_out_the_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the events, in whole commits: the clock counts from then on."""
    clocks: list[PartClock] = []

    class Kept(PartClock):
        def __init__(self) -> None:
            super().__init__()
            clocks.append(self)

    by_name: Any = workload("flights")
    write_pairs(tmp_path / "events", by_name.events(1, 6_000))
    work = PartitionWork(Configuration("lmdb", Durability.CHANGELOG, "flights", 200, 1, 0, 1), by_name, 0,
                         tmp_path / "events", 6_000)  # fmt: skip
    run(work)
    monkeypatch.setattr(record_parts, "PartClock", Kept)
    with work.changelog(tmp_path) as changelog:
        parts = record_parts.record_parts(work, tmp_path, changelog)
    [clock] = clocks
    assert clock.records == 6_000 - 600
    assert sum(parts.values()) == pytest.approx(sum(clock.parts_ns()) / 1e3 / clock.records)


def test_the_page_shows_where_the_time_of_a_record_goes_in_each_form_that_was_measured() -> None:
    shown = {"durability": "CHANGELOG", "partitions": 1, "records_per_commit": 1_000, **dict.fromkeys(PARTS, 2.5)}
    names = [("lmdb", "count"), ("lmdb", "count_batches"), ("sqlite", "count"), ("lmdb", "nexmark_q3")]
    figures = [{**shown, "backend": backend, "workload": name} for backend, name in names]
    (table,) = WHERE_TIME_GOES.tables({"throughput": figures})
    assert [list(row[:3]) for row in table.rows] == [
        ["lmdb", "records", "2.5 us"],
        ["lmdb", "batches", "2.5 us"],
        ["sqlite", "records", "2.5 us"],
    ]
