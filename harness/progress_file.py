"""Progress of processes that must not be disturbed: they append lines to a file, and another process prints them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

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
