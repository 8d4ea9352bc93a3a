"""The moment at which a fault strikes, as the process of a trial sees it: it dies, or waits for what its starter does.

A process that waits makes the file ``reached-N``, and continues when the file ``go-N`` is there. N counts how often it
was at its place.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from stores import failpoints

INSIDE = "inside a transaction"
"""The place between two records of a transaction: the function of the task reaches it, and no failpoint is there."""
NOTED, STATUS = "noted", "status"
"""The files in which a task notes errors that pass, and a worker its status."""
DIE, WAIT, WAIT_EACH = "die", "wait", "wait each"
"""The acts: die at the ``hit``-th time, wait at that time, or wait at that time and at each later one."""
POLL_S = 0.02


def reached_file(count: int) -> str:
    """Return the name of the file that says that the process waits."""
    return f"reached-{count}"


def go_file(count: int) -> str:
    """Return the name of the file for which it waits."""
    return f"go-{count}"


def die() -> None:
    """End this process like a crash."""
    os.kill(os.getpid(), signal.SIGKILL)


class Moment:
    """Acts when the process is at its place for the ``hit``-th time; never for an empty place."""

    def __init__(self, place: str, hit: int, act: str, folder: Path) -> None:
        self._place, self._hit, self._act, self._folder = place, hit, act, folder
        self._count = 0
        if place and place != INSIDE:
            failpoints.arm(place, self._come)

    def inside(self) -> None:
        """Say that the process is between two records of a transaction."""
        if self._place == INSIDE:
            self._come()

    def _come(self) -> None:
        self._count += 1
        if self._count < self._hit or (self._count > self._hit and self._act != WAIT_EACH):
            return
        if self._act == DIE:
            die()
        (self._folder / reached_file(self._count)).touch()
        while not (self._folder / go_file(self._count)).exists():
            time.sleep(POLL_S)
