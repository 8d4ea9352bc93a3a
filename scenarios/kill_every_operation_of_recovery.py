"""A recovery that is killed before any of its own I/O operations is repeated, with the same result.

Source: KIP-844, "roll forward": a crash during the recovery is followed by the same recovery.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("iofaults", faults=("kill_twice",), durabilities=("DISK",), points_max=8)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
