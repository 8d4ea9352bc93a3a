"""A commit that is an ingested file costs five syncs, which only large commits spread over enough records.

At DISK, where the indexed batch syncs as well. These are figures of whole tasks, with their changelogs.

Source: KIP-892, "Rejected Alternatives", on SST ingestion in place of memtables.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario(
    "throughput",
    workload="count",
    events=200_000,
    backends=("rocksdb-indexed-batch", "rocksdb-sst-ingest"),
    durabilities=("DISK",),
    records_per_commit=(100, 1_000, 10_000, 100_000),
    repeats=3,
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
