"""A process that is killed inside a write, with some of its bytes written, has lost nothing that it must keep.

Source: SQLite, "How SQLite Is Tested", "Crash Testing"; KIP-892, "Consistency Problem".
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("iofaults", faults=("tear",), points_max=120)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
