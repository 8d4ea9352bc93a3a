"""If power loss leaves garbage behind written data and tears sectors, all wrong content is detected at DISK.

This is beyond what disks do, by the stated model: a store may detect it, but must not show what was never committed.

Source: SQLite, "Atomic Commit In SQLite", "Hardware Assumptions", on sectors and power-safe overwrite.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario(
    "iofaults", faults=("power torn-sectors",), durabilities=("DISK",), points_max=120, states_per_position=4
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
