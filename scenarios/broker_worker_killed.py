"""A worker that is killed in the middle of a rebalance over a Kafka broker repeats and loses no output.

It dies at each step of the release of its tasks, or before it works on tasks that it gets.

Source: KIP-429, "Proposed Changes"; KIP-447, "Proposed Changes".
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("broker_faults", faults=("worker killed",), mutants=("no-transactions", "inputs-before-outputs"))


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
