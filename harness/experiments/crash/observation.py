"""The observations of a trial: the histories and ends of its processes, and the log after each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.checkers.evidence import Acknowledged, Evidence, FellBack, Found, Life, Log, Restored, State
from harness.experiments.crash.history import Event
from harness.experiments.crash.operations import inputs
from harness.experiments.crash.oracle import expected
from harness.experiments.crash.trial import Trial
from harness.faults import Abort, Fence, Kill, KillAfter, Stop, Timeout, Truncate, steps
from harness.processes.child import Ending

SIGKILLED = -9


@dataclass(frozen=True, slots=True)
class Observation:
    """One entry for each process that ran, in order; ``logs`` has the log after each of them."""

    histories: Sequence[Sequence[Event]]
    endings: Sequence[Ending]
    logs: Sequence[Log]


def mishap(trial: Trial, number: int, ending: Ending, events: Sequence[Event]) -> str:
    """Return the reason why process ``number`` of the trial did not end as planned, or "".

    The words are the same in every run. The complaint of the process is in its ending.
    """
    planned = steps(trial.fault)
    step = planned[number] if number < len(planned) else None
    noted = {event["event"] for event in events}
    if ending.status is None:
        return f"process {number} did not end before its deadline"
    if ending.status == SIGKILLED and "killed" in noted:
        return ""
    if ending.status < 0:
        return f"process {number} was killed by signal {-ending.status}, not by the trial"
    if ending.status:
        return f"process {number} failed: {_kind(ending.complaint)}"
    if isinstance(step, Kill):
        return f"failpoint not reached: {step.failpoint}"
    if isinstance(step, Timeout) and "timed_out" not in noted:
        return f"process {number} ended before its commit {step.commit} could time out"
    if isinstance(step, KillAfter) or (
        isinstance(step, Abort | Stop | Fence | Truncate) and not noted & {"aborted", "stopped", "taken_over"}
    ):
        return f"process {number} ended before it had processed {step.records} records"
    return "" if "closed" in noted else f"process {number} ended without closing its task"


def missing(trial: Trial, observation: Observation) -> str:
    """Return the first mishap of the trial, which is the reason why the fault did not strike as planned, or ""."""
    mishaps = [
        mishap(trial, number, ending, events)
        for number, (ending, events) in enumerate(zip(observation.endings, observation.histories, strict=True))
    ]
    return next(filter(None, mishaps), "")


def evidence(trial: Trial, observation: Observation) -> Evidence:
    """Return the observation in the form for checkers, with the expected result that follows from the seed."""
    lives = []
    acknowledged: list[Acknowledged] = []
    fallen_back: list[FellBack] = []
    planned = steps(trial.fault)
    for number, events in enumerate(observation.histories):
        if number:
            truncated = isinstance(planned[number - 1], Truncate)
            life = _life(events, observation.logs[number - 1], tuple(acknowledged))
            lives.append(replace(life, truncated=truncated))
        for event in events:
            if event["event"] == "acknowledged":
                acknowledged.append(Acknowledged(event["next_input"], event["log_ends"]))
            elif event["event"] == "fell_back":
                fallen_back.append(_fell_back(event, acknowledged[-1].next_input if acknowledged else 0))
    final = [event["states"] for event in observation.histories[-1] if event["event"] == "final"]
    return Evidence(
        exactly_once=trial.exactly_once,
        durability=trial.durability,
        expected=expected(inputs(trial.mix, trial.seed)),
        lives=lives,
        final={store: state(pairs) for store, pairs in final[-1].items()} if final else {},
        final_log=observation.logs[-1],
        missing=missing(trial, observation),
        fallen_back=fallen_back,
    )


def state(pairs: Mapping[str, str]) -> State:
    """Return a state of a history as bytes."""
    return {key.encode("latin-1"): value.encode("latin-1") for key, value in pairs.items()}


def _life(events: Sequence[Event], log: Log, acknowledged: Sequence[Acknowledged]) -> Life:
    found: dict[str, Found] = {}
    restored: dict[str, Restored] = {}
    for event in events:
        if event["event"] == "found":
            found = {store: _found(reported) for store, reported in event["stores"].items()}
        elif event["event"] == "restored":
            restored = _restored(event)
    return Life(log, acknowledged, found, restored)


def _restored(event: Event) -> dict[str, Restored]:
    return {
        store: Restored(state(reported["state"]), reported["records"], reported["wiped"], reported["reason"] or "")
        for store, reported in event["stores"].items()
    }


def _fell_back(event: Event, acknowledged: int) -> FellBack:
    return FellBack(event["next_input"], acknowledged, _restored(event), frozenset(event["transactional"]))


def _found(reported: Mapping[str, Any]) -> Found:
    return Found(
        state(reported["state"]),
        reported["committed_offset"],
        reported["transactional"],
        reported["manages_offsets"],
        reported["persistent"],
        reported["position"],
    )


def _kind(complaint: str) -> str:
    return complaint.split(":", 1)[0].rsplit(".", 1)[-1] if complaint else "no word of why"
