"""A process that dies after its changelog has a commit, and before its stores do, replays that commit and nothing else.

Source: KIP-844, the possible failures between the steps of a commit; KIP-892, "Atomic Checkpointing".
"""

from harness.cli import run_scenario
from harness.scenario import KillAtEach, Scenario
from stores.failpoints import Part

SCENARIO = Scenario("crash", faults=(KillAtEach(Part.TASK),), seeds=3)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
