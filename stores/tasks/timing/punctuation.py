"""Calls of a user's function at intervals, by stream time or by wall clock.

A task must have the same schedules after a crash as before. So all of them are made in the task's ``init``, which is
called again after each rollback. A schedule by stream time is due at multiples of its interval, so its next call
follows from the stream time alone. The stream time is committed with the input's offsets: a call is repeated if its
effects were rolled back, and is not repeated if they were committed.

Source: KIP-138; Kafka Streams, ``PunctuationSchedule``. Kafka starts over after a restart, with a call at the first
record.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from stores.errors import ConfigError, StoreError
from stores.tasks.timing.clock import NEVER_NS, Clock

Punctuator = Callable[[int], None]
"""Called with the stream time, or the wall clock's, in milliseconds since the Unix epoch. It writes as the task's
function does, in the same transaction; an error in it rolls back everything since the task's last commit."""
_INTERVAL_MS_MAX = (1 << 63) - 1
_NEVER_MS = 1 << 63


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
    """The schedules of one task. For one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stream: list[Schedule] = []
        self._wall: list[Schedule] = []
        self._stream_time_ms = -1
        self._is_open = False
        self.stream_due_ms = _NEVER_MS
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
        if not isinstance(interval_ms, int) or isinstance(interval_ms, bool):
            raise TypeError(f"an interval is a number of milliseconds, not {type(interval_ms).__name__}")
        if not 1 <= interval_ms <= _INTERVAL_MS_MAX:
            raise ConfigError(f"an interval is 1 or more milliseconds, not {interval_ms}")
        if not isinstance(kind, PunctuationType):
            raise TypeError(f"a punctuation is of a PunctuationType, not {kind!r}")
        if not callable(callback):
            raise TypeError(f"a punctuator is a function of a timestamp, not {type(callback).__name__}")
        if kind is PunctuationType.STREAM_TIME:
            due = (self._stream_time_ms // interval_ms + 1) * interval_ms if self._stream_time_ms >= 0 else 0
            made = Schedule(interval_ms, callback, due)
            self._stream.append(made)
        else:
            interval_ns = interval_ms * 1_000_000
            made = Schedule(interval_ns, callback, self._clock.monotonic_ns() + interval_ns)
            self._wall.append(made)
        return made

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
        self.stream_due_ms = min((schedule.due for schedule in self._stream), default=_NEVER_MS)
        self.wall_due_ns = min((schedule.due for schedule in self._wall), default=NEVER_NS)
