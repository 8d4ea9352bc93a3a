"""A changelog in Kafka that is logged again in a later format: killed at each step, compacted by the broker."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stores.changelog import Record
from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.broker import Broker
from stores.changelog.producer import AFTER_COMMIT, BEFORE_COMMIT
from stores.settings import Upgrade
from stores.tasks.stores import log_format
from stores.tasks.stores.log_format import is_replaced, version_of
from stores.tasks.stores.log_start import needed_from
from stores.tests.forked_call import call_until_killed
from stores.tests.kafka.fresh import fresh_changelog
from stores.tests.kafka.shared_broker import FOLDER, skip_without_kafka
from stores.tests.tasks.typed import STORE, feed_times
from stores.tests.tasks.upgrading import expected, new_task, old_task, rewriting_task, shown, work

pytestmark = pytest.mark.kafka

SETTINGS = {
    "compact": {"cleanup.policy": "compact"},
    "deletes": {"cleanup.policy": "compact,delete", "retention.ms": "-1"},
}


def changelog(folder: Path) -> KafkaChangelog:
    return KafkaChangelog({"bootstrap.servers": (folder / "address").read_text()})


def begun(folder: Path, broker: Broker, policy: str, **more: str) -> None:
    """Fill the old store, whose topic has settings of its own."""
    (folder / "address").write_text(broker.address)
    with fresh_changelog(broker) as log:
        log._create(STORE.topic, 1, {**SETTINGS[policy], **more})
        log.create_store_topic = lambda *given, **named: None  # type: ignore[method-assign]
        feed_times(log, range(20))
        work(old_task(folder, log), 12)


def rewrite(folder: Path) -> None:
    with changelog(folder) as log:
        log.create_store_topic = lambda *given, **named: None  # type: ignore[method-assign]
        work(rewriting_task(folder, log), 0)


def never(record: Record, version: int) -> Iterable[tuple[bytes, bytes | None]]:
    raise AssertionError(f"record {record.offset} has format {version}")


def check(folder: Path) -> int:
    """Check that a restore reads the new format alone; return the number of records that it reads."""
    with changelog(folder) as log:
        log.create_store_topic = lambda *given, **named: None  # type: ignore[method-assign]
        with closing(new_task(folder / "other", log, store_upgrade=Upgrade(1, never))) as task:
            [report] = task.open()
            assert report.reason is None
            assert shown(task) == expected(12)
        records = list(log.read(STORE, max(log.start_offset(STORE), needed_from(log, STORE))))
        assert {version_of(record.headers) for record in records} == {1}
        return sum(not is_replaced(record.headers) for record in records)


def is_old(record: Record) -> bool:
    """Return whether the record has a value of the old format."""
    return record.value is not None and not (record.key or b"").startswith(b"key-")


@pytest.mark.parametrize("policy", SETTINGS)
@pytest.mark.parametrize("failpoint", [BEFORE_COMMIT, AFTER_COMMIT, *log_format.FAILPOINTS])
def test_kills_at_each_step_lose_nothing_and_log_nothing_twice(
    tmp_path: Path, broker: Broker, failpoint: str, policy: str
) -> None:
    begun(tmp_path, broker, policy)
    killed = call_until_killed(rewrite, tmp_path, failpoint)
    assert killed == (failpoint != log_format.FOLLOWED or policy == "deletes")
    for _ in range(2):
        rewrite(tmp_path)
        assert check(tmp_path) == 14
    with changelog(tmp_path) as log:
        assert (log.start_offset(STORE) > 0) == (policy == "deletes")


@pytest.fixture
def compacting() -> Iterator[Broker]:
    skip_without_kafka()
    settings = "log.cleaner.backoff.ms=100\n"
    with TemporaryDirectory(prefix="kafka-") as data, Broker(Path(data), FOLDER, settings=settings) as broker:
        yield broker


def test_the_broker_compacts_the_old_records_away(tmp_path: Path, compacting: Broker) -> None:
    begun(tmp_path, compacting, "compact", **{"segment.ms": "1", "min.cleanable.dirty.ratio": "0.01"})
    rewrite(tmp_path)
    deadline = time.monotonic() + 600
    with changelog(tmp_path) as log:
        while any(is_old(record) for record in log.read(STORE)):
            # A segment is compacted once a later one has begun.
            with log.producer() as producer:
                producer.send(STORE, b"key-0", bytes(8), 0)
                producer.flush()
            assert time.monotonic() < deadline
            time.sleep(0.5)
        keys = {record.key for record in log.read(STORE) if record.value is not None}
    assert len(keys) == len(expected(12))
