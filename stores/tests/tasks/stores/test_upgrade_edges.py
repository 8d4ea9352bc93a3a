"""Corners of an upgrade: records of later formats, converters that make several records or none, and stores of which
little is left."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog, Record
from stores.errors import StoreIncompatibleError, StoreUnavailableError
from stores.records import INT64, STR, KeyValue
from stores.settings import Upgrade, UpgradeProgress
from stores.tasks import TaskContext
from stores.tasks.directory.store_places import PREPARE_END, beside
from stores.tasks.stores.log_format import VERSION_HEADER, version_headers, version_of
from stores.tasks.stores.store_format import ROOM_BYTES
from stores.tests.tasks.setup import INDEXED, Crash
from stores.tests.tasks.typed import STORE, feed_times, kept, store_folder
from stores.tests.tasks.upgrading import (
    NEW,
    expected,
    names_beside,
    new_task,
    old_task,
    online_task,
    shown,
    to_new,
    work,
)

Pairs = Iterable[tuple[bytes, bytes | None]]


def to_second(record: Record, version: int) -> Pairs:
    """Format 2 is format 1 with all numbers doubled."""
    pairs = to_new(record, 0) if version == 0 else [(record.key or b"", record.value)]
    return [(key, None if value is None else INT64.serialize(2 * INT64.deserialize(value))) for key, value in pairs]


def test_a_format_that_is_no_number_is_refused() -> None:
    assert [version_of(version_headers(version)) for version in (0, 1, 2**31 - 1)] == [0, 1, 2**31 - 1]
    assert version_of((("other", b"7"),)) == 0
    for text in (b"", b"one", b"-1", b"1.5", b"9" * 5_000):
        with pytest.raises(StoreIncompatibleError):
            version_of(((VERSION_HEADER, text),))


def test_records_of_a_later_format_are_refused_and_no_converter_is_asked(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(6))
    work(new_task(tmp_path, log), 3)
    work(new_task(tmp_path, log, store_upgrade=Upgrade(2, to_second)), 3)
    asked: list[int] = []

    def ask(record: Record, version: int) -> Pairs:
        asked.append(version)
        return to_new(record, 0)

    with pytest.raises(StoreIncompatibleError):
        new_task(tmp_path / "other", log, store_upgrade=Upgrade(1, ask)).open()
    assert asked == []


def test_a_store_of_a_later_format_is_refused_also_where_the_changelog_has_nothing_of_it(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    feed_times(log, range(6))
    work(old_task(tmp_path, log), 3)
    work(new_task(tmp_path, log, store_upgrade=Upgrade(2, to_second)), 0)
    before = kept(tmp_path, INDEXED)
    with pytest.raises(StoreIncompatibleError):
        new_task(tmp_path, log).open()
    assert kept(tmp_path, INDEXED) == before
    assert names_beside(tmp_path) == []


def test_an_online_upgrade_of_a_store_that_is_two_formats_behind_is_refused(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """The function has the format between, and would find the newest one."""
    feed_times(log, range(6))
    work(old_task(tmp_path, log), 3)
    before = kept(tmp_path, INDEXED)
    online = Upgrade(2, to_second, online=True, records=NEW, before=Upgrade(1, to_new))
    with pytest.raises(StoreIncompatibleError):
        new_task(tmp_path, log, store_upgrade=online).open()
    assert kept(tmp_path, INDEXED) == before
    assert names_beside(tmp_path) == []


def test_a_record_may_become_several_or_none_in_a_store_of_bytes(tmp_path: Path, log: MemoryChangelog) -> None:
    def split(record: Record, version: int) -> Pairs:
        assert (version, record.headers) == (0, ())
        if record.offset % 2 == 0:
            yield b"left", record.key
            yield b"right", record.key

    feed_times(log, range(5))
    work(old_task(tmp_path, log))
    settings: dict[str, Any] = {
        "store_records": None,
        "process": lambda record, context: None,
        "store_upgrade": Upgrade(1, split),
    }
    for folder in (tmp_path, tmp_path / "other"):
        with closing(new_task(folder, log, **settings)) as task:
            task.open()
            assert shown(task) == {b"left": b"k4", b"right": b"k4"}


def write_and_delete(record: Record, context: TaskContext) -> None:
    context.store("s").put(b"k1", b"1")
    context.store("s").delete(b"k1")


def test_a_store_whose_records_are_all_deleted_is_upgraded_like_any_other(tmp_path: Path, log: MemoryChangelog) -> None:
    """Its changelog has them: another converter may make something of a tombstone."""
    feed_times(log, range(4))
    work(old_task(tmp_path, log, process=write_and_delete), 2)
    with pytest.raises(StoreIncompatibleError):
        new_task(tmp_path, log, mode=None).open()

    def last(record: Record, version: int) -> Pairs:
        return [(b"key-1", INT64.serialize(record.offset if record.value is None else 0))]

    with closing(new_task(tmp_path, log, store_upgrade=Upgrade(1, last))) as task:
        task.open()
        assert [value for value, _ in shown(task).values()] == [3]
        assert task.metrics.stores["s"].upgrade_total == 1


def test_an_unused_store_of_another_kind_is_upgraded(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(4))
    work(old_task(tmp_path, log, store_records=KeyValue(key=INT64, value=STR)), 0)
    with closing(new_task(tmp_path, log)) as task:
        task.open()
        task.run(commit=True)
        assert shown(task) == expected(4)


def test_what_was_built_in_another_format_is_not_continued(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(20))
    work(online_task(tmp_path, log), 10)
    assert names_beside(tmp_path) == [".prepare"]
    with closing(new_task(tmp_path, log, store_upgrade=Upgrade(2, to_second))) as task:
        task.open()
        assert {key: value for key, (value, _) in shown(task).items()} == {
            key: 2 * value for key, (value, _) in expected(10).items()
        }


def test_what_was_built_before_the_changelog_was_truncated_is_begun_again(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lacks records that nobody can bring any more; of those that are left it has all."""
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 10)
    monkeypatch.setattr("stores.tasks.stores.store_format.STEP_RECORDS_MIN", 1)
    monkeypatch.setattr("stores.tasks.stores.store_format.STEP_SHARE", 0)
    work(online_task(tmp_path, log), 2)
    log.truncate(STORE, 6)
    with closing(new_task(tmp_path, log)) as task:
        # Begun again where it is, and not swapped as it is, to be found lacking and wiped.
        assert [(report.wiped, report.records) for report in task.open()] == [(False, 0)]
        # Each fifth record is followed by the tombstone of the one before: offset 6 is that of key 5.
        assert shown(task) == {key: value for key, value in expected(12).items() if int(key[4:]) >= 5}


def test_an_online_upgrade_that_failed_rests_until_the_task_is_opened_again(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    calls: list[int] = []

    def broken_once(record: Record, version: int) -> Pairs:
        calls.append(record.offset)
        if len(calls) == 1:
            raise Crash
        return to_new(record, version)

    feed_times(log, range(20))
    with closing(online_task(tmp_path, log, convert=broken_once)) as task:
        task.open()
        for _ in range(3):
            task.run(3, commit=True)
        assert len(calls) == 1
        task.close()
        task.open()
        task.run(1, commit=True)
        assert len(calls) > 1
        assert task.metrics.stores["s"].upgrade_remaining_offsets == 0


def test_an_online_upgrade_goes_on_after_commits_in_which_its_store_has_nothing_new(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 10)
    monkeypatch.setattr("stores.tasks.stores.store_format.STEP_RECORDS_MIN", 4)
    with closing(online_task(tmp_path, log, process=lambda record, context: None)) as task:
        task.open()
        for _ in range(4):
            task.run(1, commit=True)
        assert task.metrics.stores["s"].upgrade_remaining_offsets == 0


def test_an_online_upgrade_keeps_up_with_what_is_written_after_it_has_caught_up(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    feed_times(log, range(20))
    with closing(online_task(tmp_path, log)) as task:
        task.open()
        for _ in range(4):
            task.run(5, commit=True)
            assert task.metrics.stores["s"].upgrade_remaining_offsets == 0
        built = task.metrics.stores["s"].upgrade_records_total
    assert built == len(list(log.read(STORE)))


def test_what_was_built_to_the_changelog_s_end_takes_the_old_one_s_place_and_nothing_is_replayed(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    feed_times(log, range(20))
    work(online_task(tmp_path, log), 10)
    progress: list[UpgradeProgress] = []
    with closing(new_task(tmp_path, log, store_upgrade=Upgrade(1, to_new, on_upgrade=progress.append))) as task:
        assert [(report.wiped, report.records) for report in task.open()] == [(False, 0)]
        assert shown(task) == expected(10)
    assert [(step.offset, step.records, step.swapped) for step in progress] == [
        (len(list(log.read(STORE))) - 1, 0, True)
    ]


def test_an_upgrade_counts_what_is_built_already_as_room_that_it_has(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both stores are small, and have somebody's files beside them, of 2 and 1 MiB."""
    feed_times(log, range(20))
    work(online_task(tmp_path, log, "lmdb"), 10)
    path = store_folder(tmp_path)
    for folder, num_bytes in ((path, 2 << 20), (beside(path, PREPARE_END), 1 << 20)):
        (folder / f"letter-{num_bytes}").write_bytes(bytes(num_bytes))
    free = shutil._ntuple_diskusage(1 << 30, 0, ROOM_BYTES + (5 << 19))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with pytest.raises(StoreUnavailableError):
        new_task(tmp_path, log, "lmdb").open()
    assert (beside(path, PREPARE_END) / "store.json").exists()
    free = shutil._ntuple_diskusage(1 << 30, 0, ROOM_BYTES + (4 << 20))
    with closing(new_task(tmp_path, log, "lmdb")) as task:
        task.open()
        assert shown(task) == expected(10)
