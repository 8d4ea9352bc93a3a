"""A worker in this process, on a thread of its own, so that a test sees its tasks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from stores.tasks import StreamTask, TaskId
from stores.telemetry import MetricsRegistry
from stores.tests.worker.counting_app import NAME, PARTITIONS, count
from stores.tests.worker.places import Place
from stores.worker import Application, Processor, Worker

DEADLINE_S = 600.0
ALL = [TaskId(0, number) for number in range(PARTITIONS)]


def await_true(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def await_counted(place: Place, number: int) -> None:
    """Wait until there are so many committed outputs. ``Place.await_counted`` knows workers in other processes only."""
    await_true(lambda: len(place.counted()) >= number)


def counting() -> Application:
    """Return the counting application by the name that it has in other processes of the test."""
    topics = {"words": PARTITIONS, "counted": PARTITIONS}
    name = os.environ.get("APPLICATION_NAME", NAME)
    return Application(name, Processor(["words"], count, {"counts": None}), topics=topics)


@contextmanager
def running(
    place: Place,
    settings: Mapping[str, str],
    metrics: MetricsRegistry | None = None,
    application: Application | None = None,
) -> Iterator[Worker]:
    """Run a worker on a thread, by default of the counting application, and yield it when it runs all tasks."""
    own = {"state.dir": str(place.folder / "state"), "status.interval.ms": "0"}
    worker = Worker(application or counting(), {**place.properties(), **own, **settings}, metrics=metrics)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        await_true(lambda: worker.status().running == PARTITIONS)
        yield worker
    finally:
        worker.stop()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()


def open_tasks(worker: Worker) -> list[StreamTask]:
    """Return the tasks that the worker has."""
    return [task for task in map(worker.open_task, ALL) if task is not None]
