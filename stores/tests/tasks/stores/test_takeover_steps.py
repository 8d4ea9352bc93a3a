"""The steps of a takeover: what is synced before it counts, what is removed, and what an interruption leaves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rocksdict import DBCompressionType, Options, Rdict

from stores import failpoints
from stores.changelog import MemoryChangelog
from stores.errors import StoreIncompatibleError
from stores.files.creation import _MARKER_TEXT
from stores.tasks.directory import replacement
from stores.tasks.directory.store_places import FORMER_END, PREPARE_END, beside, remove_streams_store
from stores.tests.tasks.directory.relocating import failing_at
from stores.tests.tasks.setup import (
    INDEXED,
    LEFT,
    RIGHT,
    Crash,
    counting_task,
    crashing_at,
    expected_state,
    state,
    store_folder,
)
from stores.tests.tasks.stores.test_takeover import (
    KEYS,
    LMDB,
    assert_nothing_is_left,
    damage_tables,
    left_by_streams,
    opened,
)
from stores.tests.tasks.streams_folder import all_files, leave_store, streams_folder


def noting(steps: list[tuple[str, object]], name: str, called: Callable[[Any], None]) -> Callable[[Any], None]:
    def noted(given: object) -> None:
        steps.append((name, given))
        called(given)

    return noted


@pytest.mark.parametrize("backend", [INDEXED, LMDB])
def test_the_new_store_is_synced_before_it_counts(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """A power loss must not take a store whose name has replaced that of Kafka's folder."""
    left_by_streams(tmp_path, log)
    place = store_folder(tmp_path, backend)
    steps: list[tuple[str, object]] = []
    for name in ("sync_tree", "sync_folder", "reach"):
        monkeypatch.setattr(replacement, name, noting(steps, name, getattr(replacement, name)))
    with closing(counting_task(tmp_path, log, backend)) as task:
        assert opened(task) == [(False, 0)] * 2
    moved = [("reach", replacement.RENAMED), ("sync_folder", place.parent)]
    assert steps[: len(steps) // 2] == [
        ("sync_tree", beside(place, PREPARE_END)),
        ("reach", replacement.SYNCED),
        ("reach", replacement.DECIDED),
        *(moved if backend == INDEXED else []),
        *moved,
        ("reach", replacement.PLACED),
        ("reach", replacement.CLEARED),
        ("sync_folder", place.parent),
        ("reach", replacement.FINISHED),
    ]


@pytest.mark.parametrize("compression", ["snappy", "lz4", "zstd"])
def test_compressed_tables_are_read(tmp_path: Path, log: MemoryChangelog, compression: str) -> None:
    """As a ``RocksDBConfigSetter`` may choose them. Kafka Streams itself compresses nothing."""
    left_by_streams(tmp_path, log)
    path = streams_folder(tmp_path, "left")
    options = Options(raw_mode=True)
    options.set_compression_type(getattr(DBCompressionType, compression)())
    large = {b"large%d" % number: b"x" * 4096 for number in range(20)}
    with closing(Rdict(str(path), options)) as database:
        for key, value in large.items():
            database.put(key, value)
        database.flush()
    (path / "rocksdict-config.json").unlink()
    assert sum(file.stat().st_size for file in path.glob("*.sst")) < 20_000
    with closing(counting_task(tmp_path, log)) as task:
        assert opened(task) == [(False, 0)] * 2
        assert state(task, "left") == {**expected_state(KEYS), **large}


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_removal_cut_short_at_any_change_of_a_file_is_repeated(tmp_path: Path, is_damaged: bool) -> None:
    """The store can't be taken over, so Kafka's files are removed. Every 31st change is tried."""
    number = 0
    while True:
        number += 31
        folder = tmp_path / str(number)
        with MemoryChangelog() as log:
            left_by_streams(folder, log, offset=2 if is_damaged else None)
            if is_damaged:
                damage_tables(streams_folder(folder, "left"))
            try:
                with failing_at(number, []):
                    counting_task(folder, log).open()
            except Crash:
                with closing(counting_task(folder, log)) as task:
                    task.open()
                    assert state(task, "left") == state(task, "right") == expected_state(KEYS)
                assert_nothing_is_left(folder, INDEXED)
            else:
                break
    assert number > 100


def test_an_unfinished_store_in_the_place_of_the_new_one_is_replaced(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log)
    place = store_folder(tmp_path, LMDB)
    place.mkdir(parents=True)
    (place / "unfinished").write_bytes(_MARKER_TEXT)
    with closing(counting_task(tmp_path, log, LMDB)) as task:
        assert opened(task) == [(False, 0)] * 2
        assert state(task, "left") == expected_state(KEYS)


def test_a_copy_that_was_cut_short_is_made_anew(tmp_path: Path, log: MemoryChangelog) -> None:
    """Kafka Streams may have worked in between, and removed records."""
    left_by_streams(tmp_path, log)
    path = streams_folder(tmp_path, "left")
    path.rename(tmp_path / "kept")
    leave_store(path, {**expected_state(KEYS), b"deleted": b"1"})
    with crashing_at(replacement.SYNCED):
        counting_task(tmp_path, log).open()
    path.rename(tmp_path / "former")
    (tmp_path / "kept").rename(path)
    with closing(counting_task(tmp_path, log)) as task:
        assert opened(task) == [(False, 0)] * 2
        assert state(task, "left") == expected_state(KEYS)


def test_a_store_whose_last_record_was_compacted_away_is_taken_over(tmp_path: Path, log: MemoryChangelog) -> None:
    """The record that follows is not in the store, and says nothing about it."""
    left_by_streams(tmp_path, log, offset=0, end=1)
    for changelog in (LEFT, RIGHT):
        log.compact(changelog)
        assert [record.offset for record in log.read(changelog)] == [1, 2]
    with closing(counting_task(tmp_path, log)) as task:
        assert opened(task) == [(False, 2)] * 2
        assert state(task, "left") == state(task, "right") == expected_state(KEYS)


@pytest.mark.parametrize("backend", [INDEXED, LMDB])
def test_an_empty_folder_that_a_removal_has_left_is_removed(tmp_path: Path, log: MemoryChangelog, backend: str) -> None:
    left_by_streams(tmp_path, log)
    with closing(counting_task(tmp_path, log, backend)) as task:
        task.open()
    path = streams_folder(tmp_path, "left")
    empty = path if backend == LMDB else beside(path, FORMER_END)
    empty.mkdir(parents=True)
    with closing(counting_task(tmp_path, log, backend)) as task:
        assert opened(task) == [(False, 0)] * 2
    assert not empty.exists()


def test_a_link_to_a_folder_of_kafka_streams_is_not_followed(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log)
    path = streams_folder(tmp_path, "left")
    backup = path.rename(tmp_path / "kept")
    path.symlink_to(backup)
    before = all_files(backup)
    with closing(counting_task(tmp_path, log)) as task, pytest.raises(StoreIncompatibleError):
        task.open()
    with closing(counting_task(tmp_path, log, LMDB)) as task:
        assert opened(task)[0] == (False, 3)
    assert path.is_symlink()
    assert all_files(backup) == before


def test_all_files_of_rocksdb_are_removed_and_no_other(tmp_path: Path) -> None:
    numbered = ["000007.sst", "000008.log", "000009.blob", "000010.dbtmp", "MANIFEST-000005", "OPTIONS-000007"]
    names = [*numbered, "IDENTITY", "LOCK", "LOG", "LOG.old.123", "OPTIONS-000011.dbtmp", ".position", "CURRENT"]
    for folder in ("whole", "mixed"):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).touch()
    others = {"sst", "7.sst.copy", "MANIFEST", "LOG.old", "letter.log"}
    for name in others:
        (tmp_path / "mixed" / name).touch()
    for folder in ("whole", "mixed"):
        remove_streams_store(tmp_path / folder)
    assert not (tmp_path / "whole").exists()
    assert all_files(tmp_path / "mixed").keys() == others


@pytest.mark.parametrize("failpoint", [replacement.SYNCED, replacement.DECIDED])
@pytest.mark.parametrize("offset", [2, None])
def test_another_engine_takes_over_what_a_store_of_rocksdb_has_begun_to(
    tmp_path: Path, log: MemoryChangelog, offset: int | None, failpoint: str
) -> None:
    """Without an offset it is restored, and Kafka's folder is removed."""
    left_by_streams(tmp_path, log)
    with crashing_at(failpoint):
        counting_task(tmp_path, log).open()
    if offset is None:
        (streams_folder(tmp_path, "left").parents[1] / ".checkpoint").unlink()
    expected = [(False, 0)] * 2 if offset is not None else [(True, 3)] * 2
    for reports in (expected, [(False, 0)] * 2):
        with closing(counting_task(tmp_path, log, LMDB)) as task:
            assert opened(task) == reports
            assert state(task, "left") == state(task, "right") == expected_state(KEYS)
    assert list((tmp_path / "state" / "0_0" / "rocksdb").glob("*")) == []


def test_kafka_streams_is_shut_out_once_the_new_store_is_synced(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log)
    lock = tmp_path / "state" / ".lock"
    lock.touch()
    may_come: list[bool] = []
    failpoints.arm(replacement.SYNCED, lambda: may_come.append(lock.is_file()))
    try:
        with closing(counting_task(tmp_path, log)) as task:
            task.open()
    finally:
        failpoints.disarm(replacement.SYNCED)
    assert may_come == [True, False]  # Of the first store, and of the second one.
