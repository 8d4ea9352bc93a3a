"""A process that works until it is killed. What it has come to, it writes into a file, or somebody else sees it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil

from harness.budget import check_time
from harness.processes.child import (
    ARGUMENTS_FILE,
    FIGURES_FILE,
    MeasurementFailedError,
    end,
    last_complaint,
    python,
    read_figures,
    start,
    write_figures,
)


class LastingProcess:
    """A process whose figures are in ``folder``. A ``with`` block starts it, and kills it with all below it at the end.

    ``name`` is for errors. It may be started again.
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


def command_of(work: str, arguments: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the command of a function, ``module:function``, that gets the arguments and the ``folder``."""
    write_figures(folder / ARGUMENTS_FILE, dict(arguments))
    return python("harness.processes.apart", work, str(folder))
