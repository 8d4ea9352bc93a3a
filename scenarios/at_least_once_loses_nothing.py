"""Under at-least-once a crash may repeat outputs, and loses none of them.

Source: KIP-129, "Motivation": the two processing guarantees.
"""

from harness.cli import run_scenario
from harness.faults import KillAfter
from harness.scenario import KillAtEach, Scenario
from stores.failpoints import Part

SCENARIO = Scenario(
    "crash",
    faults=(KillAtEach(Part.TASK), KillAtEach(Part.COMMIT), KillAfter(101)),
    guarantee="at_least_once",
    seeds=2,
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
