"""Faults of the folder of snapshots: a restore is whole at some commit and then replays, or takes the changelog."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from random import Random
from typing import IO

import pytest

from stores.changelog import Changelog, MemoryChangelog
from stores.engines.lmdb.engine import LmdbEngine
from stores.errors import StoreCorruptedError, StoreUnavailableError
from stores.files.folder import LocalFolder
from stores.interface import TopicPartition
from stores.snapshots import objects as objects_module
from stores.snapshots import restoring
from stores.snapshots.index import SnapshotIndex, StoredPart
from stores.snapshots.objects import FILES, INDEX, StoreObjects
from stores.tests.snapshots.snapshotting import (
    CHANGELOG,
    RECORDS,
    commit,
    damage,
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

BACKENDS = (INDEXED, "lmdb-indexed-batch", "sqlite-indexed-batch")
SEED = 7
Fault = Callable[[Path, Path, Random], None]
"""Damages the file at the first path; the second is another one of its kind."""


def missing(file: Path, other: Path, random: Random) -> None:
    file.unlink()


def empty(file: Path, other: Path, random: Random) -> None:
    file.write_bytes(b"")


def truncated(file: Path, other: Path, random: Random) -> None:
    os.truncate(file, random.randrange(file.stat().st_size))


def longer(file: Path, other: Path, random: Random) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


def flipped(file: Path, other: Path, random: Random) -> None:
    content = bytearray(file.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    file.write_bytes(content)


def swapped(file: Path, other: Path, random: Random) -> None:
    """Swap both; a file that is alone gets content of its size that is of another store."""
    contents = file.read_bytes(), other.read_bytes()
    file.write_bytes(contents[1] if file != other else contents[0][::-1])
    if file != other:
        other.write_bytes(contents[0])


FAULTS = (missing, empty, truncated, longer, flipped, swapped)


def two_snapshots(folder: Path, log: Changelog, backend: str) -> list[SnapshotIndex]:
    """Take two snapshots with nothing in common, and lose the store; return their indexes, the newest first."""
    snapshots = settings(folder)
    with closing(snapping(folder, log, backend, snapshots)) as task:
        task.open()
        send(log, pairs_of(range(RECORDS)))
        snap(task, log)
    objects = objects_in(snapshots)
    first = objects.index(objects.indexes()[0])
    # In its own folder: the second snapshot sends all of its files.
    for name in os.listdir(folder / "snapshots/app-s-changelog-0/index"):
        (folder / "snapshots/app-s-changelog-0/index" / name).rename(folder / name)
    with closing(snapping(folder, log, backend, snapshots)) as task:
        task.open()
        send(log, pairs_of(range(RECORDS), b"second"))
        snap(task, log)
    for file in folder.glob("*.json"):
        file.rename(folder / "snapshots/app-s-changelog-0/index" / file.name)
    [second, *_] = [objects.index(name) for name in objects.indexes()]
    assert second.offset > first.offset
    lose(folder)
    return [second, first]


def check(folder: Path, log: Changelog, backend: str, used: SnapshotIndex | None, refused: int) -> None:
    """Check that the store is whole, that it began from this snapshot, and that the others are named."""
    restored, report = reopened(folder, log, backend, settings(folder))
    assert restored == logged(log, "s")
    assert report.snapshot_offset == (None if used is None else used.offset)
    assert report.from_offset == (0 if used is None else used.offset + 1)
    assert (report.reason or "").count("was not used") == refused
    assert report.records == log.end_offset(CHANGELOG) - report.from_offset
    assert sorted(path.name for path in store_path(folder, backend).parent.iterdir()) == ["s"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_part_leads_to_the_snapshot_before(
    tmp_path: Path, log: Changelog, backend: str, fault: Fault
) -> None:
    random = Random(SEED)
    second, first = two_snapshots(tmp_path, log, backend)
    folder = tmp_path / "snapshots/app-s-changelog-0/files"
    names = sorted({str(part) for part in second.parts()} - {str(part) for part in first.parts()})
    fault(folder / names[0], folder / names[-1], random)
    check(tmp_path, log, backend, first, 1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_if_no_snapshot_is_whole_the_changelog_is_replayed(
    tmp_path: Path, log: Changelog, backend: str, fault: Fault
) -> None:
    random = Random(SEED)
    indexes = two_snapshots(tmp_path, log, backend)
    folder = tmp_path / "snapshots/app-s-changelog-0/files"
    for index in indexes:
        names = sorted(map(str, index.parts()))
        fault(folder / names[0], folder / names[-1], random)
    check(tmp_path, log, backend, None, 2)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_index_leads_to_the_snapshot_before(tmp_path: Path, log: Changelog, fault: Fault) -> None:
    second, first = two_snapshots(tmp_path, log, "lmdb")
    folder = tmp_path / "snapshots/app-s-changelog-0/index"
    fault(folder / str(second.name), folder / str(first.name), Random(SEED))
    if fault is swapped:
        # Each name now has the index of the other offset.
        check(tmp_path, log, "lmdb", None, 2)
    else:
        check(tmp_path, log, "lmdb", first, fault is not missing)


def test_any_flipped_bit_of_an_index_is_found(tmp_path: Path, log: Changelog) -> None:
    second, _ = two_snapshots(tmp_path, log, "lmdb")
    content, random = second.encoded(), Random(SEED)
    for _ in range(200):
        damaged = bytearray(content)
        at = random.randrange(len(damaged))
        damaged[at] ^= 1 << random.randrange(8)
        try:
            decoded = SnapshotIndex.decode(bytes(damaged), "there")
        except StoreCorruptedError:
            continue
        assert decoded == second  # A blank that became another blank.


@pytest.mark.parametrize("name", ["../escaped", "/etc/passwd", "", ".", "a/b"])
def test_an_index_can_t_name_a_file_elsewhere(tmp_path: Path, log: Changelog, name: str) -> None:
    second, _ = two_snapshots(tmp_path, log, "lmdb")
    content = second.encoded().replace(b"data.mdb", name.encode())
    fields = json.loads(content)
    del fields["sha256"]
    fields["sha256"] = sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    with pytest.raises(StoreCorruptedError):
        SnapshotIndex.decode(json.dumps(fields).encode(), "there")


def test_the_index_of_another_task_is_not_used(tmp_path: Path, log: Changelog) -> None:
    second, first = two_snapshots(tmp_path, log, "lmdb")
    other = StoreObjects(settings(tmp_path).folder, TopicPartition("app-s-changelog", 1))
    objects = objects_in(settings(tmp_path))
    moved = objects.folder.read(objects.path(INDEX, second.name))
    with other.folder.create(other.path(INDEX, second.name)) as file:
        file.write(moved)
    with pytest.raises(StoreCorruptedError):
        other.index(second.name)
    for part in second.parts():
        with pytest.raises(StoreCorruptedError):
            other.fetch(part)
    assert first.offset < second.offset


def test_a_folder_that_can_t_be_read_leads_to_the_changelog(tmp_path: Path, log: Changelog) -> None:
    two_snapshots(tmp_path, log, INDEXED)
    (tmp_path / "snapshots").rename(tmp_path / "elsewhere")
    (tmp_path / "snapshots").write_text("not a folder")
    restored, report = reopened(tmp_path, log, INDEXED, settings(tmp_path))
    assert restored == logged(log, "s")
    assert (report.snapshot_offset, report.from_offset) == (None, 0)
    assert "could not be used" in (report.reason or "")


def test_a_folder_whose_listing_lags_leads_to_an_older_snapshot(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first = two_snapshots(tmp_path, log, INDEXED)
    listed = StoreObjects.indexes
    monkeypatch.setattr(StoreObjects, "indexes", lambda self: listed(self)[-1:])
    check(tmp_path, log, INDEXED, first, 0)


def test_a_dropped_connection_is_tried_again(tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "_PAUSE_S", 0.0)
    second, _ = two_snapshots(tmp_path, log, INDEXED)
    calls: dict[str, int] = {}
    opened, create = LocalFolder.open, LocalFolder.create

    def dropped(name: str) -> None:
        calls[name] = calls.get(name, 0) + 1
        if FILES in name and calls[name] < 3:
            raise StoreUnavailableError("the connection was closed")

    def open_later(self: LocalFolder, name: str) -> object:
        dropped(name)
        return opened(self, name)

    def create_later(self: LocalFolder, name: str, *, settled: bool = True) -> object:
        dropped(name)
        return create(self, name, settled=settled)

    monkeypatch.setattr(LocalFolder, "open", open_later)
    monkeypatch.setattr(LocalFolder, "create", create_later)
    check(tmp_path, log, INDEXED, second, 0)
    with closing(snapping(tmp_path, log, INDEXED, settings(tmp_path))) as task:
        task.open()
        snap(task, log)
        assert task.metrics.stores["s"].snapshot_failed_total == 0
    assert max(calls.values()) == 3


def test_a_connection_that_stays_away_leads_to_the_changelog(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_module, "_PAUSE_S", 0.0)
    two_snapshots(tmp_path, log, "sqlite")
    opened = LocalFolder.open

    def refused(self: LocalFolder, name: str) -> object:
        if f"/{FILES}/" in name:
            raise StoreUnavailableError("access denied")
        return opened(self, name)

    monkeypatch.setattr(LocalFolder, "open", refused)
    check(tmp_path, log, "sqlite-indexed-batch", None, 2)


class UnreadableFile(BytesIO):
    """A file of a network file system whose server is gone."""

    def read(self, *_: object) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


@pytest.mark.parametrize(("failures", "offset"), [(1, None), (None, 2)])
def test_an_index_that_can_t_be_read_is_tried_again_and_leads_to_the_changelog(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch, failures: int | None, offset: int | None
) -> None:
    """The first number is that of the attempts that fail, None for all."""
    monkeypatch.setattr(objects_module, "_PAUSE_S", 0.0)
    second, _ = two_snapshots(tmp_path, log, INDEXED)
    opened = LocalFolder.open
    attempts: list[str] = []

    def stale(self: LocalFolder, name: str) -> object:
        if f"/{INDEX}/" in name and (failures is None or len(attempts) < failures):
            attempts.append(name)
            return UnreadableFile()
        return opened(self, name)

    monkeypatch.setattr(LocalFolder, "open", stale)
    check(tmp_path, log, INDEXED, second if offset is None else None, offset or 0)
    assert attempts


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_full_disk_leads_to_the_changelog_and_leaves_nothing(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    two_snapshots(tmp_path, log, backend)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(restoring, "_fetch", full)
    restored, report = reopened(tmp_path, log, backend, settings(tmp_path))
    assert restored == logged(log, "s")
    assert (report.snapshot_offset, (report.reason or "").count("was not used")) == (None, 2)
    assert sorted(path.name for path in store_path(tmp_path, backend).parent.iterdir()) == ["s"]


def test_a_disk_that_takes_a_part_of_what_is_written_leads_to_the_changelog(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_snapshots(tmp_path, log, "lmdb")
    pwrite = os.pwrite

    def shortened(descriptor: int, piece: bytes | memoryview, at: int) -> int:
        """Shorten what a restore writes, which are memoryviews."""
        return pwrite(descriptor, piece[:-1] if isinstance(piece, memoryview) else piece, at)

    monkeypatch.setattr(os, "pwrite", shortened)
    check(tmp_path, log, "lmdb-indexed-batch", None, 2)


@pytest.mark.parametrize("sync_bytes", [1, 1 << 30])
def test_files_of_many_parts_in_many_pieces_are_put_together(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch, sync_bytes: int
) -> None:
    monkeypatch.setattr(LmdbEngine, "part_bytes", 20_000)
    monkeypatch.setattr(LocalFolder, "piece_bytes", 1_000)
    monkeypatch.setattr(restoring, "_SYNC_BYTES", sync_bytes)
    second, _ = two_snapshots(tmp_path, log, "lmdb")
    assert max(len(file.parts) for file in second.files) > 3
    check(tmp_path, log, "lmdb-indexed-batch", second, 0)


def test_a_part_is_closed_after_it_was_read_also_if_it_could_not_be_written(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, _ = two_snapshots(tmp_path, log, "lmdb")
    objects, part, opened = objects_in(settings(tmp_path)), next(iter(second.parts())), list[IO[bytes]]()
    look = LocalFolder.open

    def noted(self: LocalFolder, name: str) -> IO[bytes]:
        opened.append(look(self, name))
        return opened[-1]

    def refuse(*_: object) -> None:
        raise StoreCorruptedError("not here")

    monkeypatch.setattr(LocalFolder, "open", noted)
    objects.fetch(part)
    with pytest.raises(StoreCorruptedError):
        objects.fetch(part, refuse)
    assert [file.closed for file in opened] == [True, True]


def test_files_that_have_no_room_are_not_fetched(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, first = two_snapshots(tmp_path, log, "lmdb")
    usage, fetched = shutil.disk_usage(tmp_path), []
    fetch = StoreObjects.fetch

    def counted(self: StoreObjects, part: StoredPart, write: Callable[[int, memoryview], object]) -> None:
        fetched.append(part)
        fetch(self, part, write)

    monkeypatch.setattr(StoreObjects, "fetch", counted)
    for room, used in ((first.num_bytes - 1, False), (second.num_bytes, True)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, room=room: usage._replace(free=room))
        _, report = reopened(tmp_path, log, "lmdb-indexed-batch", settings(tmp_path))
        assert (report.snapshot_offset == second.offset, bool(fetched)) == (used, used)
        lose(tmp_path)


def test_a_full_disk_of_snapshots_is_counted_and_the_task_continues(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_module, "_PAUSE_S", 0.0)
    with closing(snapping(tmp_path, log, "lmdb", settings(tmp_path))) as task:
        task.open()
        with monkeypatch.context() as patch:

            def full(self: LocalFolder, name: str, *, settled: bool = True) -> None:
                raise StoreUnavailableError("No space left on device")

            patch.setattr(LocalFolder, "create", full)
            send(log, pairs_of(range(RECORDS)))
            commit(task)
            metrics = task.metrics.stores["s"]
            assert (metrics.snapshot_total, metrics.snapshot_failed_total) == (0, 1)
            assert objects_in(settings(tmp_path)).indexes() == []
        snap(task, log)
        assert state(task, "s") == logged(log, "s")


def test_a_part_takes_the_place_of_no_other_object(tmp_path: Path) -> None:
    folder = settings(tmp_path, objects=True).folder
    for _ in range(2):  # A client that has lost the answer puts it again.
        folder.put("files/part", b"content")
    with pytest.raises(StoreUnavailableError):
        folder.put("files/part", b"other")
    assert folder.read("files/part") == b"content"


@pytest.mark.parametrize("backend", BACKENDS)
def test_damage_that_a_snapshot_has_as_well_does_not_come_back(
    tmp_path: Path, log: Changelog, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that were damaged before they were sent match their checksums. The store is read whole after damage."""
    snapshots = settings(tmp_path)
    with closing(snapping(tmp_path, log, backend, snapshots)) as task:
        task.open()
        send(log, pairs_of(range(2_000)))
        snap(task, log)
    damage(objects_in(snapshots), b"value 00000700", monkeypatch)

    (store_path(tmp_path, backend) / "store.json").write_text("damaged")
    restored, report = reopened(tmp_path, log, backend, snapshots)
    assert restored == logged(log, "s")
    assert (report.wiped, report.snapshot_offset) == (True, None)


def test_a_wiped_store_begins_from_a_snapshot(tmp_path: Path) -> None:
    with MemoryChangelog() as log:
        for topic in ("input", "output"):
            log.create_topic(topic)
        snapshots = settings(tmp_path)
        for backend in BACKENDS:
            with closing(snapping(tmp_path, log, backend, snapshots)) as task:
                task.open()
                send(log, pairs_of(range(RECORDS)))
                offset = snap(task, log)
            (store_path(tmp_path, backend) / "store.json").write_text("damaged")
            restored, report = reopened(tmp_path, log, backend, snapshots)
            assert restored == logged(log, "s")
            assert (report.wiped, report.snapshot_offset) == (True, offset)
            lose(tmp_path)


def test_a_read_that_fails_halfway_begins_again_and_what_is_written_is_whole(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, _ = two_snapshots(tmp_path, log, "lmdb")
    monkeypatch.setattr(objects_module, "_PAUSE_S", 0.0)
    monkeypatch.setattr(LocalFolder, "piece_bytes", 1_000)
    objects, part = objects_in(settings(tmp_path)), next(iter(second.parts()))
    content, places = bytearray(part.num_bytes), []

    def write(at: int, piece: memoryview) -> None:
        places.append(at)
        if len(places) == 2:
            raise StoreUnavailableError("the connection was cut")
        content[at : at + len(piece)] = piece

    objects.fetch(part, write)
    assert content == objects.folder.read(objects.path(FILES, part))
    assert places == [0, 1_000, *range(0, part.num_bytes, 1_000)]


def test_a_part_that_is_too_long_is_never_written_beyond_its_size(tmp_path: Path, log: Changelog) -> None:
    second, _ = two_snapshots(tmp_path, log, "lmdb")
    objects, part = objects_in(settings(tmp_path)), next(iter(second.parts()))
    with (tmp_path / "snapshots" / objects.path(FILES, part)).open("ab") as file:
        file.write(b"more")
    ends = [0]
    with pytest.raises(StoreCorruptedError):
        objects.fetch(part, lambda at, piece: ends.append(at + len(piece)))
    assert max(ends) <= part.num_bytes
