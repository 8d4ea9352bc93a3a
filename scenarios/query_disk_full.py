"""A full disk fails a stateful query with an error that says so. Once there is room, it continues, and lost nothing.

It is the disk of the local copies, or that of the log.

Source: write(2), ENOSPC.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("query_faults", faults=("local disk full", "log disk full"), backends=("rocksdb", "lmdb", "sqlite"))


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
