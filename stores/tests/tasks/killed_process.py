"""A process that calls a test's function with a folder, and is killed with SIGKILL when it reaches a failpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from stores import failpoints


def call_until_killed(call: Callable[[Path], object], folder: Path, failpoint: str, hit: int = 1) -> bool:
    """Call ``call``, a function of a module, in another process until it is killed at its ``hit``-th ``failpoint``.

    Returns whether it was: False where the call has ended before.
    """
    arguments = [call.__module__, call.__name__, str(folder), failpoint, str(hit)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(
        [sys.executable, "-m", __name__, *arguments],
        env=environment,
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return ended.returncode != 0


def main() -> None:
    module, name, folder, failpoint, hit = sys.argv[1:]
    call = getattr(import_module(module), name)
    left = int(hit)

    def die() -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.arm(failpoint, die)
    call(Path(folder))


if __name__ == "__main__":
    main()
