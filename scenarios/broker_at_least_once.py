"""At least once, a task over a Kafka broker that is killed at any step of a commit loses no output.

With input offsets committed before the outputs are sent, outputs are missing.

Source: KIP-129, "Motivation": at least once.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario(
    "broker_faults", faults=("task killed",), guarantee="at_least_once", mutants=("offsets-before-records",)
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
