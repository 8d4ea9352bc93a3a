"""The tasks of one transaction, and the time for which it may be open."""

from __future__ import annotations

from stores.changelog.interface import Changelog
from stores.contract.levels import Level
from stores.tasks.config import TaskConfig
from stores.tasks.task_transaction import ThreadTransaction
from stores.tasks.timing import NO_INTERVAL, checked_commit_interval_ms

TIMEOUT_BEYOND_INTERVAL_S = 10.0
"""The time by which a transaction may be open longer than a commit interval. The next owner of a killed worker's tasks
waits for both. Source: Kafka Streams, whose ``transaction.timeout.ms`` is 10 s for an interval of 100 ms."""
TIMEOUT_S_MAX = 900.0
"""Source: Kafka, default of the brokers' ``transaction.max.timeout.ms``."""


class TransactionScope(Level):
    """The tasks of one transaction: the property ``transaction.scope``."""

    TASK = "task"
    """One task. An error rolls back this task alone."""
    THREAD = "thread"
    """All tasks of a stream thread: fewer transactions, and an error rolls back all of them. Source: KIP-447."""

    def transaction(
        self, changelog: Changelog, tasks: TaskConfig, instance: str, thread: int
    ) -> ThreadTransaction | None:
        """Return the transaction of a stream thread, None if each task has its own.

        ``instance`` is unique among the workers of the application that run at the same time.
        """
        if self is TransactionScope.TASK:
            return None
        # No task has such an ID: names of applications have no "/".
        transactional_id = f"{tasks.application_id}/{instance}/{thread}"
        return ThreadTransaction(changelog, transactional_id, timeout_s=transaction_timeout_s(tasks))


def transaction_timeout_s(tasks: TaskConfig) -> float:
    """Return the time for which a transaction of these tasks may be open."""
    interval_ms = checked_commit_interval_ms(tasks.commit_interval_ms, tasks.guarantee)
    if interval_ms == NO_INTERVAL:
        return TIMEOUT_S_MAX
    return min(interval_ms / 1000 + TIMEOUT_BEYOND_INTERVAL_S, TIMEOUT_S_MAX)
