"""The experiment that fills stores with millions of records, and times what a user does with them then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from harness import profiles
from harness.experiment import Columns, Experiment, Failure, Figure, Figures, Placement, Request, Row, Rows, Worker
from harness.experiments.scale.report import is_cut, page, parts, scale, scale_tables
from harness.experiments.scale.scale import (
    LIMITED_MEMORY_BYTES,
    LIMITED_RECORDS,
    LIMITED_VALUE_BYTES,
    ScaleTrial,
    run_scale,
)
from harness.report.page import Page, Table
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


class Scale(Experiment[ScaleTrial]):
    """Speeds, memory and disk of stores with up to 50,000,000 records."""

    name = "scale"
    title = "stores of many records"
    stage = "scale"
    trial = ScaleTrial
    placement = Placement.LOCAL
    share = 5
    unit = ""
    columns: Mapping[str, Columns] = MappingProxyType(
        {
            "scale": MappingProxyType(
                {
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
                }
            ),
            "scale_part": MappingProxyType({**SHARED_COLUMNS, "records_there": int}),
        }
    )

    def plan(self, request: Request) -> list[ScaleTrial]:
        """Return a trial for each size of the profile, with the indexed batch of each engine that has files.

        Those with a limit on memory come after the smallest size.
        """
        known = backends()
        chosen = [
            name
            for name in ALIASES.values()
            if known[name].persistent and (request.backends is None or name in request.backends)
        ]
        profile = profiles.profile(request.profile)
        trials = [ScaleTrial(name, records, request.seed) for records in profile.scale_records for name in chosen]
        limits = (LIMITED_RECORDS, request.seed, LIMITED_VALUE_BYTES, LIMITED_MEMORY_BYTES)
        limited = [ScaleTrial(name, *limits) for name in chosen] if profile.scale_limited else []
        return trials[: len(chosen)] + limited + trials[len(chosen) :]

    def cost_s(self, trial: ScaleTrial) -> float:
        """Return the time of a slow machine."""
        return trial.records / RECORDS_PER_S * (1 + trial.value_bytes / 1_000)

    def run(self, trial: ScaleTrial, worker: Worker) -> Iterable[Row]:
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

    def figures(self, rows: Rows) -> dict[str, list[Figure]]:
        """Return a figure for each row."""
        return {"scale": scale(rows.get("scale", ())), "scale_part": parts(rows.get("scale_part", ()))}

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return each store that did not show what was put, and each process that failed before its time was over."""
        return [
            Failure(f"{row['backend']} with {row['records']:,} records: {row['problem']}")
            for row in rows.get("scale", ())
            if row["problem"] and not is_cut(row)
        ]

    def tables(self, figures: Figures, rows: Rows) -> list[Table]:
        """Return the tables of the page."""
        return scale_tables(figures)

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about stores of many records."""
        return page(figures)
