"""A snapshot that does not fit the store or its changelog is not used, and the report says why."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from stores.changelog import Changelog, MemoryChangelog
from stores.errors import ChangelogLostError, StoreCorruptedError
from stores.interface import TopicPartition
from stores.records import INT64, STR, KeyValue
from stores.registry import StoreBackend, backends
from stores.snapshots import restoring
from stores.snapshots.index import TOKEN_CHARS, IndexName, SnapshotFile, SnapshotIndex, SnapshotKind, StoredPart
from stores.tasks import StoreConfig
from stores.tests.snapshots.snapshotting import (
    CHANGELOG,
    RECORDS,
    SNAPPED,
    lose,
    objects_in,
    pairs_of,
    reopened,
    send,
    settings,
    snap,
    snapping,
)
from stores.tests.tasks.setup import INDEXED, logged, logging_all, state


def begun(folder: Path, log: Changelog, backend: str = INDEXED) -> SnapshotIndex:
    """Take a snapshot, lose the store, and return the index."""
    with closing(snapping(folder, log, backend, settings(folder))) as task:
        task.open()
        send(log, pairs_of(range(RECORDS)))
        snap(task, log)
    lose(folder)
    objects = objects_in(settings(folder))
    return objects.index(objects.indexes()[0])


def put_again(folder: Path, index: SnapshotIndex, **changes: Any) -> SnapshotIndex:
    """Put an index with some changes in place of that of the snapshot."""
    objects = objects_in(settings(folder))
    for name in objects.indexes():
        objects.remove("index", str(name))
    changed = replace(index, **changes)
    assert objects.put_index(changed)
    return changed


def check_replayed(folder: Path, log: Changelog, backend: str = INDEXED) -> str:
    """Check that the changelog was replayed whole, and that the report names the snapshot; return the reason."""
    restored, report = reopened(folder, log, backend, settings(folder))
    assert restored == logged(log, "s")
    assert (report.snapshot_offset, report.snapshot_bytes, report.wiped) == (None, 0, False)
    assert report.from_offset == log.start_offset(CHANGELOG)
    assert report.reason is not None
    assert "snapshot" in report.reason
    return report.reason


@pytest.mark.parametrize("backend", ["other", "memory", "package"])
def test_a_snapshot_of_a_backend_that_has_no_files_here_is_not_used(
    tmp_path: Path, log: Changelog, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of another package has a store class of its own, and no engine."""
    known = {**backends(), "package": Mock(spec=StoreBackend)}
    monkeypatch.setattr(restoring, "backends", lambda: known)
    index = begun(tmp_path, log)
    put_again(tmp_path, index, kind=replace(index.kind, backend=backend))
    assert f"of the backend {backend}, whose files can't be read here" in check_replayed(tmp_path, log)


def test_a_snapshot_of_another_format_is_not_used(tmp_path: Path, log: Changelog) -> None:
    index = begun(tmp_path, log)
    put_again(tmp_path, index, kind=replace(index.kind, format_version=index.kind.format_version + 1))
    check_replayed(tmp_path, log)


def test_a_snapshot_of_other_records_is_not_used(tmp_path: Path, log: Changelog) -> None:
    begun(tmp_path, log)
    stores = {"s": StoreConfig(INDEXED, records=KeyValue(key=STR, value=STR))}
    with closing(snapping(tmp_path, log, INDEXED, settings(tmp_path), stores=stores)) as task:
        [report] = task.open()
        assert (report.snapshot_offset, report.from_offset) == (None, 0)
        assert report.reason is not None
        assert len(list(task.store("s").all())) == len(logged(log, "s"))


def test_a_snapshot_of_an_earlier_changelog_of_the_same_name_is_not_used(tmp_path: Path, log: Changelog) -> None:
    """Else the new changelog, once it is as long, would get the state of the old one."""
    begun(tmp_path, log)
    with MemoryChangelog() as other:
        for topic in ("input", "output"):
            other.create_topic(topic)
        with closing(snapping(tmp_path, other, INDEXED, None)) as task:
            task.open()
            send(other, pairs_of(range(2 * RECORDS), b"another"))
            task.run(commit=True)
        lose(tmp_path)
        check_replayed(tmp_path, other)


@pytest.mark.parametrize("backend", SNAPPED)
def test_a_changelog_that_was_made_again_while_its_task_works_gets_no_snapshot_of_the_old_one(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """The store has what was in the old one, until it is wiped."""
    with closing(snapping(tmp_path, log, backend, settings(tmp_path))) as task:
        task.open()
        old = log.topic_id(CHANGELOG.topic)
        send(log, pairs_of(range(RECORDS)))
        with monkeypatch.context() as patch:
            patch.setattr(MemoryChangelog, "topic_id", lambda self, topic: "another")
            offset = snap(task, log)
            objects = objects_in(settings(tmp_path))
            assert [objects.index(name).kind.changelog_id for name in objects.indexes()[:1]] == [old]
            [store] = task._stores._stores
            store.wipe("for this test")
            report = store.restore({}, None)
            assert (report.snapshot_offset, report.from_offset) == (None, 0)
    lose(tmp_path)
    restored, report = reopened(tmp_path, log, backend, settings(tmp_path))
    assert (restored, report.snapshot_offset) == (logged(log, "s"), offset)


def test_a_snapshot_beyond_the_end_of_the_changelog_is_not_used(tmp_path: Path, log: Changelog) -> None:
    index = begun(tmp_path, log)
    put_again(tmp_path, index, offset=log.end_offset(CHANGELOG))
    assert "the changelog has the offsets" in check_replayed(tmp_path, log)
    # That of the last record fits.
    lose(tmp_path)
    put_again(tmp_path, index, offset=log.end_offset(CHANGELOG) - 1)
    _, report = reopened(tmp_path, log, INDEXED, settings(tmp_path))
    assert report.snapshot_offset == index.offset == log.end_offset(CHANGELOG) - 1


def test_a_snapshot_before_the_start_of_the_changelog_is_not_used(tmp_path: Path, log: Changelog) -> None:
    index = begun(tmp_path, log)
    with closing(snapping(tmp_path, log, INDEXED, None)) as task:
        task.open()
        send(log, pairs_of(range(RECORDS, 2 * RECORDS)))
        task.run(commit=True)
    lose(tmp_path)
    log.truncate(CHANGELOG, index.offset + 1)
    restored, report = reopened(tmp_path, log, INDEXED, settings(tmp_path))
    assert report.snapshot_offset == index.offset
    assert len(restored) == len(dict(pairs_of(range(2 * RECORDS)))) + 1
    lose(tmp_path)
    log.truncate(CHANGELOG, index.offset + 2)
    _, report = reopened(tmp_path, log, INDEXED, settings(tmp_path))
    assert (report.snapshot_offset, report.from_offset) == (None, index.offset + 2)
    assert report.reason is not None


def test_a_snapshot_whose_files_are_of_another_commit_is_not_used(tmp_path: Path, log: Changelog) -> None:
    index = begun(tmp_path, log)
    put_again(tmp_path, index, offset=index.offset - 1)
    check_replayed(tmp_path, log)


@pytest.mark.parametrize(("age_s", "is_used"), [(-200, False), (-50, True), (0, True), (850, True), (950, False)])
def test_a_snapshot_that_is_older_than_the_deletes_in_the_changelog_is_not_used(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch, age_s: int, is_used: bool
) -> None:
    """A log that forgets deletes after 1,000 seconds may lack one that came after the snapshot. Clocks may differ."""
    monkeypatch.setattr(MemoryChangelog, "deletes_kept_s", lambda self, topic: 1_000.0)
    index = begun(tmp_path, log)
    put_again(tmp_path, index, created_ms=int((time.time() - age_s) * 1_000))
    if is_used:
        _, report = reopened(tmp_path, log, INDEXED, settings(tmp_path))
        assert report.snapshot_offset == index.offset
    else:
        check_replayed(tmp_path, log)


@pytest.mark.parametrize(("kept_s", "age_s", "is_used"), [(None, 850, True), (None, 950, False), (9_000.0, 950, False)])
def test_a_snapshot_that_is_older_than_a_store_may_be_is_not_used(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch, kept_s: float | None, age_s: int, is_used: bool
) -> None:
    """A local store of this age is wiped: its log may have dropped deletes, also if it does not tell."""
    monkeypatch.setattr(MemoryChangelog, "deletes_kept_s", lambda self, topic: kept_s)
    index = begun(tmp_path, log)
    put_again(tmp_path, index, created_ms=int((time.time() - age_s) * 1_000))
    stores = {"s": replace(logging_all(INDEXED), max_age_s=1_000.0)}
    with closing(snapping(tmp_path, log, INDEXED, settings(tmp_path), stores=stores)) as task:
        [report] = task.open()
        assert state(task, "s") == logged(log, "s")
    assert report.snapshot_offset == (index.offset if is_used else None)


def test_a_changelog_that_is_lost_is_an_error_with_snapshots_as_well(tmp_path: Path, log: Changelog) -> None:
    with closing(snapping(tmp_path, log, INDEXED, settings(tmp_path))) as task:
        task.open()
        send(log, pairs_of(range(3)))
        snap(task, log)
    with MemoryChangelog() as empty:
        for topic in ("input", "output"):
            empty.create_topic(topic)
        with pytest.raises(ChangelogLostError):
            snapping(tmp_path, empty, INDEXED, settings(tmp_path)).open()
        # A new application in its place has nothing of the old one.
        lose(tmp_path)
        restored, report = reopened(tmp_path, empty, INDEXED, settings(tmp_path))
        assert (restored, report.snapshot_offset) == ({}, None)


def part(number: int) -> StoredPart:
    return StoredPart(f"{number:064x}", number + 1, "0" * TOKEN_CHARS)


def test_an_index_is_read_as_it_was_written() -> None:
    kind = SnapshotKind("id", "lmdb-native", 1, {"records": "\xe9\x00", "format": None})
    partition = TopicPartition("a/topic-1", 7)
    index = SnapshotIndex(
        partition=partition,
        offset=5,
        kind=kind,
        position={TopicPartition("input", 3): 9},
        stream_time_ms=-1,
        created_ms=1,
        files=[SnapshotFile("data.mdb", [part(0), part(1)])],
        changes=[SnapshotFile("changes", [part(2)]), SnapshotFile("changes", [part(3)])],
    )
    assert list(index.parts()) == [part(number) for number in range(4)]
    assert index.num_bytes == 1 + 2 + 3 + 4
    assert SnapshotIndex.decode(index.encoded(), "there") == index
    assert IndexName.parse(str(index.name)) == index.name
    for other in (
        replace(kind, changelog_id="other"),
        replace(kind, format_version=2),
        replace(kind, marks={}),
    ):
        assert other.misfit(kind) is not None
        assert other.digest != kind.digest
    assert kind.misfit(kind) is None


@pytest.mark.parametrize("created_ms", [-1, 1.5, 10**18, None])
def test_an_index_of_no_time_is_damaged(created_ms: Any) -> None:
    kind = SnapshotKind("id", "lmdb-native", 1, {})
    partition = TopicPartition("topic", 0)
    index = SnapshotIndex(
        partition=partition, offset=5, kind=kind, position={}, stream_time_ms=-1, created_ms=created_ms, files=[]
    )
    with pytest.raises(StoreCorruptedError, match="which is no time"):
        SnapshotIndex.decode(index.encoded(), "there")


@pytest.mark.parametrize("name", ["", "1-2.json", "x" * 20 + "-" + "0" * 16 + ".json", "0" * 20 + "-" + "0" * 16])
def test_what_is_no_name_of_an_index_is_none(name: str) -> None:
    assert IndexName.parse(name) is None


def test_typed_state_is_that_of_bytes(tmp_path: Path, log: Changelog) -> None:
    """A store without a description is not taken for one with another serde."""
    begun(tmp_path, log)
    stores = {"s": StoreConfig(INDEXED, records=KeyValue(key=STR, value=INT64))}
    with closing(snapping(tmp_path, log, INDEXED, settings(tmp_path), stores=stores)) as task:
        [report] = task.open()
        assert report.snapshot_offset is None
    lose(tmp_path)
    with closing(snapping(tmp_path, log, INDEXED, settings(tmp_path), stores={"s": logging_all(INDEXED)})) as task:
        [report] = task.open()
        assert report.snapshot_offset is not None
        assert state(task, "s") == logged(log, "s")
