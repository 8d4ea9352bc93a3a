"""A task over Kafka has at least 0.8 of the speed of a bare loop, and 1.3 of that of Kafka Streams, exactly once.

All process the same topic of a real broker on this machine, in turns, with the same commit intervals. It needs Java
with a compiler, and the jars of Kafka: make bench-kafka fetches them and runs this.

Source: KIP-129, KIP-447.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("kafka", backends=("rocksdb-indexed-batch", "memory-indexed-batch"))


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
