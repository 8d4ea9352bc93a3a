"""Mutants of stateful queries are detected: these checks can fail.

Source: Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014), section 5.
"""

from harness.cli import run_scenario
from harness.mutants import QUERY_TRIALS
from harness.scenario import Scenario

SCENARIO = Scenario("query_faults", mutants=tuple(QUERY_TRIALS))


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
