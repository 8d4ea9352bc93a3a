"""The checks of a window, session or versioned store that Kafka Streams has left: segments, rows and last record."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog
from stores.errors import ChangelogError, StoreUnavailableError
from stores.records.segments import packed
from stores.records.versions import pairs_of_versions
from stores.registry import open_store
from stores.tasks.directory.store_places import segment_folders
from stores.tasks.stores.streams_records import SegmentRow, row_of, versions_of
from stores.tests.tasks.setup import INDEXED
from stores.tests.tasks.stores.test_kinds_takeover import check, opened
from stores.tests.tasks.streams_folder import leave_offsets, leave_store, streams_folder, task_folder
from stores.tests.tasks.streams_kinds import (
    KINDS,
    LOG,
    PUTS,
    Put,
    contents,
    kind_task,
    leave,
    left_by_streams,
    logged,
    model,
    row,
    segments_folder,
    send_all,
    versioned_pairs,
)

WINDOW: Any = KINDS["window"]


def logs_more(folder: Path, log: MemoryChangelog, kind: str, more: list[Put]) -> int:
    """Let the changelog have more records, and the checkpoint the last of them; return the number of all."""
    records = logged(kind, [*PUTS, *more])
    send_all(log, LOG, records[len(logged(kind, PUTS)) :])
    leave_offsets(task_folder(folder) / ".checkpoint", {LOG: len(records) - 1})
    return len(records)


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_without_the_changelog_record_of_its_offset_is_restored_whole(
    tmp_path: Path, log: MemoryChangelog, kind: str
) -> None:
    count = left_by_streams(tmp_path, log, kind, end=-1)
    leave_offsets(task_folder(tmp_path) / ".checkpoint", {LOG: count - 1})
    check(tmp_path, log, kind, INDEXED, (True, count))


@pytest.mark.parametrize("kind", KINDS)
def test_a_late_record_at_the_offset_that_kafka_streams_has_dropped_is_not_missed(
    tmp_path: Path, log: MemoryChangelog, kind: str
) -> None:
    """It logs such records, too."""
    left_by_streams(tmp_path, log, kind)
    logs_more(tmp_path, log, kind, [(b"late", b"13", 50_000 if kind == "versioned" else 120_000)])
    with closing(kind_task(tmp_path, log, kind)) as task:
        assert opened(task) == [(False, 0)]
        assert contents(kind, task) == model(kind, PUTS)


@pytest.mark.parametrize(("kind", "time_ms"), [("window", 120_001), ("session", 120_001), ("versioned", 150_000)])
def test_a_record_at_the_offset_that_is_just_not_too_late_is_missed(
    tmp_path: Path, log: MemoryChangelog, kind: str, time_ms: int
) -> None:
    left_by_streams(tmp_path, log, kind)
    count = logs_more(tmp_path, log, kind, [(b"late", b"13", time_ms)])
    with closing(kind_task(tmp_path, log, kind)) as task:
        assert opened(task) == [(True, count)]


def test_a_deletion_at_the_offset_that_has_changed_nothing_is_not_missed(tmp_path: Path, log: MemoryChangelog) -> None:
    """The value was deleted before, and the key has a later one. So Kafka Streams keeps nothing of it."""
    more: list[Put] = [(b"q", b"1", 170_000), *((b"q", None, time_ms) for time_ms in (160_000, 161_000, 162_000))]
    left_by_streams(tmp_path, log, "versioned")
    logs_more(tmp_path, log, "versioned", more)
    shutil.rmtree(streams_folder(tmp_path, "s"))
    leave(tmp_path, "versioned", [*PUTS, *more])
    with closing(kind_task(tmp_path, log, "versioned")) as task:
        assert opened(task) == [(False, 0)]


@pytest.mark.parametrize(("value", "is_missed"), [(b"13", True), (None, False)])
def test_a_record_at_the_offset_before_all_segments_is_missed_unless_it_is_a_deletion(
    tmp_path: Path, log: MemoryChangelog, value: bytes | None, is_missed: bool
) -> None:
    left_by_streams(tmp_path, log, "window")
    count = logs_more(tmp_path, log, "window", [(b"early", value, 121_000)])
    shutil.rmtree(segments_folder(tmp_path) / "s.120000")
    with closing(kind_task(tmp_path, log, "window")) as task:
        assert opened(task) == [(is_missed, count * is_missed)]


def test_a_record_at_the_offset_with_a_key_of_another_kind_is_missed(tmp_path: Path, log: MemoryChangelog) -> None:
    """The restore, which follows, finds it too."""
    left_by_streams(tmp_path, log, "window")
    logs_more(tmp_path, log, "window", [])
    send_all(log, LOG, [(b"short", b"13", 1)])
    leave_offsets(task_folder(tmp_path) / ".checkpoint", {LOG: len(PUTS)})
    with closing(kind_task(tmp_path, log, "window")) as task, pytest.raises(ChangelogError):
        task.open()


def test_the_last_segment_is_as_long_as_the_others_whatever_is_configured(tmp_path: Path, log: MemoryChangelog) -> None:
    more: list[Put] = [(b"z", b"13", 299_999)]
    left_by_streams(tmp_path, log, "window")
    logs_more(tmp_path, log, "window", more)
    shutil.rmtree(segments_folder(tmp_path))
    leave(tmp_path, "window", [*PUTS, *more])
    records = replace(WINDOW, segment_ms=7_000)
    with closing(kind_task(tmp_path, log, "window", records=records)) as task:
        assert opened(task) == [(False, 0)]
        assert contents("window", task) == model("window", [*PUTS, *more])


def test_a_segment_with_records_from_before_it_had_timestamps_leads_to_the_changelog(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    count = left_by_streams(tmp_path, log, "timestamped-window")
    shutil.rmtree(segments_folder(tmp_path) / "s.180000")
    leave_store(segments_folder(tmp_path) / "s.180000", {b"k": b"v"}, {})
    check(tmp_path, log, "timestamped-window", INDEXED, (True, count))


def test_a_record_of_an_earlier_time_than_its_segment_leads_to_the_changelog(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    count = left_by_streams(tmp_path, log, "window")
    shutil.rmtree(segments_folder(tmp_path) / "s.180000")
    leave_store(segments_folder(tmp_path) / "s.180000", {logged("window", [(b"k", b"v", 179_999)])[0][0]: b"v"})
    check(tmp_path, log, "window", INDEXED, (True, count))


def test_the_segments_are_in_the_order_of_their_times_without_stores_and_links(tmp_path: Path) -> None:
    store = tmp_path / "lmdb"
    others = ("lmdb.12345678901234567890", "lmdb.0.x", "x.0")
    for name in ("lmdb.120000", "lmdb.60000", "lmdb.9223372036854775807", *others):
        (store / name).mkdir(parents=True)
    open_store(INDEXED, store / "lmdb.0").close()
    (store / "lmdb.1").symlink_to("lmdb.60000")
    names = ["lmdb.60000", "lmdb.120000", "lmdb.9223372036854775807"]
    assert [path.name for path in segment_folders(store)] == names
    store.rename(tmp_path / "kept")
    store.symlink_to("kept")
    assert segment_folders(store) == ()


def test_a_pipe_in_any_segment_is_refused(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log, "window")
    pipe = segments_folder(tmp_path) / "s.240000" / "LOG.old.1"
    os.mkfifo(pipe)
    with closing(kind_task(tmp_path, log, "window")) as task, pytest.raises(StoreUnavailableError):
        task.open()
    pipe.unlink()
    check(tmp_path, log, "window", INDEXED, (False, 0))


def test_the_row_of_a_segment_is_read_and_foreign_bytes_are_none() -> None:
    parts = [(1, 4, b"one"), (7, 9, b""), (9, 12, b"three")]
    data = row(parts)
    assert row_of(data) == SegmentRow(12, [(9, b"three"), (7, b""), (4, None), (1, b"one")])
    assert row_of(row([(5, 5, None)])) == SegmentRow(5, [(5, None)])
    for foreign in (b"", data[:-1], data + b"x", data[:20], bytes(16), bytes(40), b"\xff" * 40, data[8:]):
        assert row_of(foreign) is None
    assert row_of(row([(1, 5, b"a"), (5, 5, b"b"), (5, 9, b"c")])) is None  # Two of one time.
    assert row_of(row([(5, 1 << 62, b"a")])) is None


def test_of_versions_that_overlap_the_later_segment_counts() -> None:
    """A write that failed between two segments leaves that. Source: ``insertAsLatest``."""
    older, newer = SegmentRow(20, [(10, b"a"), (5, b"b")]), SegmentRow(30, [(10, b"a")])
    assert versions_of((40, b"c"), [older, newer]) == [(40, b"c"), (30, None), (10, b"a"), (5, b"b")]
    assert versions_of(None, [older]) == [(20, None), (10, b"a"), (5, b"b")]
    assert versions_of((20, b"c"), [older]) == [(20, b"c"), (10, b"a"), (5, b"b")]
    assert versions_of(None, [SegmentRow(5, [(5, None)])]) == [(5, None)]


def test_a_version_that_has_ended_at_the_beginning_of_the_history_is_left_out() -> None:
    versions = [(30, b"c"), (20, None), (10, b"a")]
    latest, deletion = (b"\1k", packed(30) + b"c"), (b"\2k\0" + packed(20), b"\xff" * 7 + b"\xeb")
    indexed = b"\3" + packed(30) + b"k" + packed(20), b""
    assert pairs_of_versions(b"k", versions, 20) == [latest, deletion, indexed]
    assert pairs_of_versions(b"k", versions, 30) == [latest]
    assert pairs_of_versions(b"k", versions[1:], 20) == []
    assert [key for key, _ in pairs_of_versions(b"k", versions[1:2], 19)] == [
        b"\1k",
        indexed[0][:1] + packed(20) + b"k" + packed(20),
    ]


def test_the_pairs_of_the_tests_have_rows_of_several_versions() -> None:
    rows = [row_of(data) for key, data in versioned_pairs(PUTS).items() if not key.startswith(b"\xff")]
    assert None not in rows
    assert len(rows) > 3
