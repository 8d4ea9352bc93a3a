"""The query of ``docs/examples`` from Kafka to Kafka on Spark adds each payment once although it is killed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from harness.processes.spark_cluster import QUICK_SPARK, SPARK_ENVIRONMENT, end_session
from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.broker import Broker
from stores.changelog.kafka.testing.jars import SPARK, kafka_jars
from stores.interface import TopicPartition
from stores.records import INT64
from stores.tests.kafka.shared_broker import FOLDER, broker  # noqa: F401

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "docs/examples/kafka_on_spark.py"
PAYMENTS, TOTALS = TopicPartition("payments", 0), TopicPartition("totals", 0)
OPTIONS = ["--master", "local[1]", "--driver-memory", "512m", "--driver-java-options", QUICK_SPARK]
OPTIONS += ["--conf", "spark.ui.enabled=false", "--conf", "spark.sql.adaptive.enabled=false"]


def started(folder: Path, address: str) -> subprocess.Popen[bytes]:
    """Start the query in a session of its own; its messages go to the file ``messages``."""
    jars = ",".join(str(jar) for jar in kafka_jars(FOLDER, name=SPARK).iterdir())
    environment = {
        **os.environ,
        **SPARK_ENVIRONMENT,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_SUBMIT_ARGS": shlex.join([*OPTIONS, "--jars", jars, "pyspark-shell"]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with (folder / "printed").open("wb") as printed, (folder / "messages").open("wb") as messages:
        return subprocess.Popen(
            [sys.executable, PROGRAM, address, folder],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=messages,
            start_new_session=True,
        )


@pytest.mark.kafka
def test_a_query_from_kafka_to_kafka_adds_each_payment_once_although_it_is_killed(
    tmp_path: Path,
    broker: Broker,  # noqa: F811
) -> None:
    drawn = Random(27)
    payments = [(f"card-{drawn.randrange(20)}", drawn.randrange(1, 1_000)) for _ in range(900)]
    totals: dict[str, int] = {}
    expected = set()
    for card, cents in payments:
        totals[card] = totals.get(card, 0) + cents
        expected.add((card.encode(), INT64.serialize(totals[card])))
    with KafkaChangelog({"bootstrap.servers": broker.address}) as log:
        for topic in (PAYMENTS, TOTALS):
            log.create_topic(topic.topic, 1)
        with log.producer() as producer:
            producer.send_all(PAYMENTS, [(card.encode(), INT64.serialize(cents), 1) for card, cents in payments])
            producer.flush()
        query = started(tmp_path, broker.address)
        try:
            while not log.end_offset(TOTALS):
                assert query.poll() is None, (tmp_path / "messages").read_text()
                time.sleep(0.1)
        finally:
            end_session(query)
        assert {(each.key, each.value) for each in log.read(TOTALS)} < expected
        query = started(tmp_path, broker.address)
        try:
            assert query.wait(900) == 0, (tmp_path / "messages").read_text()
        finally:
            end_session(query)
        assert (tmp_path / "printed").read_text() == f"{sorted(totals.items())}\n"
        # The sink may repeat the rows of a batch.
        assert {(each.key, each.value) for each in log.read(TOTALS)} == expected
