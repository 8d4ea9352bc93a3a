"""A full disk, or a used-up quota, costs errors that say so, and no acknowledged commit, for however long it lasts.

Source: write(2) and fsync(2), ENOSPC and EDQUOT; SQLite, "How SQLite Is Tested", "I/O Error Testing".
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario(
    "iofaults",
    faults=("error ENOSPC once", "error ENOSPC lasting", "error EDQUOT once", "error EDQUOT lasting"),
    points_max=30,
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
