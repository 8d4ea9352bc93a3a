"""Three brokers, one of them killed or some cut off: tasks lose time, or report it, and each input counts once.

Source: KIP-98, KIP-588, KIP-966; Kafka, ``min.insync.replicas`` and ``unclean.leader.election.enable``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.changelog import TIMEOUT_S
from stores.errors import ChangelogError
from stores.tasks import StreamTask
from stores.tasks.task_transaction import BEFORE_LOG_COMMIT
from stores.tests.kafka.broker_cluster import COORDINATORS, BrokerCluster
from stores.tests.kafka.shared_broker import FOLDER, skip_without_kafka
from stores.tests.kafka.two_tasks import (
    ABORT,
    BEFORE,
    COMMIT,
    HIT,
    NUMBER,
    TASK,
    THREAD,
    check_that_repeated_outputs_are_found,
    differences,
    feed_placed,
    finish,
    gives_up,
    is_passing,
    shorten,
    step,
    striking,
    two_tasks,
    work,
)
from stores.tests.tasks.sharing import OUTPUTS, ROUND

pytestmark = [pytest.mark.kafka, pytest.mark.cluster]

SHORT_S = 8.0
IN_FLIGHT = "request.timeout.ms=5000\n"
"""A coordinator waits so long for a broker that does not answer, and then looks for another leader: 30 s by default."""


@pytest.fixture(scope="module")
def running() -> Iterator[BrokerCluster]:
    skip_without_kafka()
    with TemporaryDirectory(prefix="kafka-") as data, BrokerCluster(Path(data), FOLDER, settings=IN_FLIGHT) as cluster:
        with KafkaChangelog({"bootstrap.servers": cluster.address}) as log:
            log.producer("first").close()
        yield cluster


@pytest.fixture
def cluster(running: BrokerCluster) -> BrokerCluster:
    """The brokers, each of which runs and has all that the others have."""
    for broker in running.nodes.values():
        if broker.pid is not None:
            broker.resume()
    running.start()
    return running


def coordinator_last(cluster: BrokerCluster) -> list[int]:
    """Return the nodes. The last one is the coordinator of all transactions."""
    coordinator = cluster.leader(COORDINATORS)
    return [*(node for node in cluster.nodes if node != coordinator), coordinator]


@pytest.mark.parametrize(("scope", "end", "coordinates"), [(TASK, COMMIT, False), (THREAD, ABORT, True)])
def test_a_leader_that_is_killed_within_a_transaction_costs_time_only(
    tmp_path: Path, cluster: BrokerCluster, scope: str, end: str, coordinates: bool
) -> None:
    """It leads all partitions of the outputs and the changelogs. It may be the coordinator as well."""
    nodes = coordinator_last(cluster)[:: -1 if coordinates else 1]
    feed_placed(cluster, nodes)

    def strike() -> None:
        cluster.nodes[nodes[0]].kill()
        if end == ABORT:
            gives_up()

    with two_tasks(tmp_path, cluster.address, scope) as tasks, striking({HIT[scope]: strike}):
        work(tasks)
    assert cluster.leader(OUTPUTS[0]) != nodes[0]
    assert differences(tmp_path, cluster.address) == {}


def test_without_transactions_outputs_are_there_twice(tmp_path: Path, cluster: BrokerCluster) -> None:
    """A broken variant of the test before."""
    nodes = coordinator_last(cluster)
    feed_placed(cluster, nodes)
    check_that_repeated_outputs_are_found(tmp_path, cluster.address, cluster.nodes[nodes[0]].kill)


@pytest.mark.parametrize(
    ("num_replicas", "cut_off", "scope"),
    [(3, [0], TASK), (2, [1], THREAD), (3, [1, 2], TASK)],
    ids=["the leader", "a replica that is needed", "a majority"],
)
def test_brokers_that_are_cut_off_cost_time_or_are_reported(
    tmp_path: Path, cluster: BrokerCluster, num_replicas: int, cut_off: Sequence[int], scope: str
) -> None:
    """Without the leader alone the tasks finish. Else no two replicas are in sync, and they wait until it has ended."""
    nodes = coordinator_last(cluster)
    feed_placed(cluster, nodes[:num_replicas])
    paused = [cluster.nodes[nodes[number]] for number in cut_off]
    is_reported = cut_off != [0]

    def strike() -> None:
        for broker in paused:
            broker.pause()
        if is_reported:
            shorten(tasks, SHORT_S)

    def heal() -> None:
        for broker in paused:
            broker.resume()
        shorten(tasks, TIMEOUT_S)

    # The client gives up a connection then, and finds the next leader.
    client = {"socket.timeout.ms": 4_000}
    with two_tasks(tmp_path, cluster.address, scope, client=client) as tasks:
        with striking({HIT[TASK]: strike}, BEFORE_LOG_COMMIT):
            noted = work(tasks, on_error=heal if is_reported else lambda: None)
        heal()
    assert not is_reported or "ChangelogTimeoutError" in noted
    assert differences(tmp_path, cluster.address) == {}


def commit_on_one_replica(cluster: BrokerCluster, tasks: Sequence[StreamTask], leader: int, follower: int) -> None:
    """Commit twice, the second time without the follower. Then kill the leader, and start the follower."""
    step(tasks)
    cluster.nodes[follower].kill()
    for partition in OUTPUTS:
        cluster.await_partition(partition, lambda found: found.isrs == [leader])
    finish(tasks, 2 * ROUND)
    cluster.nodes[leader].kill()
    cluster.nodes[follower].start()


def test_a_leader_that_nobody_may_replace_is_awaited(tmp_path: Path, cluster: BrokerCluster) -> None:
    """It alone has the last commit. The tasks report that it is away."""
    leader, follower, _ = coordinator_last(cluster)
    feed_placed(cluster, [leader, follower], {"min.insync.replicas": "1", "unclean.leader.election.enable": "false"})
    with two_tasks(tmp_path, cluster.address, TASK) as tasks:
        commit_on_one_replica(cluster, tasks, leader, follower)
        shorten(tasks, SHORT_S)
        with pytest.raises(ChangelogError) as error:
            step(tasks)
        assert is_passing(error.value)
        cluster.start()
        shorten(tasks, TIMEOUT_S)
        work(tasks)
    assert differences(tmp_path, cluster.address) == {}


def test_what_an_unclean_election_loses_is_found(tmp_path: Path, cluster: BrokerCluster) -> None:
    """A broken variant of the test before: a replica that lacks the last commit may lead."""
    leader, follower, _ = coordinator_last(cluster)
    feed_placed(cluster, [leader, follower], {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"})
    with two_tasks(tmp_path, cluster.address, TASK) as tasks:
        commit_on_one_replica(cluster, tasks, leader, follower)
        for task in tasks:
            task.close(clean=False)
    for partition in OUTPUTS:
        cluster.await_partition(partition, lambda found: found.leader == follower)
    with two_tasks(tmp_path, cluster.address, TASK, name="next") as tasks:
        finish(tasks)
    outputs = differences(tmp_path, cluster.address, NUMBER - BEFORE)["outputs"]
    assert isinstance(outputs, list)
    assert sum(map(len, outputs)) == NUMBER - BEFORE
