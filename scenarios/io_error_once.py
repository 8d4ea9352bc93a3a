"""One call on a file that fails, or writes less than it should, costs an error that says what to do, and no commit.

A caller that follows that advice completes its work. A failed sync is not ignored.

Source: Rebello et al., "Can Applications Recover from fsync Failures?" (USENIX ATC 2020).
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("iofaults", faults=("error EIO once", "error SHORT once"), points_max=100)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
