"""With speculation, an attempt that stalls and goes on batches later is refused: it changes neither state nor rows.

Source: Apache Spark, `spark.speculation`; KIP-98, zombie fencing.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("query_faults", faults=("stalled attempt",), backends=("rocksdb", "lmdb"))


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
