"""Writes of an aborted transaction that an engine has flushed are gone, except from a store without isolation.

``rocksdb-direct`` relies on being wiped after an abort. With the wipe turned off it must be caught; every other backend
has no need of the wipe, and must not be.

Source: KAFKA-20685; KIP-844, "Background".
"""

from harness.cli import run_scenario
from harness.experiments.crash.plan import UNDER_PRESSURE
from harness.faults import Abort, KillAfter
from harness.scenario import Scenario

SCENARIO = Scenario(
    "crash",
    faults=(
        Abort(220, flush_pressure=True, then="go_on"),
        Abort(220, flush_pressure=True, then="kill"),
        KillAfter(220, flush_pressure=True),
    ),
    **UNDER_PRESSURE,
    mutants=("skipped-wipe",),
    caught=("rocksdb-direct",),
    seeds=3,
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
