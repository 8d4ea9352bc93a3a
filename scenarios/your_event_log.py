"""Your own events, on every backend: which is fastest for them, and all of them right.

Give ``--events PATH --key COLUMN`` (and ``--time COLUMN``), or EVENTS and KEY in the environment: CSV, JSON lines or
Parquet, a file or a folder. Each key keeps its number of events and the latest of them.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("throughput", workload="event_log", records_per_commit=(100, 1_000, 10_000))


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
