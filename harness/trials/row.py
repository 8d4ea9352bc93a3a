"""An outcome as a row: what reports and comparisons of runs are made from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from harness.faults import failpoint_of, name_of
from harness.trials.run import Outcome
from harness.trials.trial import repeat_command

Row = dict[str, Any]

TEXT_COLUMNS = (
    "trial",
    "spec",
    "backend",
    "durability",
    "guarantee",
    "fault",
    "failpoint",
    "sabotage",
    "records",
    "result",
    "verdicts",
    "complaint",
    "repeat",
)


def row(outcome: Outcome, attempt: int = 0) -> Row:
    """One row per trial. ``attempt`` counts from 0, ``verdicts`` is JSON, ``repeat`` the command that runs it again."""
    trial = outcome.trial
    return {
        "trial": trial.id,
        "spec": trial.text,
        "backend": trial.backend,
        "durability": trial.durability,
        "guarantee": trial.guarantee,
        "fault": name_of(trial.fault),
        "failpoint": failpoint_of(trial.fault),
        "sabotage": trial.sabotage or "",
        "records": trial.records,
        "seed": trial.seed,
        "result": str(outcome.result),
        "verdicts": outcome.verdicts_text,
        "attempt": attempt,
        "seconds": outcome.seconds,
        "complaint": outcome.complaint,
        "repeat": repeat_command(trial),
    }


def failures(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """What to print of the rows that are not valid: why, and the command that repeats each."""
    return [_failure(found) for found in rows if found["result"] != "valid"]


def _failure(found: Mapping[str, Any]) -> str:
    told = []
    for verdict in json.loads(found["verdicts"]):
        if verdict["result"] != "valid":
            # Where a trial did not take its course most checkers say the same: once is enough.
            who = verdict["checker"] if verdict["result"] == "anomaly" else "trial"
            told.append(f"  {who}: {verdict['result']}: {verdict['detail']}")
    told = list(dict.fromkeys(told))
    if found["complaint"]:
        told.append(f"  the process said: {found['complaint']}")
    title = (
        f"trial {found['trial']} of {found['backend']} at {found['durability']}, {found['records'] or 'plain'} stores, "
        f"{found['fault']} {found['failpoint']}"
    )
    return "\n".join([title.rstrip() + ":", *told, f"  repeat it with: {found['repeat']}"])
