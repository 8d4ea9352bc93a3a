"""The experiment that opens stores whose files are not in the page cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from harness.experiment import (
    Columns,
    Experiment,
    Failure,
    Figure,
    Figures,
    Placement,
    Request,
    Row,
    Rows,
    Worker,
    check_counts,
)
from harness.experiments.cold_cache import cold_cache
from harness.processes.child import figures_apart
from harness.report import text
from harness.report.figures import in_order
from harness.report.page import Page, Table, tables
from stores.registry import backends


@dataclass(frozen=True)
class ColdCacheTrial:
    """One store, opened ``repeats`` times with its files in the page cache, and as often without."""

    backend: str
    seed: int
    records: int = 100_000
    repeats: int = 5

    def __post_init__(self) -> None:
        """Raise ConfigError for a number that counts nothing."""
        check_counts(records=self.records, repeats=self.repeats)


class ColdCache(Experiment[ColdCacheTrial]):
    """The time to open a store and to look up one key, with a warm and with a cold page cache."""

    name = "cold_cache"
    title = "stores by themselves"
    words = "openings with a cold page cache"
    stage = "store"
    trial = ColdCacheTrial
    placement = Placement.LOCAL
    columns: Mapping[str, Columns] = MappingProxyType(
        {
            "cold_opening": {
                "backend": str,
                "durability": str,
                "records": int,
                "cache": str,
                "open_s": float,
                "first_get_s": float,
            }
        }
    )

    def plan(self, request: Request) -> list[ColdCacheTrial]:
        """Return a trial for each persistent backend."""
        return [ColdCacheTrial(name, request.seed) for name in request.among(backends()) if backends()[name].persistent]

    def run(self, trial: ColdCacheTrial, worker: Worker) -> Iterable[Row]:
        """Return a row for a warm and one for a cold page cache. Raises: MeasurementFailedError."""
        found = figures_apart(cold_cache.__name__, "cold-cache", asdict(trial), cold_cache.DEADLINE_S)
        return [{"kind": "cold_opening", **row} for row in found["rows"]]

    def figures(self, rows: Rows) -> dict[str, list[Figure]]:
        """Return the openings, in order."""
        return {"cold_opening": in_order([{**row, "kind": "cold_opening"} for row in rows.get("cold_opening", ())])}

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return nothing: the times are reported only."""
        return []

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about openings with a cold page cache."""
        lines = [
            [
                figure["backend"],
                text.exact(figure["records"]),
                figure["cache"],
                text.duration(figure["open_s"]),
                text.duration(figure["first_get_s"]),
            ]
            for figure in figures["cold_opening"]
        ]
        head = ("backend", "records", "page cache", "open", "first lookup")
        return Page(
            "cold-cache",
            "Opening a store with a cold page cache",
            (
                "A store is opened, and one key is looked up.",
                "Its files are in the page cache of the system, or they were dropped from it.",
                "So the difference is the reading from the disk.",
            ),
            body=tables(Table("Level CHANGELOG, after a clean close", head, lines, (1, 3, 4))) if lines else (),
            method="Files are synced, then dropped with `posix_fadvise`. A file system in memory drops nothing.\n",
        )
