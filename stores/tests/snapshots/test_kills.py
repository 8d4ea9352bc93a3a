"""A kill at each step of taking a snapshot, and of a restore from one: the store is whole, and so is each snapshot.

``stores.tests.tasks.test_change_kills`` checks that all failpoints are tried.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import NamedTuple

import pytest

from stores.changelog import SqliteChangelog
from stores.files import creation, folder
from stores.snapshots import Snapshots, pruning, restoring, taking
from stores.tasks.directory import replacement
from stores.tasks.directory.replacement import DECIDED, RENAMED, SYNCED
from stores.tasks.directory.store_places import ENDS, beside
from stores.tests.forked_call import call_until_killed
from stores.tests.snapshots.snapshotting import (
    CHANGELOG,
    RECORDS,
    WITHIN_S,
    commit,
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
from stores.tests.tasks.setup import INDEXED, logged, state

LMDB, SQLITE = "lmdb-native", "sqlite-indexed-batch"


class KillOfSnapshot(NamedTuple):
    """A kill of a process that takes a snapshot, or restores from one."""

    backend: str
    failpoint: str
    counts: bool
    """True if the new snapshot counts, or the store that was made from files."""
    hit: int = 1
    then: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-".join([self.backend, self.failpoint, str(self.hit), *self.then])


def taking_cases() -> Iterator[KillOfSnapshot]:
    for backend in (INDEXED, LMDB, SQLITE):
        for failpoint in (taking.BEGUN, taking.PART_SENT, taking.SENT, folder.ASIDE_WRITTEN):
            yield KillOfSnapshot(backend, failpoint, counts=False)
        for failpoint in (folder.IN_PLACE, taking.INDEXED):
            yield KillOfSnapshot(backend, failpoint, counts=True)
    for backend in (LMDB, SQLITE):
        # The second one in a process is of changes.
        for failpoint in (taking.BEGUN, taking.PART_SENT, taking.SENT, taking.INDEXED):
            yield KillOfSnapshot(backend, failpoint, counts=True, hit=2)
    yield KillOfSnapshot(INDEXED, pruning.INDEX_REMOVED, counts=True)


def restoring_cases() -> Iterator[KillOfSnapshot]:
    for backend in (INDEXED, LMDB, SQLITE):
        yield KillOfSnapshot(backend, restoring.PART_FETCHED, counts=False)
        for failpoint in (restoring.FILES_FETCHED, SYNCED):
            yield KillOfSnapshot(backend, failpoint, counts=False)
        for failpoint in creation.FAILPOINTS:
            # The first creation is that of the empty store in its place.
            yield KillOfSnapshot(backend, failpoint, counts=False, hit=2)
        for failpoint in replacement.FAILPOINTS:
            yield KillOfSnapshot(backend, failpoint, counts=True)
        yield KillOfSnapshot(backend, RENAMED, counts=True, hit=2)
    for backend in (LMDB, SQLITE):
        yield KillOfSnapshot(backend, restoring.PART_FETCHED, counts=False, hit=2)
        yield KillOfSnapshot(backend, restoring.CHANGES_APPLIED, counts=False)
    yield KillOfSnapshot(
        INDEXED, DECIDED, counts=True, then=(RENAMED, RENAMED, replacement.PLACED, replacement.CLEARED)
    )


TAKING, RESTORING = list(taking_cases()), list(restoring_cases())
FAILPOINTS = {case.failpoint for case in (*TAKING, *RESTORING)}


def kept(path: Path) -> Snapshots:
    return settings(path, keep=1, grace_ms=0)


def log_in(path: Path) -> SqliteChangelog:
    return SqliteChangelog(path / "log.sqlite")


def begin(path: Path, backend: str, count: int) -> int:
    """Take ``count`` snapshots, and return the offset of the last one."""
    with log_in(path) as log:
        for topic in ("input", "output"):
            log.create_topic(topic)
        with closing(snapping(path, log, backend, kept(path))) as task:
            task.open()
            send(log, pairs_of(range(RECORDS)))
            return [snap(task, log) for _ in range(count)][-1]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., int]:
    """Return ``begin``, whose work is done once for each backend and count, and copied."""

    @cache
    def prepared(backend: str, count: int) -> tuple[Path, int]:
        folder = tmp_path_factory.mktemp("begun")
        return folder, begin(folder, backend, count)

    def copied(path: Path, backend: str, count: int = 1) -> int:
        folder, offset = prepared(backend, count)
        copytree(folder, path, dirs_exist_ok=True)
        return offset

    return copied


def take(path: Path, backend: str) -> None:
    """Work, and take snapshots, until the process is killed."""
    with log_in(path) as log:
        task = snapping(path, log, backend, kept(path))
        task.open()
        deadline, number = time.monotonic() + WITHIN_S, 0
        # A commit begins none while RocksDB is writing its tables in the background.
        while time.monotonic() < deadline:
            send(log, pairs_of(range(number, number + 10), b"later"))
            commit(task)
            number += 10


@pytest.mark.parametrize("case", TAKING, ids=str)
def test_a_kill_while_a_snapshot_is_taken_leaves_it_or_the_one_before(
    tmp_path: Path, begun: Callable[..., int], case: KillOfSnapshot
) -> None:
    first = begun(tmp_path, case.backend)
    assert call_until_killed(take, tmp_path, case.failpoint, case.hit, case.backend)
    offsets = [name.offset for name in objects_in(kept(tmp_path)).indexes()]
    assert offsets == sorted(offsets, reverse=True)
    assert (max(offsets) > first) == case.counts
    with log_in(tmp_path) as log:
        expected = logged(log, "s")
        restored, report = reopened(tmp_path, log, case.backend, kept(tmp_path))
        assert (restored, report.snapshot_offset, report.wiped) == (expected, None, False)
        assert not (store_path(tmp_path, case.backend) / creation.CAPTURED).exists()
        lose(tmp_path)
        restored, report = reopened(tmp_path, log, case.backend, kept(tmp_path))
        assert (restored, report.snapshot_offset, report.reason) == (expected, max(offsets), None)
        # What the killed process has left there is removed once it is older than the next snapshot.
        with closing(snapping(tmp_path, log, case.backend, kept(tmp_path))) as task:
            task.open()
            snap(task, log)
            snap(task, log)
        objects = objects_in(kept(tmp_path))
        [name] = objects.indexes()
        assert set(objects.sizes()) == {str(part) for part in objects.index(name).parts()}
        assert set(os.listdir(tmp_path / "snapshots/app-s-changelog-0/index")) == {str(name)}


def restore(path: Path, backend: str) -> None:
    """Open the task, which has lost its store."""
    snapping(path, log_in(path), backend, kept(path)).open()


@pytest.mark.parametrize("case", RESTORING, ids=str)
def test_a_kill_while_a_store_is_restored_by_files_is_made_good_by_the_next_opening(
    tmp_path: Path, begun: Callable[..., int], case: KillOfSnapshot
) -> None:
    offset = begun(tmp_path, case.backend, 2)
    with log_in(tmp_path) as log, closing(snapping(tmp_path, log, case.backend, None)) as task:
        task.open()
        send(log, pairs_of(range(5), b"tail"))
        task.run(commit=True)
        expected = state(task, "s")
    lose(tmp_path)
    for number, failpoint in enumerate((case.failpoint, *case.then)):
        assert call_until_killed(restore, tmp_path, failpoint, 1 if number else case.hit, case.backend)
    with log_in(tmp_path) as log:
        restored, report = reopened(tmp_path, log, case.backend, kept(tmp_path))
        assert restored == expected == logged(log, "s")
        assert (report.wiped, report.reason) == (False, None)
        assert report.records == log.end_offset(CHANGELOG) - offset - 1
        assert report.snapshot_offset == (None if case.counts else offset)
    path = store_path(tmp_path, case.backend)
    assert [end for end in ENDS if os.path.lexists(beside(path, end))] == []
