"""An application that a trial strikes: for each input it sends one output, and commits both in transactions."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from harness.tests.client_retries.trial import GIVES_UP_MS, THREAD, Trial

INPUT = "input"
DEADLINE_S = 45.0
RECORDS = 200
"""The inputs of each partition in a transaction."""
TRANSACTIONS = 4
Hook = Callable[[], None]


def nothing() -> None:
    """Do nothing."""


class Once:
    """A hook that is called once, and does nothing after that."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook

    def __call__(self) -> None:
        hook, self._hook = self._hook, nothing
        hook()


class Hooks:
    """The actions of a trial when a transaction comes to a stage; each once."""

    def __init__(self, *, begun: Hook = nothing, sending: Hook = nothing, sent: Hook = nothing, ending: Hook = nothing):
        self.begun = Once(begun)
        """All outputs are at the brokers but the last ``RECORDS // 2`` of each partition, or of the last one alone."""
        self.sending = Once(sending)
        """The client has all outputs."""
        self.sent = Once(sent)
        """All outputs are at the brokers."""
        self.ending = Once(ending)
        """The input offsets are at the brokers, too, and the commit is not requested."""


NO_HOOKS = Hooks()


class Fenced(Exception):
    """Another instance owns the work: this one is to end."""


class Stuck(Exception):
    """The application made no progress for ``DEADLINE_S``."""


class Abandoned(Exception):
    """The application's own error, for which it aborts a transaction."""


class Deadline:
    """The time in which an application must make progress. ``what`` is the text of the error if it makes none."""

    def __init__(self, what: str = "") -> None:
        self._at, self._what = time.monotonic() + DEADLINE_S, what

    def check(self) -> None:
        """Raises: Stuck."""
        if time.monotonic() > self._at:
            raise Stuck(self._what)


class Subject(ABC):
    """An instance of an application over the broker at ``address``. Instances of one ``name`` follow each other.

    The trial's scope says how many partitions it has. Input ``n`` of a partition is the record with offset ``n``, and
    its output is that number in the partition of the same number of the topic ``name``.
    """

    def __init__(self, trial: Trial, address: str, name: str, instance: str, *, gives_up: bool = False) -> None:
        self.trial, self.address, self.name, self.instance = trial, address, name, instance
        self.partitions = [0, 1] if trial.scope == THREAD else [0]
        self.gives_up = gives_up
        self.notes: list[str] = []
        """The errors that the client or the library reported to the application."""

    def settings(self) -> dict[str, Any]:
        """Return the client's settings that both kinds of subjects have."""
        own: dict[str, Any] = {"bootstrap.servers": self.address, "reconnect.backoff.max.ms": 500}
        if self.gives_up:
            own |= {"socket.timeout.ms": GIVES_UP_MS}
        return own

    def producer_settings(self) -> dict[str, Any]:
        """Return further settings of a producer."""
        # Readers do not wait long for a transaction that nobody ends.
        own: dict[str, Any] = {"transaction.timeout.ms": 15_000}
        return own | {"message.timeout.ms": 3 * GIVES_UP_MS} if self.gives_up else own

    @abstractmethod
    def open(self) -> None:
        """Take over, from the committed offsets on."""

    @abstractmethod
    def work(self, target: int, hooks: Hooks = NO_HOOKS) -> None:
        """Process and commit all inputs up to ``target`` of each partition, however often that takes.

        Each hook is called once. Raises: Fenced, Stuck.
        """

    @abstractmethod
    def abandon(self, target: int, hooks: Hooks) -> None:
        """Process as ``work``, and abort where a hook raises Abandoned. Raises: Fenced, Stuck."""

    @abstractmethod
    def attempt(self, target: int) -> None:
        """Try once to process and commit as ``work`` does, as an instance that does not know of its successor."""

    @abstractmethod
    def leave(self) -> None:
        """Leave the group, as a member does that loses its partitions. Its transactions go on as they can."""

    @abstractmethod
    def close(self) -> None:
        """Let everything go."""
