"""The course of a trial over a real broker, and its verifier, a consumer that shares no code with the library."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import KafkaException as ConfluentError
from confluent_kafka.admin import AdminClient, NewTopic

from harness.experiments.broker_faults.kafka_proxy import KafkaProxy
from harness.tests.client_retries.bare import BareLoop
from harness.tests.client_retries.ours import Tasks
from harness.tests.client_retries.subject import (
    INPUT,
    RECORDS,
    TRANSACTIONS,
    Abandoned,
    Deadline,
    Fenced,
    Hooks,
    Stuck,
    Subject,
)
from harness.tests.client_retries.trial import (
    COMMIT,
    CUT,
    DELAYED,
    ENDED,
    LOST,
    OURS,
    REQUESTS,
    SILENT,
    THREAD,
    TWICE,
    UNHEARD,
    Trial,
)
from stores.changelog.kafka.testing.broker import Broker, BrokerListener
from stores.errors import StoreError

EXACTLY_ONCE = "exactly once"
_HELD_S = 20.0
_SEEN_S = 40.0
"""Longer than the brokers keep a transaction open that nobody ends."""
_SLOW_S = 5.0
_GIVES_UP_AT = {
    "AddPartitionsToTxn": "sending",
    "Produce": "sending",
    "AddOffsetsToTxn": "ending",
    "TxnOffsetCommit": "ending",
    "EndTxn": "sent",
}
"""The stage at which an application gives up a transaction, so that the abort comes after the request."""


class Network:
    """A broker, a proxy before it, and the input of all trials."""

    def __init__(self, broker: Broker, proxy: KafkaProxy) -> None:
        self.broker, self.proxy = broker, proxy
        self._admin = AdminClient({"bootstrap.servers": broker.address})
        self._names = (f"trial-{number}" for number in count(1))
        self.create(INPUT)
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.address})
        for number in range(2):
            for value in range(RECORDS * TRANSACTIONS):
                producer.produce(INPUT, str(value).encode(), partition=number)
        producer.flush(_SEEN_S)

    @property
    def proxied(self) -> str:
        """The address that leads through the proxy."""
        return f"127.0.0.1:{self.proxy.port}"

    def new_name(self) -> str:
        """Return the name of a new trial, whose output topic is there."""
        name = next(self._names)
        self.create(name)
        return name

    def create(self, topic: str) -> None:
        """Create a topic of two partitions."""
        [created] = self._admin.create_topics([NewTopic(topic, 2)]).values()
        created.result(_SEEN_S)


@contextmanager
def network(jars: Path) -> Iterator[Network]:
    """Start a broker with its proxy."""
    with ExitStack() as stack:
        data = stack.enter_context(TemporaryDirectory(prefix="kafka-"))
        proxy = stack.enter_context(KafkaProxy())
        broker = Broker(Path(data), jars, listeners=[BrokerListener("PROXIED", advertised_port=proxy.port)])
        stack.callback(broker.kill)
        broker.start()
        proxy.target = broker.ports["PROXIED"]
        yield Network(broker, proxy)


class Run:
    """One trial of one kind of application. ``result`` runs it."""

    def __init__(self, trial: Trial, kind: str, network: Network, folder: Path) -> None:
        self.trial, self._kind, self._network, self._folder = trial, kind, network, folder
        self._proxy = network.proxy
        self._name = network.new_name()
        self._struck = threading.Event()
        """Set when an answer was held."""
        self._missing = "nothing was delivered" if trial.moment else ""
        """The lack of a late request, until the broker has answered it."""
        self.notes: list[str] = []
        """Remarks on what happened besides."""

    def result(self) -> str:
        """Return ``EXACTLY_ONCE``, or what readers see instead, what is stuck, and whether no late request arrived."""
        return "; ".join(filter(None, [*self._seen(), self._missing])) or EXACTLY_ONCE

    def _seen(self) -> list[str]:
        try:
            with ExitStack() as closing:
                self._strike(closing)
            with ExitStack() as closing:
                self._instance("last", closing).work(RECORDS * TRANSACTIONS)
            return self._judged()
        except Stuck as error:
            return [f"stuck {error}".strip()]
        except Fenced:
            return ["the last instance is fenced"]
        except (ConfluentError, StoreError, SystemError) as error:
            return [f"stuck {type(error).__name__}: {error}"]

    def _instance(self, instance: str, closing: ExitStack, address: str = "") -> Subject:
        gives_up = bool(address) and self.trial.gives_up
        address = address or self._network.broker.address
        subject: Subject
        if self._kind == OURS:
            subject = Tasks(self.trial, address, self._name, instance, self._folder, gives_up=gives_up)
        else:
            subject = BareLoop(self.trial, address, self._name, instance, gives_up=gives_up)
        closing.callback(self._end, subject)
        subject.open()
        return subject

    def _end(self, subject: Subject) -> None:
        self.notes += (f"{subject.instance}: {note}" for note in dict.fromkeys(subject.notes))
        subject.close()

    def _strike(self, closing: ExitStack) -> None:
        is_first = self.trial.request == "InitProducerId"
        if is_first:
            self._arm(closing)
        first = self._instance("first", closing, self._network.proxied)
        first.work(RECORDS)
        if not is_first:
            self._arm(closing)
        self._second(first)
        self._await_struck()
        if not self.trial.moment:
            return
        try:
            self._third(first, closing)
        except Fenced:
            self.notes.append("fenced")

    def _second(self, first: Subject) -> None:
        """Let the transaction run that the fault strikes."""
        target = 2 * RECORDS
        if self.trial.end == COMMIT:
            first.work(target)
        else:
            first.abandon(target, Hooks(**{_GIVES_UP_AT[self.trial.request]: self._give_up}))

    def _give_up(self) -> None:
        if self.trial.request != "EndTxn":  # That is the request of the abort itself.
            self._await_struck()
        raise Abandoned

    def _await_struck(self) -> None:
        """Wait until the fault has struck. Raises: Stuck."""
        is_struck = self._proxy.await_held(_HELD_S) if self.trial.moment else self._struck.wait(_HELD_S)
        if not is_struck:
            raise Stuck("nothing was held")

    def _third(self, first: Subject, closing: ExitStack) -> None:
        target = 3 * RECORDS
        if not self.trial.is_of_owner:
            self._work(first, target)
            return
        first.leave()
        self._work(self._instance("owner", closing), target)
        first.attempt(target)

    def _work(self, subject: Subject, target: int) -> None:
        """Work, and deliver the request at the moment of the trial."""
        hooks = {} if self.trial.stage == ENDED else {self.trial.stage: self._deliver}
        subject.work(target, Hooks(**hooks))
        if not hooks:
            self._deliver()

    def _deliver(self) -> None:
        self._missing = "" if self._proxy.deliver(_HELD_S) else "no answer to the late request"
        time.sleep(self.trial.delay_ms / 1000)

    def _arm(self, closing: ExitStack) -> None:
        """Let the proxy hold the next request, or its answer, which a thread then passes on or drops."""
        fault, api_key = self.trial.fault, REQUESTS[self.trial.request]
        if fault in (CUT, SILENT):
            self._proxy.hold(api_key, cuts=fault == CUT)
            return
        self._proxy.hold_answer(api_key)
        thread = threading.Thread(target=self._answer, daemon=True)
        thread.start()
        closing.callback(thread.join)

    def _answer(self) -> None:
        if not self._proxy.await_held(_HELD_S):
            return
        self._struck.set()
        time.sleep(self.trial.delay_ms / 1000)
        copies = {LOST: 0, UNHEARD: 0, TWICE: 2, DELAYED: 1}[self.trial.fault]
        self._proxy.pass_answer(copies, cuts=self.trial.fault == LOST)

    def _judged(self) -> list[str]:
        began = time.monotonic()
        found = []
        partitions = [0, 1] if self.trial.scope == THREAD else [0]
        expected = Counter({(number, value): 1 for number in partitions for value in range(RECORDS * TRANSACTIONS)})
        with judge(self._network.broker.address, self._name) as reader:
            seen = reader.outputs(partitions)
            offsets = reader.offsets(partitions)
        waited_s = time.monotonic() - began
        if waited_s > _SLOW_S:
            self.notes.append(f"readers waited {waited_s:.0f} s")
        lost, extra = expected - seen, seen - expected
        if lost:
            found.append(f"{lost.total()} lost")
        if extra:
            found.append(f"{extra.total()} twice")
        if set(offsets) != {RECORDS * TRANSACTIONS}:
            found.append(f"offsets {offsets}")
        return found


class Judge:
    """Reads committed records and offsets with the client alone."""

    def __init__(self, client: Any, address: str, topic: str) -> None:
        self._client, self._address, self._topic = client, address, topic

    def outputs(self, partitions: list[int]) -> Counter[tuple[int, int]]:
        """Return partition and value of each committed record, once nothing is open any more, or after ``_SEEN_S``.

        Raises: Stuck.
        """
        self._await_decided(partitions)
        self._client.assign([confluent_kafka.TopicPartition(self._topic, number, 0) for number in partitions])
        seen: Counter[tuple[int, int]] = Counter()
        left, deadline = set(partitions), Deadline("readers do not come to the end")
        while left:
            deadline.check()
            for message in self._client.consume(1_000, 0.05):
                if message.error() is None:
                    seen[message.partition(), int(message.value())] += 1
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    raise AssertionError(str(message.error()))
                if not left:
                    break
        return seen

    def _await_decided(self, partitions: list[int]) -> None:
        """Wait until committed readers come to the end of each partition."""
        deadline = time.monotonic() + _SEEN_S
        config = {"bootstrap.servers": self._address, "group.id": "judge-all", "isolation.level": "read_uncommitted"}
        everything = Consumer(config)
        try:
            for number in partitions:
                partition = confluent_kafka.TopicPartition(self._topic, number)
                while True:
                    ends = [
                        each.get_watermark_offsets(partition, timeout=_SEEN_S)[1] for each in (self._client, everything)
                    ]
                    if ends[0] == ends[1] or time.monotonic() > deadline:
                        break
                    time.sleep(0.02)
        finally:
            everything.close()

    def offsets(self, partitions: list[int]) -> list[int]:
        """Return the committed input offsets of the group that is called as the topic."""
        asked = [confluent_kafka.TopicPartition(INPUT, number) for number in partitions]
        group = Consumer({"bootstrap.servers": self._address, "group.id": self._topic, "enable.auto.commit": False})
        try:
            return [each.offset for each in group.committed(asked, timeout=_SEEN_S)]
        finally:
            group.close()


@contextmanager
def judge(address: str, topic: str) -> Iterator[Judge]:
    """Open the verifier of a trial's outputs."""
    client = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "judge",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        yield Judge(client, address, topic)
    finally:
        client.close()
