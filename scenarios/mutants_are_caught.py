"""Mutants of stores are detected, each by the fault it belongs to: these checks can fail.

Power loss detects a missing sync, and no kill does.

Source: KIP-844, "Test Plan"; Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014), section 5.
"""

from harness.cli import run_scenario
from harness.mutants import IO_MUTANTS
from harness.scenario import Scenario

SCENARIO = Scenario("iofaults", mutants=tuple(IO_MUTANTS))


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
