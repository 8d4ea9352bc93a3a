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
from collections.abc import Mapping, Sequence
from pathlib import Path

from stores.engines.engine import Engine
from stores.errors import StoreCorruptedError
from stores.files import system_errors_told

DEADLINE_S = 5
"""How long the process may take, and one second more for each ``BYTES_PER_S`` that lie in the engine's folder: it takes
0.3 s to start, and reads logs at ten times that pace where the machine has nothing else to do."""
BYTES_PER_S = 8 << 20

_PR_SET_PDEATHSIG = 1
"""Source: prctl(2)."""

_PROGRAM = """
import json, site, sys
told = json.load(sys.stdin)
installed = {*site.getsitepackages(), site.getusersitepackages()}
sys.path[:] = dict.fromkeys([*(entry for entry in sys.path if entry not in installed), *told.pop("path")])
from stores.rehearsal import open_as_told
open_as_told(**told)
"""
"""What the process runs, in Python's isolated mode: neither the working folder nor the environment adds to its path.

The standard library stays first; then come the entries of this process's own path, in their order: what only this
process has on its path must be found there as well. Nothing in them can stand for a module of the standard library.
"""


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
                "path": [os.path.abspath(entry) for entry in sys.path],
                "parent": os.getpid(),
                "engine": [engine.__module__, engine.__qualname__],
                "folder": str(folder),
                "options": dict(options),
                "deadline_s": DEADLINE_S + size // BYTES_PER_S,
            }
        )
        status = subprocess.run(
            [sys.executable, "-I", "-c", _PROGRAM],
            input=told.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        ).returncode
    if status < 0:
        reason = "does not end" if status == -signal.SIGALRM else f"ends the process ({signal.Signals(-status).name})"
        raise StoreCorruptedError(
            f"{folder} is damaged, opening it {reason}: wipe the store and restore it from its changelog"
        )


def open_as_told(
    parent: int, engine: Sequence[str], folder: str, options: Mapping[str, object], deadline_s: int
) -> None:
    """Rehearse in this process, which was started for it and ends with ``parent``, or at the deadline."""
    # The kernel's own doing, both: while an engine is busy no Python runs here.
    signal.alarm(deadline_s)
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    module, name = engine
    kind: type[Engine] = getattr(importlib.import_module(module), name)
    kind.rehearse(Path(folder), options)
