"""The time from the kill of a query's driver to the end of the first batch of the next driver."""

from __future__ import annotations

import shutil
from pathlib import Path
from time import time
from typing import Any

from harness.processes.child import LastingProcess, child_environment, command_of

RESTARTED = "harness.spark.stateful:restarted"
DEADLINE_S = 300.0
_EVERY_S = 0.01


def restarted(
    subject: str, query: Path, batches: tuple[Path, Path], partitions: int, work: Path, *, keeps_copies: bool
) -> dict[str, Any]:
    """Kill the driver of a query after a batch, start another one, and return the seconds until its batch has ended.

    ``query`` is a folder of a stopped query; a copy of it is used. With ``keeps_copies`` the copies of our stores are
    in a folder that outlives the driver. Raises: MeasurementFailedError.
    """
    shutil.copytree(query, work / "query")
    local = work / "local" if keeps_copies else None
    with _driver(subject, work, batches[0], partitions, local) as first:
        first.await_figures("ended no batch", DEADLINE_S, _EVERY_S)
        killed_at = time()
    with _driver(subject, work, batches[1], partitions, local) as second:
        told = second.await_figures("ended no batch", DEADLINE_S, _EVERY_S)
    return {
        "ready_s": told["done_at"] - killed_at,
        "start_s": told["session_at"] - killed_at,
        "first_batch_s": told["first_batch_s"],
    }


def _driver(subject: str, work: Path, batch: Path, partitions: int, local: Path | None) -> LastingProcess:
    """Return the process of a driver that gives the query a batch."""
    folder = work / f"driver-{batch.name}"
    folder.mkdir()
    paths = {"query": str(work / "query"), "batch": str(batch), "local": None if local is None else str(local)}
    command = command_of(RESTARTED, {"subject": subject, "partitions": partitions, **paths}, folder)
    return LastingProcess(RESTARTED, command, folder, child_environment(None, folder))
