"""A process that dies again and again loses nothing, doubles nothing, and gets to the end of its input.

Source: KIP-129, "Motivation": exactly once holds whatever fails, and however often.
"""

from harness.cli import run_scenario
from harness.faults import Kill, KillAfter, KillInRecovery
from harness.scenario import Scenario

SCENARIO = Scenario(
    "crash",
    faults=(
        KillInRecovery(KillAfter(61), (KillAfter(31), KillAfter(7), KillAfter(1))),
        KillInRecovery(
            Kill("task.after_log_commit", 2),
            (Kill("task.between_stores"), Kill("task.after_store_commit")),
        ),
        KillInRecovery(
            Kill("task.between_stores"),
            (Kill("task.restore.after_write"), KillAfter(50), KillAfter(1)),
        ),
    ),
    seeds=3,
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
