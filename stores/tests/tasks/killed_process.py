"""A process that calls a test's function with a folder, and is killed with SIGKILL when it reaches a failpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stores.tests.forked_call import kill_at, was_killed


def call_until_killed(call: Callable[[Path], object], folder: Path, failpoint: str, hit: int = 1) -> bool:
    """Call ``call``, a function of a module, in another process until it is killed at its ``hit``-th ``failpoint``.

    Returns whether it was: False where the call has ended before.
    """
    return was_killed(_call, call, folder, failpoint, hit)


def _call(call: Callable[[Path], object], folder: Path, failpoint: str, hit: int) -> None:
    kill_at(failpoint, hit)
    call(folder)
