"""A stateful query survives kills of Python workers, executors and drivers: its rows and its state count once.

Each kill comes at another failpoint of a batch, or between two batches.

Source: Armbrust et al., "Structured Streaming" (SIGMOD 2018), section 6.1, "Fault Recovery".
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario(
    "query_faults",
    faults=("worker killed", "executor killed", "driver killed in a batch", "driver killed between batches"),
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
