"""Isolation levels and positions of queries."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stores.interface import TopicPartition
from stores.tests.worker.queries.asking import Reply
from stores.tests.worker.queries.stage import HERE, LINES, THERE, Stage
from stores.worker.queries import store_queries

HERE_AT_0, HERE_AT_1 = f"lines-{HERE}:0", f"lines-{HERE}:1"


BACKENDS = ["memory-indexed-batch", "rocksdb", "rocksdb-dual-store", "lmdb-native", "sqlite-native"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("path", ["counts/get?key=a", "counts/range", "counts/prefix?prefix=a"])
def test_uncommitted_data_is_seen_at_read_uncommitted_alone(tmp_path: Path, backend: str, path: str) -> None:
    def value(level: str) -> object:
        where, _, query = path.partition("?")
        body = stage.ask(where, query, isolation_level=level).body
        return body["value"] if "value" in body else [each["value"] for each in body["records"]]

    with Stage(tmp_path, backend) as stage:
        stage.put("counts", ("a", 1))
        stage.process(lambda context: context.store("counts").put("a", 2))
        one, two = (1, 2) if "get" in path else ([1], [2])
        assert [value("read_committed"), value("READ_COMMITTED"), value("read_uncommitted")] == [one, one, two]
        stage.task.commit()
        assert value("read_committed") == two


def test_the_position_is_that_of_the_level(stage: Stage) -> None:
    stage.put("counts", ("a", 1))
    stage.process(lambda context: context.store("counts").put("a", 2))
    for level, offset in (("read_committed", 0), ("read_uncommitted", 1)):
        reply = stage.ask("counts/get", key="a", isolation_level=level)
        assert (reply.body["isolation_level"].lower(), reply.body["position"]) == (level, {f"lines-{HERE}": offset})


def test_a_bound_that_is_reached_is_answered_and_another_one_is_refused_with_both_positions(stage: Stage) -> None:
    stage.put("counts", ("a", 1))
    stage.process(lambda context: context.store("counts").put("a", 2))
    assert stage.ask("counts/get", key="a", bound=HERE_AT_0).body["value"] == 1
    refusal = stage.ask("counts/get", key="a", bound=HERE_AT_1)
    assert refusal.status == 409
    assert refusal.body["position"] == {f"lines-{HERE}": 0}
    assert refusal.body["bound"] == {f"lines-{HERE}": 1}
    assert refusal.body["behind"] == {f"lines-{HERE}": 1}
    assert stage.ask("counts/range", bound=HERE_AT_1).status == 409
    assert stage.ask("counts/get", key="a", bound=HERE_AT_1, isolation_level="read_uncommitted").body["value"] == 2


def test_a_bound_on_another_partition_of_the_input_is_no_condition_here(stage: Stage) -> None:
    stage.put("counts", ("a", 1))
    reply = stage.ask("counts/get", f"key=a&bound=lines-{THERE}:99&bound={HERE_AT_0}")
    assert (reply.status, reply.body["value"]) == (200, 1)


def test_of_several_bounds_on_one_input_all_must_be_reached(stage: Stage) -> None:
    stage.put("counts", ("a", 1))
    for query in (f"bound={HERE_AT_0}&bound={HERE_AT_1}", f"bound={HERE_AT_1}&bound={HERE_AT_0}"):
        assert stage.ask("counts/get", f"key=a&{query}").status == 409


def waiting_query(stage: Stage, replies: list[Reply], **parameters: object) -> threading.Thread:
    """Ask on another thread for the key ``a`` at offset 1."""

    def run() -> None:
        replies.append(stage.ask("counts/get", key="a", bound=HERE_AT_1, **parameters))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_query_may_wait_for_its_bound(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    has_tried, read = threading.Event(), store_queries._at_one_moment

    def noted(*arguments: Any) -> Any:
        try:
            return read(*arguments)
        finally:
            has_tried.set()

    monkeypatch.setattr(store_queries, "_at_one_moment", noted)
    stage.put("counts", ("a", 1))
    replies: list[Reply] = []
    thread = waiting_query(stage, replies, wait_ms=30_000)
    assert has_tried.wait(600)
    stage.put("counts", ("a", 2))
    thread.join(600)
    [reply] = replies
    assert (reply.status, reply.body["value"], reply.body["position"]) == (200, 2, {f"lines-{HERE}": 1})


def test_a_query_that_waited_in_vain_is_refused_as_one_that_did_not(stage: Stage) -> None:
    stage.put("counts", ("a", 1))
    assert stage.ask("counts/get", key="a", bound=HERE_AT_1, wait_ms=30).status == 409


def test_a_query_waits_for_the_time_that_it_names(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes a second of it."""
    seconds, tries, read = count(), [], store_queries._at_one_moment

    def noted(*arguments: Any) -> Any:
        tries.append(1)
        return read(*arguments)

    monkeypatch.setattr(store_queries, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    monkeypatch.setattr(store_queries, "_at_one_moment", noted)
    stage.put("counts", ("a", 1))
    assert stage.ask("counts/get", key="a", bound=HERE_AT_1, wait_ms=3_000).status == 409
    assert len(tries) == 1 + 3


def test_a_query_that_has_waited_makes_room_for_another_one(stage: Stage) -> None:
    stage.put("counts", ("a", 1))
    for _ in range(store_queries.WAITING_MAX + 1):
        assert stage.ask("counts/get", key="a", bound=HERE_AT_1, wait_ms=1).status == 409


class MovingView:
    """A view of a task that processes one record within each read."""

    def __init__(self) -> None:
        self.offset = 0

    def store(self, *_: object) -> MovingView:
        return self

    def position(self) -> dict[TopicPartition, int]:
        return {LINES: self.offset}

    def get(self, key: str) -> int:
        self.offset += 1
        return self.offset


def test_uncommitted_data_reflect_their_position_also_if_the_task_moves_on_meanwhile(stage: Stage) -> None:
    task, stage.task = stage.task, MovingView()
    try:
        reply = stage.ask("counts/get", key="a", isolation_level="read_uncommitted")
    finally:
        stage.task = task
    assert reply.body["position"] == {f"lines-{HERE}": 0}


def test_few_queries_wait_and_the_end_refuses_them(stage: Stage) -> None:
    stage.put("counts", ("a", 1))
    replies: list[Reply] = []
    threads = [waiting_query(stage, replies, wait_ms=30_000) for _ in range(store_queries.WAITING_MAX + 3)]
    # Those beyond the most are refused at once; the others wait until the end.
    while len(replies) < 3:
        threads[0].join(0.01)
    assert all("wait" in reply.body["error"] for reply in replies)
    stage.local.end()
    for thread in threads:
        thread.join(600)
    assert [reply.status for reply in replies] == [503] * len(threads)
    assert all("ending" in reply.body["error"] for reply in replies[3:])
