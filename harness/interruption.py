"""Interruptions of a command: SIGTERM (``kill``, ``timeout``) does what Ctrl-C does, but has a status of its own."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
_terminated = threading.Event()


def interruption_status() -> int:
    """Return the exit status of a command that a KeyboardInterrupt has ended: 130, or 143 after SIGTERM."""
    return TERMINATED if _terminated.is_set() else INTERRUPTED


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C in a ``with`` block, by the handler that is then set for it: Spark has its own.

    Where Ctrl-C is ignored, as in what a shell starts in the background, it raises KeyboardInterrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _terminated.clear()


def _terminate(number: int, frame: FrameType | None) -> None:
    _terminated.set()
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)
