"""A global store continues with what Kafka Streams has left in the folder ``global``, or reads its topic whole.

``test_streams_kinds`` does it with a state directory of Kafka's own program.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from stores.changelog import Changelog, MemoryChangelog, SqliteChangelog
from stores.config import StoreConfig
from stores.errors import StoreIncompatibleError, StoreLockedError
from stores.interface import TopicPartition
from stores.records import BYTES, KeyValue, RecordKind, TimestampedKeyValue
from stores.tasks import GlobalStore, GlobalStores
from stores.tasks.directory import replacement
from stores.tasks.directory.entry_files import CheckpointFile
from stores.tasks.directory.store_places import ENDS, beside
from stores.tests.forked_call import call_until_killed
from stores.tests.tasks.directory.relocating import failing_at
from stores.tests.tasks.global_topic import PARTITIONS, PRICES, TOPIC, contents, model, partition, say, stores_over
from stores.tests.tasks.setup import Crash
from stores.tests.tasks.stores.test_takeover import (
    damage_current,
    damage_log,
    damage_manifest,
    damage_tables,
    locked_elsewhere,
)
from stores.tests.tasks.streams_folder import all_files, leave_offsets, leave_store

INDEXED, LMDB = "rocksdb-indexed-batch", "lmdb-indexed-batch"
BACKENDS = [INDEXED, LMDB, "rocksdb-dual-store", "sqlite-native"]
COUNT = len(PRICES) // PARTITIONS
WHOLE = dict.fromkeys(range(PARTITIONS), COUNT)
"""The next offset of each partition."""


@pytest.fixture
def log() -> MemoryChangelog:
    return MemoryChangelog()


def global_folder(folder: Path) -> Path:
    return folder / "state" / "global"


def left(folder: Path) -> Path:
    """Return the path of the store of Kafka Streams."""
    return global_folder(folder) / "rocksdb" / "prices"


def left_by_streams(folder: Path, log: Changelog, following: Mapping[int, int] = WHOLE) -> None:
    """Leave the store as of the next offsets ``following``, and these in the checkpoint file."""
    say(log, PRICES)
    leave_store(left(folder), model(PRICES, {number: at - 1 for number, at in following.items()}))
    offsets = {partition(number): at for number, at in following.items()}
    leave_offsets(global_folder(folder) / ".checkpoint", offsets)
    leave_offsets(global_folder(folder) / "prices.position", offsets)


def check(folder: Path, log: Changelog, backend: str, restored: int, *, wiped: bool = False) -> None:
    """Open the store, compare what it has read and its contents, follow the topic, and open it again."""
    said = [*PRICES]
    for number in range(2):
        with stores_over(log, folder, backend) as stores:
            assert stores.restored == (0 if number else restored)
            assert [*stores.wiped()] == (["prices"] if wiped and not number else [])
            assert contents(stores) == model(said)
            more = [(number, b"more", b"%d" % number)]
            say(log, more)
            said += more
            stores.follow()
            assert contents(stores) == model(said)
    assert not (left(folder) / "CURRENT").exists()
    assert not any(os.path.lexists(beside(left(folder), end)) for end in ENDS)
    assert not (global_folder(folder) / ".checkpoint").exists()
    assert not (global_folder(folder) / "prices.position").exists()
    assert (folder / "state" / ".lock").is_dir()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_global_store_is_taken_over_with_the_offsets_of_all_partitions(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    """Their file has the next offset of each, unlike that of a task. Source: ``GlobalStateUpdateTask.update``."""
    left_by_streams(tmp_path, log)
    check(tmp_path, log, backend, 0)


@pytest.mark.parametrize("following", [{}, {2: 0}])
@pytest.mark.parametrize("backend", [INDEXED, LMDB])
def test_the_rest_of_each_partition_is_read(
    tmp_path: Path, log: MemoryChangelog, backend: str, following: dict[int, int]
) -> None:
    """One that has no offset is read from its start, like one that was added."""
    left_by_streams(tmp_path, log, {0: COUNT, 1: COUNT - 2, **following})
    check(tmp_path, log, backend, 2 + COUNT)


@pytest.mark.parametrize("following", [{}, {0: COUNT + 1}])
@pytest.mark.parametrize("backend", [INDEXED, LMDB])
def test_without_offsets_that_the_topic_has_it_is_read_whole(
    tmp_path: Path, log: MemoryChangelog, backend: str, following: dict[int, int]
) -> None:
    left_by_streams(tmp_path, log)
    leave_offsets(global_folder(tmp_path) / ".checkpoint", {partition(number): at for number, at in following.items()})
    if not following:
        (global_folder(tmp_path) / ".checkpoint").unlink()
    with stores_over(log, tmp_path, backend) as stores:
        assert stores.restored == len(PRICES)
        assert "Kafka Streams" in stores.wiped()["prices"]
    check(tmp_path, log, backend, 0)


def test_a_store_whose_next_record_the_topic_has_no_more_is_read_whole(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log, {**WHOLE, 0: 1})
    log.truncate(partition(0), 2)
    with stores_over(log, tmp_path) as stores:
        assert stores.restored == len(PRICES) - 2
        assert "Kafka Streams" in stores.wiped()["prices"]


def test_the_offsets_of_another_global_store_stay(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log)
    offsets = {partition(number): at for number, at in WHOLE.items()}
    leave_offsets(global_folder(tmp_path) / ".checkpoint", {**offsets, TopicPartition("rates", 0): 3})
    with stores_over(log, tmp_path) as stores:
        assert (stores.restored, stores.wiped()) == (0, {})
    assert CheckpointFile(global_folder(tmp_path) / ".checkpoint").known() == {TopicPartition("rates", 0): 3}


@pytest.mark.parametrize("damage", [damage_tables, damage_manifest, damage_current, damage_log])
@pytest.mark.parametrize("backend", [INDEXED, LMDB])
def test_a_damaged_store_is_read_whole(
    tmp_path: Path, log: MemoryChangelog, backend: str, damage: Callable[[Path], None]
) -> None:
    left_by_streams(tmp_path, log)
    damage(left(tmp_path))
    check(tmp_path, log, backend, len(PRICES), wiped=True)


def test_a_store_without_the_record_of_an_offset_is_read_whole(tmp_path: Path, log: MemoryChangelog) -> None:
    """As that of a processor, which may keep something else than the records."""
    left_by_streams(tmp_path, log, {0: 1, 1: 1})
    leave_offsets(global_folder(tmp_path) / ".checkpoint", {partition(number): at for number, at in WHOLE.items()})
    check(tmp_path, log, INDEXED, len(PRICES), wiped=True)


def test_a_store_with_timestamps_is_taken_over_as_one(tmp_path: Path, log: MemoryChangelog) -> None:
    """Those of ``globalTable`` have some."""
    say(log, PRICES)
    timed = {b"%d-%b" % (number, key): (time_ms, value) for time_ms, (number, key, value) in enumerate(PRICES)}
    leave_store(left(tmp_path), {}, timed)
    leave_offsets(global_folder(tmp_path) / ".checkpoint", {partition(number): at for number, at in WHOLE.items()})
    described = GlobalStore(TOPIC, TimestampedKeyValue(key=BYTES, value=BYTES))
    with GlobalStores(tmp_path / "state", log, {"prices": described}) as stores:
        assert (stores.restored, stores.wiped()) == (0, {})
        with stores.view("prices").all() as pairs:
            assert {key: (time_ms, value) for key, (value, time_ms) in pairs} == timed


@pytest.mark.parametrize("timestamped", [False, True])
def test_a_store_that_another_configuration_can_take_over_is_refused_unchanged(
    tmp_path: Path, log: MemoryChangelog, timestamped: bool
) -> None:
    left_by_streams(tmp_path, log)
    if timestamped:
        left(tmp_path).rename(tmp_path / "kept")
        leave_store(left(tmp_path), {}, {b"0-0": (1, b"0")})
    records: RecordKind = TimestampedKeyValue(key=BYTES, value=BYTES)
    if timestamped:
        records = KeyValue(key=BYTES, value=BYTES)
    before = all_files(tmp_path / "state")
    stores = GlobalStores(tmp_path / "state", log, {"prices": GlobalStore(TOPIC, StoreConfig(records=records))})
    with pytest.raises(StoreIncompatibleError, match="Nothing of it was changed"):
        stores.open()
    after = all_files(tmp_path / "state")
    assert {name: after[name] for name in before} == before
    assert not (tmp_path / "state" / ".lock").exists()


@pytest.mark.parametrize("file", ["global/rocksdb/prices/LOCK", ".lock"])
def test_a_store_that_kafka_streams_has_open_is_refused_unchanged(
    tmp_path: Path, log: MemoryChangelog, file: str
) -> None:
    left_by_streams(tmp_path, log)
    (tmp_path / "state" / ".lock").touch()
    before = all_files(tmp_path / "state")
    with locked_elsewhere(tmp_path / "state" / file), pytest.raises(StoreLockedError):
        stores_over(log, tmp_path).open()
    after = all_files(tmp_path / "state")
    assert {name: after[name] for name in before} == before
    check(tmp_path, log, INDEXED, 0)


def test_a_store_in_memory_leaves_the_folder(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log)
    before = all_files(global_folder(tmp_path))
    with stores_over(log, tmp_path, "memory-indexed-batch") as stores:
        assert stores.restored == len(PRICES)
    after = all_files(global_folder(tmp_path))
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("backend", [INDEXED, LMDB])
def test_a_takeover_cut_short_at_any_change_of_a_file_is_repeated(tmp_path: Path, backend: str) -> None:
    """Every seventh change is tried."""
    number = tried = 0
    while True:
        number += 7
        folder = tmp_path / str(number)
        with MemoryChangelog() as log:
            left_by_streams(folder, log)
            try:
                with failing_at(number, []):
                    stores_over(log, folder, backend).open()
            except Crash:
                tried += 1
                check(folder, log, backend, 0)
            else:
                break
    assert tried > 5


def take_over(folder: Path, backend: str) -> None:
    with SqliteChangelog(folder / "log.sqlite") as log:
        stores_over(log, folder, backend).open()


@pytest.mark.parametrize("failpoint", ["create.built", replacement.SYNCED, *replacement.FAILPOINTS])
@pytest.mark.parametrize("backend", [INDEXED, LMDB])
def test_a_kill_at_any_step_keeps_the_records(tmp_path: Path, backend: str, failpoint: str) -> None:
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        left_by_streams(tmp_path, log)
    assert call_until_killed(take_over, tmp_path, failpoint, 1, backend)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        check(tmp_path, log, backend, 0)
