"""Old snapshots are removed, and nothing that an upload or a restore needs."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores import failpoints
from stores.changelog import Changelog
from stores.snapshots import restoring, taking
from stores.snapshots.index import IndexName
from stores.snapshots.objects import FILES, INDEX
from stores.snapshots.pruning import outdated_names, prune
from stores.tests.snapshots.snapshotting import (
    RECORDS,
    lose,
    objects_in,
    pairs_of,
    reopened,
    send,
    settings,
    snap,
    snapping,
)
from stores.tests.tasks.setup import INDEXED, logged

BACKENDS = (INDEXED, "lmdb-indexed-batch", "sqlite-indexed-batch")


def taken(folder: Path, log: Changelog, backend: str, count: int) -> list[int]:
    """Take snapshots, which are all kept; return their offsets."""
    with closing(snapping(folder, log, backend, settings(folder, keep=100))) as task:
        task.open()
        offsets = []
        for number in range(count):
            send(log, pairs_of(range(RECORDS), b"value %d" % number))
            offsets.append(snap(task, log))
        return offsets


def age(folder: Path, name: str, seconds: float) -> None:
    """Let a file be older."""
    file = folder / "snapshots/app-s-changelog-0" / name
    status = file.stat()
    os.utime(file, (status.st_atime, status.st_mtime - seconds))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_newest_are_kept_and_objects_that_none_of_them_names_are_removed(
    tmp_path: Path, log: Changelog, backend: str
) -> None:
    offsets = taken(tmp_path, log, backend, 5)
    objects = objects_in(settings(tmp_path))
    assert [name.offset for name in objects.indexes()] == offsets[::-1]
    before = objects.sizes()
    result = prune(objects, 2, 0.0)
    assert [name.offset for name in objects.indexes()] == offsets[:-3:-1]
    named = {str(part) for name in objects.indexes() for part in objects.index(name).parts()}
    assert set(objects.sizes()) == named
    assert result.num_indexes == 3
    assert result.num_objects == len(before) - len(named)
    assert result.num_bytes == sum(size for name, size in before.items() if name not in named)
    lose(tmp_path)
    restored, report = reopened(tmp_path, log, backend, settings(tmp_path))
    assert (restored, report.snapshot_offset) == (logged(log, "s"), offsets[-1])


def test_a_task_removes_its_old_snapshots(tmp_path: Path, log: Changelog) -> None:
    with closing(snapping(tmp_path, log, "lmdb", settings(tmp_path, keep=3, grace_ms=0))) as task:
        task.open()
        offsets = [snap(task, log) for _ in range(7)]
    assert [name.offset for name in objects_in(settings(tmp_path)).indexes()] == offsets[:-4:-1]


def test_nothing_that_was_in_use_within_the_grace_is_removed(tmp_path: Path, log: Changelog) -> None:
    offsets = taken(tmp_path, log, INDEXED, 4)
    objects = objects_in(settings(tmp_path))
    assert prune(objects, 1, 3_600.0) == (0, 0, 0)
    # The second was put two hours ago, and has superseded the first one then.
    names = [str(name) for name in objects.indexes()][::-1]
    for name in names[:2]:
        age(tmp_path, f"index/{name}", 7_200)
    assert prune(objects, 1, 3_600.0).num_indexes == 1
    assert [name.offset for name in objects.indexes()] == offsets[:0:-1]
    # Its objects go once they are as old.
    for name in objects.sizes():
        age(tmp_path, f"files/{name}", 7_200)
    assert prune(objects, 1, 3_600.0).num_objects > 0
    for kept in objects.indexes():
        for part in objects.index(kept).parts():
            objects.fetch(part)


def test_objects_of_an_upload_that_is_under_way_are_kept(tmp_path: Path, log: Changelog) -> None:
    taken(tmp_path, log, "lmdb", 1)
    objects = objects_in(settings(tmp_path))
    with objects.folder.create(objects.path(FILES, "uploading")) as file:
        file.write(b"content")
    assert prune(objects, 1, 60.0) == (0, 0, 0)
    age(tmp_path, "files/uploading", 120)
    assert prune(objects, 1, 60.0) == (0, 1, 7)


def test_without_a_readable_index_no_object_is_removed(tmp_path: Path, log: Changelog) -> None:
    """It may be of a newer release, which names them."""
    taken(tmp_path, log, "lmdb", 3)
    objects = objects_in(settings(tmp_path))
    kept = objects.indexes()[0]
    file = tmp_path / "snapshots" / objects.path(INDEX, kept)
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"version": 2', b'"version": 3'))
    sizes = objects.sizes()
    prune(objects, 1, 0.0)
    assert objects.sizes() == sizes
    file.write_bytes(content)
    prune(objects, 1, 0.0)
    assert set(objects.sizes()) == {str(part) for part in objects.index(kept).parts()}


@pytest.mark.parametrize(("grace_s", "used"), [(3_600.0, True), (0.0, False)])
def test_a_snapshot_is_removed_under_a_restore_only_without_grace(
    tmp_path: Path, log: Changelog, grace_s: float, used: bool
) -> None:
    """Then the restore takes the changelog, and the state is right all the same."""
    offset = taken(tmp_path, log, INDEXED, 1)[-1]
    lose(tmp_path)
    objects = objects_in(settings(tmp_path))

    def supersede() -> None:
        failpoints.disarm(restoring.PART_FETCHED)
        index = objects.index(objects.indexes()[0])
        name = IndexName(offset + 1, index.kind.digest)
        with objects.folder.create(objects.path(INDEX, name)) as file:
            file.write(b"of a newer release")
        prune(objects, 1, grace_s)
        for part in index.parts() if not grace_s else ():
            objects.remove(FILES, str(part))

    failpoints.arm(restoring.PART_FETCHED, supersede)
    try:
        restored, report = reopened(tmp_path, log, INDEXED, settings(tmp_path, threads=1))
    finally:
        failpoints.disarm()
    assert restored == logged(log, "s")
    assert report.snapshot_offset == (offset if used else None)


def test_a_restore_while_snapshots_are_taken_and_pruned_is_whole(tmp_path: Path, log: Changelog) -> None:
    """The owner takes two more snapshots, and removes the others, after each part that the restore fetches."""
    owner = snapping(tmp_path / "owner", log, INDEXED, settings(tmp_path, keep=1, grace_ms=0))
    owner.open()
    send(log, pairs_of(range(RECORDS)))
    snap(owner, log)
    hits = 0

    def work() -> None:
        nonlocal hits
        hits += 1
        if hits < 4:
            send(log, pairs_of(range(10 * hits, 10 * hits + 10), b"later"))
            snap(owner, log)

    copy = snapping(tmp_path / "copy", log, INDEXED, settings(tmp_path, keep=1, grace_ms=0, threads=1)).standby()
    copy.open()
    # On this thread, which is the owner's: one thread fetches all parts of a restore.
    failpoints.arm(restoring.FILES_FETCHED, work)
    try:
        while copy.follow(10_000):
            pass
    finally:
        failpoints.disarm()
    assert hits
    with copy.snapshots()["s"] as view, view.all() as pairs:
        assert dict(pairs) == logged(log, "s")
    copy.close()
    owner.close()


def test_the_part_that_is_sent_is_kept_from_a_prune_at_that_moment(tmp_path: Path, log: Changelog) -> None:
    snapshots = settings(tmp_path, keep=1, grace_ms=3_600_000)
    objects = objects_in(snapshots)
    failpoints.arm(taking.PART_SENT, lambda: prune(objects, 1, 3_600.0) and None)
    try:
        with closing(snapping(tmp_path, log, INDEXED, snapshots)) as task:
            task.open()
            send(log, pairs_of(range(RECORDS)))
            offsets = [snap(task, log), snap(task, log)]
    finally:
        failpoints.disarm()
    lose(tmp_path)
    restored, report = reopened(tmp_path, log, INDEXED, snapshots)
    assert (restored, report.snapshot_offset) == (logged(log, "s"), offsets[-1])


NAMES = st.lists(
    st.tuples(st.integers(0, 50), st.sampled_from(["a" * 16, "b" * 16]), st.integers(0, 100)), max_size=12, unique=True
)


@given(NAMES, st.integers(1, 4), st.integers(0, 100))
def test_what_is_removed_was_superseded_long_ago(
    given_names: list[tuple[int, str, int]], keep: int, before: int
) -> None:
    put_at = {str(IndexName(offset, digest)): float(at) for offset, digest, at in given_names}
    put_at["0-1.aside"] = 50.0
    removed = outdated_names(put_at, keep, float(before))
    names = [name for name in put_at if IndexName.parse(name)]
    for name in set(removed) & set(names):
        newer = [other for other in names if (put_at[other], other) > (put_at[name], name)]
        assert len([other for other in newer if put_at[other] <= before]) >= keep
    assert len(set(names) - set(removed)) >= min(keep, len(names))
    assert not names or max(names) not in removed
    assert ("0-1.aside" in removed) == (before >= 50)
