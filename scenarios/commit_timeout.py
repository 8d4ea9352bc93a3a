"""A commit that times out is undone, costs no store its data, and the task goes on from its last commit.

But for a store that can't take back what it has written: that one is wiped, and told why. Kafka wipes them all.

Source: KIP-892, "Error Handling", 3.
"""

from harness.faults import Timeout
from harness.scenario import CrashScenario

SCENARIO = CrashScenario(faults=(Timeout(1), Timeout(6)), durabilities=("CHANGELOG", "PROCESS"), seeds=2)


if __name__ == "__main__":
    from harness.cli import run_scenario

    raise SystemExit(run_scenario(__file__))
