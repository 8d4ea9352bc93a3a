"""The end of a run's time, for the processes of its trials: they are killed then, whatever they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from harness.budget import NEVER, Deadline

_END: ContextVar[Deadline] = ContextVar("end", default=NEVER)


TIME_OVER = "the time of the run was over"


class TimeOverError(Exception):
    """The time of a run was over, and a process of a trial was killed. The trial has no result, and counts as left out.

    It is no failure.
    """


@contextmanager
def ended_by(deadline: Deadline) -> Iterator[None]:
    """Kill the processes that this thread starts and waits for in the block at ``deadline``, with a TimeOverError."""
    token = _END.set(deadline)
    try:
        yield
    finally:
        _END.reset(token)


def seconds_for(deadline_s: float) -> float:
    """Return the seconds that a process may take: ``deadline_s``, or less if the time is over before that."""
    return min(deadline_s, max(0.0, _END.get().remaining_s))


def check_time() -> None:
    """Raise TimeOverError if the time is over."""
    if _END.get().passed:
        raise TimeOverError(TIME_OVER)
