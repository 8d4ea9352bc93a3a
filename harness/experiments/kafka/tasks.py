"""Our side: tasks over Kafka or over the embedded changelog, in a process of their own.

For a restart it is a worker that notes the time from its assignment to its first processed record.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from harness.experiments.kafka.trial import (
    BATCHES,
    EMBEDDED,
    EVENTS_TOPIC,
    SHARED,
    WARM_UP_SHARE,
    checksum_of,
    workload_of,
)
from harness.processes.child import FIGURES_FILE, MeasurementFailedError, write_figures
from harness.processes.load import SpeedMeter, clocks
from harness.workloads.workload import plain_pairs, records_of
from stores.changelog.interface import Changelog, Record
from stores.changelog.sqlite import SqliteChangelog
from stores.interface import Durability, TopicPartition
from stores.tasks import SharedResources, StoreConfig, StreamTask, TaskContext, TaskId, TaskSettings, ThreadTransaction
from stores.worker import Application, Processor, Worker

SNAPSHOT_INTERVAL_MS = 2_000
"""The least time between snapshots of a worker that loses its files, so that one of the last commit soon follows."""
LOG_FILE = "changelog.sqlite"
_TURN_RECORDS = 10_000
"""The most records that a task processes before the next one has its turn."""


def measured(
    name: str,
    changelog: str,
    address: str,
    application: str,
    workload: str,
    partitions: int,
    commit_interval_ms: int,
    events: int,
    folder: Path,
) -> dict[str, Any]:
    """Return the seconds and CPU seconds from the warm-up's last commit to the last one, and what the stores have."""
    work = workload_of(workload)
    kinds = records_of(work)
    with ExitStack() as stack:
        log = stack.enter_context(_changelog(changelog, address, folder))
        transaction = None
        if changelog == SHARED:
            stack.enter_context(GroupMembership(log, application, partitions))
            transaction = ThreadTransaction(log, f"{application}/tasks")
        tasks = [
            stack.enter_context(
                StreamTask(
                    application,
                    TaskId(0, partition),
                    state_dir=folder / "state",
                    changelog=log,
                    stores={store: StoreConfig(name, records=kinds.get(store)) for store in work.store_names},
                    process=None if changelog == BATCHES else work.process,
                    process_batch=getattr(work, "process_batch") if changelog == BATCHES else None,  # noqa: B009
                    inputs=[TopicPartition(EVENTS_TOPIC, partition)],
                    settings=TaskSettings(commit_interval_ms=commit_interval_ms),
                    shared=SharedResources(transaction=transaction),
                )
            )
            for partition in range(partitions)
        ]
        warm = _run(tasks, events // WARM_UP_SHARE)
        meter, began = SpeedMeter(), clocks()
        count = _run(tasks, events - warm, meter)
        figures = meter.columns_since(began)
        stores = ((kinds.get(store), task.store(store)) for task in tasks for store in work.store_names)
        pairs = chain.from_iterable(plain_pairs(kind, store) for kind, store in stores)
        return {"records": count, **figures, **checksum_of(pairs)}


def _changelog(kind: str, address: str, folder: Path) -> Changelog:
    if kind == EMBEDDED:
        return SqliteChangelog(folder / LOG_FILE, Durability.PROCESS)
    from stores.changelog.kafka import KafkaChangelog

    return KafkaChangelog({"bootstrap.servers": address})


def _run(tasks: list[StreamTask], records: int, meter: SpeedMeter | None = None) -> int:
    """Let the tasks take turns until they have processed so many records together, and commit. So does ``meter``."""
    count, turn = 0, _TURN_RECORDS if len(tasks) == 1 else _TURN_RECORDS // 5
    while count < records:
        before = count
        for task in tasks:
            count += task.run(min(turn, records - count))
            if meter is not None:
                meter.turn_if_due()
        assert count > before, "the topic has fewer records"
    for task in tasks:
        task.commit()
    return count


SESSION_S = 45.0
"""Source: Kafka, default of ``session.timeout.ms``."""
_JOINED_S = 60.0
_POLL_S = 0.1


class GroupMembership:
    """A member of the group of ``application``. A ``with`` block waits for all partitions, and leaves at its end.

    Like a worker it takes part in the group on a thread of its own. Tasks that share a transaction are fenced by it.
    """

    def __init__(self, log: Changelog, application: str, partitions: int) -> None:
        self._log, self._application = log, application
        self._wanted = {TopicPartition(EVENTS_TOPIC, number) for number in range(partitions)}
        self._held: set[TopicPartition] = set()
        self._ended = Event()
        self._thread = Thread(target=self._take_part, name="membership", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + _JOINED_S
        while self._held != self._wanted:
            if time.monotonic() > deadline or not self._thread.is_alive():
                self._ended.set()
                raise MeasurementFailedError("the group did not give all partitions to its only member in time")
            time.sleep(_POLL_S / 10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        self._held |= set(partitions)

    def revoke(self, partitions: Collection[TopicPartition]) -> None:
        self._held -= set(partitions)

    def lose(self, partitions: Collection[TopicPartition]) -> None:
        self._held -= set(partitions)

    def _take_part(self) -> None:
        with self._log.join_group(
            self._application,
            [EVENTS_TOPIC],
            self,
            fingerprint="measured",
            session_timeout_s=SESSION_S,
            fencing=True,
        ) as member:
            while not self._ended.is_set():
                member.poll(_POLL_S)


STORE = "latest"


class NotingWorker(Worker):
    """A worker that notes the time of its first assignment."""

    assigned_at: float | None = None

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        if self.assigned_at is None:
            self.assigned_at = perf_counter()
        super().assign(partitions)


def restarted(
    address: str,
    application: str,
    backend: str,
    commit_interval_ms: int,
    session_timeout_ms: int,
    state: str,
    snapshots: str | None,
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
            reports = task.restore_reports()
            figures = {
                "ready_s": noted[0],
                "replayed": sum(report.records for report in reports),
                "from_snapshot": any(report.snapshot_offset is not None for report in reports),
            }
            write_figures(folder / FIGURES_FILE, figures)

    of_snapshots: dict[str, str | int] = {}
    if snapshots is not None:
        # Only the time until it is ready counts, not its speed before.
        of_snapshots = {"snapshot.dir": snapshots, "snapshot.interval.ms": SNAPSHOT_INTERVAL_MS}
        of_snapshots["snapshot.cpu.share"] = "1"
    worker = NotingWorker(
        Application(application, Processor([EVENTS_TOPIC], process, {STORE: StoreConfig(backend)})),
        {
            "bootstrap.servers": address,
            "state.dir": state,
            "commit.interval.ms": str(commit_interval_ms),
            "session.timeout.ms": str(session_timeout_ms),
            "status.interval.ms": "0",
            **of_snapshots,
        },
    )
    worker.run()
