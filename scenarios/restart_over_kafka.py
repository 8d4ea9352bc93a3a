"""A worker over Kafka that was killed with 5,000,000 records in its store works again a second after its assignment.

It opens the store as it is, and replays the tail of the changelog. Beside it an instance of Kafka Streams restores its
whole store. It needs Java with a compiler, and the jars of Kafka: make kafka-jars fetches them.

Source: KIP-892, "Motivation"; KIP-844.
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("kafka-restart")


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
