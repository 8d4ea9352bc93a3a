"""Queries of a global store: each worker answers them, of all partitions of the topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog
from stores.interface import PositionBound, TopicPartition
from stores.records import INT64, STR, KeyValue
from stores.tasks import GlobalStore, GlobalStores
from stores.tests.worker.queries.asking import Reply, call
from stores.worker.queries.access import Instances, ServerAddress
from stores.worker.queries.endpoint import routes_of
from stores.worker.queries.query_request import QueriedStore
from stores.worker.queries.store_queries import LocalReads, StoreQueries

ADDRESS = ServerAddress("127.0.0.1", 1)


class Worker:
    """A worker without a task, whose global store ``prices`` has two partitions."""

    def __init__(self, folder: Path) -> None:
        self.log = MemoryChangelog()
        self.log.create_topic("prices", 2)
        described = GlobalStore("prices", KeyValue(key=STR, value=INT64))
        self.stores = GlobalStores(folder, self.log, {"prices": described})
        queried = QueriedStore("prices", -1, ["prices"], 1, described.config, is_global=True)
        queries = StoreQueries("app", str(ADDRESS), {"prices": queried}, LocalReads(self), Instances(), None)
        self._application = routes_of(queries, ADDRESS)

    def task_status(self, task_id: object) -> Any:
        raise AssertionError("a global store belongs to no task")

    open_task = standby = task_status

    def standby_addresses(self, partition: object) -> list[str]:
        raise AssertionError("a global store has no standby copies")

    def global_view(self, name: str, bound: PositionBound) -> Any:
        return self.stores.view(name, bound)

    def say(self, partition: int, key: str, value: int) -> None:
        with self.log.producer() as producer:
            producer.send(TopicPartition("prices", partition), key.encode(), INT64.serialize(value))
            producer.flush()

    def ask(self, path: str, query: str = "") -> Reply:
        return call(self._application, f"/stores/prices{path}", query)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path)
    worker.say(0, "a", 1)
    worker.say(1, "b", 2)
    with worker.stores:
        yield worker


def test_any_key_is_here_and_the_position_is_that_of_all_partitions(worker: Worker) -> None:
    reply = worker.ask("/get", "key=b")
    assert reply.status == 200
    assert reply.body == {
        "store": "prices",
        "isolation_level": "READ_COMMITTED",
        "position": {"prices-0": 0, "prices-1": 0},
        "key": "b",
        "value": 2,
    }
    assert worker.ask("/range").keys == worker.ask("/range", "isolation_level=read_uncommitted").keys == ["a", "b"]
    assert worker.ask("/prefix", "prefix=a").keys == ["a"]
    assert worker.ask("").body == {
        "store": "prices", "kind": "key-value", "key": "str", "value": "int64", "topic": "prices",
        "instance": str(ADDRESS),
    }  # fmt: skip


def test_a_bound_on_any_partition_is_a_condition(worker: Worker) -> None:
    assert worker.ask("/get", "key=a&bound=prices-1:0").status == 200
    worker.say(1, "b", 3)
    reply = worker.ask("/get", "key=b&bound=prices-1:1")
    assert (reply.status, reply.body["behind"]) == (409, {"prices-1": 1})
    assert reply.body["error"].startswith("store 'prices' has not reached")
    worker.stores.follow()
    assert worker.ask("/get", "key=b&bound=prices-1:1").body["value"] == 3


def test_a_store_that_is_not_open_yet_is_unavailable(tmp_path: Path) -> None:
    reply = Worker(tmp_path).ask("/get", "key=a")
    assert reply.status == 503
    assert "being opened" in reply.body["error"]
