"""Our side of a restart: a worker that notes the time from its assignment to its first processed record.

It works until it is killed.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from time import perf_counter

from harness.experiments.kafka.trial import EVENTS_TOPIC
from harness.processes.child import FIGURES_FILE, write_figures
from stores.changelog.interface import Record
from stores.interface import TopicPartition
from stores.tasks import StoreConfig, TaskContext
from stores.worker import Application, Processor, Worker

STORE = "latest"


class NotingWorker(Worker):
    """A worker that notes the time of its first assignment."""

    assigned_at: float | None = None

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        if self.assigned_at is None:
            self.assigned_at = perf_counter()
        super().assign(partitions)


def work(
    address: str,
    application: str,
    backend: str,
    commit_interval_ms: int,
    session_timeout_ms: int,
    state: str,
    folder: Path,
) -> None:
    """Keep the latest value of each key; write the figures to ``folder`` when the first record is processed."""
    noted: list[float] = []

    def process(record: Record, context: TaskContext) -> None:
        assert record.key is not None
        context.store(STORE).put(record.key, record.value)
        if not noted:
            assert worker.assigned_at is not None
            noted.append(perf_counter() - worker.assigned_at)
            task = worker.open_task(context.task_id)
            assert task is not None
            replayed = sum(report.records for report in task.restore_reports())
            write_figures(folder / FIGURES_FILE, {"ready_s": noted[0], "replayed": replayed})

    worker = NotingWorker(
        Application(application, Processor([EVENTS_TOPIC], process, {STORE: StoreConfig(backend)})),
        {
            "bootstrap.servers": address,
            "state.dir": state,
            "commit.interval.ms": str(commit_interval_ms),
            "session.timeout.ms": str(session_timeout_ms),
            "status.interval.ms": "0",
        },
    )
    worker.run()
