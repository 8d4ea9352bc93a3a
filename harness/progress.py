"""The progress of a run on the terminal: a line from time to time, with the time since the start."""

from __future__ import annotations

import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from harness.budget import NEVER, Deadline

LINE_EVERY_S = 20.0
"""A stage has a line when it ends, and one after so many seconds: printing takes time from the measurements."""
REDRAW_EVERY_S = 2.0
"""On a terminal the line of a stage is drawn again after so many seconds."""


class Progress:
    """Prints a line for each stage to standard error: the time so far, the time left, and what was found last.

    On a terminal the line is drawn again while the stage runs; elsewhere further lines follow from time to time. The
    time left is that until ``end``, if that is a moment.
    """

    def __init__(self, end: Deadline = NEVER, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._redraws = self._stream.isatty()
        self._begun = time.monotonic()
        self._told = float("-inf")
        self._end = end
        self._step = ""
        self._said = ""
        self._is_open = False

    @property
    def seconds(self) -> float:
        """The seconds since this was created."""
        return time.monotonic() - self._begun

    def stage(self, name: str) -> None:
        """End the stage before, and begin ``name``: the next lines are about it."""
        self.end_stage()
        self._step, self._said, self._is_open = name, "", True
        self._told = time.monotonic()
        if self._redraws:
            self._print("...")

    def say(self, line: str) -> None:
        """Take ``line`` for what the stage has found last, and print it if it is time to."""
        self._said = line
        if time.monotonic() - self._told >= (REDRAW_EVERY_S if self._redraws else LINE_EVERY_S):
            self._print(line)

    def end_stage(self) -> None:
        """Print the last line of the stage. The next stage does this, too."""
        if self._is_open and (self._said or self._redraws):
            self._print(self._said or "done")
        if self._is_open and self._redraws:
            print(file=self._stream, flush=True)
        self._is_open, self._said = False, ""

    def _print(self, line: str) -> None:
        self._told = time.monotonic()
        time_left = f", {max(0.0, self._end.remaining_s):.0f} s left" if math.isfinite(self._end.at) else ""
        text = f"{self.seconds:5.0f} s{time_left}  {self._step}: {line}"
        if self._redraws:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{_CLEAR}{text[:width]}", end="", file=self._stream, flush=True)
        else:
            self._said = ""
            print(text, file=self._stream, flush=True)


_CLEAR = "\x1b[K"
"""Clears the rest of a line of a terminal. Source: ECMA-48, "EL"."""


POLL_S = 1.0
PROGRESS_FILE = "progress"
"""The name of a ``ProgressFile`` in the folder of a measurement."""


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
