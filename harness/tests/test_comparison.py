"""Two equal runs show no difference, a slower store is found, and runs that do not compare are refused."""

from __future__ import annotations

from math import exp
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.answer.comparison import compared, comparison_table
from harness.cli import USERS_MISTAKE, main
from harness.experiments.registry import kinds
from harness.report.figures import log_deviations, ratio_interval
from harness.report.rows import new_run, write_facts, write_rows
from harness.tests.made_up_rows import ENVIRONMENT, FACTS, Rows, made_up_rows

SLEEPING = "lmdb-indexed-batch"


def noisy_rows(seed: int, noise: float = 0.04, sleep_s: float = 0.0) -> Rows:
    """Rows with a random deviation. Each put of one backend takes ``sleep_s`` longer."""
    print("seed", seed)
    random = Random(seed)
    rows = {kind: made_up_rows()[kind] for kind in ("throughput", "opening")}
    for row in rows["throughput"]:
        row["records_per_s"] /= 1 + row["repeat"] / 50
        if row["backend"] == SLEEPING:
            row["records_per_s"] = 1 / (1 / row["records_per_s"] + sleep_s)
        for name in ("records_per_s", "commit_p99_us", "peak_memory_bytes"):
            row[name] = type(row[name])(row[name] * random.gauss(1, noise))
    for row in rows["opening"]:
        row["open_s"] *= random.gauss(1, noise)
    return rows


def few(rows: Rows) -> Rows:
    """The rows of one size of commits: a tenth of a second to compare, where all take half a second."""
    return {**rows, "throughput": [row for row in rows["throughput"] if row["records_per_commit"] == 1_000]}


def run_of(folder: Path, rows: Rows, **facts: Any) -> Path:
    run = new_run(folder, "default", FACTS)
    write_facts(run, {**FACTS, **facts})
    for kind, some in rows.items():
        write_rows(run, kind, some, kinds())
    return run


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 6))])
def test_two_runs_of_the_same_store_show_no_difference(seed: int) -> None:
    found = _with_ready(noisy_rows(seed)), _with_ready(noisy_rows(seed + 100))
    result = compared(*found, seed=1)
    assert len(result) > 100
    assert [each for each in result if each.differs] == []
    assert not any(each.is_worse(0.05) for each in result)
    assert {row[-1] for row in comparison_table(result, "a", "b").rows} == {"no difference"}


def test_a_sleep_of_20_microseconds_in_put_is_found_and_nothing_else() -> None:
    before, after = _with_ready(noisy_rows(1)), _with_ready(noisy_rows(2, sleep_s=20e-6))
    worse = [each for each in compared(before, after, seed=1) if each.is_worse(0.05)]
    assert {(each.cell[2], each.measure.name) for each in worse} == {(SLEEPING, "records_per_s")}
    assert {each.cell[1] for each in worse} >= {"CHANGELOG"}
    better = [each for each in compared(after, before, seed=1) if each.differs]
    assert {each.verdict for each in better} == {"better"}
    assert {each.cell for each in better} >= {each.cell for each in worse}


def _with_ready(rows: Rows) -> Rows:
    return rows | {"opening": [{**row, "ready_s": row["open_s"] + row["restore_s"]} for row in rows["opening"]]}


def test_fewer_than_five_repeats_decide_nothing_and_other_work_is_not_compared() -> None:
    before, after = noisy_rows(1), noisy_rows(2)
    for row in after["throughput"]:
        row["records"] += 1
    names = {each.measure.name for each in compared(before, after, seed=1)}
    assert names == {"records_per_s", "commit_p99_us"}
    after["throughput"] = [row for row in after["throughput"] if row["repeat"] < 4]
    few = compared(before, after, seed=1)
    assert {each.measure.name for each in few} == names
    assert not any(each.differs or each.is_worse(0.0) for each in few)
    assert {each.verdict for each in few} == {"measured 4 times only"}


def at_speed(rows: Rows, speed: float) -> Rows:
    """The same measurements on a machine that is ``speed`` times as fast, and was measured to be."""
    return {
        **rows,
        "throughput": [
            {
                **row,
                "records_per_s": row["records_per_s"] * speed,
                "commit_p99_us": row["commit_p99_us"] / speed,
                "machine_speed": 1e6 * speed,
            }
            for row in rows["throughput"]
            if row["records_per_commit"] == 1_000
        ],
        "opening": [],
    }


def test_a_machine_that_is_slower_during_one_run_makes_no_difference_and_hides_no_slow_store() -> None:
    before, slow = at_speed(noisy_rows(1), 1.0), at_speed(noisy_rows(2), 0.7)
    unnoticed = {"throughput": [{**row, "machine_speed": None} for row in slow["throughput"]]}
    assert any(each.is_worse(0.05) for each in compared(before, unnoticed, seed=1))
    for a, b, drift in ((before, slow, 0.7), (slow, before, 1 / 0.7)):
        found = compared(a, b, seed=1)
        assert [each for each in found if each.differs] == []
        assert {each.drift for each in found if not each.measure.is_time} == {1.0}
        assert all(each.drift == pytest.approx(drift) for each in found if each.measure.is_time)
    sleeping = at_speed(noisy_rows(2, sleep_s=20e-6), 0.7)
    worse = [each for each in compared(before, sleeping, seed=1) if each.is_worse(0.05)]
    assert {(each.cell[2], each.measure.name) for each in worse} == {(SLEEPING, "records_per_s")}


def test_figures_without_a_deviation_differ_only_by_more_than_the_least_width() -> None:
    def disk(more: float) -> Rows:
        rows = at_speed(noisy_rows(1), 1.0)["throughput"][:10]
        return {"throughput": [{**row, "bytes_on_disk": int(1e6 * more)} for row in rows]}

    for more, differs in ((1.005, False), (0.995, False), (1.02, True)):
        found = [each for each in compared(disk(1), disk(more), seed=1) if each.measure.name == "bytes_on_disk"]
        assert {each.differs for each in found} == {differs}


def test_a_ratio_lies_in_its_interval_and_a_wider_one_contains_a_narrower_one() -> None:
    above, below = [2.0, 2.2, 2.1, 1.9, 2.0], [1.0, 1.1, 0.9, 1.0, 1.05]
    narrow, wide = (ratio_interval(above, below, 7, confidence) for confidence in (0.8, 0.999))
    assert narrow.median == wide.median == 2.0
    assert wide.low <= narrow.low <= 2.0 <= narrow.high <= wide.high
    assert wide.low >= 1.9 / 1.1
    assert wide.high <= 2.2 / 0.9
    assert ratio_interval(above, below, 7) == ratio_interval(above, below, 7)


def test_the_bootstrap_interval_leaves_out_equal_shares_at_both_ends() -> None:
    # The median of five draws from five values is the lowest one with a probability of 5.8 %, and the third otherwise
    # often enough: 0.2 ** 5 + 5 * 0.8 * 0.2 ** 4 + 10 * 0.8 ** 2 * 0.2 ** 3.
    found = ratio_interval([1.0, 2.0, 3.0, 4.0, 5.0], [1.0], 7, 0.9)
    assert (found.low, found.high) == (1.0, 5.0)
    narrower = ratio_interval([1.0, 2.0, 3.0, 4.0, 5.0], [1.0], 7, 0.8)
    assert (narrower.low, narrower.high) == (2.0, 4.0)


def test_deviations_are_from_the_mean_of_the_logarithms_and_scaled_up_for_few_repeats() -> None:
    found = log_deviations([[exp(-1), exp(1)], [7 * exp(-1), 7 * exp(1)], [5.0, 5.0, 5.0]])
    assert found == pytest.approx([-(2**0.5), 2**0.5, -(2**0.5), 2**0.5, 0, 0, 0])


def test_the_command_fails_only_where_b_is_worse_by_more_than_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = run_of(tmp_path, few(noisy_rows(1))), run_of(tmp_path, few(noisy_rows(2, sleep_s=20e-6)))
    runs = ["--runs", str(tmp_path)]
    assert main(["compare", str(a), str(a), "--fail", "5%"]) == 0
    assert "No difference." in capsys.readouterr().out
    assert main(["compare", a.name, b.name, "--fail", "5%", *runs]) == 1
    assert f"{SLEEPING}, CHANGELOG" in capsys.readouterr().out.splitlines()[2]
    assert main(["compare", a.name, b.name, *runs]) == 0
    assert main(["compare", b.name, a.name, "--fail=5", *runs]) == 0


def test_runs_of_smoke_show_their_figures_with_measured_once_beside_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def once(seed: int, sleep_s: float = 0.0) -> Rows:
        rows = noisy_rows(seed, sleep_s=sleep_s)
        return {kind: [row for row in some if row["repeat"] == 0] for kind, some in rows.items()}

    a, b = run_of(tmp_path, once(1)), run_of(tmp_path, once(2, sleep_s=1.0))
    assert main(["compare", str(a), str(b), "--fail=5%"]) == 0
    table, _, rest = capsys.readouterr().out.partition("\n\n")
    lines = table.partition("B is\n")[2].splitlines()
    assert len(lines) > 20
    assert all(line.rstrip().endswith("measured once") for line in lines)
    assert "No difference" not in rest
    assert f"Not judged: {len(lines)} figures" in rest


def test_figures_of_a_busy_machine_count_and_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = few(noisy_rows(1)), few(noisy_rows(2, sleep_s=20e-6))
    for row in after["throughput"][: len(after["throughput"]) // 2]:
        row["others_share"] = 0.5
    a, b = run_of(tmp_path, before), run_of(tmp_path, after)
    assert main(["compare", str(a), str(b), "--fail=5%"]) == 1
    table, _, rest = capsys.readouterr().out.partition("\n\n")
    lines = table.partition("B is\n")[2].splitlines()
    marked = [line for line in lines if line.rstrip().endswith(", busy")]
    assert 0 < len(marked) < len(lines)
    assert f"during {len(marked)} of {len(lines)} figures" in rest


def test_runs_that_do_not_compare_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = run_of(tmp_path, noisy_rows(1))
    empty = run_of(tmp_path, {})
    elsewhere = run_of(tmp_path, noisy_rows(1), environment={**ENVIRONMENT, "memory_bytes": 1})
    given_up = new_run(tmp_path, "default", {"profile": "default", "seed": 1})
    older = run_of(tmp_path, noisy_rows(1))
    [part] = (older / "throughput").glob("*.parquet")
    pq.write_table(pq.read_table(part, partitioning=None).drop(["others_share"]), part)
    for other, said in (
        (tmp_path / "no-such-run", "no run"),
        (empty, "no cell in common"),
        (elsewhere, "different machines"),
        (given_up, "given up"),
        (older, "another version"),
    ):
        assert main(["compare", str(good), str(other)]) == USERS_MISTAKE
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("percent", ["much", "-1%", "100%", "nan"])
def test_a_share_that_is_none_is_refused(percent: str) -> None:
    with pytest.raises(SystemExit) as refusal:
        main(["compare", "a", "b", f"--fail={percent}"])
    assert refusal.value.code == USERS_MISTAKE
