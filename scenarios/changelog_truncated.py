"""A store that its changelog no longer reaches back to is wiped, the reason is reported, and it is restored whole.

The changelogs are truncated beyond the offsets of the stores, as compaction and retention do while a process is away.

Source: KIP-892, "Error Handling", 2.
"""

from harness.cli import run_scenario
from harness.faults import Truncate
from harness.scenario import Scenario

SCENARIO = Scenario(
    "crash",
    faults=(Truncate(61), Truncate(150, then="kill")),
    durabilities=("CHANGELOG", "PROCESS"),
    seeds=2,
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
