"""The progress of a run on the terminal: a line from time to time, with the time since the start."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from harness.budget import NEVER, Deadline

LINE_EVERY_S = 5.0


class Progress:
    """Prints lines to standard error, but rarely, because printing takes time from the measurements.

    ``stages`` are all stages, in order: a line says which one of how many it is about. If ``end`` is a moment, a line
    also says how much time remains until then.
    """

    def __init__(self, stages: Sequence[str] = (), end: Deadline = NEVER, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._begun = time.monotonic()
        self._told = float("-inf")
        self._stages = stages
        self._end = end
        self._number = 0
        self._step = ""
        self._kept = ""

    @property
    def seconds(self) -> float:
        """The seconds since this was created."""
        return time.monotonic() - self._begun

    def stage(self, name: str) -> None:
        """Begin the stage ``name``, the next one of all, which the next lines are about."""
        self._number += 1
        self._begin(f"{name} (stage {self._number} of {len(self._stages)})" if self._stages else name)

    def step(self, name: str) -> None:
        """Begin something that is no stage, such as the start of Spark."""
        self._begin(name)

    def say(self, line: str) -> None:
        """Print ``line``. If another one was printed less than ``LINE_EVERY_S`` ago, it is kept for ``end_stage``."""
        self._kept = line
        if time.monotonic() - self._told >= LINE_EVERY_S:
            self._print(line)

    def end_stage(self) -> None:
        """Print the last line that was given to ``say``, unless it was printed. The next stage does this, too."""
        if self._kept:
            self._print(self._kept)

    def _begin(self, name: str) -> None:
        self.end_stage()
        self._step = name
        self._print("begins")

    def _print(self, line: str) -> None:
        self._told, self._kept = time.monotonic(), ""
        left = f", {max(0.0, self._end.remaining_s):.0f} s left" if math.isfinite(self._end.at) else ""
        print(f"{self.seconds:5.0f} s{left}  {self._step}: {line}", file=self._stream, flush=True)
