"""The signals that end a worker: the first one in order, the second one immediately."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Signals:
    """Calls ``stop`` at the first SIGTERM or SIGINT in the block. The second one ends the process."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._first) for number in (signal.SIGTERM, signal.SIGINT)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _first(self, number: int, frame: FrameType | None) -> None:
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)
        # Not print(): the handler may interrupt one.
        os.write(2, b"The worker begins to end. A second signal ends it immediately.\n")
        self._stop()
