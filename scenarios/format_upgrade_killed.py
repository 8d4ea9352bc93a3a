"""A store is upgraded to a new format of its records, however often that is killed or loses power.

The upgrade happens in place, record by record, or in a new store that is built beside it and swapped.

Source: KIP-892, "Upgrading"; KIP-258: a store is upgraded in place, and never half.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario(
    "iofaults",
    faults=("kill", "kill_twice", "power names"),
    backends=("lazy-upgrade", "format-upgrade"),
    points_max=6,
    mutants=("upgraded-outside", "swapped-without-note"),
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
