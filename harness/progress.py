"""What a run tells on the terminal while it goes on: a line now and then, with the time since it began."""

from __future__ import annotations

import sys
import time
from typing import TextIO

LINE_EVERY_S = 5.0


class Progress:
    """Lines on standard error. Rarely: whoever prints takes time from what is measured beside it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._begun = time.monotonic()
        self._told = float("-inf")
        self._stage = ""

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return time.monotonic() - self._begun

    def stage(self, name: str) -> None:
        """From now on lines are about ``name``."""
        self._stage = name
        self._print("begins")

    def say(self, line: str) -> None:
        """Print ``line``, unless another was printed a moment ago."""
        if time.monotonic() - self._told >= LINE_EVERY_S:
            self._print(line)

    def _print(self, line: str) -> None:
        self._told = time.monotonic()
        print(f"{self.seconds:5.0f} s  {self._stage}: {line}", file=self._stream, flush=True)
