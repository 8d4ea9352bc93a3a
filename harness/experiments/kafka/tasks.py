"""Our side: tasks over Kafka or over the embedded changelog, in a process of their own."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from harness.experiments.kafka.contents import checksum_of
from harness.experiments.kafka.membership import Membership
from harness.experiments.kafka.trial import EMBEDDED, EVENTS_TOPIC, SHARED, WARM_UP_SHARE, workload_of
from harness.processes.child import measure
from stores.changelog.interface import Changelog
from stores.changelog.sqlite import SqliteChangelog
from stores.interface import Durability, TopicPartition
from stores.tasks import SharedResources, StoreConfig, StreamTask, TaskId, TaskSettings, ThreadTransaction

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
    with ExitStack() as stack:
        log = stack.enter_context(_changelog(changelog, address, folder))
        transaction = None
        if changelog == SHARED:
            stack.enter_context(Membership(log, application, partitions))
            transaction = ThreadTransaction(log, f"{application}/tasks")
        tasks = [
            stack.enter_context(
                StreamTask(
                    application,
                    TaskId(0, partition),
                    state_dir=folder / "state",
                    changelog=log,
                    stores={store: StoreConfig(name) for store in work.store_names},
                    process=work.process,
                    inputs=[TopicPartition(EVENTS_TOPIC, partition)],
                    settings=TaskSettings(commit_interval_ms=commit_interval_ms),
                    shared=SharedResources(transaction=transaction),
                )
            )
            for partition in range(partitions)
        ]
        warm = _run(tasks, events // WARM_UP_SHARE)
        cpu_began, began = process_time(), perf_counter()
        done = _run(tasks, events - warm)
        seconds, cpu_s = perf_counter() - began, process_time() - cpu_began
        pairs = ((key, value) for task in tasks for store in work.store_names for key, value in task.store(store).all())
        return {"records": done, "seconds": seconds, "cpu_s": cpu_s, **checksum_of(pairs)}


def _changelog(kind: str, address: str, folder: Path) -> Changelog:
    if kind == EMBEDDED:
        return SqliteChangelog(folder / LOG_FILE, Durability.PROCESS)
    from stores.changelog.kafka import KafkaChangelog

    return KafkaChangelog({"bootstrap.servers": address})


def _run(tasks: list[StreamTask], records: int) -> int:
    """Let the tasks take turns until they have processed so many records together, and commit."""
    done, turn = 0, _TURN_RECORDS if len(tasks) == 1 else _TURN_RECORDS // 5
    while done < records:
        before = done
        for task in tasks:
            done += task.run(min(turn, records - done))
        assert done > before, "the topic has fewer records"
    for task in tasks:
        task.commit()
    return done


if __name__ == "__main__":
    measure(measured)
