"""The experiment that opens stores whose files are not in the page cache."""

from __future__ import annotations

from dataclasses import dataclass

from harness.experiment import Request, StoresAlone, check_counts
from harness.experiments import cold_cache_measured
from harness.report import text
from harness.report.listing import Column, Listing, Report
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


class ColdCache(StoresAlone[ColdCacheTrial]):
    """The time to open a store and to look up one key, with a warm and with a cold page cache."""

    name = "cold_cache"
    words = "openings with a cold page cache"
    trial = ColdCacheTrial
    program = cold_cache_measured
    figures_by = {"cold_opening": "select * from cold_opening order by backend, cache, durability"}
    report = Report(
        ("cold_opening",),
        "cold-cache",
        "Opening a store with a cold page cache",
        (
            "A store is opened, and one key is looked up.",
            "Its files are in the page cache of the system, or they were dropped from it.",
            "So the difference is the reading from the disk.",
        ),
        (
            Listing(
                "Level CHANGELOG, after a clean close",
                "cold_opening_figure",
                (
                    Column("backend"),
                    Column("records", "records", text.exact),
                    Column("page cache", "cache"),
                    Column("open", "open_s", text.duration),
                    Column("first lookup", "first_get_s", text.duration),
                ),
            ),
        ),
        "Files are synced, then dropped with `posix_fadvise`. A file system in memory drops nothing.\n",
    )
    columns = {
        "cold_opening": {
            "backend": str,
            "durability": str,
            "records": int,
            "cache": str,
            "open_s": float,
            "first_get_s": float,
        }
    }

    def plan(self, request: Request) -> list[ColdCacheTrial]:
        """Return a trial for each persistent backend."""
        return [ColdCacheTrial(name, request.seed) for name in request.among(backends()) if backends()[name].persistent]
