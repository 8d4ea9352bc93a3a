"""A process that dies when some of a task's stores have a commit and others not leaves no mixture once it is recovered.

The stores that lack the commit replay it, those that have it replay nothing, and both are what the same input leads to.

Source: KIP-892, "Motivation"; KIP-844, the possible failures between the steps of a commit.
"""

from harness.cli import run_scenario
from harness.faults import Kill, KillInRecovery
from harness.scenario import Scenario

BETWEEN = "task.between_stores"
SCENARIO = Scenario(
    "crash",
    faults=(
        Kill(BETWEEN),
        Kill(BETWEEN, 7),
        KillInRecovery(Kill(BETWEEN, 4), (Kill("task.restore.before_write"), Kill(BETWEEN))),
    ),
    durabilities=("CHANGELOG", "PROCESS", "DISK"),
    seeds=1,
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
