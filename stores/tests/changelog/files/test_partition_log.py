"""A partition of a version log keeps each version once, restores any that is kept, and detects damage."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from stores import failpoints
from stores.changelog.files import Retention, StoreChanges, VersionLog
from stores.changelog.files.format import PartitionFiles, encoded, read_header, version_name, write_batches
from stores.errors import (
    ChangelogError,
    ChangelogLostError,
    OffsetOutOfRangeError,
    ProducerFencedError,
)
from stores.files.folder import ASIDE_WRITTEN
from stores.tests.changelog.files.log_model import (
    append,
    changes,
    filled,
    header,
    opened,
    restored,
    rows_file,
    snapshot,
    state_at,
    with_rows,
)


def test_a_version_is_read_back_with_its_marks_and_deletes(tmp_path: Path) -> None:
    log = opened(tmp_path).partition(0)
    log.append(header(0, query="q", has_input=False), changes(0))
    own, read = log.read(0)
    assert own == header(0, query="q", has_input=False)
    assert read == changes(0)


def test_any_reader_of_arrow_streams_reads_a_version(tmp_path: Path) -> None:
    opened(tmp_path).partition(0).append(header(0), {"counts": StoreChanges({b"a": b"1", b"b": None})})
    table = pa.ipc.open_stream((tmp_path / "p00000" / version_name(0)).read_bytes()).read_all()
    assert table.to_pylist() == [
        {"store": "counts", "mark": False, "key": b"a", "value": b"1"},
        {"store": "counts", "mark": False, "key": b"b", "value": None},
    ]


def test_the_first_attempt_at_a_version_wins_and_the_other_learns_it(tmp_path: Path) -> None:
    log = opened(tmp_path).partition(0)
    assert log.append(header(0, "a" * 16), changes(0, 1)).id == "a" * 16
    assert log.append(header(0, "b" * 16), changes(0, 2)).id == "a" * 16
    assert log.read(0)[1] == changes(0, 1)
    assert sorted(file.name for file in (tmp_path / "p00000").iterdir()) == [version_name(0)]


def test_of_attempts_at_the_same_time_one_wins(tmp_path: Path) -> None:
    log = opened(tmp_path).partition(0)
    for version in range(5):
        winners: list[str] = []
        barrier = threading.Barrier(4)

        def attempt(number: int, version: int = version, winners: list[str] = winners) -> None:
            barrier.wait()  # noqa: B023
            winners.append(log.append(header(version, f"{number:016x}"), changes(version, number)).id)

        threads = [threading.Thread(target=attempt, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        [winner] = set(winners)
        assert log.read(version)[1] == changes(version, int(winner, 16))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_restore_from_any_version_reaches_any_that_is_kept(tmp_path: Path, seed: int) -> None:
    log = opened(tmp_path, snapshot_versions=3, keep_versions=4).partition(0)
    for version in range(14):
        append(log, version, seed)
        for to in range(max(0, version - 4), version + 1):
            assert restored(log, None, to, seed) == state_at(to, seed)
            after = Random(f"{seed} {version} {to}").randrange(to + 1)
            assert restored(log, after, to, seed) == state_at(to, seed)


def test_a_restore_reads_one_snapshot_and_few_files_at_any_age(tmp_path: Path) -> None:
    log = filled(tmp_path, 40, snapshot_versions=3, keep_versions=2)
    assert len(list((tmp_path / "p00000").iterdir())) <= 10
    with pytest.raises(OffsetOutOfRangeError):
        restored(log, None, 1)


def test_a_snapshot_is_due_by_bytes_as_well(tmp_path: Path) -> None:
    log = filled(tmp_path, 1, snapshot_versions=1000, snapshot_bytes=100)
    assert log.listing().snapshots.keys() == {0}


def test_a_restore_reads_the_newest_snapshot_if_it_is_smaller_than_the_versions(tmp_path: Path) -> None:
    log = opened(tmp_path, snapshot_versions=1000).partition(0)
    for version in range(9):
        log.append(header(version), changes(version))
    for version in (1, 5):
        log.write_snapshot(replace(header(version), kind="snapshot"), snapshot(version))
    for after in (None, 0, 2):
        pieces = list(log.restore(after, 8))
        assert pieces[0].fresh
        assert [piece.reached for piece in pieces if piece.reached is not None] == [5, 6, 7, 8]
    assert [piece.reached for piece in log.restore(5, 8)] == [6, 7, 8]


def test_a_zombie_that_writes_a_removed_version_is_fenced_and_not_read(tmp_path: Path) -> None:
    log = filled(tmp_path, 9, snapshot_versions=2, keep_versions=1)
    with pytest.raises(ProducerFencedError):
        log.append(header(2, "f" * 16), changes(2, seed=9))
    assert restored(log, 1, 8) == state_at(8)
    with pytest.raises(OffsetOutOfRangeError):
        restored(log, None, 2)
    append(log, 9)
    log.remove_old(log.listing())
    assert 2 not in log.listing().versions


@pytest.mark.parametrize("zombies", [[0], [0, 1], [1]])
def test_a_file_that_a_zombie_wrote_under_the_name_of_a_removed_version_is_never_read(
    tmp_path: Path, zombies: list[int]
) -> None:
    """The version after it has the number of the one before, so only IDs tell them apart."""
    log = opened(tmp_path, snapshot_versions=1, keep_versions=0).partition(0)
    newest = max(zombies) + 1
    for version in range(newest + 1):
        append(log, version)
    assert sorted(log.listing().versions) == [newest]
    for version in zombies:
        with pytest.raises(ProducerFencedError):
            log.append(header(version, f"{version:016x}"), changes(version, seed=9))
    for version in zombies:
        for after in (None, *range(version)):
            with pytest.raises(OffsetOutOfRangeError) as error:
                restored(log, after, version)
            assert f"versions {newest} to {newest}" in str(error.value)
    for after in (None, *range(newest)):
        assert restored(log, after, newest) == state_at(newest)


def test_a_zombies_file_after_a_snapshot_that_power_loss_brought_back_is_not_read(tmp_path: Path) -> None:
    log = opened(tmp_path, snapshot_versions=2, keep_versions=0).partition(0)
    large = StoreChanges({b"large": Random(1).randbytes(1 << 16)})

    def add(version: int) -> None:
        """Add a version whose snapshots are much larger than the versions after the first."""
        log.append(header(version), {**changes(version), **({} if version else {"large": large})})
        if log.snapshot_due(log.listing()):
            records = [*snapshot(version), ("large", False, b"large", large.pairs[b"large"])]
            log.write_snapshot(replace(header(version), kind="snapshot"), records)

    for version in range(2):
        add(version)
    [first] = (tmp_path / "p00000").glob("*.snapshot.*")
    content = first.read_bytes()
    for version in range(2, 4):
        add(version)
    log.remove_old(log.listing())
    assert sorted(log.listing().versions) == [3]
    first.write_bytes(content)
    with pytest.raises(ProducerFencedError):
        log.append(header(2, "f" * 16), changes(2, seed=9))
    state = restored(log, 1, 3)
    assert state.pop("large") == large.pairs
    assert state == state_at(3)
    with pytest.raises(OffsetOutOfRangeError, match="versions 3 to 3"):
        restored(log, 1, 2)


def test_an_attempt_that_was_first_and_slow_keeps_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another attempt gave its version out, and the next one is in the log before it looks."""
    log = opened(tmp_path).partition(0)
    listing = log.listing
    with monkeypatch.context() as patch, pytest.raises(ProducerFencedError):

        def overtaken() -> PartitionFiles:
            patch.undo()
            append(log, 1)
            return listing()

        patch.setattr(log, "listing", overtaken)
        log.append(header(0), changes(0))
    assert restored(log, None, 1) == state_at(1)


def test_a_zombie_of_a_version_that_is_there_is_fenced(tmp_path: Path) -> None:
    log = filled(tmp_path, 3)
    with pytest.raises(ProducerFencedError):
        log.append(header(1, "f" * 16), changes(1, seed=9))


def test_a_zombie_whose_file_aside_was_removed_is_fenced(tmp_path: Path) -> None:
    """It stalls before its file gets its name; meanwhile the log goes on, and removes that file and the version."""
    log = opened(tmp_path, snapshot_versions=1, keep_versions=0).partition(0)

    def overtaken() -> None:
        failpoints.disarm()
        for version in range(3):
            append(log, version)
        log.remove_old(log.listing())
        assert log.listing().asides == []

    failpoints.arm(ASIDE_WRITTEN, overtaken)
    try:
        with pytest.raises(ProducerFencedError):
            log.append(header(0, "f" * 16), changes(0, seed=9))
    finally:
        failpoints.disarm()
    assert restored(log, None, 2) == state_at(2)


def test_each_damaged_byte_of_a_version_is_detected(tmp_path: Path) -> None:
    log = opened(tmp_path).partition(0)
    log.append(header(0), {"counts": StoreChanges({b"a": b"1"})})
    file = tmp_path / "p00000" / version_name(0)
    whole = file.read_bytes()
    for at in range(0, len(whole), 7):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ChangelogError):
            log.read(0)
    for length in range(0, len(whole), 11):
        file.write_bytes(whole[:length])
        with pytest.raises(ChangelogError):
            log.read(0)


def test_a_damaged_snapshot_and_damaged_rows_are_detected(tmp_path: Path) -> None:
    log = opened(tmp_path, snapshot_versions=1).partition(0)
    own = with_rows(log, header(0), [1, 2])
    log.append(own, changes(0))
    assert [batch.to_pydict() for batch in log.read_rows(own)] == [{"n": [1, 2]}]
    log.write_snapshot(replace(own, kind="snapshot"), [("counts", False, b"a", b"1")])
    for file in (tmp_path / "p00000").glob("*-*"):
        file.write_bytes(file.read_bytes()[:-30] + bytes(30))
    with pytest.raises(ChangelogError):
        list(log.read_rows(own))
    with pytest.raises(ChangelogError):
        list(log.restore(None, 0))


def test_a_missing_version_is_detected(tmp_path: Path) -> None:
    log = filled(tmp_path, 5)
    (tmp_path / "p00000" / version_name(2)).unlink()
    for after in (None, 0, 1):
        with pytest.raises(ChangelogLostError):
            restored(log, after, 4)


def test_a_missing_snapshot_is_detected(tmp_path: Path) -> None:
    log = filled(tmp_path, 8, snapshot_versions=3, keep_versions=1)
    for file in (tmp_path / "p00000").glob("*.snapshot.*"):
        file.unlink()
    with pytest.raises(ChangelogLostError):
        restored(log, None, 7)


def test_removed_files_that_power_loss_brings_back_in_part_do_no_harm(tmp_path: Path) -> None:
    log = opened(tmp_path, snapshot_versions=3, keep_versions=0).partition(0)
    contents: dict[Path, bytes] = {}
    for version in range(9):
        contents |= {file: file.read_bytes() for file in (tmp_path / "p00000").glob("*")}
        append(log, version)
    missing = sorted(file for file in contents if not file.exists())
    assert len(missing) > 6
    for seed in range(40):
        back = Random(seed).sample(missing, 4)
        for file in back:
            file.write_bytes(contents[file])
        for after in (None, *range(8)):
            assert restored(log, after, 8) == state_at(8), (seed, after)
        for file in back:
            file.unlink()


def test_missing_rows_of_the_newest_version_are_no_old_rows(tmp_path: Path) -> None:
    log = opened(tmp_path).partition(0)
    own = with_rows(log, header(0), [1])
    log.append(own, changes(0))
    next((tmp_path / "p00000").glob("*.rows.*")).unlink()
    with pytest.raises(ChangelogLostError):
        list(log.read_rows(own))


def test_a_file_of_another_version_or_partition_is_refused(tmp_path: Path) -> None:
    log = opened(tmp_path)
    append(log.partition(0), 0)
    content = (tmp_path / "p00000" / version_name(0)).read_bytes()
    (tmp_path / "p00000" / version_name(1)).write_bytes(content)
    (tmp_path / "p00001").mkdir()
    (tmp_path / "p00001" / version_name(0)).write_bytes(content)
    for partition, version in ((0, 1), (1, 0)):
        with pytest.raises(ChangelogError):
            log.partition(partition).read(version)


def test_files_that_are_not_the_logs_are_left_alone(tmp_path: Path) -> None:
    log = opened(tmp_path, snapshot_versions=2, keep_versions=0)
    foreign = [tmp_path / "notes.txt", *(tmp_path / "p00000" / name for name in ("v1.arrows", "copy of v1", ".hidden"))]
    append(log.partition(0), 0)
    for file in foreign:
        file.write_text("mine")
    (tmp_path / "p00000" / version_name(77)).mkdir()
    for version in range(1, 8):
        append(log.partition(0), version)
    assert restored(log.partition(0), None, 7) == state_at(7)
    assert [file.read_text() for file in foreign] == ["mine"] * 4


def test_rows_of_versions_before_the_newest_are_removed(tmp_path: Path) -> None:
    log = opened(tmp_path).partition(0)
    headers = [with_rows(log, header(version), [version]) for version in range(2)]
    for own in headers:
        log.append(own, changes(own.version))
    log.remove_old(log.listing())
    assert [batch.to_pydict() for batch in log.read_rows(headers[1])] == [{"n": [1]}]
    with pytest.raises(OffsetOutOfRangeError):
        list(log.read_rows(headers[0]))


def test_rows_of_a_failed_attempt_leave_no_file(tmp_path: Path) -> None:
    log = opened(tmp_path).partition(0)
    rows = rows_file(log, header(0), [1])
    rows.discard(ValueError())
    assert list((tmp_path / "p00000").iterdir()) == []


@pytest.mark.parametrize("wrong", [{"snapshot_versions": 0}, {"snapshot_bytes": 0}, {"keep_versions": -1}])
def test_a_wrong_retention_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        Retention(**wrong)


@pytest.mark.parametrize("rows", ["../../secret.arrows", "v000000000000.arrows", "/etc/passwd", 7])
def test_rows_in_a_file_that_is_no_file_of_rows_are_refused(tmp_path: Path, rows: Any) -> None:
    log = opened(tmp_path).partition(0)
    log.append(header(0, rows=rows), changes(0))
    with pytest.raises(ChangelogError) as error:
        log.header(0)
    assert f"p00000/{version_name(0)}" in str(error.value)


@pytest.mark.parametrize("wrong", [{"id": "../x"}, {"previous": -1}, {"partition": "0"}, {"has_input": 1}])
def test_a_header_with_what_the_library_never_writes_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    file = tmp_path / "file"
    file.write_bytes(encoded(replace(header(0), **wrong), changes(0)))
    with file.open("rb") as content, pytest.raises(ChangelogError) as error:
        read_header(content, str(file))
    assert str(file) in str(error.value)


BEYOND = b"".join(offset.to_bytes(4, "little") for offset in (0, 1 << 20, 1, 1))


def columns_with(store: Any = "counts", mark: bool = False, key: Any = b"k", value: Any = b"v") -> dict[str, pa.Array]:
    store = pa.array([store], pa.string())
    return {"store": store, "mark": pa.array([mark]), "key": pa.array([key]), "value": pa.array([value])}


OTHER_COLUMNS = {
    "too few columns": {"store": pa.array(["counts"]), "key": pa.array([b"k"])},
    "text for bytes": columns_with(key="k", value="v"),
    "no store": columns_with(store=None),
    "a mark that is no text": columns_with(mark=True, key=b"\xff"),
    "offsets beyond the bytes": {
        "store": pa.array(["counts"] * 3),
        "mark": pa.array([False] * 3),
        # Arrow's own quick check only looks at the first offset and at the last one.
        "key": pa.Array.from_buffers(pa.binary(), 3, [None, pa.py_buffer(BEYOND), pa.py_buffer(b"k")]),
        "value": pa.array([b"v"] * 3),
    },
}


@pytest.mark.parametrize("columns", OTHER_COLUMNS)
def test_a_file_with_other_columns_than_a_version_s_is_refused(tmp_path: Path, columns: str) -> None:
    opened(tmp_path)
    batch = pa.record_batch(OTHER_COLUMNS[columns])
    file = tmp_path / "p00000" / version_name(0)
    file.parent.mkdir()
    with file.open("wb") as target:
        write_batches(target, header(0), batch.schema, [batch])
    log = VersionLog.open(tmp_path).partition(0)
    for read in (lambda: log.read(0), lambda: list(log.restore(None, 0))):
        with pytest.raises(ChangelogError) as error:
            read()
        assert str(file) in str(error.value)


@contextmanager
def folders_synced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, frozenset[str]]]]:
    """Note each sync of a folder: its inode, and the names that it has at that moment."""
    syncs: list[tuple[int, frozenset[str]]] = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            syncs.append((status.st_ino, frozenset(os.listdir(descriptor))))
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", watched)
        yield syncs


def test_the_name_of_a_version_is_synced_before_its_writer_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time with the names of its folders, which power loss may take otherwise."""
    log = opened(tmp_path).partition(0)
    folder = tmp_path / "p00000"
    for version in range(3):
        with folders_synced(monkeypatch) as syncs:
            log.append(header(version), changes(version))
        inode = folder.stat().st_ino
        assert any(at == inode and version_name(version) in names for at, names in syncs)
        if not version:
            assert any(at == tmp_path.stat().st_ino and folder.name in names for at, names in syncs)


def test_the_name_of_a_snapshot_is_synced_before_its_writer_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path, 1)
    with folders_synced(monkeypatch) as syncs:
        log.write_snapshot(replace(header(0), kind="snapshot"), snapshot(0))
    [(name, _)] = log.listing().snapshots[0]
    inode = (tmp_path / "p00000").stat().st_ino
    assert any(at == inode and name in names for at, names in syncs)


def test_a_version_that_is_read_has_its_name_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer may have been killed before the sync, and what is built on it must not outlive it."""
    log = filled(tmp_path, 1)
    with folders_synced(monkeypatch) as syncs:
        log.header(0)
    inode = (tmp_path / "p00000").stat().st_ino
    assert any(at == inode and version_name(0) in names for at, names in syncs)
