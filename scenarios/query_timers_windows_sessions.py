"""Queries with timers, windows and sessions survive a fault of each kind, as a query that counts does.

Their functions are those of tasks, and one with timers by event time. Source: KIP-892, "Exactly-Once"; Apache Spark,
`withWatermark`.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario(
    "query_faults",
    faults=("worker killed", "stalled attempt", "batch fails halfway", "local disk full", "machine lost"),
    workloads=("timers", "flights_by_hour", "aircraft_sessions"),
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
