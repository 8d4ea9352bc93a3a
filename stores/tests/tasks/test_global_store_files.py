"""The files of global stores: their place, those of another configuration, and a topic that has changed meanwhile."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from stat import S_IMODE

import pytest

from stores.changelog import MemoryChangelog, SqliteChangelog
from stores.config import StoreConfig
from stores.errors import ChangelogError, StoreIncompatibleError, StoreUnavailableError
from stores.interface import TopicPartition
from stores.records import BYTES, STR, KeyValue, RecordKind, TimestampedKeyValue
from stores.tasks import GlobalStore, GlobalStores
from stores.tasks.global_copy import GlobalCopy
from stores.tests.forked_call import call_until_killed
from stores.tests.tasks.global_topic import (
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


@pytest.fixture
def log() -> MemoryChangelog:
    return MemoryChangelog()


def test_the_folders_are_for_their_user_alone(log: MemoryChangelog, tmp_path: Path) -> None:
    say(log, PRICES)
    before = os.umask(0)
    try:
        with stores_over(log, tmp_path):
            pass
    finally:
        os.umask(before)
    state = tmp_path / "state"
    assert {S_IMODE(each.stat().st_mode) for each in (state, state / "global", state / "global/rocksdb")} == {0o700}


def test_the_copy_of_another_engine_is_removed_and_foreign_files_stay(log: MemoryChangelog, tmp_path: Path) -> None:
    say(log, PRICES)
    foreign = tmp_path / "state/global/notes/prices/note"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("not a store")
    with stores_over(log, tmp_path, "rocksdb-indexed-batch"):
        pass
    with stores_over(log, tmp_path, "lmdb-native") as stores:
        assert stores.restored == len(PRICES)
    assert [each.parent.name for each in sorted(tmp_path.glob("state/global/*/*"))] == ["lmdb", "notes"]
    assert foreign.read_text() == "not a store"


@pytest.mark.parametrize(
    ("records", "other"),
    [
        (KeyValue(key=STR, value=BYTES), StoreConfig("rocksdb-dual-store", records=KeyValue(key=STR, value=BYTES))),
        (KeyValue(key=STR, value=BYTES), KeyValue(key=BYTES, value=BYTES)),
        (TimestampedKeyValue(key=STR, value=BYTES), None),
    ],
)
def test_another_configuration_of_the_same_engine_is_refused_and_the_error_names_the_folder(
    log: MemoryChangelog, tmp_path: Path, records: RecordKind, other: StoreConfig | RecordKind | None
) -> None:
    log.create_topic(TOPIC)
    first = GlobalStore(TOPIC, records)
    with GlobalStores(tmp_path, log, {"prices": first}):
        pass
    with pytest.raises(StoreIncompatibleError) as error:
        GlobalStores(tmp_path, log, {"prices": replace(first, store=other)}).open()
    assert str(error.value).endswith(f"remove {tmp_path / 'global/rocksdb/prices'}")
    with GlobalStores(tmp_path, log, {"prices": first}) as stores:
        assert stores.wiped() == {}


def test_a_topic_that_was_made_again_with_fewer_partitions_is_read_whole(tmp_path: Path) -> None:
    """The offsets of its only partition still fit the store."""
    with MemoryChangelog() as first:
        say(first, PRICES)
        with stores_over(first, tmp_path):
            pass
    with MemoryChangelog() as second:
        second.create_topic(TOPIC)
        with second.producer() as producer:
            for _ in PRICES:
                producer.send(partition(0), b"0-9", b"9")
            producer.flush()
        with stores_over(second, tmp_path) as stores:
            assert contents(stores) == {b"0-9": b"9"}
            assert "prices-1, which does not exist" in stores.wiped()["prices"]


def test_partitions_that_were_added_are_read_from_their_start(tmp_path: Path) -> None:
    with MemoryChangelog() as first:
        first.create_topic(TOPIC)
        with first.producer() as producer:
            producer.send(partition(0), b"0-1", b"old")
            producer.flush()
        with stores_over(first, tmp_path):
            pass
    with MemoryChangelog() as second:
        messages = [(0, b"1", b"old"), (1, b"1", b"new")]
        say(second, messages)
        second._id = first._id  # It stands for the same topic.
        with stores_over(second, tmp_path) as stores:
            assert (stores.restored, stores.wiped()) == (1, {})
            assert contents(stores) == model(messages)


def test_a_record_of_an_upgraded_store_is_refused_by_name(log: MemoryChangelog, tmp_path: Path) -> None:
    say(log, PRICES)
    with stores_over(log, tmp_path) as stores:
        with log.producer() as producer:
            producer.send(partition(2), b"2-1", b"x", 0, (("other", b"1"),))
            producer.send(partition(2), b"2-2", b"y", 0, (("stores.format", b"1"),))
            producer.flush()
        with pytest.raises(ChangelogError, match="offset 5 of prices-2"):
            stores.follow()
        assert contents(stores) == model(PRICES)


def test_a_store_that_has_read_all_becomes_persistent(log: MemoryChangelog, tmp_path: Path) -> None:
    """A flush begins with an eighth of the bound then, and otherwise with a half of it."""
    num_bytes = sum(4 + len(value) for _, _, value in PRICES)
    say(log, PRICES)
    config = StoreConfig("rocksdb-indexed-batch", restore_max_bytes=4 * num_bytes)
    with GlobalStores(tmp_path, log, {"prices": GlobalStore(TOPIC, config)}) as stores:
        bound = stores._copies["prices"].bound
        assert bound.num_bytes > 0
        deadline = time.monotonic() + 600
        while bound.num_bytes:
            assert stores.follow() == 0
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_an_error_of_one_close_keeps_no_other_store_open(
    log: MemoryChangelog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic(TOPIC)
    described = {name: GlobalStore(TOPIC, StoreConfig("sqlite-indexed-batch")) for name in ("first", "second")}
    stores = GlobalStores(tmp_path, log, described)
    stores.open()
    closing = GlobalCopy.close

    def close(copy: GlobalCopy) -> None:
        closing(copy)
        if copy.name == "first":
            raise StoreUnavailableError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(GlobalCopy, "close", close)
        with pytest.raises(StoreUnavailableError):
            stores.close()
    with GlobalStores(tmp_path, log, described):
        assert [each.name for each in tmp_path.iterdir()] == ["global"]


class LogWithMarkers(MemoryChangelog):
    """A log that has a marker behind the records of each partition, as Kafka has after a transaction."""

    def end_offset(self, partition: TopicPartition) -> int:
        return super().end_offset(partition) + 1

    def read(self, partition: TopicPartition, from_offset: int = 0):  # type: ignore[no-untyped-def]
        return iter(()) if from_offset == self.end_offset(partition) else super().read(partition, from_offset)


def test_markers_at_the_ends_are_no_lag_once_they_are_passed(tmp_path: Path) -> None:
    log = LogWithMarkers()
    say(log, PRICES)
    with stores_over(log, tmp_path) as stores:
        assert stores.lag() == 0
    with stores_over(log, tmp_path) as stores:
        assert stores.wiped() == {}
        assert (stores.restored, stores.lag()) == (0, 0)


def follow_within_a_bound(folder: Path) -> None:
    with SqliteChangelog(folder / "log.sqlite") as log:
        say(log, [])
        described = GlobalStore(TOPIC, StoreConfig("rocksdb-indexed-batch", restore_max_bytes=1))
        with GlobalStores(folder / "state", log, {"prices": described}) as stores:
            say(log, PRICES)
            while stores.follow(RECORDS_PER_COMMIT):
                pass


def test_a_kill_costs_no_more_than_restore_max_bytes(tmp_path: Path) -> None:
    """The first commit is in RocksDB's files before the second one is made: more than a commit is never lost."""
    assert call_until_killed(follow_within_a_bound, tmp_path, "indexed_batch.before_write", 2)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        assert check_partial_commit(log, tmp_path, "rocksdb-indexed-batch") == RECORDS_PER_COMMIT
