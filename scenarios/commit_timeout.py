"""A commit that times out is rolled back and costs no store its data. The task continues from its last commit.

A store that cannot roll back its writes is the exception: it is wiped, and the reason is reported. Kafka wipes all.

Source: KIP-892, "Error Handling", 3.
"""

from harness.cli import run_scenario
from harness.faults import Timeout
from harness.scenario import Scenario

SCENARIO = Scenario("crash", faults=(Timeout(1), Timeout(6)), durabilities=("CHANGELOG", "PROCESS"), seeds=2)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
