"""Notes that processes of a trial leave for each other: small files in one folder."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

_POLL_S = 0.05
WAIT_S = 120.0


class Notes:
    """The notes of a trial, below its ``folder``. Processes on one machine share them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "notes"
        self._folder.mkdir(parents=True, exist_ok=True)

    def once(self, name: str) -> bool:
        """Leave the note ``name``. Return False if it was there: some process was first."""
        try:
            os.close(os.open(self._folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    def has(self, name: str) -> bool:
        """Return True if the note ``name`` was left."""
        return (self._folder / name).exists()

    def wait(self, name: str) -> bool:
        """Wait for the note ``name``. Return False if it does not come within ``WAIT_S`` seconds."""
        deadline = time.monotonic() + WAIT_S
        while not self.has(name):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def number(self, beginning: str) -> int:
        """Return how many notes have names with this beginning."""
        return sum(file.name.startswith(beginning) for file in self._folder.iterdir())

    def add(self, kind: str, facts: dict[str, Any]) -> None:
        """Add facts to those of a kind, as one line."""
        line = json.dumps({"at": time.time_ns(), "pid": os.getpid(), **facts}) + "\n"
        descriptor = os.open(self._folder / f"{kind}.lines", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Return the facts of a kind, in the order in which they were added."""
        file = self._folder / f"{kind}.lines"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
