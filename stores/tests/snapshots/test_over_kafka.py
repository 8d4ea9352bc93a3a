"""Snapshots of stores whose changelogs are topics of a Kafka broker."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.broker import Broker
from stores.tests.kafka.fresh import fresh_changelog
from stores.tests.snapshots.snapshotting import RECORDS, lose, pairs_of, reopened, send, settings, snap, snapping
from stores.tests.tasks.setup import INDEXED, logged

pytestmark = pytest.mark.kafka


def prepared(broker: Broker) -> KafkaChangelog:
    """A changelog in a broker without topics of earlier tests."""
    log = fresh_changelog(broker)
    for topic in ("input", "output"):
        log.create_topic(topic)
    return log


def test_a_lost_store_begins_from_a_snapshot_and_not_from_one_of_an_earlier_topic(
    tmp_path: Path, broker: Broker
) -> None:
    snapshots = settings(tmp_path)
    with prepared(broker) as log:
        with closing(snapping(tmp_path, log, INDEXED, snapshots)) as task:
            task.open()
            send(log, pairs_of(range(RECORDS)))
            offset = snap(task, log)
            send(log, pairs_of(range(5), b"tail"))
            task.run(commit=True)
        lose(tmp_path)
        restored, report = reopened(tmp_path, log, INDEXED, snapshots)
        assert restored == logged(log, "s")
        assert report.snapshot_offset is not None
        assert report.snapshot_offset >= offset
        first = log.topic_id("app-s-changelog")
        assert log.topic_id("app-s-changelog") == first
        assert log.deletes_kept_s("app-s-changelog") == 86_400
    lose(tmp_path)
    with prepared(broker) as log:
        with closing(snapping(tmp_path, log, INDEXED, None)) as task:
            task.open()
            send(log, pairs_of(range(3 * RECORDS), b"another"))
            task.run(commit=True)
        assert log.topic_id("app-s-changelog") != first
        lose(tmp_path)
        restored, report = reopened(tmp_path, log, INDEXED, snapshots)
        assert restored == logged(log, "s")
        assert (report.snapshot_offset, report.from_offset) == (None, 0)
        assert report.reason is not None
