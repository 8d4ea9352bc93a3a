"""A process of a trial, from outside: started with a clean environment, killed at its deadline, always waited for.

From inside: it ends when the process that started it is gone.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self

import harness
from harness.budget import check_time, seconds_for
from harness.folders import temporary_folder
from harness.processes.fork_server import ForkServer, ForkServerError, fork_server

COMPLAINTS_FILE = "complaints"
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
    return run_program(python(module, *arguments), work, deadline_s, child_environment(code, work))


def python(module: str, *arguments: str) -> list[str]:
    """Return the command ``python -m module`` with this interpreter."""
    return [sys.executable, "-P", "-m", module, *arguments]


def start(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], *, leads_session: bool = False
) -> subprocess.Popen[bytes]:
    """Start a command in ``folder``, where the file ``complaints`` gets what it writes to its standard error.

    Its standard input ends with this process, or with ``end``.
    """
    with (folder / COMPLAINTS_FILE).open("wb") as complaints:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            start_new_session=leads_session,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that ``start`` has started, if it runs, and wait for its end."""
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def run_program(command: list[str], work: Path, deadline_s: float, environment: Mapping[str, str]) -> Ending:
    """Run a command in the folder ``work`` until it ends; kill it at the deadline.

    Its standard input ends with this process. Raises: TimeOverError, see ``ended_by``.
    """
    process = start(command, work, environment)
    try:
        status: int | None = process.wait(seconds_for(deadline_s))
    except subprocess.TimeoutExpired:
        check_time()
        status = None
    finally:
        end(process)
    return Ending(status, last_complaint(work).replace(str(work), "WORK"))


def run_forked(fork_server: ForkServer, module: str, number: int, work: Path, deadline_s: float) -> Ending:
    """Run a process of a trial as ``run_child`` does, but in a child of the fork server.

    Raises: ForkServerError if the fork server has failed.
    """
    arguments = {"module": module, "number": number, "work": str(work)}
    return _forked(fork_server, "work_in", arguments, work, deadline_s)


def _forked(
    fork_server: ForkServer, function: str, arguments: Mapping[str, Any], work: Path, deadline_s: float
) -> Ending:
    outcome = fork_server.run(f"{__name__}:{function}", arguments, deadline_s=deadline_s)
    status = None if outcome.timed_out else outcome.status if outcome.signal is None else -outcome.signal
    return Ending(status, (outcome.error or complaint_in(outcome.complaint)).replace(str(work), "WORK"))


def work_in(module: str, number: int, work: str) -> None:
    """Do the work of ``module`` in a forked process. Its working and temporary folder is ``work``."""
    _live_in(work)
    import_module(module).work(number)


def call_in(name: str, folder: str) -> None:
    """Call a function, ``module:function``, in a forked process, as ``measure`` does in one that was started."""
    _live_in(folder)
    module, _, function = name.partition(":")
    _write_result(getattr(import_module(module), function), Path(folder))


def _live_in(folder: str) -> None:
    os.chdir(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = folder


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


def last_complaint(folder: Path) -> str:
    """Return the last complaint of the process that ``start`` has started in ``folder``."""
    return complaint_in((folder / COMPLAINTS_FILE).read_text(errors="replace"))


def complaint_in(text: str) -> str:
    """Return the line that names the error, if there is one; lines after it are notes."""
    lines = text.strip().splitlines()
    error_lines = [line for line in lines if _NAMED_ERROR.match(line)]
    return (error_lines or lines or [""])[-1]


def child_environment(code: str | None, work: Path) -> dict[str, str]:
    """Return the environment of a process of a trial, whose temporary folder is ``work``."""
    # Pass only those variables that the interpreter may need to start.
    variables = {
        name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "JAVA_HOME") if name in os.environ
    }
    path = code or str(Path(harness.__file__).parents[1])
    return variables | {
        "PYTHONPATH": path,
        "TMPDIR": str(work),
        "PYTHONHASHSEED": "0",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }


ARGUMENTS_FILE, FIGURES_FILE = "arguments", "figures"


class MeasurementFailedError(Exception):
    """A process of a measurement failed. The message names the process and its last complaint."""


Work = Callable[..., dict[str, Any]] | str
"""A function, or its name as ``module:function``, which returns figures that JSON can hold."""


def figures_apart(
    work: Work,
    kind: str,
    arguments: Mapping[str, Any],
    deadline_s: float,
    prepare: Callable[[Path], object] = lambda _: None,
) -> dict[str, Any]:
    """Call ``work`` in its own process, and return its figures; see ``figures_in``.

    It works in a temporary folder for this ``kind`` of work, with what ``prepare`` puts there. Raises:
    MeasurementFailedError.
    """
    with temporary_folder(kind) as folder:
        prepare(folder)
        return figures_in(folder, work, arguments, deadline_s)


def figures_in(
    folder: Path,
    work: Work,
    arguments: Mapping[str, Any],
    deadline_s: float,
    *,
    code: str | None = None,
    group: Path | None = None,
    killed: bool = False,
    fork_server: ForkServer | None = None,
) -> dict[str, Any]:
    """Call ``work`` in its own process with the arguments and the ``folder``, and return its figures.

    ``group`` is a cgroup that the process enters (``harness.processes.apart``). One that is to be ``killed``
    ends by ``die_with``. With a ``fork_server`` it is a child of that, which has the import path. Raises:
    MeasurementFailedError.
    """
    name = work if isinstance(work, str) else f"{work.__module__}:{work.__name__}"
    (folder / FIGURES_FILE).unlink(missing_ok=True)
    command = command_of(name, arguments, folder, group)
    if fork_server is None:
        ending = run_program(command, folder, deadline_s, child_environment(code, folder))
    else:
        ending = _called(fork_server, name, folder, deadline_s)
    return figures_after(ending, name, folder / FIGURES_FILE, deadline_s, -signal.SIGKILL if killed else 0)


def _called(fork_server: ForkServer, name: str, folder: Path, deadline_s: float) -> Ending:
    """Call a function in a child of the fork server. If that itself fails, replace it for the next call."""
    try:
        return _forked(fork_server, "call_in", {"name": name, "folder": str(folder)}, folder, deadline_s)
    except ForkServerError as error:
        fork_server.restart()
        raise MeasurementFailedError(f"{name}: {error}") from error


@contextmanager
def measured_processes(module: str, code: str | None) -> Iterator[ForkServer | None]:
    """Yield a fork server for processes that are measured, with ``code`` as their PYTHONPATH; see ``figures_in``.

    It has imported ``module``, which each of them needs, and no engine: each process imports its own, so the memory of
    processes can be compared. Its folder is on disk. numpy starts no thread. None where processes cannot be forked.
    """
    place = Path(tempfile.gettempdir())
    environment = child_environment(code, place) | {"OPENBLAS_NUM_THREADS": "1"}
    with fork_server(preload=False, within=place, environment=environment) as server:
        if server is not None:
            server.prepare(f"{__name__}:import_for_children", {"module": module})
        yield server


def import_for_children(module: str) -> None:
    """Import a module in a fork server, so that its children have it."""
    import_module(module)


def command_of(work: str, arguments: Mapping[str, Any], folder: Path, group: Path | None = None) -> list[str]:
    """Return the command of a function, ``module:function``, that gets the arguments and the ``folder``."""
    write_figures(folder / ARGUMENTS_FILE, dict(arguments))
    enter = [] if group is None else [str(group)]
    return python("harness.processes.apart", *enter, work, str(folder))


def measure(work: Callable[..., dict[str, Any]]) -> None:
    """Call ``work`` in that process with the arguments and the ``folder``, and write the figures that it returns."""
    end_with_starter()
    _write_result(work, Path(sys.argv[-1]))


def _write_result(work: Callable[..., dict[str, Any]], folder: Path) -> None:
    write_figures(folder / FIGURES_FILE, work(**read_figures(folder / ARGUMENTS_FILE), folder=folder))


def die_with(figures: dict[str, Any], folder: Path) -> NoReturn:
    """Write the figures of that process, and end it by SIGKILL, so that no cleanup runs."""
    write_figures(folder / FIGURES_FILE, figures)
    os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(1)


def figures_after(ending: Ending, what: str, file: Path, deadline_s: float, status: int = 0) -> dict[str, Any]:
    """Return the figures that a process has written to ``file``; it must have ended with ``status``.

    ``what`` names the process in an error. Raises: MeasurementFailedError.
    """
    if ending.status != status or not file.exists():
        raise MeasurementFailedError(f"{what} {_how(ending, deadline_s)}")
    return read_figures(file)


def write_figures(path: Path, figures: dict[str, Any]) -> None:
    """Write a process's figures for the process that started it. Once the file exists, it is whole."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(figures))
    part.replace(path)


def read_figures(path: Path) -> dict[str, Any]:
    """Return the figures that a process wrote. Raises: FileNotFoundError if it wrote none."""
    figures = json.loads(path.read_text())
    assert isinstance(figures, dict)
    return figures


def _how(ending: Ending, deadline_s: float) -> str:
    if ending.status is None:
        return f"did not end within {deadline_s:.0f} s"
    how = f"was killed by signal {-ending.status}" if ending.status < 0 else f"ended with status {ending.status}"
    return f"{how}: {ending.complaint}" if ending.complaint else how


class LastingProcess:
    """A process that works until it is killed. A ``with`` block starts it, and kills it with all below it at the end.

    Its figures are in ``folder``. ``name`` is for errors. It may be started again.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._name, self._command, self._folder, self._environment = name, command, folder, environment
        self._process: subprocess.Popen[bytes]
        self.started_at = 0.0

    def __enter__(self) -> Self:
        (self._folder / FIGURES_FILE).unlink(missing_ok=True)
        self.started_at = time.monotonic()
        self._process = start(self._command, self._folder, self._environment)
        return self

    def __exit__(self, *error: object) -> None:
        import psutil  # No measured process needs it.

        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(self._process.pid)
            for process in (own, *own.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        end(self._process)

    @property
    def pid(self) -> int:
        """The ID of the process, which runs."""
        return self._process.pid

    def await_figures(self, failing: str, deadline_s: float, pause_s: float) -> dict[str, Any]:
        """Wait until it has written its figures, and return them. Raises: as ``await_progress``."""
        file = self._folder / FIGURES_FILE
        self.await_progress(lambda: int(file.exists()), 1, failing, deadline_s, pause_s)
        return read_figures(file)

    def await_progress(
        self, reached: Callable[[], int], wanted: int, failing: str, stalled_s: float, pause_s: float
    ) -> None:
        """Wait until ``reached``, which is asked after each pause, is ``wanted`` or more.

        Raises: MeasurementFailedError if the process ends, or if nothing changes for ``stalled_s`` seconds;
        TimeOverError, see ``harness.budget``.
        """
        furthest, since = -1, time.monotonic()
        while (now := reached()) < wanted:
            check_time()
            if self._process.poll() is not None:
                complaint = last_complaint(self._folder)
                raise MeasurementFailedError(f"{self._name} ended with status {self._process.returncode}: {complaint}")
            if now > furthest:
                furthest, since = now, time.monotonic()
            elif time.monotonic() - since > stalled_s:
                raise MeasurementFailedError(f"{self._name} has {failing} for {stalled_s:.0f} s")
            time.sleep(pause_s)
