"""A global store that is missing begins from the files of a snapshot, and reads what its topic has after it."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from random import Random

import pytest

from stores.changelog import Changelog, MemoryChangelog, SqliteChangelog
from stores.command import main
from stores.config import StoreConfig
from stores.errors import ConfigError, StoreUnavailableError
from stores.interface import KeyValueStore, TopicPartition
from stores.snapshots import Snapshots
from stores.snapshots.objects import WHOLE_TOPIC, StoreObjects, folder_name, partition_of
from stores.snapshots.restoring import FILES_FETCHED, copy_store
from stores.strategies.store import Store
from stores.tasks import DeadLetterTopic, GlobalStore, GlobalStores
from stores.tasks.directory.replacement import DECIDED, RENAMED, SYNCED
from stores.tests.forked_call import call_until_killed
from stores.tests.snapshots.snapshotting import SNAPPED, WITHIN_S, damage, lose, settings
from stores.tests.tasks.global_topic import PRICES, TOPIC, contents, model, partition, say

LATER = [(1, b"0", b"later"), (2, b"new", b"later")]
BACKEND = "rocksdb-indexed-batch"


def stores_over(
    folder: Path, log: Changelog, snapshots: Snapshots | None = None, backend: str = BACKEND, topic: str = TOPIC
) -> GlobalStores:
    snapshots = settings(folder) if snapshots is None else snapshots
    described = {"prices": GlobalStore(topic, StoreConfig(backend))}
    return GlobalStores(folder / "state", log, described, snapshots=snapshots)


def objects(folder: Path) -> StoreObjects:
    return StoreObjects(settings(folder).folder, TopicPartition(TOPIC, WHOLE_TOPIC))


def follow(stores: GlobalStores) -> None:
    """Let the stores read and flush, and wait for the snapshot that this begins."""
    [copy] = stores.opened()
    for _ in range(2):  # RocksDB flushes first.
        stores.follow()
        copy.store.persistence.wait()
    stores.follow()
    assert copy._snapshots.wait(WITHIN_S)


def snapped(folder: Path, log: Changelog, backend: str = BACKEND) -> None:
    """Take a snapshot of the prices, and lose the store."""
    say(log, PRICES)
    with stores_over(folder, log, backend=backend) as stores:
        follow(stores)
    assert [name.offset for name in objects(folder).indexes()] == [len(PRICES) - 1]
    lose(folder)


@pytest.mark.parametrize(("taken", "backend"), [*zip(SNAPPED, SNAPPED, strict=True), (BACKEND, "lmdb")])
def test_a_store_that_is_missing_begins_from_a_snapshot(
    tmp_path: Path, log: MemoryChangelog, taken: str, backend: str
) -> None:
    snapped(tmp_path, log, taken)
    say(log, LATER)
    with stores_over(tmp_path, log, backend=backend) as stores:
        assert stores.restored == len(LATER)
        assert contents(stores) == model(PRICES + LATER)
    with stores_over(tmp_path, log, backend=backend) as stores:
        assert stores.restored == 0


def test_after_a_copy_that_failed_halfway_the_next_one_begins_anew(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapped(tmp_path, log, "lmdb")
    with stores_over(tmp_path, log, backend="lmdb") as stores:
        for later in LATER:  # The first one waits for another process's turn.
            say(log, [later])
            follow(stores)
    lose(tmp_path)

    def halfway(source: Store, target: KeyValueStore, _: object) -> None:
        monkeypatch.setattr("stores.tasks.stores.file_snapshots.copy_store", copy_store)
        target.restore([(b"half", b"way")], {})
        raise StoreUnavailableError("for this test")

    monkeypatch.setattr("stores.tasks.stores.file_snapshots.copy_store", halfway)
    with stores_over(tmp_path, log) as stores:
        assert stores.restored == len(LATER)
        assert contents(stores) == model(PRICES + LATER)
    assert [name.offset for name in objects(tmp_path).indexes()] == [len(PRICES) + 1, len(PRICES) - 1]


def test_a_snapshot_whose_next_record_a_partition_has_no_more_is_not_used(
    tmp_path: Path, log: MemoryChangelog, caplog: pytest.LogCaptureFixture
) -> None:
    snapped(tmp_path, log)
    say(log, [(1, b"0", b"later")] * 3)
    log.truncate(partition(1), 5)
    with caplog.at_level(logging.WARNING), stores_over(tmp_path, log) as stores:
        assert stores.restored == len(PRICES) + 3 - 5
    assert "prices-1 has the offsets from 5 to before 7" in caplog.text


def test_a_snapshot_is_used_if_a_partition_begins_where_it_ends_and_another_one_was_empty(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    said = [(number, key, value) for number, key, value in PRICES if number != 2]
    say(log, said)
    with stores_over(tmp_path, log) as stores:
        follow(stores)
    log.truncate(partition(1), 4)
    for later in ([], [(2, b"first", b"v")]):
        lose(tmp_path)
        say(log, later)
        with stores_over(tmp_path, log) as stores:
            assert stores.restored == len(later)
            assert contents(stores) == model(said + later)


def test_the_progress_counts_the_offsets_that_are_left_of_all_partitions(tmp_path: Path, log: MemoryChangelog) -> None:
    snapped(tmp_path, log, "lmdb-native")
    say(log, LATER)
    left: list[int] = []
    stores = stores_over(tmp_path, log, backend="lmdb-native")
    stores.open(left.append)
    stores.close()
    assert left == [len(LATER), len(LATER)]  # Once the file is there, and of the commit after it.


def test_the_first_snapshot_comes_after_an_interval(tmp_path: Path, log: MemoryChangelog) -> None:
    say(log, PRICES)
    with stores_over(tmp_path, log, settings(tmp_path, interval_ms=600_000)) as stores:
        follow(stores)
    assert objects(tmp_path).indexes() == []


def test_closed_stores_leave_no_upload(tmp_path: Path, log: MemoryChangelog) -> None:
    """The first part of the snapshot has the time of minutes at this rate."""
    say(log, [(0, b"%d" % number, Random(number).randbytes(10_000)) for number in range(300)])
    threads = set(threading.enumerate())
    stores = stores_over(tmp_path, log, settings(tmp_path, max_bytes_per_s=1_000), "lmdb-native")
    stores.open()
    deadline = time.monotonic() + WITHIN_S
    while not any(thread.name == "snapshot" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "no snapshot was begun in time"
        stores.follow()
    stores.close()
    assert set(threading.enumerate()) <= threads
    assert objects(tmp_path).indexes() == []


def test_a_snapshot_of_another_topic_of_the_same_name_is_not_used(
    tmp_path: Path, log: MemoryChangelog, caplog: pytest.LogCaptureFixture
) -> None:
    snapped(tmp_path, log)
    other = MemoryChangelog()
    say(other, PRICES)
    with caplog.at_level(logging.WARNING), stores_over(tmp_path, other) as stores:
        assert stores.restored == len(PRICES)
    assert "another changelog topic of the same name" in caplog.text


def test_processes_take_turns(tmp_path: Path, log: MemoryChangelog) -> None:
    say(log, PRICES)
    with stores_over(tmp_path, log) as first, stores_over(tmp_path, log) as second:
        numbers = []
        for number, stores in enumerate([first, first, second, second, first, first]):
            say(log, [(0, b"%d" % number, b"v")])
            follow(stores)
            numbers.append(len(objects(tmp_path).times("index")))
        assert [copy._snapshots.figures.failed_total for each in (first, second) for copy in each.opened()] == [0, 0]
    # A process leaves one out where it sees one of the other for the first time.
    assert numbers == [1, 2, 2, 3, 3, 4]


def test_a_process_keeps_changed_keys_only_after_a_snapshot_of_its_own(tmp_path: Path, log: MemoryChangelog) -> None:
    say(log, PRICES)
    with stores_over(tmp_path / "first", log, settings(tmp_path), "lmdb") as first:
        follow(first)
        with stores_over(tmp_path / "second", log, settings(tmp_path), "lmdb") as second:
            kept = []
            for stores in (first, second, second, first):
                say(log, LATER)
                follow(stores)
                [copy] = stores.opened()
                assert isinstance(copy.store, Store)
                changed = copy.store.staging.engine.changed
                assert changed is not None
                kept.append(changed.complete)
    # Each leaves one out where it sees one of the other for the first time.
    assert kept == [True, False, True, False]


@pytest.mark.parametrize("before", ["raise", "skip", ("letters", "other")])
def test_letters_are_sent_whatever_snapshots_of_other_choices_there_are(
    tmp_path: Path, log: MemoryChangelog, before: str | tuple[str, str]
) -> None:
    def followed(choice: str | DeadLetterTopic, application_id: str) -> int:
        described = {"prices": GlobalStore(TOPIC, StoreConfig(BACKEND), on_deserialization_error=choice)}
        lose(tmp_path)
        with GlobalStores(
            tmp_path / "state", log, described, application_id=application_id, snapshots=settings(tmp_path)
        ) as stores:
            restored = stores.restored
            follow(stores)
        return restored

    (tmp_path / "state").mkdir()
    for topic in ("dead", "letters"):
        log.create_topic(topic)
    said = [*PRICES, (1, b"", b"the key is empty")]
    say(log, said)
    other = followed(*(before, "app") if isinstance(before, str) else (DeadLetterTopic(before[0]), before[1]))
    letters = DeadLetterTopic("dead")
    assert [other, followed(letters, "app"), followed(letters, "app")] == [len(said), len(said), 0]
    assert len(list(log.read(TopicPartition("dead", 0)))) == 1


def test_a_store_of_which_all_is_deleted_is_kept(tmp_path: Path, log: MemoryChangelog) -> None:
    snapped(tmp_path, log)
    say(log, [(number, key, None) for number, key, _ in PRICES])
    with stores_over(tmp_path, log, settings(tmp_path, interval_ms=600_000)) as stores:
        assert (contents(stores), stores.restored) == ({}, len(PRICES))
    with stores_over(tmp_path, log) as stores:
        assert (contents(stores), stores.restored) == ({}, 0)


@pytest.mark.parametrize("backend", [BACKEND, "lmdb-native", "sqlite-native"])
def test_damage_that_a_snapshot_has_as_well_does_not_come_back(
    tmp_path: Path, log: MemoryChangelog, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [*PRICES, *((0, b"%d" % number, b"value %08d" % number) for number in range(2_000))]
    say(log, said)
    with stores_over(tmp_path, log, backend=backend) as stores:
        follow(stores)
    damage(objects(tmp_path), b"value 00000700", monkeypatch)
    (tmp_path / "state" / "global" / backend.partition("-")[0] / "prices" / "store.json").write_text("damaged")
    with stores_over(tmp_path, log, backend=backend) as stores:
        assert stores.restored == len(said)
        assert contents(stores) == model(said)


def open_in(folder: Path, backend: str) -> None:
    with SqliteChangelog(folder / "log.sqlite") as log, stores_over(folder, log, backend=backend):
        pass


@pytest.mark.parametrize("failpoint", [FILES_FETCHED, SYNCED, DECIDED, RENAMED])
def test_a_kill_while_a_store_begins_from_a_snapshot_leaves_one_that_is_whole(tmp_path: Path, failpoint: str) -> None:
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        snapped(tmp_path, log, "lmdb-native")
    assert call_until_killed(open_in, tmp_path, failpoint, 1, "lmdb-native")
    with SqliteChangelog(tmp_path / "log.sqlite") as log, stores_over(tmp_path, log, backend="lmdb-native") as stores:
        assert contents(stores) == model(PRICES)
        assert stores.restored == 0
    assert [path.name for path in (tmp_path / "state" / "global" / "lmdb").iterdir()] == ["prices"]


@pytest.mark.parametrize("failpoint", [FILES_FETCHED, DECIDED, RENAMED])
def test_what_a_kill_has_left_is_removed_without_snapshots_too(tmp_path: Path, failpoint: str) -> None:
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        snapped(tmp_path, log, "lmdb-native")
        assert call_until_killed(open_in, tmp_path, failpoint, 1, "lmdb-native")
        described = {"prices": GlobalStore(TOPIC, StoreConfig("lmdb-native"))}
        with GlobalStores(tmp_path / "state", log, described) as stores:
            assert contents(stores) == model(PRICES)
    assert [path.name for path in (tmp_path / "state" / "global" / "lmdb").iterdir()] == ["prices"]


def test_the_folder_of_a_global_store_is_that_of_no_partition(tmp_path: Path, log: MemoryChangelog) -> None:
    for topic, number in (("a", 0), ("a", WHOLE_TOPIC), ("a-global", 0), ("a-global", WHOLE_TOPIC), ("a-", 1)):
        assert partition_of(folder_name(TopicPartition(topic, number))) == (topic, number)
    assert partition_of("a-x") is partition_of("-global") is None


def test_the_commands_list_and_restore_it(
    tmp_path: Path, log: MemoryChangelog, capsys: pytest.CaptureFixture[str]
) -> None:
    snapped(tmp_path, log)
    assert main(["snapshots", "list", str(tmp_path / "snapshots")]) == 0
    assert "prices-global" in capsys.readouterr().out
    target = tmp_path / "looked at"
    assert main(["snapshots", "restore", str(tmp_path / "snapshots"), "prices-global", str(target)]) == 0
    with StoreConfig(BACKEND).open(target) as store, store.all() as pairs:
        assert dict(pairs) == model(PRICES)


def test_settings_that_do_not_fit_are_refused(tmp_path: Path, log: MemoryChangelog) -> None:
    with pytest.raises(TypeError, match="snapshots is a Snapshots"):
        GlobalStores(tmp_path, log, {}, snapshots=str(tmp_path))  # type: ignore[arg-type]
    nameless = type("Nameless", (MemoryChangelog,), {"topic_id": Changelog.topic_id})()
    with pytest.raises(ConfigError, match="does not tell a topic"):
        GlobalStores(tmp_path, nameless, {}, snapshots=settings(tmp_path))
