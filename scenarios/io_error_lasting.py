"""A disk that fails every call from some moment on has cost no acknowledged commit when it works again.

Source: Rebello et al., "Can Applications Recover from fsync Failures?" (USENIX ATC 2020).
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("iofaults", faults=("error EIO lasting", "error SHORT lasting"), points_max=100)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
