"""Outputs committed before the input offsets, in a step of their own, are repeated after a crash: the checkers see it.

A negative control: the commit is taken apart on purpose, and every backend must be found out.

Source: KIP-129, "Motivation": of the two orders without a transaction one repeats, and the other loses.
"""

from harness.cli import run_scenario
from harness.faults import Kill
from harness.scenario import Scenario
from stores.registry import backends

SCENARIO = Scenario(
    "crash",
    faults=(Kill("mutant.between", 3),),
    mutants=("inputs-after-outputs",),
    caught=tuple(backends()),
    seeds=2,
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
