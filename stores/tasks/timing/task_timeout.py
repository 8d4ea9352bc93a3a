"""The time for which a task retries by itself while its changelog does not answer in time."""

from __future__ import annotations

import logging
import sys
import time

from stores.errors import ChangelogTimeoutError, ConfigError

TASK_TIMEOUT_S = 300.0
"""Source: KIP-572, default of ``task.timeout.ms``."""
PAUSE_S = 0.1
"""The pause between two attempts. Source: Kafka, default of ``retry.backoff.ms``."""

_log = logging.getLogger(__name__)


def checked_task_timeout_s(seconds: float) -> float:
    """Return the time in seconds, if it is valid. Raises: ConfigError, TypeError."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise TypeError(f"task_timeout_s is a number of seconds, not {type(seconds).__name__}")
    if not 0 <= seconds <= sys.float_info.max:
        raise ConfigError(f"task_timeout_s is 0 (never try again) or more seconds, not {seconds}")
    return float(seconds)


def checked_wait_ns(seconds: object) -> int:
    """Return the time to wait for input, in nanoseconds. Raises: TypeError, ValueError."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise TypeError(f"wait_s is a number of seconds, not {type(seconds).__name__}")
    if not 0 <= seconds <= sys.float_info.max:
        raise ValueError(f"wait_s is 0 or more seconds, not {seconds}")
    return int(seconds * 1_000_000_000)


class TaskTimeout:
    """A limit of ``seconds`` without progress. It begins at the first failure after the last progress."""

    def __init__(self, task: str, seconds: float) -> None:
        self._task, self._seconds = task, seconds
        self._furthest = -1
        self._deadline = 0.0

    def failed(self, error: ChangelogTimeoutError, reached: int) -> None:
        """Wait a moment after ``error``, or raise it if the time is up. ``reached`` is the number of records done."""
        now = time.monotonic()
        if reached > self._furthest:
            self._furthest, self._deadline = reached, now + self._seconds
            _log.warning("task %s continues from its last commit, for up to %g s: %s", self._task, self._seconds, error)
        if now >= self._deadline:
            error.add_note(f"Task {self._task} has made no progress for {self._seconds:g} s.")
            raise error
        time.sleep(min(PAUSE_S, self._deadline - now))
