"""The experiments about the limit on the memory of staged writes: early commits, and steps larger than the limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any

from harness.budget import DEFAULT, NIGHT, SMOKE
from harness.experiment import (
    Failure,
    Figure,
    Figures,
    Request,
    Row,
    Rows,
    TrialWorker,
    check_counts,
)
from harness.experiments.memory import early_commits, large_steps
from harness.experiments.memory.report import EARLY_COMMITS_QUERY, page
from harness.experiments.memory.report import large_steps as large_step_figures
from harness.experiments.stores_alone import StoresAlone
from harness.report import text
from harness.report.page import Page
from stores.config import StoreConfig
from stores.registry import backends

_MIB = 1 << 20
EARLY_COMMIT_REPEATS: Mapping[str, int] = MappingProxyType({SMOKE: 1, DEFAULT: 2, NIGHT: 5})
STEPS_BYTES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {SMOKE: (32 * _MIB,), DEFAULT: (64 * _MIB,), NIGHT: (64 * _MIB, 256 * _MIB, 1024 * _MIB)}
)
"""The sizes of a step's keys and values, for every backend."""
LARGER_STEP_BYTES = 128 * _MIB
"""One more size, for the default backend alone, in the default profile."""


@dataclass(frozen=True)
class EarlyCommitTrial:
    """One task without a commit interval. ``limit_bytes`` -1 is no limit; ``repeat`` counts from 0."""

    backend: str
    limit_bytes: int
    repeat: int
    seed: int


class EarlyCommits(StoresAlone[EarlyCommitTrial]):
    """A task whose commits are all caused by the limit. Only the default backend, except in the profile night."""

    name = "early_commits"
    words = "limits on the memory of uncommitted writes"
    trial = EarlyCommitTrial
    figures_by = {"early_commit": EARLY_COMMITS_QUERY}
    columns = {
        "early_commit": {
            "backend": str,
            "durability": str,
            "limit_bytes": int,
            "repeat": int,
            "records": int,
            "seconds": float,
            "records_per_s": float,
            "commits": int,
            "predicted": int,
            "exceeded": int,
            "uncommitted_max_bytes": int,
            "peak_memory_bytes": int,
        }
    }

    def plan(self, request: Request) -> list[EarlyCommitTrial]:
        """Return a trial for each backend, limit and repeat. Repeats of one configuration are not adjacent."""
        subjects = request.among(backends() if request.profile == NIGHT else [StoreConfig().backend])
        planned = []
        for repeat in range(EARLY_COMMIT_REPEATS[request.profile]):
            round_ = [(name, limit) for name in subjects for limit in early_commits.LIMITS]
            Random(f"{request.seed} {repeat}").shuffle(round_)
            planned += [EarlyCommitTrial(name, limit, repeat, request.seed) for name, limit in round_]
        return planned

    def run(self, trial: EarlyCommitTrial, worker: TrialWorker) -> Iterable[Row]:
        """Return one row. Raises: MeasurementFailedError."""
        return [early_commits.measured(trial.backend, trial.limit_bytes, trial.repeat, trial.seed)]

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return a sentence for each task that staged more than its limit."""
        return [Failure(line) for line in early_commits.over_limit(rows.get("early_commit", ()))]


@dataclass(frozen=True)
class LargeStepTrial:
    """One step of a task that stages ``step_bytes``."""

    backend: str
    step_bytes: int
    seed: int

    def __post_init__(self) -> None:
        """Raise ConfigError for a number that counts nothing."""
        check_counts(step_bytes=self.step_bytes)


class LargeSteps(StoresAlone[LargeStepTrial]):
    """One record whose function stages many times the limit: its memory, and that it is one commit."""

    name = "large_steps"
    words = "steps larger than the limit"
    trial = LargeStepTrial
    program = large_steps
    share = 2
    figures_by = {"large_step": large_step_figures}
    columns = {
        "large_step": {
            "backend": str,
            "durability": str,
            "transactional": bool,
            "limit_bytes": int,
            "step_bytes": int,
            "pairs": int,
            "uncommitted_bytes": int,
            "staged_disk_bytes": int,
            "peak_bytes": int,
            "bound_bytes": int,
            "seen_early": int,
            "commits": int,
            "state": str,
            "seconds": float,
        }
    }

    def plan(self, request: Request) -> list[LargeStepTrial]:
        """Return a trial for each backend and size, and one larger step of the default backend."""
        planned = [(name, size) for name in backends() for size in STEPS_BYTES[request.profile]]
        if request.profile == DEFAULT:
            planned.append((StoreConfig().backend, LARGER_STEP_BYTES))
        Random(request.seed).shuffle(planned)
        return [LargeStepTrial(name, size, request.seed) for name, size in planned if request.among([name])]

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return a sentence for each step that exceeded its memory bound or was not one commit."""
        return [Failure(line) for line in wrong_step_lines(figures.get("large_step", ()))]

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about memory, which includes early commits."""
        failures = [*EarlyCommits().failures(figures, rows), *self.failures(figures, rows)]
        return page(figures, [str(failure) for failure in failures])


def wrong_step_lines(large_steps: Sequence[Figure]) -> list[str]:
    """Return a sentence for every large step that exceeded its memory bound or was not one commit."""
    lines = []
    for figure in large_steps:
        step = f"{figure['backend']} at {figure['durability']}, one step of {text.size(figure['step_bytes'])}"
        if figure["bounded"] is False:
            lines.append(f"{step}: took {text.size(figure['peak_bytes'])}, above {text.size(figure['bound_bytes'])}")
        if not figure["atomic"]:
            lines.append(
                f"{step}: {figure['commits']} commits, {figure['seen_early']} of the keys looked up were seen before, "
                f"and the state after a reopening is {figure['state']}"
            )
    return lines
