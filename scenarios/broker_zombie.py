"""A task that stalls, and wakes after its successor has committed over a Kafka broker, is fenced and changes nothing.

Without transactions, or with a transactional ID of its own, the zombie repeats outputs.

Source: KIP-98, "Transactional Guarantees", zombie fencing; KIP-447.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("broker_faults", faults=("zombie wakes",), mutants=("no-transactions", "own-transactional-id"))


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
