"""A store that dies in the middle of its commit is found before it or after it, never in between.

Source: KIP-844, "Rejected Alternatives" and "Test Plan": all writes of a transaction are applied, or none of them.
"""

from harness.cli import run_scenario
from harness.scenario import KillAtEach, Scenario
from stores.failpoints import Part

SCENARIO = Scenario("crash", faults=(KillAtEach(Part.COMMIT),), durabilities=("CHANGELOG", "PROCESS", "DISK"), seeds=2)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
