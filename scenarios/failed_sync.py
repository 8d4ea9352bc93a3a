"""A sync fails and its process is killed: the next process loses none of its own commits by power loss.

After a failed sync the kernel marks the pages clean, and no later sync reports them.

Source: Rebello et al., "Can Applications Recover from fsync Failures?" (USENIX ATC 2020); fsync(2), "EIO".
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("iofaults", faults=("failed_sync",), durabilities=("DISK",), points_max=6)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
