"""The experiment that measures whole tasks: records per second, commits, memory, and the end state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from hdrh.histogram import HdrHistogram

from harness import replay
from harness.experiment import Experiment, Outcome, Request, Rows, TrialPlacement, TrialWorker
from harness.experiments.needs import needs_so_far
from harness.experiments.throughput import plan
from harness.experiments.throughput.measurement import (
    DUMP_FILE,
    LATENCY_DIGITS,
    LATENCY_MAX_US,
    Configuration,
    PartitionWork,
    measured,
    reopened,
)
from harness.experiments.throughput.plan import Rounds, ThroughputGrid, ThroughputTrial, answering
from harness.experiments.throughput.record_parts import PARTS, reopened_with_parts
from harness.experiments.throughput.report import QUERY, REPORT, WRONG_ENDS, charts, end_state_finding, width_sentences
from harness.folders import temporary_folder
from harness.processes.child import figures_in
from harness.processes.fork_server import ForkServer
from harness.processes.load import LOAD_COLUMNS, is_busy, load_columns
from harness.report import text
from harness.report.figures import Figures
from harness.report.page import Page
from harness.report.ratios import ratio_of
from harness.report.rows import Row
from harness.workloads.batches import SUFFIX, record_form
from harness.workloads.event_log import EVENT_LOG
from harness.workloads.new_york_flights import departures
from harness.workloads.tasks import Departures, workload
from stores.errors import ConfigError
from stores.registry import backend_named, check_options, checked_durability

AT_LEAST: Mapping[tuple[str, int], float] = MappingProxyType(
    {
        ("count", 1_000): 3.0,
        ("count", 10_000): 4.0,
        ("flights", 1_000): 2.0,
        ("flights_by_hour", 1_000): 2.0,
        ("aircraft_sessions", 1_000): 2.0,
    }
)
"""The thresholds by workload and records per commit, over the embedded changelog; other ratios are only reported."""
_CELL = ("backend", "durability", "records_per_commit", "partitions")


def batch_ratios(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield a row of kind "ratio" for each cell with both forms: how much faster a record is in batches."""
    cells: dict[tuple[Any, ...], dict[str, dict[int, Row]]] = {}
    for row in rows:
        if row["records"]:
            cell = (record_form(row["workload"]), *(row[name] for name in _CELL))
            cells.setdefault(cell, {}).setdefault(row["workload"], {})[row["repeat"]] = row
    for (name, backend, durability, size, _), forms in cells.items():
        single, batched = forms.get(name, {}), forms.get(name + SUFFIX, {})
        repeats = [(single[each], batched[each]) for each in single if each in batched]
        if repeats:
            yield {
                "kind": "ratio",
                "claim": f"the workload {name} with process_batch, against itself with process",
                "subject": backend,
                "yardstick": f"{name}, record by record",
                "durability": durability,
                "records_per_commit": size,
                "at_least": AT_LEAST.get((name, size)),
                **ratio_of(
                    [many["records_per_s"] / one["records_per_s"] for one, many in repeats],
                    sum(is_busy(one) or is_busy(many) for one, many in repeats),
                    [one["cpu_s"] / one["records"] / (many["cpu_s"] / many["records"]) for one, many in repeats],
                ),
            }


class Throughput(Experiment[ThroughputTrial]):
    """A task per partition, all at once, over the events of a workload, on each backend."""

    name = "throughput"
    title = "throughput of tasks"
    stage = "throughput"
    trial = ThroughputTrial
    grid = ThroughputGrid
    placement = TrialPlacement.GANG
    answers = True
    share = 30
    unit = ""
    figures_by = {"throughput": QUERY}
    derived_by = batch_ratios
    failed_by = WRONG_ENDS
    report = REPORT
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
            "laps": int,
            "seconds": float,
            "took_s": float,
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
            **dict.fromkeys(PARTS, float),
            **dict.fromkeys(LOAD_COLUMNS, float),
            "cpu_s": float,
            "machine_speed": float,
            "waited_share": float,
        }
    }

    def plan(self, request: Request) -> list[ThroughputTrial]:
        """Return the measurements of a profile, or those over a user's events."""
        grids = plan.SIZES[request.profile]
        if request.log is not None:
            grids = (plan.EVENT_LOG_SIZES[request.profile],)
        return plan.throughput_trials([replace(grid, backends=request.backends) for grid in grids], request.seed)

    def next_round(
        self, trials: Sequence[ThroughputTrial], rows: Sequence[Row], remaining_s: float
    ) -> list[ThroughputTrial]:
        """Return a round of what picks rest on: all cells at first, then those whose needs are undecided."""
        trial = answering(trials)
        if trial is None:
            return []
        needs = needs_so_far(self.figures({"throughput": rows})["throughput"])
        more = Rounds(trial, rows).next({cell for need in needs for cell in need.open_cells}, remaining_s)
        return [] if more is None else [more]

    def rest(self, trials: Sequence[ThroughputTrial], rows: Sequence[Row]) -> list[ThroughputTrial]:
        """Return the trials that no pick rests on, and the rounds that the plan has besides those that were made."""
        rounds = answering(trials)
        others = [trial for trial in trials if trial is not rounds]
        return others if rounds is None else [*others, *Rounds(rounds, rows).missing()]

    def extents(self, trials: Sequence[ThroughputTrial], outcome: Outcome) -> dict[str, tuple[int, int]]:
        """Return the measurements that were made of those of the plan; rounds may have made more."""
        planned = sum(len(trial.configurations) for trial in trials)
        return {"measurements": (sum(plan.tried(trial, outcome.rows) for trial in trials), planned)}

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

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page, with the wrong end states and the width of intervals."""
        own, failures = figures["throughput"], [str(failure) for failure in self.failures(figures, rows)]
        wrong = text.failures("Wrong end states", failures) if failures else ""
        words = [wrong, *(f"{each}\n" for each in width_sentences(own))]
        return REPORT.page(figures, before=words, findings=(end_state_finding(own),), plots=charts(figures))


_ROUNDS_WITH_PARTS = 2
DEADLINE_S = 180
DEADLINE_PER_EVENT_S = 0.005


def run(
    work: PartitionWork,
    keep_dump: Callable[[str, Path], None] | None = None,
    *,
    known: Collection[str] = (),
    meet: Callable[[], object] = lambda: None,
    within: Path | None = None,
    fork_server: ForkServer | None = None,
    code: str | None = None,
) -> dict[str, Any]:
    """Measure in a new folder ``within`` another, which is removed afterwards. Return the figures of both processes.

    ``keep_dump`` is called with the digest of the final state and the file of its dump (``pairs``), which it must read
    at once, unless the digest is ``known``. ``meet`` is called between the two processes, so that those of other
    partitions wait for each other. It is also called if the first one fails. The processes are children of
    ``fork_server`` (see ``measured_processes``). Without one they are started, with ``code`` as their PYTHONPATH; None
    is that of this process.

    Raises: MeasurementFailedError.
    """
    with temporary_folder("throughput", within) as folder:
        work.write(folder)
        deadline_s = DEADLINE_S + DEADLINE_PER_EVENT_S * work.records_number
        process = partial(figures_in, folder, deadline_s=deadline_s, code=code, fork_server=fork_server)
        try:
            worked = process(measured, {}, killed=True)
        finally:
            meet()
        # Parts of a record's time are for people: two rounds of them are enough.
        reopen = reopened_with_parts if work.configuration.repeat < _ROUNDS_WITH_PARTS else reopened
        after_kill = process(reopen, {"known": sorted(known)})
        digest = after_kill["state_digest"]
        if keep_dump is not None and digest not in known:
            keep_dump(digest, folder / DUMP_FILE)
        return {**worked, **after_kill}


_SUMMED = ("bytes_written", "bytes_on_disk", "peak_memory_bytes", "open_files", "replayed")


def throughput_row(
    configuration: Configuration, figures: Sequence[Mapping[str, Any]], end_state: str
) -> dict[str, Any]:
    """Return the row of ``configuration`` from the ``figures`` of its partitions, one or more.

    Partitions start together, and each has its own process. Records, bytes, memory and open files are summed. Seconds,
    also those of opening after the kill, are those of the slowest partition. The rate is ``records_per_s``, and
    ``waited_share`` the share in ``seconds`` of those that it leaves out. Percentiles are those of all partitions'
    commits in one histogram.

    The parts of a record's time are the medians of the partitions.

    ``took_s`` is the time of the measurement by the clock, of which ``seconds`` are its work: processes start, events
    are read, the killed task is opened again. ``end_state`` is ``equal``, ``different`` or ``not compared``.
    """
    records = sum(each["records"] for each in figures)
    slowest = max(figures, key=lambda each: float(each["seconds"]))
    seconds = slowest["seconds"]
    commits = _merged(each["commits"] for each in figures)
    store_commits = _merged(each["store_commits"] for each in figures)
    subject = asdict(configuration)
    del subject["options"]
    return {
        "kind": "throughput",
        **subject,
        "durability": str(configuration.durability),
        "records": records,
        "seconds": seconds,
        "records_per_s": records_per_s(figures),
        "commit_p50_us": commits.get_value_at_percentile(50),
        "commit_p99_us": commits.get_value_at_percentile(99),
        "commit_max_us": commits.get_max_value(),
        "store_commit_p50_us": store_commits.get_value_at_percentile(50),
        "store_commit_p99_us": store_commits.get_value_at_percentile(99),
        **{name: sum(each[name] for each in figures) for name in _SUMMED},
        "open_after_kill_s": max(each["open_after_kill_s"] for each in figures),
        **{name: median(each[name] for each in figures) if name in figures[0] else None for name in PARTS},
        "end_state": end_state,
        "laps": figures[0].get("laps"),
        "took_s": max((each["took_s"] for each in figures if "took_s" in each), default=None),
        "machine_speed": slowest.get("machine_speed"),
        **load_columns(figures),
        "cpu_s": sum(each["cpu_s"] - each.get("fixed_cpu_s", 0.0) for each in figures),
        "waited_share": slowest["waited_s"] / seconds if seconds else 0.0,
    }


def records_per_s(figures: Sequence[Mapping[str, Any]]) -> float:
    """Return the rate of partitions from their ``figures``: the summed records over the seconds of the slowest one.

    The seconds in which a partition was ready to run and had no processor are left out. 0.0 without work.
    """
    undisturbed_s: float = max(each["seconds"] - each["waited_s"] for each in figures)
    return sum(each["records"] for each in figures) / undisturbed_s if undisturbed_s else 0.0


def _merged(encoded: Iterable[str]) -> HdrHistogram:
    merged = HdrHistogram(1, LATENCY_MAX_US, LATENCY_DIGITS)
    for each in encoded:
        merged.add(HdrHistogram.decode(each))
    return merged
