"""The experiment that breaks Spark under stateful queries.

A trial needs events, the Spark of its fault, drivers one after the other, and the checks.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.budget import DEFAULT, NIGHT, SMOKE, check_time
from harness.checkers.counting import leading_stores
from harness.experiment import Request, TrialPlacement, TrialWorker, check_counts
from harness.experiments.judged import ANOMALY, JUDGED_COLUMNS, VALID, Judged
from harness.experiments.query_faults.faults import CLUSTER, FAULTS, FULL_DISKS, KINDS, Course, QueryFault
from harness.experiments.query_faults.notes import Notes
from harness.mutants import QUERY_TRIALS
from harness.processes.child import MeasurementFailedError, child_environment, end, last_complaint, python, start
from harness.processes.spark_cluster import SparkCluster, end_session
from harness.report.rows import Row
from harness.scenario import Grid, cut_to, full_names, times
from harness.workloads.suggestion import check_known
from stores.changelog.files.partition_log import FAILPOINTS
from stores.errors import ConfigError
from stores.registry import ALIASES, backend_named, backends
from stores.spark import local_state

COUNT = "count"
WORKLOADS: Mapping[str, str] = MappingProxyType(
    {
        COUNT: "counts by name",
        "timers": "timers by event time",
        "flights_by_hour": "departures in windows, by the function of a task",
        "aircraft_sessions": "flights in sessions, by the function of batches of a task",
    }
)
"""The queries, by name, and what each of them keeps. ``harness.spark.query_faults`` has them."""


@dataclass(frozen=True, slots=True)
class QueryTrial:
    """The query ``workload`` over stores of ``backend`` under ``fault``. ``seed`` determines its events."""

    fault: str
    backend: str
    seed: int = 1
    mutant: str = ""
    workload: str = COUNT

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown name."""
        check_known("fault of a query called", FAULTS, self.fault)
        check_known("query called", WORKLOADS, self.workload)
        backend_named(self.backend)
        if self.mutant:
            check_known("mutant of queries called", QUERY_TRIALS, self.mutant)
        check_counts(seed=self.seed)
        if self.fault in FULL_DISKS and not backend_named(self.backend).persistent:
            raise ConfigError(f"{self.backend} has no files: choose another backend for a full disk")


KILLED_AT = (*FAILPOINTS, local_state.RESTORED, local_state.BETWEEN_STORES, local_state.COMMITTED)
"""The failpoints of a batch."""
DEADLINE_S = 900.0
"""The time that one driver may take."""
DISK_BYTES = 48 << 20
"""The size of a disk that is filled."""
_POLL_S = 0.1
PROGRAM = "harness.spark.query_faults"


_NUMBERS = {
    "struck": "struck",
    "batches": "batches",
    "drivers": "drivers",
    "restarts": "restarts",
    "late": "late",
    "restored": "restored_versions",
    "bytes": "restored_bytes",
}
"""The columns of numbers, by their captions."""
_METHOD = """\
Queries with a file sink run on Spark in local mode, or on a standalone cluster of two workers on loopback with local
files of their own. `count` counts events by name in a typed store, `timers` registers a timer for each event,
`flights_by_hour` and `aircraft_sessions` are the workloads of tasks, with windows and sessions. Each batch is one file
of events. After the last batch the rows, and the state as a table at each kept version, are compared with the answer of
Spark SQL over the same events: each row counts once, and each partition has counted each batch once. *Struck* is how
many times the fault came. *Late* attempts were not the first at their version: they were refused, or gave out the rows
of the first. *Restored* are the versions that local copies took from the log, and the bytes of their records.

Checkers also see that no store commits a version before its log has it; that a zombie's version is refused; that after
a failed batch only the partition that failed is computed again; and that after the loss of a machine the other one
restores just the versions that its copies lack.
"""


@dataclass(frozen=True, kw_only=True)
class QueryGrid(Grid):
    """Under each of ``faults`` each query of ``workloads`` over each of ``backends`` equals Spark SQL's answer.

    That is, its rows and its state do. Each of ``mutants`` is built into the first backend, and must be detected under
    the fault that it names.
    """

    faults: tuple[str, ...] = ()
    backends: tuple[str, ...] = ("rocksdb",)
    workloads: tuple[str, ...] = (COUNT,)

    sizes = MappingProxyType({SMOKE: {"seeds": cut_to(1)}, NIGHT: {"seeds": times(5)}})

    def trials(self, seed: int) -> list[QueryTrial]:
        """Return a trial for each query, fault and backend. Raises: ConfigError for an unknown name."""
        return [
            QueryTrial(fault, name, seed, workload=workload)
            for workload in self.workloads
            for fault in self.faults
            for name in full_names(self.backends)
        ]

    def mutant_trials(self, mutant: str, seeds: range) -> list[QueryTrial]:
        """Return a trial under the fault that must detect the mutant. Raises: ConfigError for an unknown one."""
        check_known("mutant of queries called", QUERY_TRIALS, mutant)
        return [QueryTrial(QUERY_TRIALS[mutant].fault, full_names(self.backends)[0], seeds[0], mutant)]


class QueryFaults(Judged[QueryTrial]):
    """Kills, stalls, full disks and lost machines under a stateful query with a file sink."""

    name = "query_faults"
    title = "stateful queries under faults"
    stage = "queries"
    claim = "faults of queries"
    trial = QueryTrial
    grid = QueryGrid
    faults = FAULTS
    placement = TrialPlacement.LOCAL
    night_share = 14
    kind = "query_fault"
    named_by = ("fault", "workload", "backend")
    shown = {"query": "workload", "fault": "meaning", "backend": "backend", **_NUMBERS}
    mutant_shown = ("fault",)
    page_name = "query-faults"
    page_title = "Stateful queries under faults"
    mutants_title = "Mutants of queries, which must be detected"
    shows = (
        "Workers, executors and drivers of a stateful query are killed, stalled, or without disk space.",
        "Its rows and its state are compared with Spark SQL.",
    )
    counted = "trials of stateful queries"
    method = _METHOD
    classed_by = ("workload",)
    of_all_backends = "stateful queries"
    modules = ("stores.spark", "stores.spark.stateful", "stores.spark.record_wise", "stores.changelog.files")
    columns = {
        "query_fault": {
            **JUDGED_COLUMNS,
            **dict.fromkeys(("backend", "fault", "workload", "meaning"), str),
            **dict.fromkeys(("rows", *_NUMBERS.values()), int),
        }
    }

    def plan(self, request: Request) -> list[QueryTrial]:
        """Return all trials in a night; two of them by turns in a default run: a count, and another query.

        All are each fault under the query that counts, full disks with every backend, one fault of each kind under
        each of the other queries, and every mutant.
        """
        if request.profile not in (NIGHT, DEFAULT):
            return []
        names = [name for name in request.among(ALIASES.values()) if backends()[name].persistent]
        if not names:
            return []
        counts, others = count_trials(names, request.seed), other_trials(names, request.seed)
        if request.profile == NIGHT:
            every = [*counts, *others, *mutant_trials(names[0], request.seed)]
            return self.oldest_first(every, request.coverage)
        return [each[request.seed % len(each)] for each in (counts, others)]

    def cost_s(self, trial: QueryTrial) -> float:
        """Return the time on two idle cores, which is that of the fault."""
        return FAULTS[trial.fault].seconds

    def examine(self, trial: QueryTrial, worker: TrialWorker) -> Row:
        """Return what the trial finds. Raises: MeasurementFailedError."""
        return examine(trial, worker.folder, worker.say)

    def line(self, trial: QueryTrial, rows: Sequence[Row]) -> str:
        """Return the trial, its result and its time."""
        return f"{self.subject(trial)}: {super().line(trial, rows)}"

    def order(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the place of a trial among all: sound ones first, by query and fault."""
        query, fault = list(WORKLOADS).index(row["workload"]), list(FAULTS).index(row["fault"])
        return row["mutant"], query, fault, row["backend"], row["seed"]


def count_trials(backends: Sequence[str], seed: int) -> list[QueryTrial]:
    """Return a trial for each fault under the query that counts, and one for each backend if it fills a disk."""
    trials = []
    for number, fault in enumerate(FAULTS):
        names = backends if fault in FULL_DISKS else [backends[(seed + number) % len(backends)]]
        trials += [QueryTrial(fault, backend, seed) for backend in names]
    return trials


def other_trials(backends: Sequence[str], seed: int) -> list[QueryTrial]:
    """Return a trial for each kind of fault under each of the other queries. Faults of a kind take turns."""
    names = [name for name in WORKLOADS if name != COUNT]
    return [
        QueryTrial(
            faults[(seed + place) % len(faults)], backends[(seed + place + number) % len(backends)], seed, workload=name
        )
        for number, faults in enumerate(KINDS)
        for place, name in enumerate(names)
    ]


def mutant_trials(backend: str, seed: int) -> list[QueryTrial]:
    """Return a trial for each mutant of queries, under the fault that must detect it."""
    return QueryGrid(backends=(backend,), mutants=tuple(QUERY_TRIALS)).plan(seed)


def examine(trial: QueryTrial, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Run a trial in ``folder``, and return the results of its row.

    Raises: MeasurementFailedError if a driver fails by itself; TimeOverError, see ``ended_by``.
    """
    fault = FAULTS[trial.fault]
    batches = len(KILLED_AT) + 2 if fault.kills else fault.batches
    for name in ("events", "local", "state", "nothing"):
        (folder / name).mkdir(parents=True)
    notes = Notes(folder)
    with ExitStack() as stack:
        if fault.full != "nothing":
            stack.enter_context(_small_disk(folder / fault.full))
        cluster = None
        if fault.master == CLUSTER:
            cluster = stack.enter_context(SparkCluster(2, cores=fault.cores))
        arguments = {
            **asdict(trial),
            "master": "local[2]" if cluster is None else cluster.master,
            "batches": batches,
            "killed_at": KILLED_AT if fault.kills else (),
        }
        (folder / "arguments.json").write_text(json.dumps(arguments))
        starts = 0
        while not (folder / "figures.json").exists():
            starts += 1
            if starts > fault.starts_max:
                raise MeasurementFailedError(
                    f"the driver of {trial.fault!r} ended: {last_complaint(folder) or 'it said nothing'}"
                )
            say(f"{trial.fault}: driver {starts}")
            with _driver(folder) as process:
                deadline = time.monotonic() + DEADLINE_S
                while process.poll() is None:
                    check_time()
                    if time.monotonic() > deadline:
                        raise MeasurementFailedError(f"a driver of {trial.fault!r} took more than {DEADLINE_S:.0f} s")
                    if cluster is not None and notes.has("lose a machine") and notes.once("lost"):
                        notes.add("lost", {})
                        cluster.kill_worker(0)
                    time.sleep(_POLL_S)
        figures = json.loads((folder / "figures.json").read_text())
        survivor, lost = ("", "") if cluster is None else (str(cluster.local_folder(1)), str(cluster.local_folder(0)))
    wrong = problems(fault, trial, figures, notes, batches, survivor, lost)
    appends = notes.lines("appends")
    return {
        "batches": batches,
        "rows": figures["rows"],
        "drivers": starts,
        "restarts": len(figures["errors"]),
        "struck": fault.struck(notes),
        "late": sum(each["result"] != "first" for each in appends),
        "restored_versions": sum(each["versions"] for each in notes.lines("restores")),
        "restored_bytes": sum(each["bytes"] for each in notes.lines("restores")),
        "result": ANOMALY if wrong else VALID,
        "detail": "; ".join(wrong),
    }


def problems(
    fault: QueryFault, trial: QueryTrial, figures: dict[str, Any], notes: Any, batches: int, survivor: str, lost: str
) -> list[str]:
    """Return every way in which the trial did not end as promised, from its ``figures`` and ``notes``.

    Local copies are below ``survivor`` and ``lost`` if the fault loses a machine. Raises: MeasurementFailedError if the
    fault did not strike.
    """
    errors = figures["errors"]
    wrong = [
        *figures["wrong"],
        "" if figures["rows"] else "the answer has no rows",
        "" if batches - 1 in figures["versions"] else f"the state has no version {batches - 1}",
        leading_stores(notes.lines("commits"), notes.lines("appends")),
    ]
    if len(errors) != fault.fails and (errors or not fault.may_go_on):
        wrong.append(f"the query failed {len(errors)} times, not {fault.fails}: {' '.join(errors)[:300]}")
    wrong += [f"an error does not say {fault.error!r}: {error[:300]}" for error in errors if fault.error not in error]
    if not fault.struck(notes):
        raise MeasurementFailedError(f"the fault {trial.fault!r} did not come to pass")
    wrong += fault.evidence(Course(notes, batches, fault.partitions, survivor, lost))
    return [each for each in wrong if each]


@contextmanager
def _driver(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a driver; at the end it and all that it started are killed, also Python workers that outlived it."""
    process = start(python(PROGRAM, str(folder)), folder, child_environment(None, folder), leads_session=True)
    try:
        yield process
    finally:
        end_session(process)
        end(process)


@contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    """Mount a small file system in memory at a folder. Raises: MeasurementFailedError if that is refused."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        raise MeasurementFailedError(f"no small disk can be mounted: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)
