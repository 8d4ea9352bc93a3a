"""Steps larger than the limit: their memory is reported against a bound, and a store without a spill exceeds it.

The steps are those of the default profile, in processes of their own.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import psutil
import pytest

from harness.answer.results import all_figures
from harness.experiment import Failure, Request
from harness.experiments.memory.experiment import OF_STEPS, STEPS_BYTES, LargeSteps, memory_findings
from harness.experiments.memory.large_steps import DEADLINE_S, LIMIT_BYTES, bound_bytes, measured
from harness.experiments.memory.memory_watch import MemoryWatch
from harness.experiments.registry import kinds
from harness.processes.child import figures_apart
from harness.tests.made_up_rows import made_up_rows
from stores.config import StoreConfig
from stores.registry import backends

STEP_BYTES = STEPS_BYTES["default"][0]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="how much memory a process has is asked of Linux")


def step_of(backend: str, **more: int) -> dict[str, Any]:
    """The row of one step, in a process of its own."""
    arguments = {"backend": backend, "step_bytes": STEP_BYTES, "seed": 1, **more}
    (row,) = figures_apart(measured, "large-steps", arguments, DEADLINE_S)["rows"]
    return {"kind": "large_step", **row}


def wrong(*rows: dict[str, Any]) -> list[Failure]:
    return LargeSteps().failures({}, {"large_step": rows})


def test_a_step_that_is_spilled_is_one_commit_and_stays_within_its_bound() -> None:
    row = step_of(StoreConfig().backend)
    assert set(row) == {*kinds()["large_step"], "kind", "seed"}
    assert wrong(row) == []
    assert row["peak_bytes"] > LIMIT_BYTES
    assert row["staged_disk_bytes"] > STEP_BYTES - 2 * LIMIT_BYTES
    assert STEP_BYTES - 10_000 < row["uncommitted_bytes"] <= STEP_BYTES
    assert (row["commits"], row["seen_early"], row["state"]) == (1, 0, "equal")


@pytest.mark.parametrize(
    "backend",
    [
        "lmdb-indexed-batch",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("rocksdb-indexed-batch", "sqlite-indexed-batch")),
    ],
)
def test_a_step_that_is_not_spilled_passes_its_bound(backend: str) -> None:
    row = step_of(backend, spill_above=-1)
    assert row["peak_bytes"] > STEP_BYTES
    assert row["staged_disk_bytes"] < LIMIT_BYTES
    assert len(wrong(row)) == 1


def test_only_spilling_backends_have_a_memory_bound_and_it_hardly_grows_with_the_step() -> None:
    unbounded = {name for name, backend in backends().items() if not backend.bounded_memory}
    assert unbounded >= {"lmdb-native", "memory-indexed-batch"}
    for name, backend in backends().items():
        bound, larger = bound_bytes(backend, 1_000), bound_bytes(backend, 101_000)
        if name in unbounded:
            assert (bound, larger) == (None, None)
            continue
        assert bound is not None
        assert larger is not None
        assert 0 < larger - bound < 100_000 * 8_000 / 20, name


def test_a_wrong_step_is_reported_as_a_sentence_and_in_bold() -> None:
    spoilt: list[dict[str, Any]] = [
        {"peak_bytes": 1 << 40},
        {"seen_early": 1},
        {"commits": 2},
        {"state": "different"},
    ]
    for change in spoilt:
        rows = made_up_rows()
        step = next(row for row in rows["large_step"] if row["backend"] == "lmdb-indexed-batch")
        step.update(change)
        figures = all_figures(rows)
        assert len(wrong(*rows["large_step"])) == 1
        table = OF_STEPS.table(figures)
        assert [table.rows[place][0] for place in table.notable] == ["lmdb-indexed-batch"]
        assert "**no**" in table.rows[table.notable[0]]
        assert memory_findings(figures)[1].sentence().startswith("**5 of 6 [steps")


def test_a_backend_that_keeps_nothing_apart_may_show_a_step_before_its_commit() -> None:
    rows = made_up_rows()
    figures = all_figures(rows)
    assert wrong(*rows["large_step"]) == []
    assert {figure["backend"] for figure in figures["large_step"] if figure["seen_early"]} == {"rocksdb-direct"}


def test_backends_that_were_not_asked_for_are_left_out() -> None:
    assert LargeSteps().plan(Request(backends=())) == []


def wait_for_samples() -> None:
    """Return after the watching process has taken some more: on a busy machine it may have to wait long for a core."""
    (watching,) = [child for child in psutil.Process().children() if "memory_watch" in " ".join(child.cmdline())]
    wanted = watching.num_ctx_switches().voluntary + 5
    waited_until = time.monotonic() + 600
    while watching.num_ctx_switches().voluntary < wanted:
        assert time.monotonic() < waited_until
        time.sleep(0.01)


def test_memory_that_was_given_back_meanwhile_counts() -> None:
    with MemoryWatch() as watch:
        taken = bytearray(b"x" * (32 << 20))
        wait_for_samples()
        del taken
        assert watch.stop() > 31 << 20
    with MemoryWatch() as watch:
        assert 0 <= watch.stop() < 8 << 20
