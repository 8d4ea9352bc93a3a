"""Nexmark's q4, q7 and q11 over Kafka end with the state of Kafka Streams, exactly once: by record and in batches.

All process the same topic of a real broker on this machine, in turns. The table has events per second and core. It
needs Java with a compiler, and the jars of Kafka: make bench-kafka fetches them and runs this.

Source: Tucker et al., "NEXMark: A Benchmark for Queries over Data Streams", 2002; KIP-129, KIP-447.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario(
    "kafka",
    work=(("nexmark_q4", 1), ("nexmark_q7", 1), ("nexmark_q11", 1)),
    commit_intervals_ms=(100, 1_000),
    backends=("rocksdb-indexed-batch", "lmdb-indexed-batch", "sqlite-indexed-batch"),
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
