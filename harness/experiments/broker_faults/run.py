"""One trial: its broker, the course of its fault, and the comparison of outputs and stores with the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.checkers.counting import PROCESS, Finding, Pair, model_of, repeated, wrong_outputs, wrong_stores
from harness.experiments.broker_faults.faults import FAULTS, ZOMBIE_STATE
from harness.experiments.broker_faults.processes import BrokenPromiseError
from harness.experiments.broker_faults.site import FRESH, STATE, Site, site
from harness.experiments.broker_faults.trial import EXACTLY_ONCE, BrokerTrial
from harness.experiments.judged import ANOMALY, UNKNOWN, VALID
from harness.mutants.registry import BROKER_TRIALS
from harness.processes.child import MeasurementFailedError
from stores.errors import StoreError


def examine(trial: BrokerTrial, folder: Path, code: str | None) -> dict[str, Any]:
    """Run a trial in ``folder``; return the results of its row. Raises: MeasurementFailedError if it can't be tried.

    ``code`` is the import path of its processes; None is that of this process.
    """
    fault = FAULTS[trial.fault]
    try:
        with site(trial, fault.partitions, fault.records_per_commit, folder, code) as place:
            found, outputs = _examined(place)
    except StoreError as error:
        # The harness itself did not reach the broker.
        raise MeasurementFailedError(str(error)) from error
    inputs = {number for partition in place.inputs for _, number in partition}
    return {
        "result": result_of(trial, found),
        "detail": "; ".join(finding.sentence for finding in found),
        "inputs": len(inputs),
        "outputs": None if outputs is None else len(outputs),
        "lost": None if outputs is None else len(inputs - {number for number, _ in outputs}),
        "repeated": None if outputs is None else repeated(outputs),
        "processes": place.processes,
        "faults": place.faults if trial.rounds else None,
        "deaths": place.deaths if trial.rounds else None,
    }


def result_of(trial: BrokerTrial, found: list[Finding]) -> str:
    """Return the result of a trial by its findings. A mutant must show as what it declares, or it shows nothing."""
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
        found = FAULTS[trial.fault].course(place)
        # The successor may find work. The others only restore, from their own stores and from nothing.
        last = place.finished("last", mutant=True)["stores"]
        ends = {name: place.finished(f"{name}-restored", name) for name in (FRESH, ZOMBIE_STATE) if place.has(name)}
    except BrokenPromiseError as error:
        return [error.finding], None
    model = model_of(each for partition in place.inputs for each in partition)
    outputs = place.outputs()
    found += wrong_outputs(model, outputs, exactly_once=exactly_once)
    if exactly_once:
        found += wrong_stores(model.stores, last, f"the directory {STATE!r}")
    for name, figures in ends.items():
        found += wrong_stores(last, figures["stores"], f"the directory {name!r}")
        if figures["processed"]:
            text = f"{figures['processed']} inputs were processed again by a task that found all work done"
            found.append(Finding(PROCESS, text))
    return found, outputs
