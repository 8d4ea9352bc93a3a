"""A new worker on an empty machine begins from the snapshots of the one before."""

from __future__ import annotations

import time
from collections import Counter

from stores.interface import TopicPartition
from stores.snapshots import Snapshots
from stores.snapshots.objects import StoreObjects, partition_of
from stores.tests.worker.counting_app import PARTITIONS
from stores.tests.worker.places import Place, expected_counts
from stores.tests.worker.worker_process import DEADLINE_S, WorkerProcess

WORDS = [f"word-{number % 40}" for number in range(400)]


def worker(place: Place, name: str) -> WorkerProcess:
    """A worker with a state directory of its own, and snapshots after each commit."""
    own = {
        "state.dir": str(place.folder / f"state-{name}"),
        "snapshot.dir": str(place.folder / "snapshots"),
        "snapshot.interval.ms": "0",
    }
    return WorkerProcess(place.folder, name, {**place.properties(), **own}, verbose=True)


def snapped(place: Place) -> list[TopicPartition]:
    """Return the changelogs of the stores that have a snapshot."""
    folder = Snapshots(place.folder / "snapshots").folder
    partitions = [partition for name in folder.folders() if (partition := partition_of(name)) is not None]
    return [partition for partition in partitions if StoreObjects(folder, partition).indexes()]


def test_a_new_worker_begins_from_the_files_of_the_one_before(place: Place) -> None:
    place.feed(WORDS)
    number = len(WORDS)
    with worker(place, "first"):
        place.await_counted(number)
        deadline = time.monotonic() + DEADLINE_S
        # A snapshot follows a commit.
        while len(snapped(place)) < PARTITIONS:
            assert time.monotonic() < deadline, "not all stores have a snapshot"
            place.feed(WORDS[:40])
            number += 40
            place.await_counted(number)
    with worker(place, "second") as second:
        place.feed(WORDS)
        place.await_counted(number + len(WORDS))
        assert second.errors.count("begins from the snapshot at offset") == PARTITIONS
    expected = expected_counts([*WORDS, *WORDS[:40] * ((number - len(WORDS)) // 40), *WORDS])
    assert Counter(place.counted()) == expected
