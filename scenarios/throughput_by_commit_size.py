"""A staging store costs a share of the throughput, and not nearly all of it, at every size of a commit.

KIP-844's prototype was left with 4 % of a plain store's records per second, because it closed, deleted and reopened its
temporary store in each commit. These are figures of whole tasks, with their changelogs.

Source: KIP-844, "Test Plan"; KIP-892, "Rejected Alternatives".
"""

from harness.cli import run_scenario
from harness.scenario import AtLeast, Scenario

SCENARIO = Scenario(
    "throughput",
    workload="count",
    events=200_000,
    records_per_commit=(100, 1_000, 10_000),
    repeats=3,
    at_least=(
        AtLeast("rocksdb-dual-store", "rocksdb-direct", 0.4),
        AtLeast("rocksdb-indexed-batch", "rocksdb-direct", 0.8),
    ),
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
