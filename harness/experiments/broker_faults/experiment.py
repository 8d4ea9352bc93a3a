"""The experiment that breaks processes, the broker and the network under tasks over Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, cast

from harness import replay
from harness.experiment import (
    Claim,
    Columns,
    Each,
    Experiment,
    Failure,
    Figure,
    Figures,
    Placement,
    Request,
    Row,
    Rows,
    Worker,
)
from harness.experiments.broker_faults.faults import FAULTS, checked, mutant_trials, places_of
from harness.experiments.broker_faults.trial import AT_LEAST_ONCE, EXACTLY_ONCE, ROUND_S, BrokerTrial
from harness.grid import Grid, cut_to, full_names, times
from harness.mutants.registry import BROKER_TRIALS
from harness.processes import kafka_jars
from harness.processes.child import MeasurementFailedError
from harness.profiles import NIGHT, SMOKE
from harness.report import text
from harness.report.page import Page, PageFinding, Table, tables
from harness.workloads.suggestion import check_known
from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.registry import ALIASES, backends

_METHOD = """\
Each trial has a broker of its own, with one replica of each partition. Tasks count keys in two stores, and send one
output for each input. The fault strikes at a place in one of ten commits, which the seed chooses, or in a rebalance of
two workers. Processes are killed by SIGKILL and stopped by SIGSTOP. A proxy on loopback stalls and cuts connections.
Then a successor finishes the input.

A consumer with `isolation.level=read_committed`, in a process that shares no code with the library, reads the outputs.
Exactly once, each input has one output, with the count of a model. At least once, each input has an output. The stores,
and stores that are restored whole from the changelogs, are those of the model. A zombie must be fenced, and a task that
was only delayed must not.
"""


def broker_tables(figures: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return a table of faults, and one of mutants; without those that have no rows."""
    sound, mutants = ([row for row in figures if bool(row["mutant"]) is built_in] for built_in in (False, True))
    made = []
    if sound:
        head = ("fault", "place", "guarantee", "backend", "inputs", "outputs", "lost", "repeated", "result")
        wrong = [number for number, row in enumerate(sound) if row["result"] != row["expected"]]
        lines = [_line(row) for row in sound]
        made.append(Table("Tasks over a broker under faults", head, lines, range(4, 8), notable=wrong))
    if mutants:
        columns = ("mutant", "fault", "place", "result", "found")
        made.append(Table("Mutants over a broker, which must be detected", columns, [_mutant(row) for row in mutants]))
    return made


def _line(row: Mapping[str, Any]) -> list[str]:
    result = row["result"] if row["result"] == row["expected"] else f"{row['result']}, not {row['expected']}"
    numbers = [text.exact(row[name]) for name in ("inputs", "outputs", "lost", "repeated")]
    return [row["meaning"], row["place"], row["guarantee"].replace("_", " "), row["backend"], *numbers, result]


def _mutant(row: Mapping[str, Any]) -> list[str]:
    return [f"`{row['mutant']}`", row["fault"], row["place"], row["result"], row["detail"][:200]]


def page(figures: Sequence[Mapping[str, Any]], failures: Sequence[str], missing: str) -> Page:
    """Return the page. ``missing`` is the reason why nothing could be tried, or ""."""
    good = sum(row["result"] == row["expected"] for row in figures)
    wrong = text.failures("Trials that did not end as expected", failures) if failures else ""
    return Page(
        "broker-faults",
        "Tasks over a broker under faults",
        (
            "Tasks, workers and the broker are killed, stopped or cut off at each step of a commit over Kafka.",
            "Committed outputs and stores are compared with a model.",
        ),
        [*tables(*broker_tables(figures)), wrong] if figures else (),
        _METHOD,
        (PageFinding("trials over a broker", len(figures), good, "ended as expected"),),
        absent=f"not measured: {missing}" if missing else text.NOT_MEASURED,
    )


SECONDS = 25.0
"""The time of a trial on two idle cores, roughly: five seconds of it for the broker."""


@dataclass(frozen=True, kw_only=True)
class BrokerGrid(Grid):
    """Under each of ``faults``, at each of its places, tasks over a broker keep their guarantee.

    ``backends`` are those of the stores. Each of ``mutants`` is built into the first one, and must be detected under
    those of the faults that it names.
    """

    faults: tuple[str, ...] = ()
    backends: tuple[str, ...] = (StoreConfig().backend,)
    guarantee: str = EXACTLY_ONCE

    sizes = MappingProxyType({SMOKE: {"seeds": cut_to(1)}, NIGHT: {"seeds": times(5)}})

    def trials(self, seed: int) -> list[BrokerTrial]:
        """Return a trial for each fault, place and backend. Raises: ConfigError for an unknown name."""
        check_known("fault of a broker called", FAULTS, *self.faults)
        return [
            checked(BrokerTrial(fault, place, name, self.guarantee, seed))
            for fault in self.faults
            for place in places_of(fault, self.guarantee)
            for name in full_names(self.backends)
        ]

    def mutant_trials(self, mutant: str, seeds: range) -> list[BrokerTrial]:
        """Return the trials that must detect a mutant. Raises: ConfigError if none of the faults detects it."""
        found = [
            trial
            for trial in mutant_trials(mutant, full_names(self.backends)[0], seeds[0])
            if trial.fault in self.faults and trial.guarantee == self.guarantee
        ]
        if not found:
            raise ConfigError(f"the mutant {mutant!r} is not detected under these faults: leave it out")
        return found


class BrokerFaults(Experiment[BrokerTrial]):
    """Kills, restarts, zombies and a network that hangs, at each step of a commit over a real broker."""

    name = "broker_faults"
    title = "tasks over a broker under faults"
    stage = "broker"
    claim = "faults over a broker"
    trial = BrokerTrial
    grid = BrokerGrid
    placement = Placement.SPREAD
    share = 2
    columns: Mapping[str, Columns] = MappingProxyType(
        {
            "broker_fault": {
                "backend": str,
                "fault": str,
                "meaning": str,
                "place": str,
                "guarantee": str,
                "mutant": str,
                "seed": int,
                "scenario": str,
                "inputs": int,
                "outputs": int,
                "lost": int,
                "repeated": int,
                "processes": int,
                "faults": int,
                "deaths": int,
                "result": str,
                "expected": str,
                "detail": str,
                "seconds": float,
                "repeat_command": str,
            }
        }
    )

    def plan(self, request: Request) -> list[BrokerTrial]:
        """Return every fault at every place and every mutant in a night, and nothing else.

        The seed determines their order, so that nights without the time for all of them do not try the same ones.
        """
        chosen = [name for name in request.among(ALIASES.values()) if backends()[name].persistent]
        if request.profile != NIGHT or not chosen:
            return []
        places = [(fault, place, EXACTLY_ONCE) for fault in FAULTS for place in places_of(fault)]
        places += [("task killed", place, AT_LEAST_ONCE) for place in places_of("task killed", AT_LEAST_ONCE)]
        trials = [
            BrokerTrial(fault, place, chosen[(request.seed + number) % len(chosen)], guarantee, request.seed)
            for number, (fault, place, guarantee) in enumerate(places)
        ]
        trials += [trial for mutant in BROKER_TRIALS for trial in mutant_trials(mutant, chosen[0], request.seed)]
        Random(f"broker faults {request.seed}").shuffle(trials)
        return trials

    def read(self, text: str) -> BrokerTrial:
        """Return the trial. Raises: ConfigError, as of any experiment, and for one that cannot be run."""
        return checked(cast(BrokerTrial, super().read(text)))

    def missing(self) -> str:
        """Return the reason why no broker can run here, or ""."""
        return kafka_jars.missing()

    def prepare(self, trials: Sequence[BrokerTrial], kept: Path, each: Each) -> list[BrokerTrial]:
        """Return the trials with the folder of the jars: a task of Spark may have another clone, or none."""
        return [replace(trial, jars=trial.jars or str(kafka_jars.JARS)) for trial in trials]

    def cost_s(self, trial: BrokerTrial) -> float:
        """Return the time of two idle cores."""
        return SECONDS + trial.rounds * ROUND_S

    def run(self, trial: BrokerTrial, worker: Worker) -> Iterable[Row]:
        """Return the one row of a trial. Its result is "unknown" if it could not be tried."""
        if not trial.jars and (reason := self.missing()):
            raise ConfigError(f"no broker can run here: {reason}")
        # It needs the extra kafka.
        from harness.experiments.broker_faults.run import UNKNOWN, examine

        worker.folder.mkdir()
        began = time.monotonic()
        try:
            found = examine(trial, worker.folder, worker.code)
        except MeasurementFailedError as error:
            found = dict.fromkeys(self.columns["broker_fault"]) | {
                "result": UNKNOWN,
                "detail": str(error),
                "seconds": time.monotonic() - began,
            }
        return [
            {
                **found,
                "kind": "broker_fault",
                "backend": trial.backend,
                "fault": trial.fault,
                "meaning": FAULTS[trial.fault].meaning,
                "place": trial.place,
                "guarantee": trial.guarantee,
                "mutant": trial.mutant,
                "seed": trial.seed,
                "expected": "anomaly" if trial.mutant else "valid",
                "repeat_command": replay.command(self.name, replace(trial, jars="")),
            }
        ]

    def finish(self, trials: Sequence[BrokerTrial], rows: Sequence[Row], claim: Claim) -> list[Row]:
        """Return the rows, with the reason for their trials."""
        return [{**row, "scenario": claim.name} for row in rows]

    def subject(self, trial: BrokerTrial) -> str:
        """Return the fault, its place and the backend."""
        return f"{trial.fault}, {trial.place}, {trial.backend}{trial.mutant and ' with '}{trial.mutant}"

    def line(self, trial: BrokerTrial, rows: Sequence[Row]) -> str:
        """Return the result."""
        return f"{rows[0]['result']}, {rows[0]['seconds']:.0f} s"

    def figures(self, rows: Rows) -> dict[str, list[Figure]]:
        """Return a figure for each trial, in order."""
        return {"broker_fault": sorted((dict(row) for row in rows.get("broker_fault", ())), key=_order)}

    def tables(self, figures: Figures, rows: Rows) -> list[Table]:
        """Return a line for each trial."""
        return broker_tables(figures["broker_fault"])

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return every trial with an unexpected result."""
        return [
            Failure(
                f"{row['fault']}, {row['place']}, {row['guarantee']}, {row['backend']}{row['mutant'] and ' with '}"
                f"{row['mutant']}, seed {row['seed']}: {row['result']}, not {row['expected']} "
                f"({row['detail'] or 'nothing found'})",
                row["repeat_command"],
            )
            for row in figures["broker_fault"]
            if row["result"] != row["expected"]
        ]

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about faults over a broker."""
        failures = [str(failure) for failure in self.failures(figures, rows)]
        return page(figures["broker_fault"], failures, str(facts.get(f"{self.stage}_skipped") or ""))


def _order(row: Figure) -> tuple[Any, ...]:
    """Return the place of a figure among all: sound tasks first, exactly once before at least once."""
    fault, places = row["fault"], FAULTS[row["fault"]].places
    # Some mutants have places of their own.
    place = places.index(row["place"]) if row["place"] in places else len(places)
    at_least_once = row["guarantee"] != EXACTLY_ONCE
    return row["mutant"], at_least_once, list(FAULTS).index(fault), place, row["backend"], row["seed"]
