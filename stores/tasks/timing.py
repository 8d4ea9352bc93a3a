"""The timing of a task: its commit interval, its punctuators, and the stream time of its input."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Protocol

from stores.contract.arguments import check_number, check_type
from stores.errors import ChangelogTimeoutError, StoreError
from stores.interface import ProcessingGuarantee, TopicPartition

NEVER_NS = 1 << 128
"""Later than any clock will show."""


class Clock(Protocol):
    """A monotonic clock for intervals, a wall clock for timestamps, and a way to wait."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary moment; never goes back."""

    def epoch_ms(self) -> int:
        """Milliseconds since the Unix epoch, as the system has it."""

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``, 0 or more."""


class SystemClock:
    """The clocks of the system."""

    monotonic_ns = staticmethod(time.monotonic_ns)
    sleep = staticmethod(time.sleep)

    @staticmethod
    def epoch_ms() -> int:
        return time.time_ns() // 1_000_000


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


def checked_commit_interval_ms(interval_ms: int | None, guarantee: ProcessingGuarantee) -> int:
    """Return the interval, by default that of the guarantee. Raises: TypeError, ConfigError."""
    if interval_ms is None:
        return COMMIT_INTERVAL_MS[guarantee]
    rule = "0 or more milliseconds, -1 for none, or None for the default"
    check_number("commit_interval_ms", interval_ms, rule, NO_INTERVAL, _INTERVAL_MS_MAX)
    return interval_ms


UNKNOWN_MS = -1


class StreamTime:
    """The stream time of a task: the highest timestamp of its input so far.

    It is committed with the offset of the input partition that had the latest record, so it is rolled back with that.
    The stream time of a task is the highest one that is committed for any of its partitions.

    Source: Kafka Streams, ``TopicPartitionMetadata``.
    """

    def __init__(self) -> None:
        self.ms = UNKNOWN_MS
        """The highest timestamp, -1 if there was none. The task sets it with each later record."""
        self.partition = TopicPartition("", -1)
        """The partition of that record."""

    def begin(self, times_ms: Mapping[TopicPartition, int], inputs: Iterable[TopicPartition]) -> None:
        """Return to the committed stream time."""
        times = ((times_ms[partition], partition) for partition in inputs if partition in times_ms)
        self.ms, self.partition = max(times, default=(UNKNOWN_MS, self.partition))

    def times_ms(self) -> dict[TopicPartition, int]:
        """The entry to commit with each commit of the offsets; empty if the stream time is unknown."""
        return {} if self.ms == UNKNOWN_MS else {self.partition: self.ms}


Punctuator = Callable[[int], None]
"""Called with the stream time, or the wall clock's, in milliseconds since the Unix epoch. It writes as the task's
function does, in the same transaction; an error in it rolls back everything since the task's last commit."""
NEVER_MS = 1 << 63


class PunctuationType(StrEnum):
    """The clock of a schedule. Source: KIP-138."""

    STREAM_TIME = "STREAM_TIME"
    """The highest timestamp of the input so far: it stands still while there is no input."""
    WALL_CLOCK_TIME = "WALL_CLOCK_TIME"
    """The system's time, checked after each record and while ``run`` waits for input."""


class Schedule:
    """Calls of one punctuator, until it is cancelled."""

    def __init__(self, interval: int, callback: Punctuator, due: int) -> None:
        self.interval, self.callback = interval, callback
        self.due = due
        """The time of the next call: milliseconds of stream time, or nanoseconds of the monotonic clock."""
        self.cancelled = False

    def cancel(self) -> None:
        """End the calls. May be called more than once. The next call of ``init`` may make the schedule again."""
        self.cancelled = True

    def pass_by(self, now: int) -> None:
        """Set the next due time after ``now``, in whole intervals; missed calls are skipped."""
        self.due += (now - self.due) // self.interval * self.interval + self.interval


class Punctuation:
    """The schedules of one task: calls of a user's function, by stream time or by wall clock. For one thread.

    A task must have the same schedules after a crash as before. So all of them are made in the task's ``init``, which
    is called again after each rollback. A schedule by stream time is due at multiples of its interval, so its next call
    follows from the stream time alone. The stream time is committed with the input's offsets: a call is repeated if its
    effects were rolled back, and is not repeated if they were committed.

    Source: KIP-138; Kafka Streams, ``PunctuationSchedule``. Kafka starts over after a restart, with a call at the first
    record.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stream: list[Schedule] = []
        self._wall: list[Schedule] = []
        self._stream_time_ms = -1
        self._is_open = False
        self.stream_due_ms = NEVER_MS
        """The stream time at which a schedule is due."""
        self.wall_due_ns = NEVER_NS
        """The time at which a schedule by wall clock is due, by ``Clock.monotonic_ns``."""

    def begin(self, stream_time_ms: int, init: Callable[[], None]) -> None:
        """Replace all schedules by those that ``init`` makes; the stream time is -1 if unknown."""
        self._stream, self._wall = [], []
        self._stream_time_ms = stream_time_ms
        self._is_open = True
        try:
            init()
        finally:
            self._is_open = False
        self._plan()

    def schedule(self, interval_ms: int, kind: PunctuationType, callback: Punctuator) -> Schedule:
        """Add a schedule: see ``TaskContext.schedule``."""
        if not self._is_open:
            raise StoreError(
                "a schedule can only be created in the task's init function, which is called again after a crash: "
                "create it there, and let the punctuator return at once until it is needed"
            )
        check_number("an interval", interval_ms, "1 or more milliseconds", 1, _INTERVAL_MS_MAX)
        check_type(kind, PunctuationType, "the kind of a schedule is a PunctuationType")
        if not callable(callback):
            raise TypeError(f"a punctuator is a function of a timestamp, not {type(callback).__name__}")
        if kind is PunctuationType.STREAM_TIME:
            due = (self._stream_time_ms // interval_ms + 1) * interval_ms if self._stream_time_ms >= 0 else 0
            schedule = Schedule(interval_ms, callback, due)
            self._stream.append(schedule)
        else:
            interval_ns = interval_ms * 1_000_000
            schedule = Schedule(interval_ns, callback, self._clock.monotonic_ns() + interval_ns)
            self._wall.append(schedule)
        return schedule

    def fire_stream(self, stream_time_ms: int, call: Callable[[Punctuator, int], None]) -> None:
        """Call each schedule that is due by stream time, once, even if several of its intervals have passed."""
        self._fire(self._stream, stream_time_ms, stream_time_ms, call)

    def fire_wall(self, call: Callable[[Punctuator, int], None]) -> None:
        """Call each schedule that is due by wall clock, once."""
        self._fire(self._wall, self._clock.monotonic_ns(), self._clock.epoch_ms(), call)

    def _fire(
        self, schedules: list[Schedule], now: int, timestamp_ms: int, call: Callable[[Punctuator, int], None]
    ) -> None:
        for schedule in sorted((schedule for schedule in schedules if schedule.due <= now), key=lambda each: each.due):
            if not schedule.cancelled:
                schedule.pass_by(now)
                call(schedule.callback, timestamp_ms)
        schedules[:] = [schedule for schedule in schedules if not schedule.cancelled]
        self._plan()

    def _plan(self) -> None:
        self.stream_due_ms = min((schedule.due for schedule in self._stream), default=NEVER_MS)
        self.wall_due_ns = min((schedule.due for schedule in self._wall), default=NEVER_NS)


class Timing:
    """The commit interval, the schedules and the stream time of one task, and when the first of them is due."""

    def __init__(self, interval_ms: int, clock: Clock) -> None:
        self.clock = clock
        self.interval = CommitInterval(interval_ms, clock)
        self.punctuation = Punctuation(clock)
        self.stream_time = StreamTime()
        self.now_ns = clock.monotonic_ns
        self.due_ns = NEVER_NS
        """When the next commit or punctuator by wall clock is due, by ``now_ns``."""

    def begin(
        self, committed_ms: Mapping[TopicPartition, int], inputs: Iterable[TopicPartition], init: Callable[[], None]
    ) -> None:
        """Return to the committed stream time, and make the schedules again with ``init``."""
        self.stream_time.begin(committed_ms, inputs)
        self.punctuation.begin(self.stream_time.ms, init)
        self.plan()

    def begin_interval(self) -> None:
        """Restart the commit interval."""
        self.interval.begin()
        self.plan()

    def plan(self) -> None:
        """Update ``due_ns``."""
        self.due_ns = min(self.interval.due_ns, self.punctuation.wall_due_ns)


TASK_TIMEOUT_S = 300.0
"""Source: KIP-572, default of ``task.timeout.ms``."""
PAUSE_S = 0.1
"""The pause between two attempts. Source: Kafka, default of ``retry.backoff.ms``."""

_log = logging.getLogger(__name__)


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
