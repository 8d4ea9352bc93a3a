"""A process of a trial, from outside: started with a clean environment, killed at its deadline, always waited for.

From inside: it ends when the process that started it is gone.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import harness
from harness.processes.fork_server import ForkServer
from harness.processes.time_over import check_time, seconds_for

ORPHANED = 86
"""The exit status of a process whose starter has died."""
_SIGNAL_WITH_STARTER = 1
"""PR_SET_PDEATHSIG of the kernel."""
_NAMED_ERROR = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b")


class Ending(NamedTuple):
    """The end of a process: its status (negative for a signal, None at its deadline), and its last complaint."""

    status: int | None
    complaint: str = ""


def run_child(module: str, arguments: list[str], work: Path, deadline_s: float, code: str | None = None) -> Ending:
    """Run ``python -m module`` in the folder ``work`` until it ends; kill it at the deadline.

    ``code`` is its PYTHONPATH; None is that of this process.
    """
    return run_program(
        [sys.executable, "-P", "-m", module, *arguments], work, deadline_s, child_environment(code, work)
    )


def run_program(command: list[str], work: Path, deadline_s: float, environment: Mapping[str, str]) -> Ending:
    """Run a command in the folder ``work`` until it ends; kill it at the deadline.

    Its standard input ends with this process. Raises: TimeOverError, see ``ended_by``.
    """
    complaints = work / "complaints"
    with complaints.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            cwd=work,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
        try:
            status: int | None = process.wait(seconds_for(deadline_s))
        except subprocess.TimeoutExpired:
            check_time()
            status = None
        finally:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
    return Ending(status, complaint_in(complaints.read_text(errors="replace")).replace(str(work), "WORK"))


def run_forked(fork_server: ForkServer, module: str, number: int, work: Path, deadline_s: float) -> Ending:
    """Run a process of a trial as ``run_child`` does, but in a child of the fork server.

    Raises: ForkServerError if the fork server has failed.
    """
    arguments = {"module": module, "number": number, "work": str(work)}
    outcome = fork_server.run(f"{__name__}:work_in", arguments, deadline_s=deadline_s)
    status = None if outcome.timed_out else outcome.status if outcome.signal is None else -outcome.signal
    return Ending(status, (outcome.error or complaint_in(outcome.complaint)).replace(str(work), "WORK"))


def work_in(module: str, number: int, work: str) -> None:
    """Do the work of ``module`` in a forked process. Its working and temporary folder is ``work``."""
    os.chdir(work)
    tempfile.tempdir = work
    import_module(module).work(number)


def end_with_starter() -> None:
    """End this process when its standard input ends, because its starter has died then."""

    def watch() -> None:
        while os.read(0, 64):
            pass
        os._exit(ORPHANED)

    threading.Thread(target=watch, name="starter-watch", daemon=True).start()


def killed_with_starter() -> None:
    """Have the kernel kill this process when the thread that started it ends, also while this process is stopped.

    A stopped process does not see the end of its standard input. Only Linux can do this. Source: prctl(2).
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SIGNAL_WITH_STARTER, signal.SIGKILL)


def complaint_in(text: str) -> str:
    """Return the line that names the error, if there is one; lines after it are notes."""
    lines = text.strip().splitlines()
    named = [line for line in lines if _NAMED_ERROR.match(line)]
    return (named or lines or [""])[-1]


def child_environment(code: str | None, work: Path) -> dict[str, str]:
    """Return the environment of a process of a trial, whose temporary folder is ``work``."""
    # Pass only those variables that the interpreter may need to start.
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT") if name in os.environ}
    path = code or str(Path(harness.__file__).parents[1])
    return kept | {"PYTHONPATH": path, "TMPDIR": str(work), "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
