"""The committed records of a topic, as a process reads them that shares no code with the library.

As a program this file is that process. Its arguments are the address of a broker, a topic, and the number of its
partitions. It prints the key and the value of each committed record as JSON, in the order of each partition.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

_SILENCE_S = 30.0
_DEADLINE_S = 120.0


def committed_records(address: str, topic: str, partitions: int = 1) -> list[tuple[bytes, bytes]]:
    """Return key and value of each committed record of a topic, in the order of each partition.

    The records have keys and values of UTF-8. Raises: ChangelogError if the broker at ``address`` does not answer.
    """
    from importlib.resources import files

    from stores.errors import ChangelogError

    # As text, so that the program does not import the package in whose folder it is.
    program = files(__package__).joinpath("committed.py").read_text(encoding="utf-8")
    command = [sys.executable, "-c", program, address, topic, str(partitions)]
    try:
        read = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=True)
    except subprocess.TimeoutExpired:
        raise ChangelogError(f"topic {topic!r} at {address} was not read within {_DEADLINE_S:.0f} s") from None
    except subprocess.CalledProcessError as error:
        raise ChangelogError(f"topic {topic!r} at {address} could not be read: {error.stderr.strip()}") from None
    return [(key.encode(), value.encode()) for key, value in json.loads(read.stdout)]


def _print_records(address: str, topic: str, partitions: int) -> None:
    """Read to the end of each partition, and print. A broker that does not answer ends it with an error."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

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
    records: list[tuple[str, str]] = []
    at_end: set[int] = set()
    while len(at_end) < partitions:
        message: Any = reader.poll(_SILENCE_S)
        if message is None:
            raise SystemExit("no answer")
        if message.error() is None:
            records.append((message.key().decode(), message.value().decode()))
        elif message.error().code() == KafkaError._PARTITION_EOF:
            at_end.add(message.partition())
        else:
            raise SystemExit(str(message.error()))
    reader.close()
    print(json.dumps(records))


if __name__ == "__main__":
    _print_records(sys.argv[1], sys.argv[2], int(sys.argv[3]))
