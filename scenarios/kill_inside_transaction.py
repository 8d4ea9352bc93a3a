"""Of a transaction that a process dies in, nothing is left, whether or not the engine has flushed in the meantime.

Source: KIP-844, "Test Plan": what is not committed to the changelog is discarded after a crash.
"""

from harness.cli import run_scenario
from harness.experiments.crash.plan import UNDER_PRESSURE
from harness.faults import KillAfter
from harness.scenario import Scenario

SCENARIO = Scenario(
    "crash",
    faults=(KillAfter(13), KillAfter(101), KillAfter(220), KillAfter(220, flush_pressure=True)),
    **UNDER_PRESSURE,
    seeds=3,
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
