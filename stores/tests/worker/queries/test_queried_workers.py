"""Workers that answer queries: processes, over each changelog, alone and two of them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import confluent_kafka
import pytest

from stores.changelog.kafka.testing.broker import Broker
from stores.changelog.partitioners import PARTITIONERS
from stores.interface import TopicPartition
from stores.tests.kafka.fresh import fresh_changelog
from stores.tests.worker.places import Place
from stores.tests.worker.queried_app import COMMIT, PARTITIONS
from stores.tests.worker.queries.asking import Reply, ask
from stores.tests.worker.worker_process import DEADLINE_S, IDLE, WorkerProcess

APPLICATION = "stores.tests.worker.queried_app:app"
QUERIES = {"application.server": "0", "query.partitioner": "murmur2"}
NEVER = {"commit.interval.ms": "3600000"}
KEYS = {f"key{number}": number for number in range(40)}
GET, RANGE = "/stores/numbers/get", "/stores/numbers/range"
QUERIES_OF_ALL: list[tuple[str, dict[str, str]]] = [("range", {}), ("prefix", {"prefix": "key"})]


def feed(place: Place, records: Iterable[tuple[str, int]]) -> None:
    """Append records, each to the partition of its key."""
    with place.open() as log:
        if "lines" not in log.topics():
            log.create_topic("lines", PARTITIONS)
        with log.producer() as producer:
            for key, value in records:
                partition = PARTITIONERS["murmur2"](key.encode(), PARTITIONS)
                producer.send(TopicPartition("lines", partition), key.encode(), b"%d" % value)
            producer.flush()


def request_commits(place: Place) -> None:
    """Let the task of each partition commit."""
    with place.open() as log, log.producer() as producer:
        for partition in range(PARTITIONS):
            producer.send(TopicPartition("lines", partition), COMMIT, b"")
        producer.flush()


def worker(place: Place, name: str, settings: Mapping[str, str] = QUERIES) -> WorkerProcess:
    return WorkerProcess(place.folder, name, {**place.properties(), **settings}, application=APPLICATION)


def address_of(process: WorkerProcess) -> str:
    """The address that its status line names."""
    process.await_line(r"queries at \S+, ")
    return str(re.findall(r"queries at (\S+), ", process.errors)[-1])


def eventually(query: Callable[[], Reply], is_done: Callable[[Reply], bool]) -> Reply:
    """Ask again and again until the answer is the expected one."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_done(reply := query()):
        assert time.monotonic() < deadline, reply
        time.sleep(0.02)
    return reply


def await_statuses(address: str, expected: list[int]) -> None:
    """Wait until the partitions have these statuses, in any order: a rebalance may not be over."""
    deadline = time.monotonic() + DEADLINE_S
    while (statuses := sorted(ask(address, RANGE, partition=each).status for each in range(PARTITIONS))) != expected:
        assert time.monotonic() < deadline, statuses
        time.sleep(0.02)


def has_answer(reply: Reply) -> bool:
    return reply.status == 200


def has_value(reply: Reply) -> bool:
    return reply.body.get("value") is not None


def is_answered_here_or_there(reply: Reply) -> bool:
    return reply.status in (200, 307)


def test_a_worker_answers_get_range_and_prefix_at_both_levels(place: Place) -> None:
    feed(place, KEYS.items())
    with worker(place, "w", {**QUERIES, **NEVER}) as process:
        process.await_line(f"4 {IDLE}")
        address = address_of(process)
        uncommitted = ask(address, GET, key="key7", isolation_level="read_uncommitted")
        assert (uncommitted.body["value"], ask(address, GET, key="key7").body["value"]) == (7, None)
        request_commits(place)
        for key, value in KEYS.items():
            assert eventually(partial(ask, address, GET, key=key), has_value).body["value"] == value
        for path, parameters in QUERIES_OF_ALL:
            values: dict[str, str] = {}
            for partition in range(PARTITIONS):
                page = ask(address, f"/stores/texts/{path}", partition=partition, **parameters).body["records"]
                values.update((record["key"], record["value"]) for record in page)
            assert values == {key: str(value) for key, value in KEYS.items()}
        assert process.terminate() == 0, process.errors
        assert "Traceback" not in process.errors


def test_a_bound_waits_for_the_commit_of_its_record(place: Place) -> None:
    feed(place, [("key1", 1)])
    with worker(place, "w") as process:
        process.await_line(f"4 {IDLE}")
        address = address_of(process)
        first = eventually(partial(ask, address, GET, key="key1"), has_value)
        [(input_partition, offset)] = first.body["position"].items()
        beyond = f"{input_partition}:{offset + 1}"
        behind = ask(address, GET, key="key1", bound=beyond)
        assert (behind.status, behind.body["position"]) == (409, first.body["position"])
        replies: list[Reply] = []
        asking = threading.Thread(
            target=lambda: replies.append(ask(address, GET, key="key1", bound=beyond, wait_ms=30_000))
        )
        asking.start()
        feed(place, [("key1", 2)])
        asking.join(DEADLINE_S)
        assert [(reply.status, reply.body["value"]) for reply in replies] == [(200, 2)]
        assert process.terminate() == 0, process.errors


def test_a_worker_names_the_one_that_has_the_key_until_it_leaves(place: Place) -> None:
    feed(place, KEYS.items())
    with worker(place, "first") as first:
        first.await_line(f"4 {IDLE}")
        with worker(place, "second") as second:
            first.await_line(f"2 {IDLE}")
            second.await_line(f"2 {IDLE}")
            here, there = address_of(first), address_of(second)
            statuses = set()
            for key, value in KEYS.items():
                reply = eventually(partial(ask, here, GET, key=key), is_answered_here_or_there)
                statuses.add(reply.status)
                if reply.status == 307:
                    assert reply.body["instance"] == there
                    assert reply.headers["Location"] == f"http://{there}{GET}?key={key}"
                    reply = eventually(partial(ask, there, GET, key=key), has_answer)
                assert reply.body["value"] == value
            assert statuses == {200, 307}
            partitions = ask(there, "/stores/numbers").body["partitions"]
            assert sorted(each["instance"] for each in partitions) == sorted([here, there] * 2)
            assert second.terminate() == 0, second.errors
        for key, value in KEYS.items():
            assert eventually(partial(ask, here, GET, key=key), has_answer).body["value"] == value
        assert first.terminate() == 0, first.errors


def test_a_partition_of_a_worker_without_queries_has_no_address(place: Place) -> None:
    feed(place, KEYS.items())
    with worker(place, "silent", {}) as silent:
        silent.await_line(f"4 {IDLE}")
        with worker(place, "w") as process:
            process.await_line(f"2 {IDLE}")
            await_statuses(address_of(process), [200, 200, 503, 503])


def test_a_worker_with_a_standby_copy_names_the_one_that_has_the_task(place: Place) -> None:
    feed(place, KEYS.items())
    settings = [
        {**QUERIES, "num.standby.replicas": "1", "state.dir": str(place.folder / f"state-{name}")} for name in "ab"
    ]
    with worker(place, "first", settings[0]) as first, worker(place, "second", settings[1]) as second:
        for process in (first, second):
            process.await_line(r"2 tasks, .*; 2 standby copies, lag 0$")
        for process in (first, second):
            await_statuses(address_of(process), [200, 200, 307, 307])


def test_sigterm_ends_a_worker_with_open_requests(place: Place) -> None:
    feed(place, [("key1", 1)])
    replies: list[Reply] = []
    never: dict[str, Any] = {"bound": f"lines-{PARTITIONERS['murmur2'](b'key1', PARTITIONS)}:{10**15}"}

    def wait() -> None:
        """Wait for a position that never comes, also if too many wait at the moment."""
        while True:
            reply = ask(address, GET, key="key1", wait_ms=30_000, **never)
            if "queries wait" not in reply.body["error"]:
                replies.append(reply)
                return

    with worker(place, "w") as process:
        process.await_line(f"4 {IDLE}")
        address = address_of(process)
        waiting = [threading.Thread(target=wait) for _ in range(4)]
        for each in waiting:
            each.start()
        # One more is refused when all four wait.
        eventually(partial(ask, address, GET, key="key1", wait_ms=1, **never), lambda reply: reply.status == 503)
        assert process.terminate() == 0, process.errors
        for each in waiting:
            each.join(DEADLINE_S)
        assert ["ending" in reply.body["error"] for reply in replies] == [True] * 4
        assert "Traceback" not in process.errors


def test_a_port_in_use_is_an_error_of_the_configuration(place: Place) -> None:
    feed(place, [("key1", 1)])
    with worker(place, "w") as process:
        process.await_line(f"4 {IDLE}")
        with worker(place, "other", {"application.server": address_of(process)}) as other:
            assert other.ended() == 2
            assert "application.server" in other.errors
            assert "Traceback" not in other.errors
        assert process.terminate() == 0, process.errors


@pytest.mark.kafka
@pytest.mark.parametrize("name", PARTITIONERS)
def test_the_partition_of_a_key_is_the_one_that_the_client_chooses(broker: Broker, name: str) -> None:
    partitions: dict[bytes | None, int | None] = {}
    with fresh_changelog(broker) as log:
        log.create_topic("keyed", 7)
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, "partitioner": name})
        for key in (b"k" * length + b"%d" % length for length in range(200)):
            producer.produce(
                "keyed", key=key, on_delivery=lambda error, sent: partitions.update({sent.key(): sent.partition()})
            )
        assert producer.flush(60) == 0
    assert len(partitions) == 200
    assert partitions == {key: PARTITIONERS[name](key or b"", 7) for key in partitions}
