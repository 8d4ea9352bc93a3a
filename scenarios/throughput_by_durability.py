"""The cost of commits that survive by themselves: a killed process, or power loss.

A comparison. Levels are never mixed in a table.

Source: KIP-892, "Atomic Checkpointing": why stores there leave durability to their changelogs.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario(
    "throughput", workload="count", events=50_000, durabilities=("CHANGELOG", "PROCESS", "DISK"), repeats=2
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
