"""A store that does not fit its changelog: it has no offset, or one outside the changelog."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stores import registry
from stores.changelog import Changelog, MemoryChangelog
from stores.config import StoreConfig
from stores.errors import ChangelogLostError, StoreCorruptedError, StoreUnavailableError
from stores.interface import TopicPartition
from stores.registry import backend_named, backends, open_store
from stores.tasks import ProcessingGuarantee
from stores.tasks.stores import earlier_store
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    DIRECT,
    EXACTLY_ONCE,
    INDEXED,
    LEFT,
    RIGHT,
    Crash,
    checkpoint,
    counting_task,
    expected_state,
    feed,
    over_each_changelog,
    raising_at,
    state,
    store_folder,
)

PERSISTENT = [name for name, backend in backends().items() if backend.persistent]
MANAGING = [name for name in PERSISTENT if backend_named(name).strategy != "direct"]


def log_states(log: Changelog, records: int) -> None:
    """Put ``records`` into each changelog: keys 0, 1, 2 and so on, all of them 9."""
    for partition in (LEFT, RIGHT):
        log.create_store_topic(partition.topic, 1)
        with log.producer() as producer:
            for number in range(records):
                producer.send(partition, b"%d" % number, b"9")
            producer.flush()


@over_each_changelog
@pytest.mark.parametrize(
    ("backend", "guarantee"), [*((name, EXACTLY_ONCE) for name in MANAGING), ("sqlite-native", AT_LEAST_ONCE)]
)
def test_data_without_an_offset_beside_it_is_wiped_under_exactly_once_and_the_reason_reported(
    tmp_path: Path, log: Changelog, backend: str, guarantee: ProcessingGuarantee
) -> None:
    """The origin of the data is unknown, and a replay would not remove it. Source: KIP-892, "Error Handling", 1."""
    with open_store(backend, store_folder(tmp_path, backend), name="left") as store:
        store.put(b"foreign", b"1")
        store.commit()
    log_states(log, 2)
    task = counting_task(tmp_path, log, backend, guarantee=guarantee)
    left, right = task.open()
    corrupt = guarantee is EXACTLY_ONCE
    assert (left.wiped, left.records, right.wiped) == (corrupt, 2, False)
    assert left.reason == (earlier_store.NO_OFFSET if corrupt else None)
    contents = {b"0": b"9", b"1": b"9"}
    assert state(task, "left") == (contents if corrupt else {**contents, b"foreign": b"1"})
    assert state(task, "right") == contents
    task.close()
    assert [(report.wiped, report.records) for report in task.open()] == [(False, 0)] * 2
    task.close()


@pytest.mark.parametrize("backend", [DIRECT, "sqlite-native"])
def test_an_empty_store_needs_no_offset(tmp_path: Path, log: MemoryChangelog, backend: str) -> None:
    open_store(backend, store_folder(tmp_path, backend), name="left").close()
    task = counting_task(tmp_path, log, backend)
    assert [(report.wiped, report.reason) for report in task.open()] == [(False, None)] * 2
    task.close()


@over_each_changelog
def test_a_direct_store_that_has_lost_its_checkpoint_is_wiped_and_restored_whole(
    tmp_path: Path, log: Changelog
) -> None:
    """Source: KIP-844, step 1.1."""
    feed(log, [1, 2, 1])
    task = counting_task(tmp_path, log, DIRECT)
    task.open()
    task.run()
    task.close()
    checkpoint(tmp_path).forget(LEFT)
    lost, _ = task.open()
    assert (lost.wiped, lost.records, lost.reason) == (True, 3, earlier_store.UNCLEAN)
    assert state(task, "left") == state(task, "right") == expected_state([1, 2, 1])
    task.close()


@pytest.mark.parametrize(
    ("backend", "guarantee", "start", "end", "wiped"),
    [
        # The store has seen records 0 to 2 and so needs the changelog to have 3, or to end there.
        ("lmdb-native", EXACTLY_ONCE, 0, 5, False),
        ("lmdb-native", EXACTLY_ONCE, 3, 5, False),
        ("lmdb-native", EXACTLY_ONCE, 4, 5, True),
        ("lmdb-native", EXACTLY_ONCE, 5, 5, True),
        ("lmdb-native", EXACTLY_ONCE, 3, 3, False),
        ("lmdb-native", EXACTLY_ONCE, 0, 2, True),
        ("lmdb-native", EXACTLY_ONCE, 2, 2, True),
        ("sqlite-native", AT_LEAST_ONCE, 3, 5, False),
        ("sqlite-native", AT_LEAST_ONCE, 4, 5, True),
        ("sqlite-native", AT_LEAST_ONCE, 0, 2, True),
        (DIRECT, AT_LEAST_ONCE, 4, 5, True),
    ],
)
def test_a_store_is_wiped_exactly_where_its_changelog_does_not_reach_it(
    tmp_path: Path, backend: str, guarantee: ProcessingGuarantee, start: int, end: int, wiped: bool
) -> None:
    """Source: KIP-892, "Error Handling", 2."""
    kept = 3
    with MemoryChangelog() as before:
        feed(before, [])
        log_states(before, kept)
        task = counting_task(tmp_path, before, backend, guarantee=guarantee)
        task.open()
        task.close()
    with MemoryChangelog() as after:
        after._id = before._id  # It stands for the same topics.
        feed(after, [])
        log_states(after, end)
        after.truncate(LEFT, start)
        task = counting_task(tmp_path, after, backend, guarantee=guarantee)
        left, right = task.open()
        assert (left.wiped, left.reason is not None) == (wiped, wiped)
        assert (left.from_offset, left.to_offset) == (start if wiped else kept, end)
        assert state(task, "left") == {b"%d" % n: b"9" for n in range(start if wiped else 0, end)}
        assert right.wiped is (end < kept)
        task.close()
        assert [(report.wiped, report.records) for report in task.open()] == [(False, 0)] * 2
        task.close()


@pytest.mark.parametrize("backend", ["rocksdb-direct", "rocksdb-dual-store", "sqlite-native"])
def test_a_changelog_that_is_empty_again_empties_no_store(tmp_path: Path, log: MemoryChangelog, backend: str) -> None:
    """Its file is gone, or its topic: what the stores have may be all that is left."""
    log_states(log, 3)
    task = counting_task(tmp_path, log, backend)
    task.open()
    before = state(task, "left")
    task.close()
    with MemoryChangelog() as new:
        feed(new, [1])
        for _ in range(2):
            task = counting_task(tmp_path, new, backend)
            with pytest.raises(ChangelogLostError) as error:
                task.open()
            assert str(tmp_path / "state" / "0_0") in str(error.value)
    task = counting_task(tmp_path, log, backend)
    assert [(report.wiped, report.records) for report in task.open()] == [(False, 0)] * 2
    assert state(task, "left") == before != {}
    task.close()


@pytest.mark.parametrize("backend", PERSISTENT)
def test_a_damaged_store_is_not_wiped_where_its_changelog_is_lost(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    """The store may be the only copy that is left."""
    log_states(log, 3)
    task = counting_task(tmp_path, log, backend)
    task.open()
    task.close()
    folder = store_folder(tmp_path, backend)
    sound = (folder / "store.json").read_bytes()
    (folder / "store.json").write_bytes(b"{}")
    with MemoryChangelog() as new:
        feed(new, [1])
        task = counting_task(tmp_path, new, backend)
        with pytest.raises(ChangelogLostError):
            task.open()
    (folder / "store.json").write_bytes(sound)
    task = counting_task(tmp_path, log, backend)
    assert [(report.wiped, report.records) for report in task.open()] == [(False, 0)] * 2
    task.close()


@pytest.mark.parametrize("backend", ["rocksdb-dual-store", "sqlite-native"])
def test_an_application_is_reset_by_removing_its_folder(tmp_path: Path, log: MemoryChangelog, backend: str) -> None:
    log_states(log, 3)
    task = counting_task(tmp_path, log, backend)
    task.open()
    task.close()
    shutil.rmtree(tmp_path / "state" / "0_0")
    with MemoryChangelog() as new:
        feed(new, [1])
        task = counting_task(tmp_path, new, backend)
        assert [(report.wiped, report.records) for report in task.open()] == [(False, 0)] * 2
        task.run()
        assert state(task, "left") == state(task, "right") == expected_state([1])
        task.close()


def test_a_checkpoint_no_longer_counts_for_a_store_whose_wipe_is_cut_short(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Source: Kafka Streams, corrupted stores are left out of the checkpoint."""
    log_states(log, 3)
    task = counting_task(tmp_path, log, DIRECT)
    task.open()
    task.close()
    log.truncate(LEFT, 3)
    with log.producer() as producer:
        producer.send(LEFT, b"late", b"9")
        producer.flush()
    log.truncate(LEFT, 4)

    def refuse(path: Path) -> None:
        raise StoreUnavailableError("the disk refuses")

    with monkeypatch.context() as patch:
        patch.setattr(registry, "wipe", refuse)
        with pytest.raises(StoreUnavailableError):
            task.open()
    assert checkpoint(tmp_path).read() == {RIGHT: 2}
    left, right = task.open()
    assert (left.wiped, left.records) == (True, 0)
    assert right.records == 0
    assert state(task, "left") == {}
    task.close()


def test_what_is_wiped_while_the_task_is_running_is_reported_as_well(tmp_path: Path, log: MemoryChangelog) -> None:
    poisoned = [2]
    feed(log, [1, 2, 3])
    stores = {"left": StoreConfig(DIRECT), "right": StoreConfig(INDEXED)}
    task = counting_task(tmp_path, log, process=raising_at(poisoned), stores=stores)
    reports = task.open()
    assert task.restore_reports() == reports
    task.run(1)
    task.commit()
    with pytest.raises(Crash):
        task.run()
    left, right = task.restore_reports()
    assert (left.store, left.wiped, left.records, left.reason) == ("left", True, 1, earlier_store.ROLLED_BACK)
    assert (right.store, right.wiped, right.records, right.reason) == ("right", False, 0, None)
    task.close()


def test_damage_that_shows_while_the_task_is_running_is_reported_with_its_file(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    partition = TopicPartition("app-left-changelog", 0)
    feed(log, [1, 1, 2])
    task = counting_task(tmp_path, log)
    task.open()
    task.run()
    task.close()
    for table in (tmp_path / "state" / "0_0" / "rocksdb" / "left" / "data").glob("*.sst"):
        content = table.read_bytes()
        if b"offsets" not in content:
            table.write_bytes(bytes(40) + content[40:])
    task.open()
    feed(log, [1])
    with pytest.raises(StoreCorruptedError):
        task.run()
    left, right = task.restore_reports()
    assert (left.wiped, left.records, right.wiped) == (True, log.end_offset(partition), False)
    assert left.reason is not None
    assert "left" in left.reason
    task.close()
