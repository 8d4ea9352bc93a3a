"""The experiment that breaks Spark under stateful queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from harness.budget import DEFAULT, NIGHT, SMOKE
from harness.experiment import (
    Request,
    Row,
    TrialPlacement,
    TrialWorker,
)
from harness.experiments.judged import Judged
from harness.experiments.query_faults.faults import FAULTS, FULL_DISKS, KINDS
from harness.experiments.query_faults.run import examine
from harness.experiments.query_faults.trial import COUNT, WORKLOADS, QueryTrial
from harness.mutants import QUERY_TRIALS
from harness.scenario import Grid, cut_to, full_names, times
from harness.workloads.suggestion import check_known
from stores.registry import ALIASES, backends

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
    columns = {
        "query_fault": {
            "backend": str,
            "fault": str,
            "workload": str,
            "meaning": str,
            "mutant": str,
            "seed": int,
            "scenario": str,
            "batches": int,
            "rows": int,
            "drivers": int,
            "restarts": int,
            "struck": int,
            "late": int,
            "restored_versions": int,
            "restored_bytes": int,
            "result": str,
            "expected": str,
            "detail": str,
            "seconds": float,
            "repeat_command": str,
        }
    }

    def plan(self, request: Request) -> list[QueryTrial]:
        """Return all trials in a night; two of them by turns in a default run: a count, and another query.

        All are each fault under the query that counts, full disks with every backend, one fault of each kind under
        each of the other queries, and every mutant.
        """
        if request.profile not in (NIGHT, DEFAULT):
            return []
        chosen = [name for name in request.among(ALIASES.values()) if backends()[name].persistent]
        if not chosen:
            return []
        counts, others = count_trials(chosen, request.seed), other_trials(chosen, request.seed)
        if request.profile == NIGHT:
            return [*counts, *others, *mutant_trials(chosen[0], request.seed)]
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
        chosen = backends if fault in FULL_DISKS else [backends[(seed + number) % len(backends)]]
        trials += [QueryTrial(fault, backend, seed) for backend in chosen]
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
