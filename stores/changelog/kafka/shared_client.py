"""A client that many calls share. It is replaced if it has lost the brokers, or the leader of a partition, for good.

If the last broker of a cluster is stopped, it answers its clients that there is no broker. A client that handles this
after its connection has closed forgets every broker, and asks none again. Source: librdkafka, issue 5301.

After a pause of its broker a client may have lost the leader of a partition. It answers ``_UNKNOWN_PARTITION`` at once,
for minutes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from confluent_kafka import KafkaException

from stores.changelog.kafka.client import error_of, may_pass

_Client = TypeVar("_Client")

ATTEMPT_S = 5.0
"""The time of the first attempt of a call, and the least age of a client that is replaced."""


class SharedClient(Generic[_Client]):
    """A client that ``make`` returns, and later ones. For any thread."""

    def __init__(self, make: Callable[[], _Client]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._ended = False
        self._client, self._since = make(), time.monotonic()

    @contextmanager
    def used(self) -> Iterator[_Client]:
        """Yield the client for a call. If that fails, and may succeed later, the next call has another client.

        Other threads may still use the one before, so it is not closed.
        """
        client = self._client
        try:
            yield client
        except KafkaException as exception:
            if may_pass(error_of(exception)):
                self._replace(client)
            raise

    def end(self) -> _Client:
        """Replace the client no more, and return it."""
        with self._lock:
            self._ended = True
            return self._client

    def _replace(self, failed: _Client) -> None:
        now = time.monotonic()
        with self._lock:
            if self._client is failed and not self._ended and now - self._since >= ATTEMPT_S:
                self._client, self._since = self._make(), now
