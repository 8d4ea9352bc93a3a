"""A bare loop over the client, as its documentation asks for: what an error says of itself is done.

Source: librdkafka, "Transactional producer"; confluent-kafka, examples/eos-transactions.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from harness.tests.client_retries.subject import (
    INPUT,
    NO_HOOKS,
    RECORDS,
    Abandoned,
    Deadline,
    Fenced,
    Hooks,
    Stuck,
    Subject,
)
from harness.tests.client_retries.trial import TASK
from stores.changelog.kafka.client import returns_in_time, served

_CALL_S = 10.0
_FENCED = (getattr(KafkaError, "_FENCED"), KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)  # noqa: B009


class Rewound(Exception):
    """The transaction was aborted, and the loop is at its last commit."""


class BareLoop(Subject):
    """Inputs are numbers, which the loop knows: it reads nothing but the committed offsets."""

    _producer: Any
    _consumer: Any

    def open(self) -> None:
        own = {"group.id": self.name, "enable.auto.commit": False, "session.timeout.ms": 6_000}
        self._consumer = Consumer({**self.settings(), **own})
        if self.trial.scope != TASK:
            self._consumer.subscribe([INPUT])
            deadline = Deadline()
            while len(self._consumer.assignment()) < len(self.partitions):
                self._consumer.poll(0.05)
                deadline.check()
            self._consumer.pause(self._consumer.assignment())
        self._metadata = self._consumer.consumer_group_metadata()
        self._connect()

    def _connect(self) -> None:
        transactional_id = self.name if self.trial.scope == TASK else f"{self.name}-{self.instance}"
        self._producer = Producer({**self.settings(), **self.producer_settings(), "transactional.id": transactional_id})
        self._called(self._producer.init_transactions)
        self._rewind()

    def _rewind(self) -> None:
        asked = [TopicPartition(INPUT, number) for number in self.partitions]
        self._next = {each.partition: max(each.offset, 0) for each in self._consumer.committed(asked, timeout=_CALL_S)}
        self._open = False

    def work(self, target: int, hooks: Hooks = NO_HOOKS) -> None:
        deadline = Deadline()
        while True:
            try:
                self._transact(target, hooks)
                return
            except Rewound:
                deadline.check()

    def abandon(self, target: int, hooks: Hooks) -> None:
        try:
            self._transact(target, hooks)
        except Abandoned:
            self._called(self._producer.abort_transaction)
            self._rewind()
        except Rewound:
            return

    def attempt(self, target: int) -> None:
        # Its consumer is closed once it has left the group, and raises RuntimeError.
        with suppress(Rewound, Fenced, Stuck, RuntimeError):
            self._transact(target, NO_HOOKS)

    def _transact(self, target: int, hooks: Hooks) -> None:
        self._produce(target - RECORDS // 2)
        self._called(self._flush)
        hooks.begun()
        self._produce(target)
        hooks.sending()
        self._called(self._flush)
        hooks.sent()
        offsets = [TopicPartition(INPUT, number, target) for number in self.partitions]
        self._called(lambda left_s: self._send_offsets(offsets, left_s))
        hooks.ending()
        self._called(self._producer.commit_transaction)
        self._open = False

    def _flush(self, left_s: float) -> None:
        served(self._producer.flush, left_s)

    def _send_offsets(self, offsets: list[TopicPartition], left_s: float) -> None:
        """Raises: Stuck if the call does not return, as it may not."""
        producer, metadata = self._producer, self._metadata
        if not returns_in_time(lambda: producer.send_offsets_to_transaction(offsets, metadata, left_s), left_s):
            raise Stuck("send_offsets_to_transaction does not return")

    def _produce(self, target: int) -> None:
        # After an error the next request of the transaction says what to do.
        with suppress(KafkaException):
            if not self._open:
                self._producer.begin_transaction()
                self._open = True
            for number in self.partitions:
                for value in range(self._next[number], target):
                    self._producer.produce(self.name, str(value).encode(), partition=number)
                self._next[number] = max(target, self._next[number])

    def _called(self, call: Callable[[float], object]) -> None:
        """Call, and again as long as the client says so."""
        deadline = Deadline()
        while True:
            try:
                call(_CALL_S)
                return
            except KafkaException as exception:
                self._do_as_told(exception.args[0])
            deadline.check()

    def _do_as_told(self, error: KafkaError) -> None:
        """Return if the call is to be repeated. Raises: Rewound, Fenced, Stuck."""
        self.notes.append(error.name())
        if error.code() in _FENCED:
            raise Fenced
        if error.fatal():
            self._producer = None
            self._connect()
            raise Rewound
        if error.txn_requires_abort():
            self._called(self._producer.abort_transaction)
            self._rewind()
            raise Rewound
        if not error.retriable():
            raise Stuck(str(error))

    def leave(self) -> None:
        if self.trial.scope != TASK:
            self._consumer.close()

    def close(self) -> None:
        self._producer = None
        self._consumer.close()
