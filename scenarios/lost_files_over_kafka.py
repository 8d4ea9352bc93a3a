"""A worker over Kafka that has lost 50,000,000 records works again a minute after its assignment.

Its local files are removed. It begins with a snapshot by files that has nearly all of its records, from a folder on the
same disk. It needs Java with a compiler, the jars of Kafka (make kafka-jars fetches them), and some 50 GB of disk.

Source: Samza's SEP-29, "Blob Store Based State Backup".
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario("kafka-restart", records=50_000_000, loses_state=True, streams=False)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
