"""One trial: the events, the Spark that the fault needs, the drivers one after the other, and the checks."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from harness.checkers.counting import leading_stores
from harness.experiments.judged import ANOMALY, VALID
from harness.experiments.query_faults.faults import CLUSTER, FAULTS, Course, QueryFault
from harness.experiments.query_faults.notes import Notes
from harness.experiments.query_faults.trial import QueryTrial
from harness.processes.child import MeasurementFailedError, child_environment, end, last_complaint, python, start
from harness.processes.spark_cluster import SparkCluster, end_session
from stores.changelog.files.partition_log import FAILPOINTS
from stores.spark import local_state

KILLED_AT = (*FAILPOINTS, local_state.RESTORED, local_state.BETWEEN_STORES, local_state.COMMITTED)
"""The failpoints of a batch."""
DEADLINE_S = 900.0
"""The time that one driver may take."""
DISK_BYTES = 48 << 20
"""The size of a disk that is filled."""
_POLL_S = 0.1
PROGRAM = "harness.spark.query_faults"


def examine(trial: QueryTrial, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Run a trial in ``folder``, and return the results of its row.

    Raises: MeasurementFailedError if a driver fails by itself.
    """
    fault = FAULTS[trial.fault]
    batches = len(KILLED_AT) + 2 if fault.kills else fault.batches
    for name in ("events", "local", "state", "nothing"):
        (folder / name).mkdir(parents=True)
    notes = Notes(folder)
    with ExitStack() as stack:
        if fault.full != "nothing":
            stack.enter_context(_small_disk(folder / fault.full))
        cluster = None
        if fault.master == CLUSTER:
            cluster = stack.enter_context(SparkCluster(2, cores=fault.cores))
        arguments = {
            "master": "local[2]" if cluster is None else cluster.master,
            "max_failures": fault.max_failures,
            "settings": dict(fault.settings),
            "workload": trial.workload,
            "seed": trial.seed,
            "batches": batches,
            "partitions": fault.partitions,
            "fault": trial.fault,
            "killed_at": KILLED_AT if fault.kills else (),
            "full": fault.full,
            "mutant": trial.mutant,
            "backend": trial.backend,
            "durability": fault.durability,
            "retention": dict(fault.retention),
            "shared_local": fault.shared_local,
        }
        (folder / "arguments.json").write_text(json.dumps(arguments))
        starts = 0
        while not (folder / "figures.json").exists():
            starts += 1
            if starts > fault.starts_max:
                raise MeasurementFailedError(
                    f"the driver of {trial.fault!r} ended: {last_complaint(folder) or 'it said nothing'}"
                )
            say(f"{trial.fault}: driver {starts}")
            with _driver(folder) as process:
                deadline = time.monotonic() + DEADLINE_S
                while process.poll() is None:
                    if time.monotonic() > deadline:
                        raise MeasurementFailedError(f"a driver of {trial.fault!r} took more than {DEADLINE_S:.0f} s")
                    if cluster is not None and notes.has("lose a machine") and notes.once("lost"):
                        notes.add("lost", {})
                        cluster.kill_worker(0)
                    time.sleep(_POLL_S)
        figures = json.loads((folder / "figures.json").read_text())
        survivor, lost = ("", "") if cluster is None else (str(cluster.local_folder(1)), str(cluster.local_folder(0)))
    found = problems(fault, trial, figures, notes, batches, survivor, lost)
    appends = notes.lines("appends")
    return {
        "batches": batches,
        "rows": figures["rows"],
        "drivers": starts,
        "restarts": len(figures["errors"]),
        "struck": fault.struck(notes),
        "late": sum(each["result"] != "first" for each in appends),
        "restored_versions": sum(each["versions"] for each in notes.lines("restores")),
        "restored_bytes": sum(each["bytes"] for each in notes.lines("restores")),
        "result": ANOMALY if found else VALID,
        "detail": "; ".join(found),
    }


def problems(
    fault: QueryFault, trial: QueryTrial, figures: dict[str, Any], notes: Any, batches: int, survivor: str, lost: str
) -> list[str]:
    """Return every way in which the trial did not end as promised, from its ``figures`` and ``notes``.

    Local copies are below ``survivor`` and ``lost`` if the fault loses a machine. Raises: MeasurementFailedError if the
    fault did not strike.
    """
    errors = figures["errors"]
    found = [
        *figures["wrong"],
        "" if figures["rows"] else "the answer has no rows",
        "" if batches - 1 in figures["versions"] else f"the state has no version {batches - 1}",
        leading_stores(notes.lines("commits"), notes.lines("appends")),
    ]
    if len(errors) != fault.fails and (errors or not fault.may_go_on):
        found.append(f"the query failed {len(errors)} times, not {fault.fails}: {' '.join(errors)[:300]}")
    found += [f"an error does not say {fault.error!r}: {error[:300]}" for error in errors if fault.error not in error]
    if not fault.struck(notes):
        raise MeasurementFailedError(f"the fault {trial.fault!r} did not come to pass")
    found += fault.evidence(Course(notes, batches, fault.partitions, survivor, lost))
    return [each for each in found if each]


@contextmanager
def _driver(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a driver; at the end it and all that it started are killed, also Python workers that outlived it."""
    process = start(python(PROGRAM, str(folder)), folder, child_environment(None, folder), leads_session=True)
    try:
        yield process
    finally:
        end_session(process)
        end(process)


@contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    """Mount a small file system in memory at a folder. Raises: MeasurementFailedError if that is refused."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        raise MeasurementFailedError(f"no small disk can be mounted: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)
