"""Tasks with a function of batches, and records with headers for them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stores.interface import TopicPartition
from stores.records import INT64, STR
from stores.tasks import StreamTask, Topic
from stores.tasks.context import BatchFunction
from stores.tests.tasks.setup import (
    INPUT,
    MEMORY,
    counting_task,
    logging_all,
)

WORDS = Topic("input", key=STR, value=INT64)
HEADERS = (("own", b"1"),)


def batch_task(folder: Path, log: Any, function: BatchFunction, **settings: Any) -> StreamTask:
    return counting_task(folder, log, process_batch=function, **{"stores": {"s": logging_all(MEMORY)}, **settings})


def send(
    log: Any, records: Iterable[tuple[bytes | None, bytes | None, int]], partition: TopicPartition = INPUT
) -> None:
    with log.producer() as producer:
        for key, value, time_ms in records:
            producer.send(partition, key, value, time_ms, HEADERS)
        producer.flush()
