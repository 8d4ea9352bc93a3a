"""A process of a trial that runs the tasks of some partitions to the end of their input, one after the other.

It notes each error that passes in the file ``noted``, and tries again, as an application does.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from harness.experiments.broker_faults.application import INPUT, NAME, NOTED, POLL_S, STORES, Moment, count
from harness.mutants.registry import patch
from harness.processes.child import killed_with_starter, measure
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


def work(
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

        done, refused, wiped = 0, "", False
        stores: dict[str, dict[str, str]] = {name: {} for name in STORES}
        # A broker that comes back is found soon.
        settings = {"bootstrap.servers": address, "reconnect.backoff.max.ms": 500}
        with KafkaChangelog(settings, timeout_s=timeout_s) as log:
            for partition in partitions:
                try:
                    with StreamTask(
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
                    ) as task:
                        _run(task, folder / NOTED)
                        done += task.metrics.process_total
                        wiped |= any(report.wiped for report in task.restore_reports())
                        for name in STORES:
                            with task.store(name, IsolationLevel.READ_COMMITTED).all() as pairs:
                                stores[name] |= {key.decode(): value.decode() for key, value in pairs}
                except ProducerFencedError as error:
                    refused = type(error).__name__
    return {"processed": done, "stores": stores, "refused": refused, "wiped": wiped}


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


if __name__ == "__main__":
    measure(work)
