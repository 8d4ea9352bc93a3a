"""A sync fails and its process is killed: whoever goes on with what it left loses no commit of its own by power loss.

What the system could not write it takes for written, and no later sync speaks of it.

Source: Rebello et al., "Can Applications Recover from fsync Failures?" (USENIX ATC 2020); fsync(2), "EIO".
"""

from harness.effect_scenario import EffectScenario

SCENARIO = EffectScenario(faults=("failed_sync",), durabilities=("DISK",), points_max=6)


if __name__ == "__main__":
    from harness.cli import run_scenario

    raise SystemExit(run_scenario(__file__))
