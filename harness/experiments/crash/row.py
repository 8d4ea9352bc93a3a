"""An outcome as a row, for reports and comparisons of runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from harness import replay
from harness.experiments.crash.run import Outcome
from harness.faults import failpoint_of, name_of

Row = dict[str, Any]

TEXT_COLUMNS = (
    "trial",
    "spec",
    "backend",
    "durability",
    "guarantee",
    "fault",
    "failpoint",
    "mutant",
    "records",
    "result",
    "verdicts",
    "complaint",
    "repeat",
)


def row(outcome: Outcome, attempt: int = 0) -> Row:
    """Return the row of a trial. ``attempt`` counts from 0, ``verdicts`` is JSON, ``repeat`` a command."""
    trial = outcome.trial
    return {
        "trial": trial.id,
        "spec": trial.text,
        "backend": trial.backend,
        "durability": trial.durability,
        "guarantee": trial.guarantee,
        "fault": name_of(trial.fault),
        "failpoint": failpoint_of(trial.fault),
        "mutant": trial.mutant or "",
        "records": trial.records,
        "seed": trial.seed,
        "result": str(outcome.result),
        "verdicts": outcome.verdicts_text,
        "attempt": attempt,
        "seconds": outcome.seconds,
        "complaint": outcome.complaint,
        "repeat": replay.command("crash", trial),
    }


def failures(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a text for each row that is not valid: its verdicts, and the command that repeats it."""
    return [_failure(found) for found in rows if found["result"] != "valid"]


def _failure(found: Mapping[str, Any]) -> str:
    lines = []
    for verdict in json.loads(found["verdicts"]):
        if verdict["result"] != "valid":
            # If the fault did not strike as planned, most checkers report the same. It is printed once.
            who = verdict["checker"] if verdict["result"] == "anomaly" else "trial"
            lines.append(f"  {who}: {verdict['result']}: {verdict['detail']}")
    lines = list(dict.fromkeys(lines))
    if found["complaint"]:
        lines.append(f"  the process said: {found['complaint']}")
    title = (
        f"trial {found['trial']} of {found['backend']} at {found['durability']}, {found['records'] or 'plain'} stores, "
        f"{found['fault']} {found['failpoint']}"
    )
    return "\n".join([title.rstrip() + ":", *lines, f"  repeat it with: {found['repeat']}"])
