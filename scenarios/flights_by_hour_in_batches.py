"""Windows of departures take half the CPU time when a task's function gets many records at a time.

The same records with ``process_batch`` and with ``process``, over the embedded changelog, end as Spark SQL computes.
A batch reads each key once and writes it once.

Source: Flink SQL, "MiniBatch Aggregation".
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario(
    "throughput",
    workload="flights_by_hour",
    events=40_000,
    partitions=(1,),
    records_per_commit=(1_000,),
    repeats=3,
    backends=("rocksdb", "lmdb", "sqlite"),
    both_forms=True,
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
