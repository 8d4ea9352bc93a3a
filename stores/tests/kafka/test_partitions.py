"""Outputs of a task are in the partitions that Kafka's own producer chooses for the same keys."""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random

import pytest

from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.broker import Broker
from stores.errors import ConfigError
from stores.interface import TopicPartition
from stores.tests.kafka.fresh import remove_all
from stores.tests.kafka.java_programs import kafka_tool_command
from stores.tests.tasks.test_output_partitions import forward, partitions_of, run_task

pytestmark = pytest.mark.kafka
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
PARTITIONS = 7


def test_outputs_are_in_the_partitions_of_the_console_producer(tmp_path: Path, broker: Broker) -> None:
    choose = Random(3)
    keys = ["".join(choose.choices("abcäöü€", k=choose.randrange(1, 40))) for _ in range(300)]
    remove_all(broker)
    with KafkaChangelog({"bootstrap.servers": broker.address}) as log:
        for topic in ("input", "output", "theirs"):
            log.create_topic(topic, PARTITIONS)
        with log.producer() as producer:
            producer.send_all(TopicPartition("input", 2), [(key.encode(), b"v", 1) for key in keys])
            producer.flush()
        run_task(tmp_path, log, forward)
        subprocess.run(
            kafka_tool_command(
                PRODUCER,
                *("--bootstrap-server", broker.address, "--topic", "theirs"),
                *("--property", "parse.key=true", "--property", "key.separator=="),
            ),
            input="".join(f"{key}=v\n" for key in keys).encode(),
            stdout=subprocess.DEVNULL,
            timeout=600,
            check=True,
        )
        ours, theirs = partitions_of(log, "output"), partitions_of(log, "theirs")
    assert ours == theirs
    assert len(ours) == len(set(keys))
    assert len(set.union(*ours.values())) == PARTITIONS


def test_the_clients_own_partitioner_is_refused() -> None:
    with pytest.raises(ConfigError, match="partitioner"):
        KafkaChangelog({"bootstrap.servers": "127.0.0.1:1", "partitioner": "consistent"})
