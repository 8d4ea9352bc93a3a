"""The coordinator of transactions moves after it has answered the end of one, and before its markers are written.

The network between the brokers holds the markers back. The next coordinator completes the transaction. The markers of
the one before arrive within the next transaction. Source: KIP-98, "WriteTxnMarkerRequest"; KIP-447.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient

from harness.experiments.broker_faults.kafka_proxy import WRITE_TXN_MARKERS, KafkaProxy
from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.changelog import TIMEOUT_S
from stores.changelog.kafka.group_offsets import GroupOffsets
from stores.changelog.kafka.testing.broker import BrokerListener
from stores.interface import TopicPartition
from stores.tasks.stores.store_group import AFTER_LOG_COMMIT
from stores.tests.kafka.broker_cluster import COORDINATORS, NODES, BrokerCluster
from stores.tests.kafka.java_programs import kafka_tool
from stores.tests.kafka.shared_broker import FOLDER, skip_without_kafka
from stores.tests.kafka.sharing_worker import committed_outputs
from stores.tests.kafka.two_tasks import (
    ABORT,
    BEFORE,
    COMMIT,
    HIT,
    TASK,
    THREAD,
    check_that_repeated_outputs_are_found,
    differences,
    feed_placed,
    finish,
    gives_up,
    shorten,
    striking,
    two_tasks,
    work,
)
from stores.tests.tasks.sharing import INPUTS

pytestmark = [pytest.mark.kafka, pytest.mark.cluster]

ANSWER_S = 600.0
SHORT_S = 8.0
INPUT_OFFSETS = TopicPartition("__consumer_offsets", 0)
REPLAY = "commit, which a store fails to take"
"""The store replays it from the changelog, while its markers are held back."""


class Network(NamedTuple):
    """Brokers, and by their nodes the proxies through which other brokers reach them."""

    brokers: BrokerCluster
    proxies: Mapping[int, KafkaProxy]


@pytest.fixture(scope="module")
def running() -> Iterator[Network]:
    skip_without_kafka()
    with ExitStack() as stack:
        data = stack.enter_context(TemporaryDirectory(prefix="kafka-"))
        proxies = {node: stack.enter_context(KafkaProxy()) for node in NODES}
        listeners = {node: [BrokerListener("BETWEEN", advertised_port=proxies[node].port)] for node in NODES}
        settings = "inter.broker.listener.name=BETWEEN\n"
        brokers = stack.enter_context(BrokerCluster(Path(data), FOLDER, settings=settings, listeners=listeners))
        for node, proxy in proxies.items():
            proxy.target = brokers.nodes[node].ports["BETWEEN"]
        with KafkaChangelog({"bootstrap.servers": brokers.address}) as log:
            log.producer("first").close()
            log.create_topic("any")
            log.committed_offsets("first", [TopicPartition("any", 0)])
        yield Network(brokers, proxies)


@pytest.fixture
def network(running: Network) -> Network:
    """Brokers that all run, and have what the others have."""
    running.brokers.start()
    return running


def reassign(brokers: BrokerCluster, coordinator: int) -> None:
    """Give the partition of the coordinator another first replica, and let that one lead."""
    replicas = [*(node for node in NODES if node != coordinator), coordinator]
    plan = {"version": 1, "partitions": [{**COORDINATORS._asdict(), "replicas": replicas}]}
    with TemporaryDirectory() as folder:
        file = Path(folder, "plan.json")
        file.write_text(json.dumps(plan), encoding="ascii")
        name = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
        options = ["--reassignment-json-file", str(file), "--execute"]
        kafka_tool(name, "--bootstrap-server", brokers.address, *options)
    admin = AdminClient({"bootstrap.servers": brokers.address})
    admin.elect_leaders(ElectionType.PREFERRED, [confluent_kafka.TopicPartition(*COORDINATORS)]).result(ANSWER_S)
    brokers.await_partition(COORDINATORS, lambda found: found.leader == replicas[0])


MOVES: Mapping[str, Callable[[BrokerCluster, int], None]] = {
    "killed": lambda brokers, coordinator: brokers.nodes[coordinator].kill(),
    "stopped": lambda brokers, coordinator: brokers.nodes[coordinator].stop(),
    "reassigned": reassign,
}


class Course:
    """The course of a trial: the coordinator moves by ``how``.

    Another broker leads the outputs and the changelogs. It does not lead the input offsets, whose markers are written.
    """

    def __init__(self, network: Network, how: str, end: str) -> None:
        self._brokers, self._how, self._end = network.brokers, MOVES[how], end
        self.coordinator = self._brokers.leader(COORDINATORS)
        others = {self.coordinator, self._brokers.leader(INPUT_OFFSETS)}
        leader = next(node for node in NODES if node not in others)
        feed_placed(self._brokers, [leader, *(node for node in NODES if node != leader)])
        self._proxy = network.proxies[leader]
        self._threads = ThreadPoolExecutor(1)
        self._moved: Future[None]

    def hold(self) -> None:
        """Hold the markers of the transaction that is about to end, once those of earlier transactions are written."""
        assert self._visible(BEFORE) == BEFORE
        self._proxy.hold(WRITE_TXN_MARKERS, cuts=False)
        self._moved = self._threads.submit(self._move)
        if self._end == ABORT:
            gives_up()

    def _move(self) -> None:
        assert self._proxy.await_held(ANSWER_S)
        assert self._visible(0) == BEFORE
        self._how(self._brokers, self.coordinator)

    def _visible(self, at_least: int) -> int:
        return sum(map(len, committed_outputs(self._brokers.address, at_least)))

    def deliver(self) -> None:
        """Deliver the markers, when the next coordinator has written its own."""
        assert self._proxy.deliver(ANSWER_S)

    def check(self) -> None:
        """Check that the coordinator has moved."""
        self._moved.result()
        self._threads.shutdown()
        assert self._brokers.leader(COORDINATORS) != self.coordinator


@pytest.mark.parametrize(
    ("how", "scope", "end"),
    [
        ("killed", TASK, COMMIT),
        ("killed", THREAD, ABORT),
        ("killed", TASK, REPLAY),
        ("stopped", THREAD, COMMIT),
        ("stopped", TASK, ABORT),
        ("reassigned", TASK, COMMIT),
        ("reassigned", THREAD, ABORT),
    ],
)
def test_the_next_coordinator_completes_a_transaction_and_late_markers_change_nothing(
    tmp_path: Path, network: Network, how: str, scope: str, end: str
) -> None:
    course = Course(network, how, end)
    hit = HIT[scope]
    # The task that is struck ends its next transaction then. After a commit, that of the other task is next.
    late = hit + (2 if (scope, end) == (TASK, COMMIT) else 1)
    with two_tasks(tmp_path, network.brokers.address, scope) as tasks, ExitStack() as faults:
        faults.enter_context(striking({hit: course.hold, late: course.deliver}))
        if end == REPLAY:
            faults.enter_context(striking({hit: gives_up}, AFTER_LOG_COMMIT))
        work(tasks)
    course.check()
    assert differences(tmp_path, network.brokers.address) == {}


@pytest.mark.parametrize("broken", [False, True])
def test_a_rollback_after_a_commit_awaits_the_marker_in_the_input_offsets(
    tmp_path: Path, network: Network, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """The changelogs have theirs: another broker leads them. In the broken variant the commit is forgotten."""
    brokers, leader = network.brokers, network.brokers.leader(INPUT_OFFSETS)
    proxy = network.proxies[leader]
    feed_placed(brokers, [*(node for node in NODES if node != leader), leader])
    if broken:
        monkeypatch.setattr(GroupOffsets, "ended", lambda *_: None)

    def hold() -> None:
        """Hold the marker, once those of earlier transactions are written."""
        log: Any = tasks[0]._changelog
        log._groups.await_decided("app", INPUTS[1:])
        proxy.hold(WRITE_TXN_MARKERS, cuts=False)
        shorten(tasks, SHORT_S)

    def release() -> None:
        assert proxy.await_held(ANSWER_S)
        assert proxy.deliver(ANSWER_S)
        shorten(tasks, TIMEOUT_S)

    with two_tasks(tmp_path, brokers.address, TASK) as tasks, ExitStack() as faults:
        faults.enter_context(striking({HIT[TASK]: hold}))
        faults.enter_context(striking({HIT[TASK]: gives_up}, AFTER_LOG_COMMIT))
        assert finish(tasks, on_error=release)
    assert bool(differences(tmp_path, brokers.address)) == broken


def test_without_transactions_outputs_are_there_twice(tmp_path: Path, network: Network) -> None:
    """Another broken variant."""
    feed_placed(network.brokers, NODES)
    coordinator = network.brokers.leader(COORDINATORS)
    kill = network.brokers.nodes[coordinator].kill
    check_that_repeated_outputs_are_found(tmp_path, network.brokers.address, kill)
