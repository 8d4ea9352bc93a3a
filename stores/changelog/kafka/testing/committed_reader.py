"""A read-committed consumer of a topic, as a program that shares no code with the library.

Its arguments are the address of a broker, a topic, and the number of its partitions. It prints the key and the value of
each committed record as JSON, in the order of each partition.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

SILENCE_S = 30.0


def main() -> None:
    """Read to the end of each partition, and print. A broker that does not answer ends it with an error."""
    address, topic, partitions = sys.argv[1], sys.argv[2], int(sys.argv[3])
    reader = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "independent",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    reader.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[tuple[str, str]] = []
    ended: set[int] = set()
    while len(ended) < partitions:
        message: Any = reader.poll(SILENCE_S)
        if message is None:
            raise SystemExit("no answer")
        if message.error() is None:
            found.append((message.key().decode(), message.value().decode()))
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        else:
            raise SystemExit(str(message.error()))
    reader.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
