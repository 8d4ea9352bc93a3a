"""A task takes over window, session and versioned stores of Kafka Streams, and continues with their changelogs.

``test_streams_kinds`` does it with a state directory of Kafka's own program.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog
from stores.errors import ChangelogError, ChangelogLostError, StoreIncompatibleError, StoreLockedError
from stores.interface import IsolationLevel, TopicPartition
from stores.records import BYTES, KeyValue, RecordKind, Session, Versioned, VersionedWithHeaders, Window, Windowed
from stores.tasks import DirectoryLayout, StreamTask, change_layout
from stores.tasks.directory.store_places import PREPARE_END, beside
from stores.tests.tasks.directory.relocating import failing_at
from stores.tests.tasks.setup import INDEXED, INPUT, MEMORY, Crash, store_folder
from stores.tests.tasks.stores.test_takeover import (
    LMDB,
    damage_current,
    damage_log,
    damage_manifest,
    damage_tables,
    locked_elsewhere,
)
from stores.tests.tasks.streams_folder import (
    TIMESTAMPED,
    all_files,
    leave_offsets,
    leave_store,
    put_raw,
    streams_folder,
    task_folder,
)
from stores.tests.tasks.streams_kinds import (
    HISTORY_MS,
    KINDS,
    LOG,
    MORE,
    PUTS,
    RETENTION_MS,
    contents,
    kind_task,
    leave,
    leave_segment,
    left_by_streams,
    logged,
    model,
    put_more,
    row,
    segments_folder,
    send_all,
)

BACKENDS = [INDEXED, LMDB, "sqlite-native"]
ALL = [*PUTS, *MORE]


def opened(task: StreamTask) -> list[tuple[bool, int]]:
    return [(report.wiped, report.records) for report in task.open()]


def check(folder: Path, log: MemoryChangelog, kind: str, backend: str, expected: tuple[bool, int]) -> None:
    """Open the task, compare the report and the contents, put more, and open it again."""
    with closing(kind_task(folder, log, kind, backend)) as task:
        assert opened(task) == [expected]
        assert contents(kind, task) == model(kind, PUTS)
        put_more(log, task)
        assert contents(kind, task, ALL) == model(kind, ALL)
    with closing(kind_task(folder, log, kind, backend)) as task:
        assert opened(task) == [(False, 0)]
        assert contents(kind, task, ALL) == model(kind, ALL)
    assert not segments_folder(folder).exists()
    assert not (streams_folder(folder, "s") / "CURRENT").exists()
    assert not os.path.lexists(beside(store_folder(folder, backend, "s"), PREPARE_END))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_store_of_each_kind_is_taken_over_with_its_offset_and_its_position(
    tmp_path: Path, log: MemoryChangelog, kind: str, backend: str
) -> None:
    """A record that has expired by stream time is left out, though its segment is there."""
    left_by_streams(tmp_path, log, kind)
    elsewhere = TopicPartition("elsewhere", 3)
    leave_offsets(task_folder(tmp_path) / "s.position", {elsewhere: 5})
    with closing(kind_task(tmp_path, log, kind, backend)) as task:
        assert opened(task) == [(False, 0)]
        assert not segments_folder(tmp_path).exists()
        assert task.changelog_offsets() == {LOG: len(logged(kind, PUTS)) - 1}
        assert task._context.store("s").position(IsolationLevel.READ_COMMITTED) == {elsewhere: 5}
        with task._context.store("s").store.all() as pairs:
            keys = [key for key, _ in pairs]
        if kind == "versioned":
            # The index of older versions begins with their ends.
            assert min(key[1:9] for key in keys if key.startswith(b"\x03")) > (240_000 - HISTORY_MS).to_bytes(8, "big")
        else:
            assert len(keys) == len(model(kind, PUTS))
    check(tmp_path, log, kind, backend, (False, 0))
    assert not (task_folder(tmp_path) / "s.position").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_store_is_restored_from_what_both_have_logged_in_one_form(
    tmp_path: Path, log: MemoryChangelog, kind: str
) -> None:
    """So compaction finds the same keys, and Kafka Streams can read the changelog again."""
    left_by_streams(tmp_path, log, kind)
    check(tmp_path, log, kind, INDEXED, (False, 0))
    records = [(record.key, record.value, record.timestamp_ms) for record in log.read(LOG)]
    if kind != "versioned":  # Ours also logs the latest version behind one that came late.
        assert records == logged(kind, ALL)
    shutil.rmtree(tmp_path / "state")
    with closing(kind_task(tmp_path, log, kind)) as task:
        assert opened(task) == [(False, len(records))]
        assert contents(kind, task, ALL) == model(kind, ALL)
        send_all(log, INPUT, [(b"e", b"13", 252_000)])
        task.run(commit=True)
    *_, last = log.read(LOG)
    assert (last.key, last.value, last.timestamp_ms) == logged(kind, [*ALL, (b"e", b"13", 252_000)])[-1]


@pytest.mark.parametrize("backend", [INDEXED, LMDB])
@pytest.mark.parametrize("kind", KINDS)
def test_the_changelog_s_tail_is_restored_after_the_offset(
    tmp_path: Path, log: MemoryChangelog, kind: str, backend: str
) -> None:
    count = left_by_streams(tmp_path, log, kind, end=-3)
    check(tmp_path, log, kind, backend, (False, count - len(logged(kind, PUTS[:-3]))))


@pytest.mark.parametrize("backend", [INDEXED, LMDB])
@pytest.mark.parametrize("kind", KINDS)
def test_without_an_offset_the_store_is_restored_whole_and_the_report_says_why(
    tmp_path: Path, log: MemoryChangelog, kind: str, backend: str
) -> None:
    count = left_by_streams(tmp_path, log, kind)
    (task_folder(tmp_path) / ".checkpoint").unlink()
    with closing(kind_task(tmp_path, log, kind, backend)) as task:
        [report] = task.open()
        assert (report.wiped, report.records) == (True, count)
        assert "Kafka Streams" in str(report.reason)
    check(tmp_path, log, kind, backend, (False, 0))


def remove_current(path: Path) -> None:
    (path / "CURRENT").unlink()


@pytest.mark.parametrize("damage", [damage_tables, damage_manifest, damage_current, damage_log, remove_current])
@pytest.mark.parametrize("kind", ["window", "session", "versioned"])
def test_a_damaged_store_or_segment_is_restored_whole(
    tmp_path: Path, log: MemoryChangelog, kind: str, damage: Callable[[Path], None]
) -> None:
    count = left_by_streams(tmp_path, log, kind)
    if kind == "versioned" and damage is remove_current:
        damage = damage_current  # Without that file there is no store.
    damage(streams_folder(tmp_path, "s") if kind == "versioned" else segments_folder(tmp_path) / "s.180000")
    check(tmp_path, log, kind, INDEXED, (True, count))


@pytest.mark.parametrize("file", ["s/s.180000/LOCK", ".lock"])
@pytest.mark.parametrize("backend", [INDEXED, LMDB])
def test_a_store_that_kafka_streams_has_open_is_refused_unchanged(
    tmp_path: Path, log: MemoryChangelog, backend: str, file: str
) -> None:
    left_by_streams(tmp_path, log, "window")
    (tmp_path / "state" / ".lock").touch()
    held = tmp_path / "state" / file if file == ".lock" else task_folder(tmp_path) / file
    before = all_files(segments_folder(tmp_path))
    with locked_elsewhere(held), closing(kind_task(tmp_path, log, "window", backend)) as task:
        with pytest.raises(StoreLockedError):
            task.open()
        assert all_files(segments_folder(tmp_path)) == before
    assert (tmp_path / "state" / ".lock").is_file()
    check(tmp_path, log, "window", backend, (False, 0))


WINDOW, SESSION, VERSIONED = KINDS["window"], KINDS["session"], KINDS["versioned"]
TIMED, DUPLICATES = KINDS["timestamped-window"], KINDS["duplicates"]


@pytest.mark.parametrize(
    ("kind", "records"),
    [
        ("window", TIMED),
        ("window", DUPLICATES),
        ("window", SESSION),
        ("timestamped-window", WINDOW),
        ("duplicates", WINDOW),
        ("duplicates", SESSION),
        ("session", WINDOW),
        ("session", DUPLICATES),
        ("session", Session(key=BYTES, value=BYTES, retention_ms=RETENTION_MS, timestamped=True)),
        ("versioned", KeyValue(key=BYTES, value=BYTES)),
        ("versioned", WINDOW),
    ],
)
def test_a_store_of_another_kind_is_refused_unchanged(
    tmp_path: Path, log: MemoryChangelog, kind: str, records: RecordKind
) -> None:
    left_by_streams(tmp_path, log, kind)
    before = all_files(tmp_path / "state")
    for _ in range(2):
        with closing(kind_task(tmp_path, log, kind, records=records)) as task:
            with pytest.raises(StoreIncompatibleError, match="Nothing of it was changed"):
                task.open()
            after = all_files(tmp_path / "state")
            assert {name: after[name] for name in before} == before
            assert not (tmp_path / "state" / ".lock").exists()
    check(tmp_path, log, kind, INDEXED, (False, 0))


@pytest.mark.parametrize(
    ("pairs", "timed"),
    [
        ({b"1": b"v"}, None),
        ({}, {b"1": (1, b"v")}),
        ({b"\xff" * 8: bytes(8) + b"v"}, None),
        ({b"\x80" + bytes(8): row([(1, 2, b"v")])}, None),
    ],
    ids=["plain", "timestamped", "an empty key", "the number of no segment"],
)
def test_a_key_value_store_is_refused_unchanged_where_a_versioned_one_is_configured(
    tmp_path: Path, log: MemoryChangelog, pairs: dict[bytes, bytes], timed: dict[bytes, tuple[int, bytes]] | None
) -> None:
    log.create_topic(LOG.topic)
    send_all(log, LOG, [(b"1", b"v", 1)])
    leave_store(streams_folder(tmp_path, "s"), pairs, timed)
    leave_offsets(task_folder(tmp_path) / ".checkpoint", {LOG: 0})
    before = all_files(streams_folder(tmp_path, "s"))
    with closing(kind_task(tmp_path, log, "versioned")) as task, pytest.raises(StoreIncompatibleError):
        task.open()
    assert all_files(streams_folder(tmp_path, "s")) == before


@pytest.mark.parametrize("start_ms", [0, 120_000])
def test_a_store_whose_keys_begin_with_times_is_restored_whole(
    tmp_path: Path, log: MemoryChangelog, start_ms: int
) -> None:
    """Kafka Streams keeps windows so that are emitted when they close. Source: ``TimeFirstWindowKeySchema``."""
    time_ms = start_ms + 1_000
    log.create_topic(LOG.topic)
    send_all(log, LOG, logged("window", [(b"key", b"1", time_ms)]))
    leave_segment(tmp_path, start_ms, {b"\0" + time_ms.to_bytes(8, "big") + b"key" + bytes(4): (0, b"1")})
    leave_offsets(task_folder(tmp_path) / ".checkpoint", {LOG: 0})
    with closing(kind_task(tmp_path, log, "window")) as task:
        assert opened(task) == [(True, 1)]
        assert contents("window", task) == [(b"key", time_ms, b"1")]


def test_a_store_with_records_from_before_it_had_timestamps_is_restored_whole(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    count = left_by_streams(tmp_path, log, "timestamped-window")
    shutil.rmtree(segments_folder(tmp_path) / "s.180000")
    leave(tmp_path / "plain", "window", PUTS)
    (segments_folder(tmp_path / "plain") / "s.180000").rename(segments_folder(tmp_path) / "s.180000")
    check(tmp_path, log, "timestamped-window", INDEXED, (True, count))


def test_a_window_store_with_timestamps_is_taken_over_as_one_with_headers(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log, "timestamped-window")
    records = Window(key=BYTES, value=BYTES, size_ms=10, retention_ms=RETENTION_MS, headers=True)
    for _ in range(2):
        with closing(kind_task(tmp_path, log, "timestamped-window", records=records)) as task:
            assert opened(task) == [(False, 0)]
            with task.store("s").all() as windows:
                found = [(window.key, window.start_ms, *value) for window, value in windows]
            assert sorted(found) == [
                (key, start_ms, value, start_ms + 1, ()) for key, start_ms, value in model("timestamped-window", PUTS)
            ]


def test_windows_with_a_time_that_headers_can_t_follow_are_refused_unchanged(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    left_by_streams(tmp_path, log, "timestamped-window")
    [(key, *_)] = logged("window", [(b"far", b"v", 180_000)])
    put_raw(segments_folder(tmp_path) / "s.180000", TIMESTAMPED, {key: (1 << 62).to_bytes(8) + b"v"})
    before = all_files(segments_folder(tmp_path))
    records = Window(key=BYTES, value=BYTES, size_ms=10, retention_ms=RETENTION_MS, headers=True)
    with closing(kind_task(tmp_path, log, "timestamped-window", records=records)) as task:
        with pytest.raises(StoreIncompatibleError, match="far"):
            task.open()
    assert all_files(segments_folder(tmp_path)) == before
    with closing(kind_task(tmp_path, log, "timestamped-window")) as task:
        assert opened(task) == [(False, 0)]
        assert task.store("s").fetch_one(b"far", 180_000) == (b"v", 1 << 62)


def test_a_versioned_store_is_taken_over_as_one_with_headers(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log, "versioned")
    records = VersionedWithHeaders(key=BYTES, value=BYTES, history_retention_ms=HISTORY_MS)
    for _ in range(2):
        with closing(kind_task(tmp_path, log, "versioned", records=records)) as task:
            assert opened(task) == [(False, 0)]
            versions = [(found.value, found.timestamp_ms) for found in task.store("s").get_versions(b"a")]
            assert versions == [(value, time_ms) for value, time_ms, _ in model("versioned", PUTS)[b"a"]]


def test_windows_that_are_open_are_reported_once_they_close(tmp_path: Path, log: MemoryChangelog) -> None:
    """Those that had closed before are not."""
    reported: list[Any] = []
    records = Window(
        key=BYTES,
        value=BYTES,
        size_ms=10,
        retention_ms=RETENTION_MS,
        grace_ms=60_000,
        on_close=lambda window, value, context: reported.append((window, value)),
    )
    left_by_streams(tmp_path, log, "window")
    with closing(kind_task(tmp_path, log, "window", records=records)) as task:
        assert opened(task) == [(False, 0)]
        put_more(log, task)
    assert reported == [(Windowed(b"b", 190_000, 190_010), b"7")]


def test_a_longer_history_keeps_all_versions_that_are_there_and_a_shorter_one_less(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    left_by_streams(tmp_path, log, "versioned")
    for retention_ms, count in ((2 * HISTORY_MS, 2), (40_000, 1)):
        folder = tmp_path / str(retention_ms)
        shutil.copytree(tmp_path / "state", folder / "state")
        records = Versioned(key=BYTES, value=BYTES, history_retention_ms=retention_ms)
        with closing(kind_task(folder, log, "versioned", records=records)) as task:
            assert opened(task) == [(False, 0)]
            assert len(list(task.store("s").get_versions(b"a"))) == count
            assert task.store("s").get(b"old").value == b"0"


@pytest.mark.parametrize("kind", ["window", "versioned"])
def test_without_a_changelog_the_records_stay(tmp_path: Path, log: MemoryChangelog, kind: str) -> None:
    leave(tmp_path, kind, PUTS)
    before = all_files(tmp_path / "state")
    with closing(kind_task(tmp_path, log, kind)) as task, pytest.raises(ChangelogLostError):
        task.open()
    after = all_files(tmp_path / "state")
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("kind", ["timestamped-window", "session", "versioned"])
def test_without_a_changelog_an_empty_store_is_followed_by_a_new_one(
    tmp_path: Path, log: MemoryChangelog, kind: str
) -> None:
    if kind == "versioned":
        leave_store(streams_folder(tmp_path, "s"), {})
    else:
        leave_segment(tmp_path, 120_000, {}, timestamped=kind == "timestamped-window")
    with closing(kind_task(tmp_path, log, kind)) as task:
        assert opened(task) == [(True, 0)]
        put_more(log, task)
        assert contents(kind, task, MORE) == model(kind, MORE)


@pytest.mark.parametrize("backend", [INDEXED, LMDB])
@pytest.mark.parametrize("is_removed", [False, True])
def test_a_takeover_or_a_removal_of_segments_cut_short_at_any_change_of_a_file_is_repeated(
    tmp_path: Path, backend: str, is_removed: bool
) -> None:
    """Every eleventh change is tried."""
    number = tried = 0
    while True:
        number += 11
        folder = tmp_path / str(number)
        with MemoryChangelog() as log:
            count = left_by_streams(folder, log, "window")
            if is_removed:
                damage_tables(segments_folder(folder) / "s.120000")
            try:
                with failing_at(number, []):
                    kind_task(folder, log, "window", backend).open()
            except Crash:
                tried += 1
            else:
                break
            with closing(kind_task(folder, log, "window", backend)) as task:
                [(_, records)] = opened(task)
                assert records in ((0, count) if is_removed else (0,))
                assert contents("window", task) == model("window", PUTS)
            assert not segments_folder(folder).exists()
    assert tried > 5


def test_folders_that_an_interrupted_removal_has_left_empty_are_removed(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log, "window")
    check(tmp_path, log, "window", INDEXED, (False, 0))
    (segments_folder(tmp_path) / "s.180000").mkdir(parents=True)
    with closing(kind_task(tmp_path, log, "window")) as task:
        assert opened(task) == [(False, 0)]
    assert not segments_folder(tmp_path).exists()


def test_a_foreign_file_and_a_link_in_the_place_of_segments_stay(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log, "window")
    (segments_folder(tmp_path) / "s.180000" / "letter").write_text("dear")
    (segments_folder(tmp_path) / "s.300000").symlink_to(tmp_path / "elsewhere")
    with closing(kind_task(tmp_path, log, "window")) as task:
        assert opened(task) == [(False, 0)]
        assert contents("window", task) == model("window", PUTS)
    assert (segments_folder(tmp_path) / "s.180000" / "letter").read_text() == "dear"
    assert sorted(entry.name for entry in segments_folder(tmp_path).iterdir()) == ["s.180000", "s.300000"]


def test_a_store_in_memory_leaves_the_segments(tmp_path: Path, log: MemoryChangelog) -> None:
    count = left_by_streams(tmp_path, log, "window")
    before = all_files(segments_folder(tmp_path))
    with closing(kind_task(tmp_path, log, "window", MEMORY)) as task:
        assert opened(task) == [(False, count)]
        assert contents("window", task) == model("window", PUTS)
    assert all_files(segments_folder(tmp_path)) == before


def test_in_the_layout_store_partition_segments_stay_and_the_store_is_restored(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    count = left_by_streams(tmp_path, log, "window")
    change_layout(tmp_path / "state", DirectoryLayout.STORE_PARTITION)
    before = all_files(segments_folder(tmp_path))
    with closing(kind_task(tmp_path, log, "window")) as task:
        assert opened(task) == [(False, count)]
        assert contents("window", task) == model("window", PUTS)
    assert all_files(segments_folder(tmp_path)) == before


def test_kafka_streams_is_shut_out_of_the_state_directory_once_its_store_is_taken_over(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """It locks a file of this name, which fails then. Source: Kafka Streams, ``StateDirectory.lockStateDirectory``."""
    left_by_streams(tmp_path, log, "window")
    lock = tmp_path / "state" / ".lock"
    lock.touch()
    with closing(kind_task(tmp_path, log, "window")) as task:
        task.open()
    assert lock.is_dir()
    assert list(lock.iterdir()) == []


def test_kafka_streams_that_has_just_come_keeps_its_store(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may lock a new file, once the old one is removed and before the folder is there."""
    left_by_streams(tmp_path, log, "window")
    lock = tmp_path / "state" / ".lock"
    lock.touch()
    removing = Path.unlink
    with monkeypatch.context() as patch, closing(kind_task(tmp_path, log, "window")) as task:
        patch.setattr(Path, "unlink", lambda path, **given: None if path == lock else removing(path, **given))
        before = all_files(segments_folder(tmp_path))
        with pytest.raises(StoreLockedError):
            task.open()
        assert all_files(segments_folder(tmp_path)) == before
    assert lock.is_file()
    check(tmp_path, log, "window", INDEXED, (False, 0))


def test_a_record_of_kafka_streams_behind_ours_is_refused(tmp_path: Path, log: MemoryChangelog) -> None:
    """All records of a changelog have one form."""
    with closing(kind_task(tmp_path, log, "window")) as task:
        task.open()
        put_more(log, task)
    send_all(log, LOG, logged("window", PUTS))
    for folder in (tmp_path / "other", tmp_path):  # One restores all, the other those that follow its own.
        with closing(kind_task(folder, log, "window")) as task, pytest.raises(ChangelogError, match="record 4"):
            task.open()


def test_a_configuration_with_another_retention_takes_segments_over(tmp_path: Path, log: MemoryChangelog) -> None:
    assert isinstance(WINDOW, Window)
    records = replace(WINDOW, retention_ms=60_000, segment_ms=7_000)
    left_by_streams(tmp_path, log, "window")
    with closing(kind_task(tmp_path, log, "window", records=records)) as task:
        assert opened(task) == [(False, 0)]
        assert contents("window", task) == [place for place in model("window", PUTS) if place[1] > 180_000]
