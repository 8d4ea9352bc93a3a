"""A process that dies after its changelog has a commit, and before its stores do, replays that commit and nothing else.

Source: KIP-844, the possible failures between the steps of a commit; KIP-892, "Atomic Checkpointing".
"""

from harness.scenario import KillAtEach, Part, Scenario

SCENARIO = Scenario("crash", faults=(KillAtEach(Part.TASK),), seeds=3)


if __name__ == "__main__":
    from harness.cli import run_scenario

    raise SystemExit(run_scenario(__file__))
