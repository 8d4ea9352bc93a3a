"""A store is upgraded in the background of its running task, however often that is killed or loses power.

Steps after commits build the new store. It replaces the old one at the next opening, or at a commit of the task.

Source: KIP-258, first draft, "In-Place Upgrade": online, without a stop of the application.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario(
    "iofaults",
    faults=("kill", "power names"),
    backends=("task-online-upgrade",),
    points_max=24,
    mutants=("stepped-offset-first",),
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
