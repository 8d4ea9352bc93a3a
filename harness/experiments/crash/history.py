"""The history of a trial's process: one JSON object per line, in the order of the events.

Each process writes its own file. A line is one ``write`` to a file opened for appending. So a kill leaves complete
lines, and at worst a torn last one, which the reader drops.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Event = dict[str, Any]


class History:
    """An open history. Events are never buffered: a noted event survives the process."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def note(self, event: str, **details: Any) -> None:
        """Append one event; ``details`` are JSON values."""
        line = json.dumps({"event": event, **details}, separators=(",", ":")).encode() + b"\n"
        written = os.write(self._descriptor, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes of an event were written")

    def close(self) -> None:
        """Close the file. May be called more than once."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_history(path: Path) -> list[Event]:
    """Return the events of ``path`` in order; none if the file does not exist. A torn last line is dropped.

    Raises: ValueError if a line before the last one is not a JSON object.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    events = []
    for line in lines[:-1]:
        event = json.loads(line)
        if not isinstance(event, dict):
            raise ValueError(f"{path.name}: a line is no object")
        events.append(event)
    return events
