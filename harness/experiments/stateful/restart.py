"""The time from the kill of a query's driver to the end of the first batch of the next driver."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

import psutil

from harness.processes.child import MeasurementFailedError, child_environment, complaint_in

PROGRAM = "harness.spark.stateful.restarted"
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
        first.wait()
        killed_at = time()
    with _driver(subject, work, batches[1], partitions, local) as second:
        told = second.wait()
    return {
        "ready_s": told["done_at"] - killed_at,
        "start_s": told["session_at"] - killed_at,
        "first_batch_s": told["first_batch_s"],
    }


class _Driver:
    def __init__(self, process: subprocess.Popen[bytes], told: Path, complaints: Path) -> None:
        self._process, self._told, self._complaints = process, told, complaints

    def wait(self) -> dict[str, Any]:
        """Return the times that the driver writes after its batch."""
        began = monotonic()
        while not self._told.exists():
            if self._process.poll() is not None:
                raise MeasurementFailedError(f"{PROGRAM} failed: {complaint_in(self._complaints.read_text())}")
            if monotonic() - began > DEADLINE_S:
                raise MeasurementFailedError(f"{PROGRAM} did not end its batch within {DEADLINE_S:.0f} s")
            sleep(_EVERY_S)
        told: dict[str, Any] = json.loads(self._told.read_text())
        return told

    def kill(self) -> None:
        """Kill the driver, its JVM and its Python workers."""
        processes = [psutil.Process(self._process.pid)] if self._process.poll() is None else []
        for process in [each for parent in processes for each in (parent, *parent.children(recursive=True))]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._process.wait()


@contextmanager
def _driver(subject: str, work: Path, batch: Path, partitions: int, local: Path | None) -> Iterator[_Driver]:
    """Start a driver, and kill it at the end of the block."""
    told, complaints, arguments = work / f"told-{batch.name}", work / "complaints", work / f"arguments-{batch.name}"
    given = {"subject": subject, "folder": work / "query", "batch": batch, "told": told, "local": local}
    plain = {name: None if value is None else str(value) for name, value in given.items()}
    arguments.write_text(json.dumps({**plain, "partitions": partitions}))
    with complaints.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", PROGRAM, str(arguments)],
            cwd=work,
            env=child_environment(None, work),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
        driver = _Driver(process, told, complaints)
        try:
            yield driver
        finally:
            driver.kill()
            assert process.stdin is not None
            process.stdin.close()
