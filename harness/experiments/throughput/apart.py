"""A measurement in its own process. Its arguments and its figures are files in one folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.experiments.throughput.job import read_figures, write_figures
from harness.experiments.throughput.run import figures_of
from harness.folders import temporary_folder
from harness.processes.child import end_with_starter

_ARGUMENTS_FILE, _FIGURES_FILE = "arguments", "figures"


def figures_apart(module: str, kind: str, arguments: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
    """Run ``module``, whose ``main`` calls ``measure``, in its own process, and return its figures.

    It works in a temporary folder for this ``kind`` of work. Raises: MeasurementFailedError.
    """
    with temporary_folder(kind) as folder:
        write_figures(folder / _ARGUMENTS_FILE, dict(arguments))
        return figures_of(module, [str(folder)], folder=folder, deadline_s=deadline_s, status=0, file=_FIGURES_FILE)


def measure(work: Callable[..., dict[str, Any]]) -> None:
    """Call ``work`` in that process with the arguments and the ``folder``, and write the figures that it returns."""
    end_with_starter()
    folder = Path(sys.argv[1])
    write_figures(folder / _FIGURES_FILE, work(**read_figures(folder / _ARGUMENTS_FILE), folder=folder))
