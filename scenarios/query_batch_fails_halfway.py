"""A batch that fails after some partitions have finished is repeated, and only the others compute it again.

Source: Armbrust et al., "Structured Streaming" (SIGMOD 2018), section 6.1, "Fault Recovery".
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("query_faults", faults=("batch fails halfway",), backends=("rocksdb", "lmdb", "sqlite"))


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
