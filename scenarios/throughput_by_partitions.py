"""However the input is partitioned, the end state is right: a comparison of 1 and 2 tasks at once.

Source: KIP-129: a task owns its partition, its stores and its transaction.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("throughput", workload="count", events=100_000, partitions=(1, 2), repeats=2)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
