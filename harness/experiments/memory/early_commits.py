"""A task without a commit interval: all of its commits are caused by the limit on the memory of staged writes.

The workload is ``count``. All of its records are alike, so the limit must hold exactly. The staged size is largest just
before a commit, and is read there. Each measurement has its own process,
``python -m harness.experiments.memory.early_commits FOLDER``. The order is shuffled by the seed; the first records only
warm up.

Source: KIP-892, "In-memory Transaction Buffers" (``statestore.uncommitted.max.bytes``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from time import perf_counter_ns
from typing import Any

from harness.experiments.throughput.configuration import Measurement
from harness.experiments.throughput.job import Job, read_figures, write_figures
from harness.experiments.throughput.measurement import peak_memory_bytes
from harness.experiments.throughput.pairs import write_pairs
from harness.experiments.throughput.run import figures_of
from harness.folders import temporary_folder
from harness.processes.child import end_with_starter
from harness.workloads.count import Count
from stores import failpoints
from stores.config import StoreConfig
from stores.interface import Durability
from stores.registry import backends
from stores.tasks import BudgetShare, MemoryBudget

LIMITS = (64 << 10, 256 << 10, 1 << 20, 4 << 20, -1)
"""Limits in bytes; -1 is no limit, for comparison."""
EVENTS = 50_000
"""The number of measured events: more than 4 MiB of distinct keys and their values."""
WARM_UP_EVENTS = 5_000
DEADLINE_S = 60
REPEATS: Mapping[str, int] = {"smoke": 1, "default": 2, "full": 5}
_ORDER_FILE, _EVENTS_FILE, _FIGURES_FILE = "limits", "events", "bounded"
_BEFORE_COMMIT = "task.before_log_commit"


def early_commit_rows(profile: str, chosen: Sequence[str] | None, seed: int) -> list[dict[str, Any]]:
    """Return rows of kind "early_commit" at level CHANGELOG, one per backend, limit and repeat; no limit is null.

    Only the default backend is measured; in the full profile all are. ``chosen`` excludes others.
    Raises: MeasurementFailedError.
    """
    names = backends() if profile == "full" else [StoreConfig().backend]
    subjects = [name for name in names if chosen is None or name in chosen]
    planned = []
    for repeat in range(REPEATS[profile]):
        round_ = [(name, limit, repeat) for name in subjects for limit in LIMITS]
        Random(f"{seed} {repeat}").shuffle(round_)
        planned += round_
    return [measured(name, limit, repeat, seed) for name, limit, repeat in planned]


def over_limit(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each row whose task staged more than its limit."""
    return [
        f"{row['backend']} had staged {row['uncommitted_max_bytes']:,} bytes, where {row['limit_bytes']:,} are allowed"
        for row in rows
        if row["limit_bytes"] is not None and row["uncommitted_max_bytes"] > row["limit_bytes"]
    ]


def bounded(job: Job, folder: Path, limit_bytes: int) -> dict[str, Any]:
    """Process the events of ``job`` with a limit of ``limit_bytes``, commit at the end, and return the figures."""
    share = MemoryBudget(limit_bytes).share()
    task = job.task(folder, job.changelog(folder), share)
    task.open()
    records = job.records()
    for record in islice(records, WARM_UP_EVENTS):
        task.process(job.input, record)
    task.commit()
    before = task.metrics
    staged = _Peak(share)
    busy_ns = count = 0
    while chunk := list(islice(records, 1_000)):
        began = perf_counter_ns()
        for record in chunk:
            task.process(job.input, record)
        busy_ns += perf_counter_ns() - began
        count += len(chunk)
    staged.end(task.uncommitted_memory_bytes())
    began = perf_counter_ns()
    task.commit()
    busy_ns += perf_counter_ns() - began
    done = task.metrics.since(before)
    peak = peak_memory_bytes()
    task.close()
    return {
        "records": count,
        "seconds": busy_ns / 1e9,
        "commits": done.commit_total,
        "predicted": done.early_commit_total["PREDICTED"],
        "exceeded": done.early_commit_total["EXCEEDED"],
        "uncommitted_max_bytes": staged.max_bytes,
        "peak_memory_bytes": peak,
    }


class _Peak:
    """The largest staged size that a task has counted at any commit since this was created."""

    def __init__(self, share: BudgetShare) -> None:
        self.max_bytes = 0
        self._share = share
        failpoints.arm(_BEFORE_COMMIT, self._note)

    def _note(self) -> None:
        # In an early commit: the share has just counted.
        self.max_bytes = max(self.max_bytes, self._share.bytes_at_most)

    def end(self, counted_bytes: int) -> None:
        """Take the size before the last commit, which is not an early one."""
        failpoints.disarm(_BEFORE_COMMIT)
        self.max_bytes = max(self.max_bytes, counted_bytes)


def measured(backend: str, limit_bytes: int, repeat: int, seed: int) -> dict[str, Any]:
    workload = Count()
    asked = Measurement(backend, Durability.CHANGELOG, workload.name, EVENTS, 1, repeat, seed)
    with temporary_folder("early-commits") as folder:
        events = write_pairs(folder / _EVENTS_FILE, workload.events(seed, WARM_UP_EVENTS + EVENTS))
        Job(asked, workload, 0, folder / _EVENTS_FILE, events).write(folder)
        write_figures(folder / _ORDER_FILE, {"limit_bytes": limit_bytes})
        figures = figures_of(
            __name__, [str(folder)], folder=folder, deadline_s=DEADLINE_S, status=0, file=_FIGURES_FILE
        )
    return {
        "kind": "early_commit",
        "backend": backend,
        "durability": str(asked.durability),
        "limit_bytes": None if limit_bytes == -1 else limit_bytes,
        "repeat": repeat,
        "seed": seed,
        **figures,
        "records_per_s": figures["records"] / figures["seconds"],
    }


def main() -> None:
    """Run the measuring process."""
    end_with_starter()
    folder = Path(sys.argv[1])
    limit_bytes = read_figures(folder / _ORDER_FILE)["limit_bytes"]
    write_figures(folder / _FIGURES_FILE, bounded(Job.read(folder), folder, limit_bytes))


if __name__ == "__main__":
    main()
