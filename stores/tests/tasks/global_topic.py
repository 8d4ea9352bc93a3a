"""A topic of prices, global stores that follow it, and a process that is killed while one does."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stores.changelog import Changelog
from stores.config import StoreConfig
from stores.interface import TopicPartition
from stores.tasks import GlobalStore, GlobalStores

TOPIC = "prices"
PARTITIONS = 3
RECORDS_PER_COMMIT = 6
"""More than the four records of a partition: each commit has several partitions."""
PRICES = [(number % PARTITIONS, b"%d" % (number % 5), b"%d" % number) for number in range(4 * PARTITIONS)]
"""Partition, key and value. Each key is in several partitions, and the offset of its last record decides."""
Said = Iterable[tuple[int, bytes | None, bytes | None]]


def partition(number: int) -> TopicPartition:
    return TopicPartition(TOPIC, number)


def say(log: Changelog, said: Said) -> None:
    """Append records to the topic, and create it."""
    log.create_topic(TOPIC, PARTITIONS)
    with log.producer() as producer:
        for time_ms, (number, key, value) in enumerate(said):
            producer.send(partition(number), key and b"%d-" % number + key, value, time_ms)
        producer.flush()


def stores_over(log: Changelog, folder: Path, backend: str = "rocksdb-indexed-batch") -> GlobalStores:
    return GlobalStores(folder / "state", log, {"prices": GlobalStore(TOPIC, StoreConfig(backend))})


def contents(stores: GlobalStores) -> dict[bytes, bytes]:
    with stores.view("prices").all() as pairs:
        return dict(pairs)


def model(said: Said, offsets: dict[int, int] | None = None) -> dict[bytes, bytes]:
    """Return what a store has after the records up to these offsets, by partition; after all of them by default."""
    contents: dict[bytes, bytes] = {}
    following = dict.fromkeys(range(PARTITIONS), 0)
    for number, key, value in said:
        offset = following[number]
        following[number] += 1
        if offsets is not None and offset > offsets.get(number, -1):
            continue
        if key is not None:
            name = b"%d-" % number + key
            contents.pop(name, None)
            if value is not None:
                contents[name] = value
    return contents


def check_partial_commit(log: Changelog, folder: Path, backend: str) -> int:
    """Compare data and offsets that a killed process has left with the model; return the number of records in them.

    Then open the stores again, and check that they read the rest alone.
    """
    path = folder / "state" / "global" / backend.partition("-")[0] / "prices"
    with StoreConfig(backend).open(path) as store:
        found = {number: store.committed_offset(partition(number)) for number in range(PARTITIONS)}
        offsets = {number: offset for number, offset in found.items() if offset is not None}
        with store.all() as pairs:
            assert dict(pairs) == model(PRICES, offsets)
    count = sum(offset + 1 for offset in offsets.values())
    with stores_over(log, folder, backend) as stores:
        assert stores.restored == len(PRICES) - count
        assert stores.wiped() == {}
        assert contents(stores) == model(PRICES)
    return count
