"""The experiment that breaks processes, the broker and the network under tasks over Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from harness.budget import NIGHT, SMOKE
from harness.checkers.counting import PROCESS, Finding, Pair, model_of, repeated, wrong_outputs, wrong_stores
from harness.experiment import Each, Request, TrialPlacement, TrialWorker
from harness.experiments.broker_faults.faults import FAULTS, ZOMBIE_STATE, checked, mutant_trials, places_of
from harness.experiments.broker_faults.processes import BrokenPromiseError
from harness.experiments.broker_faults.trial import AT_LEAST_ONCE, EXACTLY_ONCE, FRESH, ROUND_S, STATE, BrokerTrial
from harness.experiments.judged import ANOMALY, UNKNOWN, VALID, Judged
from harness.mutants import BROKER_TRIALS
from harness.processes import kafka_jars
from harness.processes.child import MeasurementFailedError
from harness.report.rows import Row
from harness.scenario import Grid, cut_to, full_names, times
from harness.workloads.suggestion import check_known
from stores.config import StoreConfig
from stores.errors import ConfigError, StoreError
from stores.registry import ALIASES, backends

if TYPE_CHECKING:
    from harness.experiments.broker_faults.site import Site

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
        trials = [
            trial
            for trial in mutant_trials(mutant, full_names(self.backends)[0], seeds[0])
            if trial.fault in self.faults and trial.guarantee == self.guarantee
        ]
        if not trials:
            raise ConfigError(f"the mutant {mutant!r} is not detected under these faults: leave it out")
        return trials


class BrokerFaults(Judged[BrokerTrial]):
    """Kills, restarts, zombies and a network that hangs, at each step of a commit over a real broker."""

    name = "broker_faults"
    title = "tasks over a broker under faults"
    stage = "broker"
    claim = "faults over a broker"
    trial = BrokerTrial
    grid = BrokerGrid
    faults = FAULTS
    placement = TrialPlacement.SPREAD
    share = 2
    night_share = 10
    kind = "broker_fault"
    named_by = ("fault", "place", "guarantee", "backend")
    shown = {
        "fault": "meaning",
        **{name: name for name in ("place", "guarantee", "backend", "inputs", "outputs", "lost", "repeated")},
    }
    mutant_shown = ("fault", "place")
    page_name = "broker-faults"
    page_title = "Tasks over a broker under faults"
    mutants_title = "Mutants over a broker, which must be detected"
    shows = (
        "Tasks, workers and the broker are killed, stopped or cut off at each step of a commit over Kafka.",
        "Committed outputs and stores are compared with a model.",
    )
    counted = "trials over a broker"
    method = _METHOD
    classed_by = ("place", "guarantee")
    of_all_backends = "tasks over Kafka"
    modules = ("stores.worker", "stores.changelog.kafka.changelog", "stores.tasks.task")
    columns = {
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

    def plan(self, request: Request) -> list[BrokerTrial]:
        """Return every fault at every place and every mutant in a night, and nothing else.

        Those that no run has tried with this code come first, then the oldest. The seed determines the order of equals.
        """
        names = [name for name in request.among(ALIASES.values()) if backends()[name].persistent]
        if request.profile != NIGHT or not names:
            return []
        places = [(fault, place, EXACTLY_ONCE) for fault in FAULTS for place in places_of(fault)]
        places += [("task killed", place, AT_LEAST_ONCE) for place in places_of("task killed", AT_LEAST_ONCE)]
        trials = [
            BrokerTrial(fault, place, names[(request.seed + number) % len(names)], guarantee, request.seed)
            for number, (fault, place, guarantee) in enumerate(places)
        ]
        trials += [trial for mutant in BROKER_TRIALS for trial in mutant_trials(mutant, names[0], request.seed)]
        Random(f"broker faults {request.seed}").shuffle(trials)
        return self.oldest_first(trials, request.coverage)

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

    def examine(self, trial: BrokerTrial, worker: TrialWorker) -> Row:
        """Return what the trial finds. Raises: MeasurementFailedError."""
        # It needs the extra kafka.
        from harness.experiments.broker_faults.site import site

        fault = FAULTS[trial.fault]
        try:
            with site(trial, fault.partitions, fault.records_per_commit, worker.folder, worker.code) as place:
                findings, outputs = _examined(place)
        except StoreError as error:
            # The harness itself did not reach the broker.
            raise MeasurementFailedError(str(error)) from error
        inputs = {number for partition in place.inputs for _, number in partition}
        return {
            "result": result_of(trial, findings),
            "detail": "; ".join(finding.sentence for finding in findings),
            "inputs": len(inputs),
            "outputs": None if outputs is None else len(outputs),
            "lost": None if outputs is None else len(inputs - {number for number, _ in outputs}),
            "repeated": None if outputs is None else repeated(outputs),
            "processes": place.processes,
            "faults": place.faults if trial.rounds else None,
            "deaths": place.deaths if trial.rounds else None,
        }

    def repeated(self, trial: BrokerTrial) -> BrokerTrial:
        """Return the trial without the folder of this clone's jars."""
        return replace(trial, jars="")

    def order(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the place of a trial among all: sound tasks first, exactly once before at least once."""
        fault, places = row["fault"], FAULTS[row["fault"]].places
        # Some mutants have places of their own.
        place = places.index(row["place"]) if row["place"] in places else len(places)
        at_least_once = row["guarantee"] != EXACTLY_ONCE
        return row["mutant"], at_least_once, list(FAULTS).index(fault), place, row["backend"], row["seed"]


def result_of(trial: BrokerTrial, found: list[Finding]) -> str:
    """Return the result of a trial by its findings. A mutant counts only by the finding that it declares."""
    if not found:
        return VALID
    if not trial.mutant:
        return ANOMALY
    [finds] = {by.finds for by in BROKER_TRIALS[trial.mutant] if (by.fault, by.place) == (trial.fault, trial.place)}
    return ANOMALY if finds in {finding.kind for finding in found} else UNKNOWN


def _examined(place: Site) -> tuple[list[Finding], list[Pair] | None]:
    """Return all findings and the committed outputs; no outputs if a process of the trial failed."""
    trial = place.trial
    exactly_once = trial.guarantee == EXACTLY_ONCE
    try:
        findings = FAULTS[trial.fault].course(place)
        # The successor may find work. The others only restore, from their own stores and from nothing.
        last = place.finished("last", mutant=True)["stores"]
        ends = {name: place.finished(f"{name}-restored", name) for name in (FRESH, ZOMBIE_STATE) if place.has(name)}
    except BrokenPromiseError as error:
        return [error.finding], None
    model = model_of(each for partition in place.inputs for each in partition)
    outputs = place.outputs()
    findings += wrong_outputs(model, outputs, exactly_once=exactly_once)
    if exactly_once:
        findings += wrong_stores(model.stores, last, f"the directory {STATE!r}")
    for name, figures in ends.items():
        findings += wrong_stores(last, figures["stores"], f"the directory {name!r}")
        if figures["processed"]:
            text = f"{figures['processed']} inputs were processed again by a task that found all work done"
            findings.append(Finding(PROCESS, text))
    return findings, outputs
