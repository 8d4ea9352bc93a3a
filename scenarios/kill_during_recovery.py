"""A recovery that is itself killed is repeated, and ends as if it had never been interrupted.

Source: KIP-844, "roll forward": a crash during the recovery is followed by the same recovery.
"""

from harness.cli import run_scenario
from harness.faults import Kill, KillInRecovery
from harness.scenario import KillAtEach, Scenario
from stores.failpoints import Part

SCENARIO = Scenario(
    "crash",
    faults=(
        KillAtEach(Part.RECOVERY),
        KillAtEach(Part.RESTORE),
        KillInRecovery(Kill("task.after_log_commit", 5), (Kill("task.restore.before_write"),) * 3),
    ),
    seeds=2,
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
