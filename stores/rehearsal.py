"""Opening a database that might never be open: tried first in a process of its own, under a deadline.

An engine that goes on for ever inside of a call can't be stopped from Python, nor by another thread; a process can.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from stores.directory import system_errors_told
from stores.engines.engine import Engine
from stores.errors import StoreCorruptedError

DEADLINE_S = 5
"""How long the process may take, and one second more for each ``BYTES_PER_S`` that lie in the engine's folder: it takes
0.3 s to start, and reads logs at ten times that pace where the machine has nothing else to do."""
BYTES_PER_S = 8 << 20

_PR_SET_PDEATHSIG = 1
"""Source: prctl(2)."""


def rehearse(engine: type[Engine], folder: Path, options: Mapping[str, object]) -> None:
    """See whether opening ``folder`` ends, where ``engine`` doubts it; else this costs a look at some files.

    Whatever the opening finds but hanging and dying is left to the caller's own.

    Raises: StoreCorruptedError where it does not end, or ends the process; StoreUnavailableError.
    """
    with system_errors_told(folder):
        if not engine.is_doubtful(folder):
            return
        size = sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())
        told = json.dumps(
            {
                "parent": os.getpid(),
                "engine": [engine.__module__, engine.__qualname__],
                "folder": str(folder),
                "options": dict(options),
                "deadline_s": DEADLINE_S + size // BYTES_PER_S,
            }
        )
        # Packages that only this process has on its path must be found there as well.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        status = subprocess.run(
            [sys.executable, "-m", __name__],
            input=told.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            check=False,
        ).returncode
    if status < 0:
        reason = "does not end" if status == -signal.SIGALRM else f"ends the process ({signal.Signals(-status).name})"
        raise StoreCorruptedError(
            f"{folder} is damaged, opening it {reason}: wipe the store and restore it from its changelog"
        )


def _main() -> None:
    told = json.load(sys.stdin)
    # The kernel's own doing, both: while an engine is busy no Python runs here.
    signal.alarm(told["deadline_s"])
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != told["parent"]:
        return
    module, name = told["engine"]
    engine: type[Engine] = getattr(importlib.import_module(module), name)
    engine.rehearse(Path(told["folder"]), told["options"])


if __name__ == "__main__":
    _main()
