"""Tasks over a real broker behind a network that hangs and breaks: outputs exactly once, stores as the model's."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.faults.network_proxy import NetworkProxy
from stores import failpoints
from stores.changelog.kafka.testing.broker import Broker, Listener
from stores.errors import CommitInDoubtError, ProducerFencedError
from stores.interface import IsolationLevel
from stores.tests.kafka.counting import (
    KEYS,
    RECORDS_PER_COMMIT,
    changelog,
    committed_outputs,
    lost_and_repeated,
    prepared,
    task_over,
    work,
)
from stores.tests.kafka.shared_broker import FOLDER, skip_without_kafka
from stores.tests.tasks.setup import expected_outputs, expected_state

pytestmark = pytest.mark.kafka

BEFORE_COMMIT, BEFORE_LOG_COMMIT = "changelog.before_commit", "task.before_log_commit"
SHORT_S, LONG_S = 3.0, 90.0


class Network:
    """A broker, and a proxy before it. ``proxied`` is the address of the proxy."""

    def __init__(self, broker: Broker, proxy: NetworkProxy) -> None:
        self.broker, self.proxy = broker, proxy
        self.proxied = f"127.0.0.1:{proxy.port}"

    def prepare(self, folder: Path) -> None:
        """Put the input into fresh topics; tasks in the folder reach the broker through the proxy."""
        prepared(folder, self.broker)
        (folder / "address").write_text(self.proxied)

    def check(self, folder: Path) -> None:
        """Compare the committed outputs with the model's, and the stores of a task that was restored."""
        (folder / "address").write_text(self.broker.address)
        assert committed_outputs(folder) == expected_outputs(KEYS)
        with changelog(folder) as log, task_over(folder, log) as task:
            for name in ("left", "right"):
                with task.store(name, IsolationLevel.READ_COMMITTED).all() as pairs:
                    assert dict(pairs) == expected_state(KEYS)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    skip_without_kafka()
    with NetworkProxy() as proxy:
        listeners = [Listener("PROXIED", advertised_port=proxy.port)]
        with Broker(tmp_path_factory.mktemp("broker") / "data", FOLDER, listeners=listeners) as broker:
            proxy.target = broker.ports["PROXIED"]
            yield Network(broker, proxy)


@pytest.fixture
def network(started: Network) -> Iterator[Network]:
    yield started
    failpoints.disarm()
    started.proxy.resume()


def once(call: Callable[[], object], hit: int = 2) -> Callable[[], None]:
    """Return an action of a failpoint that calls ``call`` the ``hit``-th time."""
    left = hit

    def act() -> None:
        nonlocal left
        left -= 1
        if not left:
            call()

    return act


@pytest.mark.parametrize("way", ["stall", "stall_answers"])
def test_a_network_that_hangs_during_a_commit_costs_time_and_nothing_else(
    tmp_path: Path, network: Network, way: str
) -> None:
    """The commit does not reach the broker, or its answer does not reach the task. Source: KIP-588, KIP-892."""
    network.prepare(tmp_path)
    with changelog(tmp_path, SHORT_S) as log, task_over(tmp_path, log) as task:
        failpoints.arm(BEFORE_COMMIT, once(getattr(network.proxy, way)))
        with pytest.raises(CommitInDoubtError):
            task.run()
        network.proxy.resume()
        task.run()
        task.commit()
        # No store was wiped for it.
        assert not any(report.wiped for report in task.restore_reports())
    network.check(tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_connections_that_are_cut_within_each_commit_repeat_and_lose_nothing(
    tmp_path: Path, network: Network, seed: int
) -> None:
    """The cut is at a random byte of what the client sends, so within a request or between two."""
    print(f"seed {seed}")
    chosen = random.Random(seed)
    network.prepare(tmp_path)
    before = network.proxy.cuts
    failpoints.arm(BEFORE_LOG_COMMIT, lambda: network.proxy.cut_after(chosen.randrange(1_500)))
    work(tmp_path)
    assert network.proxy.cuts > before
    network.check(tmp_path)


def wake_a_zombie(folder: Path, network: Network, failpoint: str, *, exactly_once: bool) -> BaseException | None:
    """Hold a task's second commit in the network until its successor has done all work; return the task's error."""
    network.prepare(folder)
    successor = folder / "successor"
    successor.mkdir()
    (successor / "address").write_text(network.broker.address)
    stalled, errors = threading.Event(), list[BaseException]()

    def stall() -> None:
        network.proxy.stall()
        stalled.set()

    def live_as_zombie() -> None:
        with changelog(folder, LONG_S) as log:
            task = task_over(folder, log, exactly_once=exactly_once)
            task.open()
            try:
                task.run(2 * RECORDS_PER_COMMIT)
            except BaseException as error:
                errors.append(error)
            task.close(clean=False)

    failpoints.arm(failpoint, once(stall))
    zombie = threading.Thread(target=live_as_zombie)
    zombie.start()
    assert stalled.wait(LONG_S)
    failpoints.disarm(failpoint)
    work(successor, exactly_once=exactly_once)
    network.proxy.resume()
    zombie.join()
    return errors[0] if errors else None


def test_a_commit_that_the_network_held_back_until_its_task_was_replaced_has_no_effect(
    tmp_path: Path, network: Network
) -> None:
    """Source: KIP-98, zombie fencing; KIP-447."""
    error = wake_a_zombie(tmp_path, network, BEFORE_COMMIT, exactly_once=True)
    assert isinstance(error, ProducerFencedError)
    network.check(tmp_path / "successor")


def test_without_transactions_a_zombie_repeats_outputs(tmp_path: Path, network: Network) -> None:
    """The broken variant: the same scenario notices what fencing prevents."""
    assert wake_a_zombie(tmp_path, network, BEFORE_LOG_COMMIT, exactly_once=False) is None
    (tmp_path / "address").write_text(network.broker.address)
    assert lost_and_repeated(committed_outputs(tmp_path)) == (0, RECORDS_PER_COMMIT)
