"""The broker of a trial, the network before it, its topics, and the processes that work on them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import confluent_kafka

from harness.budget import seconds_for
from harness.checkers.counting import Pair
from harness.experiments.broker_faults import child
from harness.experiments.broker_faults.kafka_proxy import KafkaProxy
from harness.experiments.broker_faults.processes import DEADLINE_S, TrialProcess
from harness.experiments.broker_faults.trial import (
    COMMITS,
    DIE,
    FRESH,
    INPUT,
    INSIDE,
    LONG_S,
    OUTPUT,
    POLL_S,
    RECORDS_PER_ROUND,
    STATE,
    WAIT,
    WAIT_EACH,
    BrokerTrial,
    inputs,
)
from harness.processes.child import MeasurementFailedError
from harness.processes.kafka_jars import JARS
from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.broker import Broker, BrokerListener
from stores.changelog.kafka.testing.committed import committed_records
from stores.errors import ConfigError
from stores.interface import TopicPartition

TIMEOUT_S = 30.0
_PAUSES = "broker.session.timeout.ms=9000\n"
"""Kafka's default: under load a broker that is paused for longer loses its partitions."""


class Site:
    """The surroundings of one trial. Processes are named, and each name is used once."""

    def __init__(
        self,
        trial: BrokerTrial,
        partitions: int,
        records_per_commit: int,
        folder: Path,
        code: str | None,
        broker: Broker,
        proxy: KafkaProxy,
    ) -> None:
        self.trial, self.broker, self.proxy = trial, broker, proxy
        self.partitions, self.records_per_commit = list(range(partitions)), records_per_commit
        records = RECORDS_PER_ROUND * trial.rounds or self.records_per_commit * COMMITS
        self.inputs: list[list[Pair]] = inputs(trial.seed, len(self.partitions), records)
        self.choose = Random(f"{trial.fault} {trial.place} {trial.seed}")
        self.processes = 0
        """The number of processes that were started."""
        self.faults = self.deaths = 0
        """The number of times that a fault under load struck, and of workers that died."""
        self._folder, self._code = folder, code

    def hit(self) -> int:
        """Choose the time at which the fault strikes: in one of the commits, but the first and the last."""
        commit = self.choose.randint(2, COMMITS - 1)
        if self.trial.place != INSIDE:
            return commit
        return (commit - 1) * self.records_per_commit + self.choose.randint(1, self.records_per_commit - 1)

    def feed(self, begin: int, end: int, *, at_a_time: int = 0, pause_s: float = 0.0) -> None:
        """Append a part of each partition's inputs; create the topics before the first one.

        After each ``at_a_time`` records of a partition there is a pause of ``pause_s`` seconds; 0 is all at once.
        """
        with KafkaChangelog({"bootstrap.servers": self.broker.address}, timeout_s=LONG_S) as log:
            if begin == 0:
                for topic in (INPUT, OUTPUT):
                    log.create_topic(topic, len(self.partitions))
                _make_internal_topics(log)
            with log.producer() as producer:
                step = at_a_time or end - begin
                for first in range(begin, end, step):
                    for number in self.partitions:
                        for key, value in self.inputs[number][first : min(first + step, end)]:
                            producer.send(TopicPartition(INPUT, number), key.encode(), value.encode())
                    producer.flush()
                    time.sleep(pause_s)

    @contextmanager
    def waiting_task(
        self, name: str, *, act: str = WAIT, state: str = STATE, proxied: bool = False, timeout_s: float = TIMEOUT_S
    ) -> Iterator[TrialProcess]:
        """Feed all inputs, and start a task, which waits at the place of the trial."""
        self.feed(0, COMMITS * self.records_per_commit)
        hit = 1 if act == WAIT_EACH else self.hit()
        with self._tasks(name, state, self.trial.place, hit, act, proxied=proxied, timeout_s=timeout_s) as process:
            process.await_reached(hit)
            yield process

    def kill_task(self, name: str, place: str, hit: int) -> None:
        """Run a task until it is killed, when it is at a place for the ``hit``-th time."""
        with self._tasks(name, STATE, place, hit, DIE) as process:
            process.await_kill()

    def finished(self, name: str, state: str = STATE, *, mutant: bool = False) -> dict[str, Any]:
        """Run the tasks of all partitions to the end of their input; return the figures of the process.

        Only with ``mutant`` the trial's mutant is built in.
        """
        with self._tasks(name, state, "", 0, WAIT, mutant=mutant) as process:
            return process.figures()

    def worker(
        self,
        name: str,
        dies_at: str = "",
        *,
        proxied: bool = False,
        properties: Mapping[str, str] = MappingProxyType({}),
    ) -> TrialProcess:
        """Start a worker. It dies in its first rebalance that reaches a place."""
        arguments = {"address": self._address(proxied=proxied), "place": dies_at, "properties": dict(properties)}
        return self._process(child.WORKER, name, STATE, self.trial.mutant, arguments)

    def has(self, state: str) -> bool:
        """Return True for the empty directory, and for a state directory that the trial has made."""
        return state == FRESH or (self._folder / state).exists()

    def outputs(self) -> list[Pair]:
        """Return the committed outputs, as another process reads them."""
        records = committed_records(self.broker.address, OUTPUT, len(self.partitions))
        return [(key.decode(), value.decode()) for key, value in records]

    def await_written(self, end: int, *, committed: bool = False) -> None:
        """Wait until the outputs of partition 0 end there or later: with those of open transactions, or without."""
        level = "read_committed" if committed else "read_uncommitted"
        reader = confluent_kafka.Consumer(
            {"bootstrap.servers": self.broker.address, "group.id": "end", "isolation.level": level}
        )
        partition = confluent_kafka.TopicPartition(OUTPUT, 0)
        deadline = time.monotonic() + seconds_for(DEADLINE_S)
        try:
            while reader.get_watermark_offsets(partition, timeout=DEADLINE_S)[1] < end:
                if time.monotonic() > deadline:
                    raise MeasurementFailedError("the records of an open transaction do not reach the broker")
                time.sleep(POLL_S)
        finally:
            reader.close()

    def _tasks(
        self,
        name: str,
        state: str,
        place: str,
        hit: int,
        act: str,
        *,
        mutant: bool = True,
        proxied: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> TrialProcess:
        """Start a process that runs the tasks of all partitions."""
        arguments = {
            "address": self._address(proxied=proxied),
            "partitions": self.partitions,
            "records_per_commit": self.records_per_commit,
            "place": place,
            "hit": hit,
            "act": act,
            "timeout_s": timeout_s,
        }
        return self._process(child.TASKS, name, state, self.trial.mutant if mutant else "", arguments)

    def _address(self, *, proxied: bool) -> str:
        return f"127.0.0.1:{self.proxy.port}" if proxied else self.broker.address

    def _process(self, runs: str, name: str, state: str, mutant: str, own: dict[str, Any]) -> TrialProcess:
        self.processes += 1
        arguments = {
            "runs": runs,
            "state": str(self._folder / state),
            "backend": self.trial.backend,
            "guarantee": self.trial.guarantee,
            "mutant": mutant,
            **own,
        }
        return TrialProcess(child.__name__, self._folder / name, arguments, self._code)


def _make_internal_topics(log: KafkaChangelog) -> None:
    """Let the broker make its internal topics, for transactions and groups: the opening of a task may take 4 s only."""
    with log.producer("first") as producer:
        producer.begin()
        producer.abort()
    log.committed_offsets("first", [TopicPartition(INPUT, 0)])


@contextmanager
def site(
    trial: BrokerTrial, partitions: int, records_per_commit: int, folder: Path, code: str | None
) -> Iterator[Site]:
    """Start a broker with its data in ``folder``, and a proxy before it; kill it at the end.

    Raises: MeasurementFailedError if the broker does not start.
    """
    jars = Path(trial.jars) if trial.jars else JARS
    with ExitStack() as stack:
        proxy = stack.enter_context(KafkaProxy())
        listeners = [BrokerListener("PROXIED", advertised_port=proxy.port)]
        broker = Broker(folder / "broker", jars, listeners=listeners, settings=_PAUSES if trial.rounds else "")
        # Nobody needs its data: a clean end would take seconds.
        stack.callback(broker.kill)
        try:
            broker.start()
        except ConfigError as error:
            raise MeasurementFailedError(str(error)) from error
        proxy.target = broker.ports["PROXIED"]
        yield Site(trial, partitions, records_per_commit, folder, code, broker, proxy)
