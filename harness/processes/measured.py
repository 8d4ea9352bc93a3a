"""A measurement in its own process. Its arguments and its figures are files in one folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.folders import temporary_folder
from harness.processes.child import Ending, end_with_starter, run_child

ARGUMENTS_FILE, FIGURES_FILE = "arguments", "figures"


class MeasurementFailedError(Exception):
    """A process of a measurement failed. The message names the process and its last complaint."""


def figures_apart(
    module: str,
    kind: str,
    arguments: Mapping[str, Any],
    deadline_s: float,
    prepare: Callable[[Path], object] = lambda _: None,
) -> dict[str, Any]:
    """Run ``module``, whose ``main`` calls ``measure``, in its own process, and return its figures.

    It works in a temporary folder for this ``kind`` of work, with what ``prepare`` puts there. Raises:
    MeasurementFailedError.
    """
    with temporary_folder(kind) as folder:
        prepare(folder)
        write_figures(folder / ARGUMENTS_FILE, dict(arguments))
        return figures_of(module, [str(folder)], folder=folder, deadline_s=deadline_s, status=0, file=FIGURES_FILE)


def measure(work: Callable[..., dict[str, Any]]) -> None:
    """Call ``work`` in that process with the arguments and the ``folder``, and write the figures that it returns."""
    end_with_starter()
    folder = Path(sys.argv[1])
    write_figures(folder / FIGURES_FILE, work(**read_figures(folder / ARGUMENTS_FILE), folder=folder))


def figures_of(
    module: str,
    arguments: list[str],
    *,
    folder: Path,
    deadline_s: float,
    status: int,
    file: str | None,
    code: str | None = None,
) -> dict[str, Any]:
    """Run a process that must end with ``status``, and return the figures that it writes to ``file``, if any.

    Raises: MeasurementFailedError.
    """
    ending = run_child(module, arguments, folder, deadline_s, code)
    what = " ".join([module, *arguments[:-1]])
    return figures_after(ending, what, None if file is None else folder / file, deadline_s, status)


def figures_after(ending: Ending, what: str, file: Path | None, deadline_s: float, status: int = 0) -> dict[str, Any]:
    """Return the figures that a process has written to ``file``, if any; it must have ended with ``status``.

    ``what`` names the process in an error. Raises: MeasurementFailedError.
    """
    if ending.status != status or not (file is None or file.exists()):
        raise MeasurementFailedError(f"{what} {_how(ending, deadline_s)}")
    return {} if file is None else read_figures(file)


def write_figures(path: Path, figures: dict[str, Any]) -> None:
    """Write a process's figures for the process that started it."""
    path.write_text(json.dumps(figures))


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
