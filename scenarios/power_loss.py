"""After power loss at any moment each durability level keeps its promise, in every possible crash state.

Nothing acknowledged is lost at DISK. Below it the store is at a whole commit, or raises an error upon which the
changelog restores it. At DISK that holds by the persistence model ``strict``, too. What that loses at other levels is
only reported.

Source: Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014); KIP-892, "Atomic Checkpointing".
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario(
    "iofaults", faults=("power names", "power journal", "power strict"), points_max=96, states_per_position=4
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
