"""The progress of a run on the terminal: a line from time to time, with the time since the start."""

from __future__ import annotations

import sys
import time
from typing import TextIO

LINE_EVERY_S = 5.0


class Progress:
    """Prints lines to standard error, but rarely, because printing takes time from the measurements."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._begun = time.monotonic()
        self._told = float("-inf")
        self._stage = ""

    @property
    def seconds(self) -> float:
        """The seconds since this was created."""
        return time.monotonic() - self._begun

    def stage(self, name: str) -> None:
        """Begin the stage ``name``, which the next lines are about."""
        self._stage = name
        self._print("begins")

    def say(self, line: str) -> None:
        """Print ``line``, unless another line was printed less than ``LINE_EVERY_S`` ago."""
        if time.monotonic() - self._told >= LINE_EVERY_S:
            self._print(line)

    def _print(self, line: str) -> None:
        self._told = time.monotonic()
        print(f"{self.seconds:5.0f} s  {self._stage}: {line}", file=self._stream, flush=True)
