"""The experiment that fills stores with millions of records, and times what a user does with them then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from harness.budget import DEFAULT, NIGHT, SMOKE
from harness.experiment import (
    Columns,
    Experiment,
    Failure,
    Figures,
    Request,
    Row,
    Rows,
    TrialPlacement,
    TrialWorker,
)
from harness.experiments.scale.report import REPORT, finding, is_cut, scale, scale_tables
from harness.experiments.scale.scale import (
    LIMITED_MEMORY_BYTES,
    LIMITED_RECORDS,
    LIMITED_VALUE_BYTES,
    ScaleTrial,
    run_scale,
)
from harness.report.page import Page, TextTable
from harness.scenario import Grid, cut_to, full_names, set_to
from stores.registry import ALIASES, backends

RECORDS_PER_S = 40_000
"""The rate at which a slow machine puts, reads and restores records, all together."""
SHARED_COLUMNS: Columns = MappingProxyType(
    {
        "backend": str,
        "durability": str,
        "records": int,
        "value_bytes": int,
        "memory_max_bytes": int,
        "seed": int,
        "puts_per_s": float,
    }
)


@dataclass(frozen=True, kw_only=True)
class ScaleGrid(Grid):
    """Stores of ``records`` records show what was put, in order, also when they are opened again or restored.

    ``backends`` None means all that have files. Those of ``large_backends`` also have the sizes ``large_records``,
    which only a night tries. They are also filled with ``limited_records`` records of ``limited_value_bytes`` by
    processes that can have ``memory_max_bytes`` of memory (0: without this).
    """

    records: tuple[int, ...] = (1_000_000,)
    backends: tuple[str, ...] | None = None
    value_bytes: int = 100
    large_backends: tuple[str, ...] = ()
    large_records: tuple[int, ...] = ()
    limited_records: int = LIMITED_RECORDS
    limited_value_bytes: int = LIMITED_VALUE_BYTES
    memory_max_bytes: int = 0

    sizes = MappingProxyType(
        {
            # A process alone takes more memory than these records.
            SMOKE: {"records": cut_to(10_000), "large_records": set_to(()), "memory_max_bytes": set_to(0)},
            DEFAULT: {"large_records": set_to(())},
        }
    )
    above_0 = ("seeds", "records", "value_bytes", "large_records", "limited_records", "limited_value_bytes")

    def trials(self, seed: int) -> list[ScaleTrial]:
        """Return a trial for each size and backend. Raises: ConfigError for an unknown name, and for a senseless size.

        Those with a limit on memory come after ``records``.
        """
        persistent = [name for name, each in backends().items() if each.persistent]
        names = full_names(persistent if self.backends is None else self.backends)
        large = full_names(self.large_backends)
        trials = [ScaleTrial(name, records, seed, self.value_bytes) for records in self.records for name in names]
        if self.memory_max_bytes:
            limited = (self.limited_records, seed, self.limited_value_bytes, self.memory_max_bytes)
            trials += [ScaleTrial(name, *limited) for name in large]
        trials += [ScaleTrial(name, each, seed, self.value_bytes) for each in self.large_records for name in large]
        return trials


SIZES: Mapping[str, ScaleGrid] = MappingProxyType(
    {
        SMOKE: ScaleGrid(records=(20_000,)),
        DEFAULT: ScaleGrid(),
        NIGHT: ScaleGrid(large_records=(10_000_000, 50_000_000), memory_max_bytes=LIMITED_MEMORY_BYTES),
    }
)


class Scale(Experiment[ScaleTrial]):
    """Speeds, memory and disk of stores with up to 50,000,000 records."""

    name = "scale"
    title = "stores of many records"
    stage = "scale"
    trial = ScaleTrial
    grid = ScaleGrid
    placement = TrialPlacement.LOCAL
    share = 5
    night_share = 16
    unit = ""
    figures_by = {
        "scale": scale,
        "scale_part": "select * from scale_part order by backend, records_there, seed",
    }
    columns = {
        "scale": {
            **SHARED_COLUMNS,
            "state_bytes": int,
            "commit_max_s": float,
            "gets_old_per_s": float,
            "gets_new_per_s": float,
            "gets_absent_per_s": float,
            "scan_per_s": float,
            "whole_scan_per_s": float,
            "load_peak_bytes": int,
            "read_peak_bytes": int,
            "restore_peak_bytes": int,
            "bytes_on_disk": int,
            "open_s": float,
            "restore_s": float,
            "restore_per_s": float,
            "problem": str,
            "unlimited": str,
            "others_share": float,
            "steal_share": float,
        },
        "scale_part": {**SHARED_COLUMNS, "records_there": int},
    }

    def plan(self, request: Request) -> list[ScaleTrial]:
        """Return a trial for each size of the profile, with the indexed batch of each engine that has files."""
        chosen = tuple(name for name in request.among(ALIASES.values()) if backends()[name].persistent)
        size = replace(SIZES[request.profile], backends=chosen, large_backends=chosen)
        return size.plan(request.seed) if chosen else []

    def cost_s(self, trial: ScaleTrial) -> float:
        """Return the time of a slow machine."""
        return trial.records / RECORDS_PER_S * (1 + trial.value_bytes / 1_000)

    def run(self, trial: ScaleTrial, worker: TrialWorker) -> Iterable[Row]:
        """Return a row, with None for what was not measured, and one for each part of the puts."""
        worker.folder.mkdir()
        found = run_scale(trial, worker.folder, say=worker.say, code=worker.code, deadline=worker.deadline)
        load = ("others_share", "steal_share")
        return [{**{name: None for name in self.columns[row["kind"]] if name not in load}, **row} for row in found]

    def subject(self, trial: ScaleTrial) -> str:
        """Return the backend, the size and the limit."""
        limit = f", {trial.memory_max_bytes >> 20:,} MiB of memory" if trial.memory_max_bytes else ""
        return f"{trial.backend} with {trial.records:,} records of {trial.value_bytes:,} bytes{limit}"

    def tried(self, trial: ScaleTrial, rows: Sequence[Row]) -> int:
        """Return 1 if all of it was measured that can be, and 0 if its time was over before that."""
        return int(not is_cut(rows[0]))

    def line(self, trial: ScaleTrial, rows: Sequence[Row]) -> str:
        """Return how fast it was put and read."""
        row = rows[0]
        if missing := row["problem"] or row["unlimited"]:
            return f"{self.subject(trial)}: {missing}"
        return (
            f"{self.subject(trial)}: {row['puts_per_s']:,.0f} puts/s, {row['gets_old_per_s']:,.0f} gets/s, "
            f"restored in {row['restore_s']:.1f} s"
        )

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return each store that did not show what was put, and each process that failed before its time was over."""
        return [
            Failure(f"{row['backend']} with {row['records']:,} records: {row['problem']}")
            for row in rows.get("scale", ())
            if row["problem"] and not is_cut(row)
        ]

    def tables(self, figures: Figures, rows: Rows) -> list[TextTable]:
        """Return the tables of the page."""
        return scale_tables(figures)

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about stores of many records."""
        return REPORT.page(figures, findings=[finding(figures["scale"])])
