"""The open probe: open a doubtful database in a process of its own first, under a deadline.

An engine that hangs inside a call cannot be stopped from Python, nor by another thread. A process can be killed.
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
from stores.files.plain_files import translated_system_errors

DEADLINE_S = 5
"""The seconds that the process may take, and one more for each ``BYTES_PER_S`` in the engine's folder. It takes 0.3 s
to start, and reads a WAL ten times as fast on an idle machine."""
BYTES_PER_S = 8 << 20

_PR_SET_PDEATHSIG = 1
"""Source: prctl(2)."""

_PROGRAM = """
import json, site, sys
request = json.load(sys.stdin)
installed = {*site.getsitepackages(), site.getusersitepackages()}
sys.path[:] = dict.fromkeys([*(entry for entry in sys.path if entry not in installed), *request.pop("path")])
from stores.files.open_probe import open_in_probe
open_in_probe(**request)
"""
"""The program of the process, in Python's isolated mode: working folder and environment add nothing to its path.

The standard library stays first; then come the entries of this process's own path, in their order: what only this
process has on its path must be found there as well. Nothing in them can stand for a module of the standard library.
"""


def probe_open(engine: type[Engine], folder: Path, options: Mapping[str, object]) -> None:
    """Open ``folder`` in another process if ``engine`` doubts that opening ends; else only look at some files.

    Only hangs and crashes are reported here. The caller's own opening reports all other errors.

    Raises: StoreCorruptedError if opening hangs, or ends the process; StoreUnavailableError.
    """
    with translated_system_errors(folder):
        if not engine.is_doubtful(folder):
            return
        size = sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())
        request = json.dumps(
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
            input=request.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        ).returncode
    if status < 0:
        reason = "does not end" if status == -signal.SIGALRM else f"ends the process ({signal.Signals(-status).name})"
        raise StoreCorruptedError(
            f"{folder} is damaged, opening it {reason}: wipe the store and restore it from its changelog"
        )


def open_in_probe(
    parent: int, engine: Sequence[str], folder: str, options: Mapping[str, object], deadline_s: int
) -> None:
    """Open the database in this process, which was started for it and ends with ``parent``, or at the deadline."""
    # The kernel's own doing, both: while an engine is busy no Python runs here.
    signal.alarm(deadline_s)
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    module, name = engine
    kind: type[Engine] = getattr(importlib.import_module(module), name)
    kind.probe_open(Path(folder), options)
