"""A process of a trial that runs a worker until SIGTERM, or dies in the middle of a rebalance.

The file ``status`` has the number of its tasks that run, and of the records that they have processed.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from harness.experiments.broker_faults.application import DIE, POLL_S, STATUS, Moment, application
from harness.mutants.registry import patch
from harness.processes.child import measure
from stores import failpoints
from stores.changelog.interface import AFTER_REVOKE, BEFORE_ASSIGN, BEFORE_REVOKE
from stores.worker import Worker

_PROPERTIES = {
    # Tasks commit when they are released, and at no other time.
    "commit.interval.ms": "3600000",
    # The shortest that brokers allow by default: so long the tasks of a killed worker have no other one.
    "session.timeout.ms": "6000",
    # A member learns of a rebalance by its heartbeat.
    "heartbeat.interval.ms": "300",
    "status.interval.ms": "0",
}


def work(
    address: str,
    state: str,
    backend: str,
    guarantee: str,
    mutant: str,
    place: str,
    properties: dict[str, str],
    folder: Path,
) -> dict[str, Any]:
    """Run the worker, with further properties. It dies in its first rebalance that reaches ``place``, if not empty."""

    def arm() -> None:
        Moment(place, 1, DIE, folder)

    with patch(mutant, backend):
        if place in ("", BEFORE_REVOKE, AFTER_REVOKE, BEFORE_ASSIGN):
            arm()
        else:
            failpoints.arm(BEFORE_REVOKE, arm)
        own = {"bootstrap.servers": address, "state.dir": state, "processing.guarantee": guarantee}
        worker = Worker(application(backend), {**_PROPERTIES, **own, **properties})
        threading.Thread(target=_report, args=(worker, folder), name="report", daemon=True).start()
        worker.run()
    return {}


def _report(worker: Worker, folder: Path) -> None:
    """Write the status again and again."""
    pause = threading.Event()
    while not pause.wait(POLL_S):
        tasks = [task for task in worker.status().tasks if task.running]
        done = sum(offset for task in tasks for _, offset in task.next_offsets)
        new = folder / f"{STATUS}.new"
        new.write_text(json.dumps({"running": len(tasks), "done": done}))
        new.replace(folder / STATUS)


if __name__ == "__main__":
    measure(work)
