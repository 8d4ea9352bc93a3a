"""When one of two machines is lost for good, the other one restores just the versions that its copies lack.

Source: KIP-892, "Atomic Checkpointing": a restore begins where the store stands.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("query_faults", faults=("machine lost",))


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
