"""The experiment that measures the time until a store is open and restored after a kill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from harness.budget import DEFAULT, NIGHT, SMOKE
from harness.experiment import (
    Experiment,
    Request,
    Row,
    TrialPlacement,
    TrialWorker,
)
from harness.experiments.opening import opening
from harness.experiments.opening.opening import OpeningTrial
from harness.experiments.opening.report import QUERY, REPORT
from stores.config import StoreConfig
from stores.interface import Durability
from stores.registry import backends

RECORDS_PER_S = 50_000
"""The rate at which a slow machine writes a changelog and restores a store from it, in records per second."""


@dataclass(frozen=True)
class OpeningSize:
    """The sizes of stores that a profile opens with every backend, and more of them with the default one only."""

    repeats: int
    records: tuple[int, ...]
    largest_records: tuple[int, ...] = ()


SIZES: Mapping[str, OpeningSize] = MappingProxyType(
    {
        SMOKE: OpeningSize(1, (20_000,)),
        DEFAULT: OpeningSize(5, (50_000, 500_000), (5_000_000,)),
        NIGHT: OpeningSize(5, (50_000, 500_000, 5_000_000)),
    }
)


class Opening(Experiment[OpeningTrial]):
    """The time to open after a kill, against the number of records."""

    name = "opening"
    title = "opening after a kill"
    stage = "opening"
    trial = OpeningTrial
    placement = TrialPlacement.LOCAL
    share = 14
    unit = ""
    figures_by = {"opening": QUERY}
    report = REPORT
    derived_by = opening.ratios
    columns = {
        "opening": {
            "backend": str,
            "durability": str,
            "records": int,
            "repeat": int,
            "open_s": float,
            "restore_s": float,
            "replayed": int,
            "alone_s": float,
            "bare_s": float,
            "mark_s": float,
            "whole_restore_s": float,
            "others_share": float,
            "steal_share": float,
        }
    }

    def plan(self, request: Request) -> list[OpeningTrial]:
        """Return a trial for each size at CHANGELOG, with all persistent backends that a kill does not wipe.

        Those that it wipes have trials of their own with one repeat, because each repeat restores all records.
        """
        size, default = SIZES[request.profile], StoreConfig().backend
        persistent = {name: each for name, each in backends().items() if each.persistent}
        chosen = request.among(persistent)
        recovering = tuple(name for name in chosen if persistent[name].transactional)
        level, seed = Durability.CHANGELOG, request.seed
        trials = []
        for records in size.records:
            if recovering:
                trials.append(OpeningTrial(recovering, level, records, size.repeats, seed))
            trials += [OpeningTrial((name,), level, records, 1, seed) for name in chosen if name not in recovering]
        if default in recovering:
            trials += [OpeningTrial((default,), level, records, size.repeats, seed) for records in size.largest_records]
        return trials

    def cost_s(self, trial: OpeningTrial) -> float:
        """Return the time until the first store is filled. It is then measured before another one is filled."""
        return trial.records / RECORDS_PER_S

    def run(self, trial: OpeningTrial, worker: TrialWorker) -> Iterable[Row]:
        """Return a row for each repeat. Raises: MeasurementFailedError."""
        return opening.run_opening(trial, code=worker.code, within=worker.folder.parent, deadline=worker.deadline)

    def extent(self, trial: OpeningTrial) -> tuple[str, int]:
        """Return the number of openings: a trial that the budget cuts has made some of them."""
        return "openings", len(trial.backends) * trial.repeats

    def tried(self, trial: OpeningTrial, rows: Sequence[Row]) -> int:
        """Return the number of openings that were measured."""
        return len(rows)

    def subject(self, trial: OpeningTrial) -> str:
        """Return the size, the backends and the level."""
        return f"opening {trial.records:,} records on {', '.join(trial.backends)}, {trial.durability}"

    def line(self, trial: OpeningTrial, rows: Sequence[Row]) -> str:
        """Return the longest time until a store was ready."""
        longest_s = max(row["open_s"] + row["restore_s"] for row in rows)
        return f"{self.subject(trial)}: ready after {longest_s:.3f} s at most"
