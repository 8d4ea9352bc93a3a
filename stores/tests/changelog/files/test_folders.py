"""A version log keeps its promises on other file systems of ``pyarrow.fs``: an object store and HDFS are simulated."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pytest

from stores.changelog.files import Folder, PartitionLog, Retention, VersionLog, open_folder
from stores.changelog.files.format import unique_name
from stores.errors import ConfigError, StoreUnavailableError
from stores.files.folder import ArrowFolder
from stores.interface import TopicPartition
from stores.snapshots.index import TOKEN_CHARS, StoredPart
from stores.snapshots.objects import StoreObjects
from stores.tests.changelog.files.log_model import (
    DESCRIPTION,
    append,
    changes,
    header,
    restored,
    snapshot,
    state_at,
)
from stores.tests.changelog.files.object_store import ConditionalPut


class FailingFile:
    """A file that fails after some reads."""

    closed = False

    def __init__(self, path: str, reads: int) -> None:
        self._file, self.reads_left = BytesIO(Path(path).read_bytes()), reads

    def read(self, num_bytes: int = -1) -> bytes:
        self.reads_left -= 1
        if self.reads_left < 0:
            raise OSError("the connection was closed")
        return self._file.read(num_bytes)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


class RenameNeverReplaces(pyarrow.fs.FileSystemHandler):  # type: ignore[misc]
    """A local file system whose rename fails if the name is taken, as that of HDFS does."""

    def __init__(self) -> None:
        self._local = pyarrow.fs.LocalFileSystem()
        self.failures: list[str] = []
        """For the next renames: ``refused`` fails before it, ``lost`` loses its answer."""
        self.reads: int | None = None
        """The number of reads of an opened file before it fails; None for no failure."""

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)

    def get_type_name(self) -> str:
        return "simulated"

    def move(self, source: str, target: str) -> None:
        failure = self.failures.pop(0) if self.failures else ""
        if failure == "refused" or Path(target).exists():
            raise OSError(f"{target} exists, or the service is busy")
        Path(source).rename(target)
        if failure == "lost":
            raise OSError("no answer")

    def get_file_info(self, paths: list[str]) -> list[Any]:
        infos: list[Any] = self._local.get_file_info(paths)
        return infos

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        infos: list[Any] = self._local.get_file_info(selector)
        return infos

    def create_dir(self, path: str, recursive: bool) -> None:
        self._local.create_dir(path, recursive=recursive)

    def delete_file(self, path: str) -> None:
        self._local.delete_file(path)

    def open_input_file(self, path: str) -> Any:
        stream = self._local.open_input_file(path)
        return pa.PythonFile(stream if self.reads is None else FailingFile(path, self.reads), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return pa.PythonFile(self._local.open_output_stream(path), mode="w")

    def copy_file(self, source: str, target: str) -> None:
        raise NotImplementedError

    def delete_dir(self, path: str) -> None:
        raise NotImplementedError

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def normalize_path(self, path: str) -> str:
        return path

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError

    def open_input_stream(self, path: str) -> Any:
        raise NotImplementedError


def renaming(path: Path) -> tuple[Folder, RenameNeverReplaces]:
    """A folder on a simulated HDFS, and that one."""
    hdfs = RenameNeverReplaces()
    return ArrowFolder(pyarrow.fs.PyFileSystem(hdfs), str(path), str(path), None), hdfs


@pytest.fixture(params=["object store", "rename", "local"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "rename":
        return renaming(tmp_path)[0]
    return open_folder(tmp_path, ConditionalPut() if request.param == "object store" else None)


def test_versions_are_kept_restored_and_removed(folder: Folder) -> None:
    log = PartitionLog(folder, 0, Retention(snapshot_versions=3, keep_versions=2))
    for version in range(12):
        append(log, version)
        assert restored(log, None, version) == state_at(version)
    assert len(folder.names("p00000")) <= 10
    assert log.listing().asides == []


def test_the_first_attempt_wins(folder: Folder) -> None:
    log = PartitionLog(folder, 0, Retention())
    assert log.append(header(0, "a" * 16), changes(0, 1)).id == "a" * 16
    assert log.append(header(0, "b" * 16), changes(0, 2)).id == "a" * 16
    assert log.read(0)[1] == changes(0, 1)


def test_a_put_whose_answer_is_lost_wins(tmp_path: Path) -> None:
    put = ConditionalPut()
    log = PartitionLog(open_folder(tmp_path, put), 0, Retention())
    put.failures = ["lost"]
    assert log.append(header(0, "a" * 16), changes(0)).id == "a" * 16
    put.failures = ["lost"]
    assert log.append(header(0, "b" * 16), changes(0, 1)).id == "a" * 16


def test_a_put_that_fails_is_an_error_of_ours_and_can_be_repeated(tmp_path: Path) -> None:
    put = ConditionalPut()
    log = PartitionLog(open_folder(tmp_path, put), 0, Retention())
    put.failures = ["refused"]
    with pytest.raises(StoreUnavailableError):
        log.append(header(0), changes(0))
    append(log, 0)
    assert restored(log, None, 0) == state_at(0)


def test_a_file_whose_writer_fails_is_not_there(folder: Folder) -> None:
    with pytest.raises(ZeroDivisionError), folder.create("p00000/x") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert folder.names("p00000") == {}
    with pytest.raises(FileNotFoundError):
        folder.open("p00000/x")


def test_a_rename_whose_answer_is_lost_wins_and_one_that_fails_can_be_repeated(tmp_path: Path) -> None:
    folder, hdfs = renaming(tmp_path)
    log = PartitionLog(folder, 0, Retention())
    hdfs.failures = ["refused"]
    with pytest.raises(StoreUnavailableError):
        log.append(header(0), changes(0))
    assert folder.names("p00000") == {}
    hdfs.failures = ["lost"]
    assert log.append(header(0, "a" * 16), changes(0)).id == "a" * 16
    assert log.append(header(0, "b" * 16), changes(0, 1)).id == "a" * 16
    for failure, placed in (("refused", False), ("lost", True)):
        hdfs.failures = [failure]
        with nullcontext() if placed else pytest.raises(StoreUnavailableError), folder.create("p00001/x") as file:
            file.write(b"whole")
        assert folder.names("p00001") == ({"x": 5} if placed else {})


def test_one_of_two_that_rename_at_the_same_time_learns_that_it_lost(tmp_path: Path) -> None:
    """Both have seen that the name is free."""
    folder, hdfs = renaming(tmp_path)
    log = PartitionLog(folder, 0, Retention())
    move = hdfs.move

    def overtaken(source: str, target: str) -> None:
        hdfs.move = move  # type: ignore[method-assign]
        assert log.append(header(0, "a" * 16), changes(0, 1)).id == "a" * 16
        move(source, target)

    hdfs.move = overtaken  # type: ignore[method-assign]
    assert log.append(header(0, "b" * 16), changes(0, 2)).id == "a" * 16
    assert log.read(0)[1] == changes(0, 1)


def test_files_have_the_time_at_which_they_were_put_and_folders_are_listed(folder: Folder) -> None:
    assert (folder.folders(), folder.times("p00000"), folder.names("missing")) == ([], {}, {})
    begin_s = time.time()
    for name in ("p00001/y", "p00000/x"):
        with folder.create(name) as file:
            file.write(b"content")
    assert folder.put_if_absent("p00000/z", b"other")
    assert folder.folders() == ["p00000", "p00001"]
    assert folder.folders("p00000") == []
    assert folder.names("p00000") == {"x": 7, "z": 5}
    times = folder.times("p00000")
    assert times.keys() == {"x", "z"}
    assert all(begin_s - 2 < at_s < time.time() + 2 for at_s in times.values())


def test_a_file_is_not_seen_before_it_is_complete(folder: Folder) -> None:
    """A killed writer would leave half a snapshot, and versions before a snapshot are removed."""
    log = PartitionLog(folder, 0, Retention(snapshot_versions=2, keep_versions=0))
    for version in range(2):
        log.append(header(version), changes(version))
    name = unique_name(1, header(1).id, "snapshot")
    with folder.create(f"p00000/{name}") as file:
        file.write(bytes(100))
        listing = log.listing()
        assert listing.snapshots == {}
        assert [version for version, _ in listing.asides] == [1]
        assert log.remove_old(listing) == 0
        assert restored(log, None, 1) == state_at(1)
    assert log.listing().snapshots == {1: [(name, 100)]}


def test_a_snapshot_that_is_still_empty_is_none(tmp_path: Path) -> None:
    log = PartitionLog(open_folder(tmp_path), 0, Retention(snapshot_versions=2, keep_versions=0))
    log.append(header(0), changes(0))
    empty = tmp_path / "p00000" / unique_name(0, header(0).id, "snapshot")
    empty.touch()
    assert restored(log, None, 0) == state_at(0)
    for version in range(1, 4):
        append(log, version)
    log.remove_old(log.listing())
    assert restored(log, None, 3) == state_at(3)
    assert not empty.exists()


def test_a_small_file_is_read_at_once(tmp_path: Path) -> None:
    folder, hdfs = renaming(tmp_path)
    log = PartitionLog(folder, 0, Retention())
    append(log, 0)
    hdfs.reads = 1
    assert log.read(0)[1] == changes(0)
    assert log.header(0) == header(0)


def test_a_connection_that_is_lost_at_any_read_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.files.folder._READ_WHOLE_BYTES", 0)
    folder, hdfs = renaming(tmp_path)
    log = PartitionLog(folder, 0, Retention(snapshot_versions=1))
    own = header(0)
    rows = log.write_rows(own, pa.schema([("n", pa.int64())]))
    rows.write(pa.record_batch([pa.array([1], pa.int64())], names=["n"]))
    own = replace(own, rows=rows.finish(), num_rows=1)
    log.append(own, changes(0))
    log.write_snapshot(replace(own, kind="snapshot"), snapshot(0))
    reads: tuple[Callable[[], object], ...] = (
        lambda: log.read(0),
        lambda: list(log.restore(None, 0)),
        lambda: list(log.read_rows(own)),
    )
    for read in reads:
        hdfs.reads, failures = 0, 0
        while True:
            try:
                read()
            except StoreUnavailableError:
                failures += 1
                hdfs.reads += 1
            else:
                break
        assert failures > 2


def test_an_error_of_the_given_put_is_an_error_of_ours_and_is_tried_again_for_a_part(tmp_path: Path) -> None:
    """That of boto is a ``BotoCoreError``, which no module here knows."""
    errors = [KeyError("no answer"), KeyError("no answer")]
    conditional = ConditionalPut()

    def put(path: str, content: bytes) -> bool:
        if errors:
            raise errors.pop()
        return conditional(path, content)

    folder = open_folder(tmp_path, put)
    with pytest.raises(StoreUnavailableError, match="did not take a: KeyError: 'no answer'"):
        folder.put_if_absent("a", b"1")
    part = StoredPart(sha256(b"1").hexdigest(), 1, "0" * TOKEN_CHARS)
    StoreObjects(folder, TopicPartition("t", 0)).put(part, b"1")
    assert not errors


def test_a_log_is_opened_by_its_uri(tmp_path: Path) -> None:
    first = VersionLog.open_or_create(tmp_path.as_uri(), DESCRIPTION)
    assert VersionLog.open(tmp_path).id == first.id
    assert VersionLog.open(tmp_path.as_uri(), put_if_absent=ConditionalPut()).id == first.id


@pytest.mark.parametrize("location", ["s3://bucket/state?region=eu-west-1", "unknown://host/state"])
def test_a_location_on_which_no_writer_could_win_is_refused(location: str) -> None:
    with pytest.raises(ConfigError):
        open_folder(location)
