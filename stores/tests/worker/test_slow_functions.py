"""A worker whose function is slow when the group takes the task away, and gives it back."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from stores.changelog import Record
from stores.interface import TopicPartition
from stores.tasks import TaskContext
from stores.tests.worker.counting_app import NAME, PARTITIONS, count
from stores.tests.worker.places import Place, expected_counts
from stores.tests.worker.worker_thread import DEADLINE_S, await_counted, await_true
from stores.worker import Application, Processor, Worker, worker

WORDS = ["to", "be", "or", "not", "to", "be"]


@pytest.mark.parametrize("scope", ["task", "thread"])
def test_a_task_that_comes_back_while_its_function_still_runs_is_not_lost(
    place: Place, monkeypatch: pytest.MonkeyPatch, scope: str
) -> None:
    """Another member has the task meanwhile, as far as the group knows."""
    monkeypatch.setattr(worker, "RELEASE_S", 0.1)
    in_function, may_end = threading.Event(), threading.Event()
    given: list[TopicPartition] = []
    assign = Worker.assign

    def noted(self: Worker, partitions: Collection[TopicPartition]) -> None:
        assign(self, partitions)
        given.extend(partitions)

    monkeypatch.setattr(Worker, "assign", noted)

    def slow(record: Record, context: TaskContext) -> None:
        in_function.set()
        assert may_end.wait(DEADLINE_S)
        count(record, context)

    name = os.environ.get("APPLICATION_NAME", NAME)
    app = Application(name, Processor(["words"], slow, {"counts": None}))
    place.feed(WORDS)
    own = {"state.dir": str(place.folder / "state"), "status.interval.ms": "0", "transaction.scope": scope}
    running = Worker(app, {**place.properties(), **own})
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        assert in_function.wait(DEADLINE_S)
        with place.open() as log:
            members: list[Any] = []
            listener: Any = SimpleNamespace(assign=members.extend, revoke=lambda gone: None, lose=lambda gone: None)
            with log.join_group(
                name,
                ["words"],
                listener,
                fingerprint=app.fingerprint,
                session_timeout_s=6.0,
                fencing=scope == "thread" and not place.properties().get("changelog.file"),
            ) as other:

                def has_half() -> bool:
                    other.poll(0.1)
                    return len(members) == PARTITIONS // 2

                await_true(has_half)
        # The group gives them back while the function is still busy.
        await_true(lambda: len(given) == PARTITIONS + PARTITIONS // 2)
        may_end.set()
        await_true(lambda: running.status().running == PARTITIONS)
        await_counted(place, len(WORDS))
    finally:
        may_end.set()
        running.stop()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert Counter(place.counted()) == expected_counts(WORDS)
