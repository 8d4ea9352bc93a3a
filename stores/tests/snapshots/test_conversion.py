"""A store begins from a snapshot of another backend: its records, marks, offsets and position are copied."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import Changelog, MemoryChangelog, SqliteChangelog
from stores.contract.reading import ShownTimestamps
from stores.errors import StoreIncompatibleError, StoreUnavailableError
from stores.interface import IsolationLevel, KeyValueStore
from stores.registry import backend_named, open_store
from stores.snapshots import restoring
from stores.snapshots.objects import FILES, INDEX
from stores.snapshots.restoring import copy_store
from stores.strategies.store import Store
from stores.tasks.directory.replacement import DECIDED, SYNCED
from stores.tasks.directory.store_places import ENDS, beside
from stores.tests.forked_call import call_until_killed
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
    store_path,
)
from stores.tests.tasks.setup import INDEXED, INPUT, logged, state

LMDB, SQLITE = "lmdb-native", "sqlite-indexed-batch"


def begun(folder: Path, log: Changelog, backend: str) -> int:
    """Let a task take a snapshot, put a tail behind it, and lose the store; return the snapshot's offset."""
    with closing(snapping(folder, log, backend, settings(folder))) as task:
        task.open()
        send(log, pairs_of(range(RECORDS)))
        offset = snap(task, log)
    with closing(snapping(folder, log, backend, None)) as task:
        task.open()
        send(log, [*pairs_of(range(5), b"tail"), *((key, b"") for key, _ in pairs_of(range(20, 25)))])
        task.run(commit=True)
    lose(folder)
    return offset


def parts_beside(folder: Path, backend: str) -> list[str]:
    """Return the endings of what is beside the store."""
    return [end for end in ENDS if os.path.lexists(beside(store_path(folder, backend), end))]


@pytest.mark.parametrize(("taken", "opened"), list(permutations(SNAPPED, 2)))
def test_a_store_begins_from_a_snapshot_of_another_backend(
    tmp_path: Path, log: Changelog, taken: str, opened: str
) -> None:
    offset = begun(tmp_path, log, taken)
    with closing(snapping(tmp_path, log, opened, settings(tmp_path))) as task:
        [report] = task.open()
        assert state(task, "s") == logged(log, "s")
        assert (report.snapshot_offset, report.from_offset, report.wiped) == (offset, offset + 1, False)
        assert report.records == log.end_offset(CHANGELOG) - offset - 1
        assert report.reason == f"the snapshot at offset {offset} is of {taken}: its records were copied"
        position = task.store("s", IsolationLevel.READ_COMMITTED).position()
        assert position[INPUT] == log.end_offset(INPUT) - 1
        assert parts_beside(tmp_path, opened) == []
        send(log, pairs_of([7], b"later"))
        snap(task, log)
    index = objects_in(settings(tmp_path)).index(objects_in(settings(tmp_path)).indexes()[0])
    assert index.kind.backend == opened
    lose(tmp_path)
    restored, report = reopened(tmp_path, log, opened, settings(tmp_path))
    assert (restored, report.snapshot_offset, report.reason) == (logged(log, "s"), index.offset, None)


def test_an_older_snapshot_of_the_same_backend_comes_first(tmp_path: Path, log: Changelog) -> None:
    older = begun(tmp_path, log, INDEXED)
    newer = begun(tmp_path, log, LMDB)
    for opened, offset in ((INDEXED, older), (LMDB, newer), (SQLITE, newer)):
        restored, report = reopened(tmp_path, log, opened, settings(tmp_path))
        assert (restored, report.snapshot_offset) == (logged(log, "s"), offset)
        lose(tmp_path)


def test_one_of_another_backend_is_used_if_none_of_the_same_is_whole(tmp_path: Path, log: Changelog) -> None:
    offset, newest = begun(tmp_path, log, LMDB), begun(tmp_path, log, INDEXED)
    objects = objects_in(settings(tmp_path))
    index = objects.index(objects.indexes()[0])
    assert (index.offset, index.kind.backend) == (newest, INDEXED)
    objects.remove(FILES, str(next(index.parts())))
    restored, report = reopened(tmp_path, log, INDEXED, settings(tmp_path))
    assert (restored, report.snapshot_offset) == (logged(log, "s"), offset)
    assert f"at offset {newest} was not used" in (report.reason or "")
    assert f"at offset {offset} is of {LMDB}" in (report.reason or "")


def test_a_copy_that_is_at_another_offset_than_its_index_says_is_not_used(tmp_path: Path, log: Changelog) -> None:
    begun(tmp_path, log, LMDB)
    objects = objects_in(settings(tmp_path))
    [name] = objects.indexes()
    index = objects.index(name)
    objects.remove(INDEX, str(name))
    assert objects.put_index(replace(index, offset=index.offset - 1))
    restored, report = reopened(tmp_path, log, INDEXED, settings(tmp_path))
    assert (restored, report.snapshot_offset, report.snapshot_bytes) == (logged(log, "s"), None, 0)
    assert "copied" not in (report.reason or "")


@pytest.mark.parametrize("opened", [LMDB, SQLITE])
def test_a_copy_that_fails_leads_to_the_changelog_and_leaves_nothing(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch, opened: str
) -> None:
    begun(tmp_path, log, INDEXED)

    def full(*_: object) -> None:
        raise StoreUnavailableError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("stores.tasks.stores.file_snapshots.copy_store", full)
        restored, report = reopened(tmp_path, log, opened, settings(tmp_path))
    assert (restored, report.snapshot_offset) == (logged(log, "s"), None)
    assert "No space left" in (report.reason or "")
    # The next opening removes what was begun.
    reopened(tmp_path, log, opened, settings(tmp_path))
    assert parts_beside(tmp_path, opened) == []


def restore(path: Path, backend: str) -> None:
    """Open the task, which has lost its store."""
    snapping(path, SqliteChangelog(path / "log.sqlite"), backend, settings(path)).open()


@pytest.mark.parametrize("failpoint", [restoring.PART_FETCHED, restoring.FILES_FETCHED, SYNCED, DECIDED])
@pytest.mark.parametrize(("taken", "opened"), [(INDEXED, LMDB), (LMDB, SQLITE), (SQLITE, INDEXED)])
def test_a_kill_is_made_good_by_the_next_opening(tmp_path: Path, failpoint: str, taken: str, opened: str) -> None:
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        for topic in ("input", "output"):
            log.create_topic(topic)
        offset = begun(tmp_path, log, taken)
    assert call_until_killed(restore, tmp_path, failpoint, 1, opened)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        restored, report = reopened(tmp_path, log, opened, settings(tmp_path))
        assert restored == logged(log, "s")
        assert report.snapshot_offset == (None if failpoint == DECIDED else offset)
        assert report.records == log.end_offset(CHANGELOG) - offset - 1
    assert parts_beside(tmp_path, opened) == []


def test_the_progress_of_a_copy_may_end_it(tmp_path: Path, log: MemoryChangelog) -> None:
    begun(tmp_path, log, INDEXED)

    class EndError(Exception):
        pass

    def progress(_: object) -> None:
        if any((beside(store_path(tmp_path, LMDB), ".prepare") / "data").glob("*")):
            raise EndError

    with closing(snapping(tmp_path, log, LMDB, settings(tmp_path), on_restore=progress)) as task:
        with pytest.raises(EndError):
            task.open()
    restored, _ = reopened(tmp_path, log, LMDB, settings(tmp_path))
    assert restored == logged(log, "s")
    assert parts_beside(tmp_path, LMDB) == []


@pytest.mark.parametrize(("taken", "opened"), [(INDEXED, LMDB), (LMDB, SQLITE), (SQLITE, INDEXED)])
def test_a_copy_has_all_that_the_store_has(tmp_path: Path, taken: str, opened: str) -> None:
    with source_in(tmp_path, taken) as source, open_store(opened, tmp_path / "target") as target:
        copy_store(source, target, lambda: None)
        assert list(target.all()) == PAIRS
        assert target.committed_offset(CHANGELOG) == 7
        assert target.position(IsolationLevel.READ_COMMITTED) == {INPUT: 5}
        assert (target.mark("one"), target.mark("other")) == (b"mark", None)


def test_a_copy_writes_large_values_in_small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory depends on that."""
    sizes: list[int] = []
    copied: list[int] = []
    pairs = [(b"%d" % number, bytes(512 << 10)) for number in range(6)]
    with open_store(LMDB, tmp_path / "source") as source, open_store(INDEXED, tmp_path / "target") as target:
        source.restore(pairs, {})
        write = target.restore

        def noted(piece: list[tuple[bytes, bytes | None]], *more: Any) -> None:
            sizes.append(len(piece))
            write(piece, *more)

        monkeypatch.setattr(target, "restore", noted)
        assert isinstance(source, Store)
        copy_store(source, target, lambda: copied.append(len(sizes)))
        assert (sizes, copied) == ([2, 2, 2, 0], [1, 2, 3])
        assert list(target.all()) == pairs


def test_a_store_of_records_in_two_formats_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with source_in(tmp_path, INDEXED) as source, open_store(LMDB, tmp_path / "target") as target:
        monkeypatch.setattr(type(source), "timestamps", ShownTimestamps(is_split=True))
        with pytest.raises(StoreIncompatibleError):
            copy_store(source, target, lambda: None)
        assert list(target.all()) == []


def test_a_key_that_the_backend_does_not_take_is_refused(tmp_path: Path) -> None:
    with source_in(tmp_path, INDEXED) as source, open_store(LMDB, tmp_path / "target") as target:
        source.put(b"k" * (target.max_key_bytes + 1), b"value")
        source.commit()
        with pytest.raises(StoreIncompatibleError, match=LMDB):
            copy_store(source, target, lambda: None)


PAIRS = [(b"key %06d" % number, b"value %d" % number) for number in range(2_500)]


def source_in(folder: Path, backend: str) -> Store:
    """Return a store of some records, with an offset, a position and a mark."""
    store = open_store(backend, folder / "source")
    assert isinstance(store, Store)
    store.restore(PAIRS, {CHANGELOG: 7}, {INPUT: 5}, {"one": b"mark"})
    return store


def test_after_a_copy_that_failed_halfway_the_next_one_begins_anew(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset, _ = begun(tmp_path, log, LMDB), begun(tmp_path, log, LMDB)

    def halfway(source: Store, target: KeyValueStore, _: object) -> None:
        monkeypatch.setattr("stores.tasks.stores.file_snapshots.copy_store", copy_store)
        target.restore([(b"half", b"way")], {})
        raise StoreUnavailableError("for this test")

    monkeypatch.setattr("stores.tasks.stores.file_snapshots.copy_store", halfway)
    with closing(snapping(tmp_path, log, INDEXED, settings(tmp_path))) as task:
        [report] = task.open()
        assert report.snapshot_offset == offset
        assert state(task, "s") == logged(log, "s")
        for name in objects_in(settings(tmp_path)).indexes():
            objects_in(settings(tmp_path)).remove(INDEX, str(name))
        [store] = task._stores._stores
        store.wipe("for this test")
        store.snapshots.forget()
        assert "copied" not in (store.restore({}, None).reason or "")


def test_a_snapshot_of_an_engine_without_snapshots_is_not_copied(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path, log, LMDB)
    monkeypatch.setattr(backend_named(LMDB).load_engine(), "captures", False)
    restored, report = reopened(tmp_path, log, INDEXED, settings(tmp_path))
    assert (restored, report.snapshot_offset) == (logged(log, "s"), None)
