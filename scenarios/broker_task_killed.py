"""A task over a Kafka broker that is killed at any step of a commit or a restore repeats and loses no output.

A consumer that reads committed records finds one output for each input, and the stores are the model's. Without
transactions it finds outputs twice, and with input offsets committed before the outputs it misses some.

Source: KIP-129, "Motivation"; KIP-844, "StateStore changes".
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario(
    "broker_faults",
    faults=("task killed",),
    mutants=("no-transactions", "inputs-before-outputs", "inputs-after-outputs", "aborted-restored"),
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
