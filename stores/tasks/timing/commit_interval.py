"""The conditions of a task's automatic commits: a number of records, and an interval."""

from __future__ import annotations

from stores.errors import ConfigError
from stores.interface import ProcessingGuarantee
from stores.tasks.timing.clock import NEVER_NS, Clock

NO_INTERVAL = -1
"""The value of ``commit_interval_ms`` that turns commits by time off."""
COMMIT_INTERVAL_MS = {ProcessingGuarantee.EXACTLY_ONCE: 100, ProcessingGuarantee.AT_LEAST_ONCE: 30_000}
"""Source: Kafka Streams, defaults of ``commit.interval.ms``; KIP-892 on the delay for readers of committed data."""
_INTERVAL_MS_MAX = (1 << 63) - 1


class CommitInterval:
    """The time from one commit to the next; an early commit restarts it."""

    def __init__(self, interval_ms: int, clock: Clock) -> None:
        self._interval_ns = NEVER_NS if interval_ms == NO_INTERVAL else interval_ms * 1_000_000
        self._clock = clock
        self.due_ns = NEVER_NS
        """The end of the interval, by ``Clock.monotonic_ns``."""

    def begin(self) -> None:
        """Start the interval now."""
        self.due_ns = self._clock.monotonic_ns() + self._interval_ns

    def is_up(self) -> bool:
        """Return whether the interval is over."""
        return self._clock.monotonic_ns() >= self.due_ns


def checked_commit_interval_ms(interval_ms: object, guarantee: ProcessingGuarantee) -> int:
    """Return the interval, by default that of the guarantee. Raises: TypeError, ConfigError."""
    if interval_ms is None:
        return COMMIT_INTERVAL_MS[guarantee]
    if not isinstance(interval_ms, int) or isinstance(interval_ms, bool):
        raise TypeError(f"commit_interval_ms is an int or None, not {type(interval_ms).__name__}")
    if not NO_INTERVAL <= interval_ms <= _INTERVAL_MS_MAX:
        raise ConfigError(f"commit_interval_ms is 0 or more milliseconds, or -1 for none, not {interval_ms}")
    return interval_ms


def check_commit_every(records: object) -> None:
    """Check a number of records per commit. Raises: TypeError, ConfigError."""
    if not isinstance(records, int) or isinstance(records, bool):
        raise TypeError(f"commit_every_records is an int or None, not {type(records).__name__}")
    if records < 1:
        raise ConfigError(f"commit_every_records is 1 or more, or None, not {records}")
