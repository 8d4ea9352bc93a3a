"""A membership that has all partitions of the topic: tasks that share a transaction are fenced by their group."""

from __future__ import annotations

import time
from collections.abc import Collection
from threading import Event, Thread
from types import TracebackType
from typing import Self

from harness.experiments.kafka.trial import EVENTS_TOPIC
from harness.processes.child import MeasurementFailedError
from stores.changelog.interface import Changelog
from stores.interface import TopicPartition

SESSION_S = 45.0
"""Source: Kafka, default of ``session.timeout.ms``."""
_JOINED_S = 60.0
_POLL_S = 0.1


class Membership:
    """A member of the group of ``application``. A ``with`` block waits for all partitions, and leaves at its end.

    Like a worker it takes part in the group on a thread of its own.
    """

    def __init__(self, log: Changelog, application: str, partitions: int) -> None:
        self._log, self._application = log, application
        self._wanted = {TopicPartition(EVENTS_TOPIC, number) for number in range(partitions)}
        self._held: set[TopicPartition] = set()
        self._ended = Event()
        self._thread = Thread(target=self._take_part, name="membership", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + _JOINED_S
        while self._held != self._wanted:
            if time.monotonic() > deadline or not self._thread.is_alive():
                self._ended.set()
                raise MeasurementFailedError("the group did not give all partitions to its only member in time")
            time.sleep(_POLL_S / 10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        self._held |= set(partitions)

    def revoke(self, partitions: Collection[TopicPartition]) -> None:
        self._held -= set(partitions)

    def lose(self, partitions: Collection[TopicPartition]) -> None:
        self._held -= set(partitions)

    def _take_part(self) -> None:
        with self._log.join_group(
            self._application,
            [EVENTS_TOPIC],
            self,
            fingerprint="measured",
            session_timeout_s=SESSION_S,
            fencing=True,
        ) as member:
            while not self._ended.is_set():
                member.poll(_POLL_S)
