"""A Kafka broker that is killed and started again, also during a commit, costs a task time and nothing else.

The broker comes back while the task waits, or only when the task has reported that no answer comes.

Source: KIP-588, "Proposed Changes"; KIP-572, "Proposed Changes".
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("broker_faults", faults=("broker killed", "broker restarted"), mutants=("inputs-before-outputs",))


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
