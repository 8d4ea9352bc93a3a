"""A process of a trial, from inside: it runs the tasks of some partitions, or a worker.

Tasks run to the end of their input, one after the other. Each error that passes is noted in the file ``noted``, and the
task tries again, as an application does. A worker runs until SIGTERM, or dies in the middle of a rebalance. The file
``status`` has the number of its tasks that run, and of the records that they have processed.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness.experiments.broker_faults.trial import (
    DIE,
    INPUT,
    NAME,
    NOTED,
    POLL_S,
    STATUS,
    STORES,
    Moment,
    application,
    count,
)
from harness.mutants import patch
from harness.processes.child import killed_with_starter, measure
from stores import failpoints
from stores.changelog.group import AFTER_REVOKE, BEFORE_ASSIGN, BEFORE_REVOKE
from stores.changelog.interface import Record
from stores.changelog.kafka import KafkaChangelog
from stores.config import StoreConfig
from stores.errors import ChangelogTimeoutError, CommitInDoubtError, ProducerFencedError
from stores.interface import IsolationLevel, ProcessingGuarantee, TopicPartition
from stores.tasks import TaskSettings
from stores.tasks.context import TaskContext
from stores.tasks.identifier import TaskId
from stores.tasks.task import StreamTask
from stores.tasks.timing import NO_INTERVAL
from stores.worker import Worker

TASKS, WORKER = "tasks", "worker"
"""The kinds of work of a process."""


def run_tasks(
    address: str,
    state: str,
    backend: str,
    guarantee: str,
    partitions: list[int],
    records_per_commit: int,
    mutant: str,
    place: str,
    hit: int,
    act: str,
    timeout_s: float,
    folder: Path,
) -> dict[str, Any]:
    """Return the number of processed records, the committed stores, and the error of a task that was fenced."""
    killed_with_starter()
    with patch(mutant, backend):
        moment = Moment(place, hit, act, folder)

        def counted(record: Record, context: TaskContext) -> None:
            count(record, context)
            moment.inside()

        processed, refused, wiped = 0, "", False
        stores: dict[str, dict[str, str]] = {name: {} for name in STORES}
        # A broker that comes back is found soon.
        settings = {"bootstrap.servers": address, "reconnect.backoff.max.ms": 500}
        with KafkaChangelog(settings, timeout_s=timeout_s) as log:
            for partition in partitions:
                try:
                    task = StreamTask(
                        NAME,
                        TaskId(0, partition),
                        state_dir=Path(state, NAME),
                        changelog=log,
                        stores=dict.fromkeys(STORES, StoreConfig(backend)),
                        process=counted,
                        inputs=[TopicPartition(INPUT, partition)],
                        settings=TaskSettings(
                            guarantee=ProcessingGuarantee(guarantee),
                            commit_every_records=records_per_commit,
                            commit_interval_ms=NO_INTERVAL,
                            # Errors that pass are noted here.
                            task_timeout_s=0,
                        ),
                    )
                    with ExitStack() as resources:
                        _open(task)
                        resources.push(task)
                        _run(task, folder / NOTED)
                        processed += task.metrics.process_total
                        wiped |= any(report.wiped for report in task.restore_reports())
                        for name in STORES:
                            with task.store(name, IsolationLevel.READ_COMMITTED).all() as pairs:
                                stores[name] |= {key.decode(): value.decode() for key, value in pairs}
                except ProducerFencedError as error:
                    refused = type(error).__name__
    return {"processed": processed, "stores": stores, "refused": refused, "wiped": wiped}


def _open(task: StreamTask) -> None:
    """Open the task. A changelog that is to report faults soon may lack the time for it on a busy machine."""
    while True:
        try:
            task.open()
            return
        except ChangelogTimeoutError:
            time.sleep(POLL_S)


def _run(task: StreamTask, noted: Path) -> None:
    """Process all input, and commit."""
    while True:
        try:
            task.run(commit=True)
            return
        except (ChangelogTimeoutError, CommitInDoubtError) as error:
            with noted.open("a") as file:
                file.write(f"{type(error).__name__}\n")
            time.sleep(POLL_S)


_PROPERTIES = {
    # Tasks commit when they are released, and at no other time.
    "commit.interval.ms": "3600000",
    # The shortest that brokers allow by default: so long the tasks of a killed worker have no other one.
    "session.timeout.ms": "6000",
    # A member learns of a rebalance by its heartbeat.
    "heartbeat.interval.ms": "300",
    "status.interval.ms": "0",
}


def run_worker(
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
        processed = sum(offset for task in tasks for _, offset in task.next_offsets)
        new = folder / f"{STATUS}.new"
        new.write_text(json.dumps({"running": len(tasks), "done": processed}))
        new.replace(folder / STATUS)


def work(runs: str, **arguments: Any) -> dict[str, Any]:
    """Run ``TASKS`` or a ``WORKER``, with further arguments of its own."""
    return run_tasks(**arguments) if runs == TASKS else run_worker(**arguments)


if __name__ == "__main__":
    measure(work)
