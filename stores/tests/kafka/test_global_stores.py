"""A global store over a real broker: killed in a commit of several partitions, and with records that no one committed.

Source: KIP-99; KIP-892, "Atomic Checkpointing".
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stores.changelog.kafka.testing.broker import Broker
from stores.tests.forked_call import call_until_killed
from stores.tests.kafka.counting import changelog
from stores.tests.kafka.fresh import fresh_changelog
from stores.tests.tasks.global_topic import (
    PARTITIONS,
    PRICES,
    RECORDS_PER_COMMIT,
    TOPIC,
    check_partial_commit,
    contents,
    model,
    partition,
    say,
    stores_over,
)

pytestmark = pytest.mark.kafka

BACKEND = "sqlite-indexed-batch"


def follow(folder: Path) -> None:
    with changelog(folder) as log, stores_over(log, folder, BACKEND) as stores:
        say(log, PRICES)
        num_records = 0
        while num_records < len(PRICES):
            num_records += stores.follow(RECORDS_PER_COMMIT)


@pytest.mark.parametrize(
    ("failpoint", "applied"), [("indexed_batch.before_write", 6), ("indexed_batch.after_write", 12)]
)
def test_a_kill_leaves_the_data_and_the_offsets_of_one_commit_of_all_partitions(
    tmp_path: Path, broker: Broker, failpoint: str, applied: int
) -> None:
    (tmp_path / "address").write_text(broker.address)
    with fresh_changelog(broker) as log:
        log.create_topic(TOPIC, PARTITIONS)
    assert call_until_killed(follow, tmp_path, failpoint, 2)
    with changelog(tmp_path) as log:
        assert check_partial_commit(log, tmp_path, BACKEND) == applied


def test_its_reads_do_not_wait_long_for_the_ends_of_partitions(tmp_path: Path, broker: Broker) -> None:
    """Behind the marker of a transaction a client asks again, and brokers hold back the answer that nothing follows.

    The client's default is half a second for each partition, one after the other.
    """
    with fresh_changelog(broker) as log:
        say(log, [])
        with log.producer("writer") as producer, stores_over(log, tmp_path) as stores:
            producer.begin()
            for number, key, value in PRICES:
                producer.send(partition(number), key, value)
            producer.commit()
            while stores.restored < len(PRICES):
                stores.follow()
            assert [reader._rests for reader in log._readers.values()] == [True] * PARTITIONS


def test_it_has_committed_records_only_and_passes_markers_and_aborted_ones(tmp_path: Path, broker: Broker) -> None:
    with fresh_changelog(broker) as log:
        say(log, PRICES)
        with stores_over(log, tmp_path) as stores, log.producer("writer") as producer:
            for value, ends in ((b"aborted", producer.abort), (b"committed", producer.commit)):
                producer.begin()
                producer.send(partition(0), b"0-1", value)
                ends()
            producer.begin()
            producer.send(partition(0), b"0-2", b"open")
            while not stores.follow():
                pass
            assert contents(stores) == {**model(PRICES), b"0-1": b"committed"}
            producer.abort()
        with stores_over(log, tmp_path) as stores:
            assert stores.restored == 0
            assert stores.lag() == 0
            assert stores.wiped() == {}
            assert contents(stores) == {**model(PRICES), b"0-1": b"committed"}
