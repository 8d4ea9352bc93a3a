"""The experiment that measures whole tasks: records per second, commits, memory, and the end state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from harness.experiment import Columns, Experiment, Failure, Figure, Figures, Placement, Request, Row, Rows, Worker
from harness.experiments.throughput import plan
from harness.experiments.throughput.figures import throughput, wrong_end_lines
from harness.experiments.throughput.plan import Batch, Sweep
from harness.experiments.throughput.report import page
from harness.report.page import Page
from harness.workloads.event_log import EVENT_LOG


class Throughput(Experiment[Batch]):
    """A task per partition, all at once, over the events of a workload, on each backend."""

    name = "throughput"
    title = "throughput of tasks"
    stage = "throughput"
    trial = Batch
    placement = Placement.GANG
    columns: Mapping[str, Columns] = MappingProxyType(
        {
            "throughput": {
                "backend": str,
                "durability": str,
                "workload": str,
                "records_per_commit": int,
                "partitions": int,
                "repeat": int,
                "seed": int,
                "records": int,
                "seconds": float,
                "records_per_s": float,
                "commit_p50_us": float,
                "commit_p99_us": float,
                "commit_max_us": float,
                "bytes_written": int,
                "bytes_on_disk": int,
                "peak_memory_bytes": int,
                "open_files": int,
                "open_after_kill_s": float,
                "end_state": str,
            }
        }
    )

    def plan(self, request: Request) -> list[Batch]:
        """Return the measurements of a profile, or those over a user's events."""
        sweeps: Sequence[Sweep] = plan.PROFILES[request.profile]
        if request.log is not None:
            repeats = {"smoke": 1, "default": 3, "full": 5}[request.profile]
            sweeps = [Sweep(EVENT_LOG, None, records_per_commit=(100, 1_000, 10_000), repeats=repeats)]
        return plan.batches([replace(sweep, backends=request.backends) for sweep in sweeps], request.seed)

    def run(self, trial: Batch, worker: Worker) -> Iterable[Row]:
        """Raise TypeError: the partitions of a trial run together, see ``harness.spark.throughput``."""
        raise TypeError("a measurement of throughput needs the events of Spark's partitions")

    def figures(self, rows: Rows) -> dict[str, list[Figure]]:
        """Return medians over repeats, and the spread of the rate."""
        return {"throughput": throughput(rows.get("throughput", ()))}

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return a sentence for each configuration whose end state is not the one that Spark SQL computes."""
        return [Failure(line) for line in wrong_end_lines(figures.get("throughput", ()))]

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about throughput."""
        return page(figures, [str(failure) for failure in self.failures(figures, rows)])
