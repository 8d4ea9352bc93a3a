"""A broker that pauses and a network that breaks or is slow cost two busy workers time, and nothing else.

While they count, the broker is stopped (SIGSTOP), connections are reset and half-closed, and the network is slow, again
and again. No worker ends of it, and each input has one output.

Source: KIP-572, "Proposed Changes"; KIP-588, "Proposed Changes"; KIP-892, "Error Handling".
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario(
    "broker_faults",
    faults=(
        "broker paused under load",
        "connections reset under load",
        "connections half-closed under load",
        "network slow under load",
        "all of these under load",
    ),
    mutants=("errors-end-tasks",),
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
