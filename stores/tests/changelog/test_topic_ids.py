"""A topic has an identity, which differs from that of an earlier or another one of its name."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from stores.changelog import MemoryChangelog, SqliteChangelog
from stores.changelog.kafka.testing.broker import Broker
from stores.errors import ChangelogError
from stores.tests.changelog.records import A, put
from stores.tests.kafka.fresh import fresh_changelog


def test_a_topic_has_another_identity_in_each_changelog_and_the_same_one_in_each_opening(tmp_path: Path) -> None:
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        log.create_topic("t", 3)
        log.create_topic("u")
        identity = log.topic_id("t")
        assert log.topic_id("t") == identity != log.topic_id("u")
        with pytest.raises(ChangelogError):
            log.topic_id("missing")
        assert log.deletes_kept_s("t") is None
    with SqliteChangelog(tmp_path / "log.sqlite") as log, SqliteChangelog(tmp_path / "other.sqlite") as other:
        assert log.topic_id("t") == identity
        other.create_topic("t")
        assert other.topic_id("t") != identity
    with MemoryChangelog() as memory:
        memory.create_topic("t")
        assert memory.topic_id("t") == memory.topic_id("t") != identity
        with pytest.raises(ChangelogError):
            memory.topic_id("missing")


def test_a_file_keeps_its_id_also_in_a_copy_and_for_a_second_process(tmp_path: Path) -> None:
    with SqliteChangelog(tmp_path / "log") as log, SqliteChangelog(tmp_path / "log") as beside:
        log.create_topic("a")
        first = log.topic_id("a")
        assert beside.topic_id("a") == first
    shutil.copy(tmp_path / "log", tmp_path / "copy")
    for name in ("log", "copy"):
        with SqliteChangelog(tmp_path / name) as log:
            assert log.topic_id("a") == first


@pytest.mark.kafka
def test_a_topic_of_kafka_that_is_made_again_has_another_identity_and_its_own_end(broker: Broker) -> None:
    """Also for the process that has written more to the earlier one."""
    with fresh_changelog(broker) as log:
        log.create_topic("a")
        log.create_topic("b")
        first = log.topic_id("a")
        assert log.topic_id("b") != first
        put(log, *((b"%d" % number, b"v") for number in range(9)))
        assert log.end_offset(A) == 9
        put(log, (b"k", b"v"))
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.delete_topics(["a"])["a"].result(60)
        deadline = time.monotonic() + 600
        while "a" in log.topics():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        log.create_topic("a")
        assert log.topic_id("a") not in (first, log.topic_id("b"))
        assert log.end_offset(A) == 0
