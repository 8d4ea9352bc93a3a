"""The experiment that measures whole tasks: records per second, commits, memory, and the end state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness import replay
from harness.experiment import (
    Experiment,
    Failure,
    Figures,
    Request,
    Row,
    Rows,
    TrialPlacement,
    TrialWorker,
)
from harness.experiments.throughput import plan
from harness.experiments.throughput.figures import QUERY, wrong_end_lines
from harness.experiments.throughput.plan import ThroughputGrid, ThroughputTrial, narrowing_trial
from harness.experiments.throughput.report import THROUGHPUT, page
from harness.processes.load import LOAD_COLUMNS
from harness.report.page import Page, TextTable
from harness.workloads.event_log import EVENT_LOG
from harness.workloads.new_york_flights import departures
from harness.workloads.tasks import Departures, workload
from stores.errors import ConfigError
from stores.registry import backend_named, check_options, checked_durability


class Throughput(Experiment[ThroughputTrial]):
    """A task per partition, all at once, over the events of a workload, on each backend."""

    name = "throughput"
    title = "throughput of tasks"
    stage = "throughput"
    trial = ThroughputTrial
    grid = ThroughputGrid
    placement = TrialPlacement.GANG
    share = 75
    unit = ""
    figures_by = {"throughput": QUERY}
    columns = {
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
            "store_commit_p50_us": int,
            "store_commit_p99_us": int,
            "bytes_written": int,
            "bytes_on_disk": int,
            "peak_memory_bytes": int,
            "open_files": int,
            "open_after_kill_s": float,
            "replayed": int,
            "end_state": str,
            **dict.fromkeys(LOAD_COLUMNS, float),
        }
    }

    def plan(self, request: Request) -> list[ThroughputTrial]:
        """Return the measurements of a profile, or those over a user's events."""
        grids = plan.SIZES[request.profile]
        if request.log is not None:
            repeats = plan.EVENT_LOG_REPEATS[request.profile]
            grids = (ThroughputGrid(EVENT_LOG, records_per_commit=(100, 1_000, 10_000), repeats=repeats),)
        return plan.throughput_trials([replace(grid, backends=request.backends) for grid in grids], request.seed)

    def next_round(
        self, trials: Sequence[ThroughputTrial], rows: Sequence[Row], remaining_s: float
    ) -> list[ThroughputTrial]:
        """Return more repeats of the cells with the widest intervals, if picks rest on them."""
        more = narrowing_trial(trials, rows, remaining_s)
        return [] if more is None else [more]

    def run(self, trial: ThroughputTrial, worker: TrialWorker) -> Iterable[Row]:
        """Raise TypeError: the partitions of a trial run together, see ``harness.spark.gang``."""
        raise TypeError("a measurement of throughput needs the events of Spark's partitions")

    def read(self, text: str) -> ThroughputTrial:
        """Return the trial. Raises: ConfigError for a setting that does not exist or fit, and for a user's events."""
        trial = replay.from_text(ThroughputTrial, text)
        if trial.workload == EVENT_LOG:
            raise ConfigError("own events are measured with `python -m harness bench --events PATH --key COLUMN`")
        if not trial.configurations:
            raise ConfigError("a trial of throughput needs one or more configurations")
        shared = {(each.workload, each.partitions, each.seed) for each in trial.configurations}
        if shared != {(trial.workload, trial.partitions, trial.seed)}:
            raise ConfigError("the configurations of a trial have its workload and partitions, and one seed")
        if trial.laps and (len(trial.laps) != len(trial.configurations) or min(trial.laps) < 1):
            raise ConfigError("laps of a trial are none, or one number from 1 on for each configuration")
        for each in trial.configurations:
            # A grid of one: it checks what it is given.
            ThroughputGrid(
                trial.workload, trial.events, (trial.partitions,), records_per_commit=(each.records_per_commit,)
            )
            backend = backend_named(each.backend)
            checked_durability(backend, each.durability)
            check_options(backend, dict(each.options))
        self.check([trial])
        return trial

    def check(self, trials: Sequence[ThroughputTrial]) -> None:
        """Raise ConfigError if the data set of flights is needed and missing: now, not after the first stages."""
        if any(isinstance(workload(trial.workload), Departures) for trial in trials):
            departures()

    def slots(self, trials: Sequence[ThroughputTrial]) -> int:
        """Return the largest number of partitions: they run at the same time."""
        return max((trial.partitions for trial in trials), default=1)

    def tables(self, figures: Figures, rows: Rows) -> list[TextTable]:
        """Return one table per workload, level and number of partitions."""
        return THROUGHPUT.tables(figures)

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return a sentence for each configuration whose end state is not the one that Spark SQL computes."""
        return [Failure(line) for line in wrong_end_lines(figures.get("throughput", ()))]

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about throughput."""
        return page(figures, [str(failure) for failure in self.failures(figures, rows)])
