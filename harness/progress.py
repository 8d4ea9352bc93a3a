"""The progress of a run on the terminal: a line from time to time, with the time since the start."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from harness.budget import NEVER, Deadline

LINE_EVERY_S = 5.0


class Progress:
    """Prints lines to standard error, but rarely, because printing takes time from the measurements.

    If ``end`` is a moment, a line also says how much time remains until then.
    """

    def __init__(self, end: Deadline = NEVER, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._begun = time.monotonic()
        self._told = float("-inf")
        self._end = end
        self._step = ""
        self._kept = ""

    @property
    def seconds(self) -> float:
        """The seconds since this was created."""
        return time.monotonic() - self._begun

    def stage(self, name: str) -> None:
        """Begin the stage ``name``, which the next lines are about."""
        self._begin(name)

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
        time_left = f", {max(0.0, self._end.remaining_s):.0f} s left" if math.isfinite(self._end.at) else ""
        print(f"{self.seconds:5.0f} s{time_left}  {self._step}: {line}", file=self._stream, flush=True)


POLL_S = 1.0


class ProgressFile:
    """Passes each line that is appended to the file ``path`` during a ``with`` block to ``say``."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.path = path
        self._say = say
        self._said = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self.path.touch()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._say_new()

    def _watch(self) -> None:
        while not self._ended.wait(POLL_S):
            self._say_new()

    def _say_new(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self._said)
            lines = file.read()
        complete = lines[: lines.rfind(b"\n") + 1]
        self._said += len(complete)
        for line in complete.decode().splitlines():
            self._say(line)


def note_progress(path: Path, line: str) -> None:
    """Append a line to the file of a ``ProgressFile``. Do nothing if that file is not on this machine."""
    if os.access(path, os.W_OK):
        with path.open("a") as file:
            file.write(line.replace("\n", " ") + "\n")
