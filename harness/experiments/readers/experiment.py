"""The experiment that reads stores while they are written to, and checks every answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from harness.budget import NIGHT, SMOKE
from harness.experiment import Request, TrialPlacement, TrialWorker, check_counts
from harness.experiments.judged import JUDGED_COLUMNS, Judged
from harness.experiments.readers.run import COUNTS, ReadersTrial, examine
from harness.mutants import READER_TRIALS, fitting
from harness.report.rows import Row
from harness.report.text import LEVELS
from harness.scenario import Grid, cut_to, full_names, times
from harness.typed_maps import check_kind
from stores.registry import backend_named, backends, checked_durability

_METHOD = """\
Each trial is a process of its own: a writer commits random writes for some seconds, and readers on other threads look
keys up, scan ranges and hold iterators at both isolation levels. The writer records its history. A checker that shares
no code with the stores compares every answer with it. Mutants must be detected: there `anomaly` is expected.
"""


@dataclass(frozen=True, kw_only=True)
class ReadersGrid(Grid):
    """Readers at each level, beside a writer that commits and rolls back, see nothing that their level does not show.

    ``backends`` None means all; a durability level that one of them does not carry is left out for it. Each is read for
    about ``seconds``, by ``readers`` readers at each level, once for each of ``seeds``. Each of ``mutants`` is built
    into a backend with a strategy that it fits, and must be detected.
    """

    backends: tuple[str, ...] | None = None
    durabilities: tuple[str, ...] = ("CHANGELOG",)
    seconds: float = 2.0
    readers: int = 4

    sizes = MappingProxyType({SMOKE: {"seconds": cut_to(0.5)}, NIGHT: {"seconds": times(10)}})
    above_0 = ("seeds", "seconds", "readers")

    def trials(self, seed: int) -> list[ReadersTrial]:
        """Return a trial for each backend and level. Raises: ConfigError for an unknown backend."""
        return [
            ReadersTrial(name, durability, self.seconds, seed, self.readers)
            for name in full_names(self.backends)
            for durability in self.durabilities
            if durability in backend_named(name).durabilities
        ]

    def mutant_trials(self, mutant: str, seeds: range) -> list[ReadersTrial]:
        """Return a trial of the first backend that the mutant fits. Raises: ConfigError if it fits none."""
        first = fitting(mutant, [backend_named(name) for name in full_names(self.backends)])[0]
        level = sorted(first.durabilities)[0]
        return [ReadersTrial(first.name, level, 10 * self.seconds, seeds[0], self.readers, mutant)]


class Readers(Judged[ReadersTrial]):
    """One writer, and readers at each isolation level on other threads. Only a night has them."""

    name = "readers"
    title = "readers beside a writer"
    stage = "readers"
    claim = "readers beside a writer"
    trial = ReadersTrial
    grid = ReadersGrid
    placement = TrialPlacement.SPREAD
    share = 1
    kind = "isolation"
    named_by = ("backend", "durability")
    shown = {
        "backend": "backend",
        "level": "durability",
        "operations": "operations",
        "commits": "commits",
        "committed answers": "committed_answers",
        "uncommitted answers": "uncommitted_answers",
    }
    mutant_shown = ("backend", "durability")
    page_name = "isolation"
    page_title = "Isolation of readers"
    mutants_title = "Mutants of stores beside readers, which must be detected"
    shows = (
        "Readers on other threads ask a store while it is written, at both isolation levels.",
        "Every answer is compared with the history of the writer.",
    )
    counted = "trials of readers"
    method = _METHOD
    modules = ("stores.registry", "stores.records")
    columns = {
        "isolation": {
            **JUDGED_COLUMNS,
            **dict.fromkeys(("trial", "backend", "durability"), str),
            **dict.fromkeys(COUNTS, int),
        }
    }

    def plan(self, request: Request) -> list[ReadersTrial]:
        """Return a trial for each backend and level in a night, and one for each mutant; else none."""
        if request.profile != NIGHT:
            return []
        names = tuple(request.among(backends()))
        there = {backends()[name].strategy for name in names}
        mutants = tuple(name for name, by in READER_TRIALS.items() if by.strategy in there)
        grid = ReadersGrid(backends=names, durabilities=LEVELS, mutants=mutants, seeds=1)
        return self.oldest_first(grid.plan(request.seed), request.coverage)

    def read(self, text: str) -> ReadersTrial:
        """Return the trial. Raises: ConfigError, as of any experiment, and for an unknown level, kind or mutant."""
        trial = cast(ReadersTrial, super().read(text))
        backend = backend_named(trial.backend)
        checked_durability(backend, trial.durability)
        check_counts(readers=trial.readers, seconds=trial.seconds, kinds=len(trial.kinds))
        for kind in trial.kinds:
            check_kind(kind)
        fitting(trial.mutant, [backend])
        return trial

    def examine(self, trial: ReadersTrial, worker: TrialWorker) -> Row:
        """Return what the trial finds. Raises: MeasurementFailedError if its process does not end as it must."""
        return examine(trial, worker.folder, worker.code)

    def settings(self, trial: ReadersTrial) -> Row:
        """Return the columns of the trial, and its name."""
        return {**super().settings(trial), "trial": trial.id}

    def order(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the name of a trial."""
        return (str(row["trial"]),)
