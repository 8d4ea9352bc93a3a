"""Experiments that measure stores by themselves, in processes of their own before Spark starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from types import ModuleType
from typing import Any, TypeVar

from harness.experiment import Experiment, Row, TrialPlacement, TrialWorker
from harness.processes.child import figures_apart

T = TypeVar("T")


class StoresAlone(Experiment[T]):
    """Measurements of one stage of a bench. Each trial is one process of ``program``, unless ``run`` does otherwise."""

    title = "stores by themselves"
    stage = "store"
    placement = TrialPlacement.LOCAL
    program: ModuleType
    """A module whose ``measured`` returns the rows of the experiment's only kind."""

    def run(self, trial: Any, worker: TrialWorker) -> Iterable[Row]:
        """Return the rows of the process. Raises: MeasurementFailedError."""
        [kind] = self.columns
        found = figures_apart(self.program.measured, self.name, asdict(trial), self.program.DEADLINE_S)
        return [{"kind": kind, **row} for row in found["rows"]]
