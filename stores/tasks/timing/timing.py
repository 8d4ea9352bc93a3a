"""The timing of a task: its commit interval, its punctuators, and the stream time of its input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from stores.interface import TopicPartition
from stores.tasks.timing.clock import NEVER_NS, Clock
from stores.tasks.timing.commit_interval import CommitInterval
from stores.tasks.timing.punctuation import Punctuation
from stores.tasks.timing.stream_time import StreamTime


class Timing:
    """The commit interval, the schedules and the stream time of one task, and when the first of them is due."""

    def __init__(self, application_id: str, interval_ms: int, clock: Clock) -> None:
        self.clock = clock
        self.interval = CommitInterval(interval_ms, clock)
        self.punctuation = Punctuation(clock)
        self.stream_time = StreamTime(application_id)
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
