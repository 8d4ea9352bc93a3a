"""A network to a Kafka broker that hangs or breaks during commits costs a task time, and a held-back commit is fenced.

A proxy on loopback passes on nothing, or requests without answers, or cuts connections at a random byte. It delivers a
commit when the successor of its task has done all work, or within the next transaction of the task itself.

Source: KIP-588, "Proposed Changes"; KIP-892, "Error Handling"; KIP-98, zombie fencing; KIP-890.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario(
    "broker_faults",
    faults=("network stalls", "answers stall", "connections cut", "commit held back", "commit delivered late"),
    mutants=("own-transactional-id", "same-epoch"),
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
