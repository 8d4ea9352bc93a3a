"""A task without a commit interval: all of its commits are caused by the limit on the memory of staged writes.

The workload is ``count``. All of its records are alike, so the limit must hold exactly. The staged size is largest just
before a commit, and is read there. Each measurement has its own process. The order is shuffled by the seed; the first
records only warm up.

Source: KIP-892, "In-memory Transaction Buffers" (``statestore.uncommitted.max.bytes``).
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from harness.experiments.throughput.measurement import Configuration, PartitionWork, peak_memory_bytes, write_pairs
from harness.processes.child import figures_apart
from harness.workloads.tasks import Count
from stores import failpoints
from stores.interface import Durability
from stores.tasks import BudgetShare, MemoryBudget

LIMITS = (64 << 10, 256 << 10, 1 << 20, 4 << 20, -1)
"""Limits in bytes; -1 is no limit, for comparison."""
EVENTS = 50_000
"""The number of measured events: more than 4 MiB of distinct keys and their values."""
WARM_UP_EVENTS = 5_000
DEADLINE_S = 60
_EVENTS_FILE = "events"
_BEFORE_COMMIT = "task.before_log_commit"


def bounded(limit_bytes: int, folder: Path) -> dict[str, Any]:
    """Process the events of the work in ``folder`` with this limit, commit at the end, and return the figures."""
    work = PartitionWork.read(folder)
    share = MemoryBudget(limit_bytes).share()
    task = work.task(folder, work.changelog(folder), share)
    task.open()
    records = work.records()
    for record in islice(records, WARM_UP_EVENTS):
        task.process(work.input, record)
    task.commit()
    before = task.metrics
    staged = _Peak(share)
    busy_ns = count = 0
    while chunk := list(islice(records, 1_000)):
        began = perf_counter_ns()
        for record in chunk:
            task.process(work.input, record)
        busy_ns += perf_counter_ns() - began
        count += len(chunk)
    staged.end(task.uncommitted_memory_bytes())
    began = perf_counter_ns()
    task.commit()
    busy_ns += perf_counter_ns() - began
    metrics = task.metrics.since(before)
    peak = peak_memory_bytes()
    task.close()
    return {
        "records": count,
        "seconds": busy_ns / 1e9,
        "commits": metrics.commit_total,
        "predicted": metrics.early_commit_total["PREDICTED"],
        "exceeded": metrics.early_commit_total["EXCEEDED"],
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
    """Return a row of kind "early_commit" at level CHANGELOG; no limit (-1) is null. Raises: MeasurementFailedError."""
    configuration = Configuration(backend, Durability.CHANGELOG, Count().name, EVENTS, 1, repeat, seed)
    arguments = {"limit_bytes": limit_bytes}
    figures = figures_apart(bounded, "early-commits", arguments, DEADLINE_S, partial(_put_work, configuration))
    return {
        "kind": "early_commit",
        "backend": backend,
        "durability": str(configuration.durability),
        "limit_bytes": None if limit_bytes == -1 else limit_bytes,
        "repeat": repeat,
        "seed": seed,
        **figures,
        "records_per_s": figures["records"] / figures["seconds"],
    }


def _put_work(asked: Configuration, folder: Path) -> None:
    # Made here: the memory that this takes is no part of what is measured.
    workload = Count()
    events = write_pairs(folder / _EVENTS_FILE, workload.events(asked.seed, WARM_UP_EVENTS + EVENTS))
    PartitionWork(asked, workload, 0, folder / _EVENTS_FILE, events).write(folder)
