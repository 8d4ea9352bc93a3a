"""A version log keeps its promises on other file systems of ``pyarrow.fs``: an object store and HDFS are simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pytest

from stores.changelog.files import Folder, PartitionLog, Retention, VersionLog, open_folder
from stores.changelog.files.folder import ArrowFolder
from stores.errors import ConfigError, StoreUnavailableError
from stores.tests.changelog.files.log_model import DESCRIPTION, append, changes, header, restored, state_at
from stores.tests.changelog.files.object_store import ConditionalPut


class RenameNeverReplaces(pyarrow.fs.FileSystemHandler):  # type: ignore[misc]
    """A local file system whose rename fails if the name is taken, as that of HDFS does."""

    def __init__(self) -> None:
        self._local = pyarrow.fs.LocalFileSystem()

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)

    def get_type_name(self) -> str:
        return "simulated"

    def move(self, source: str, target: str) -> None:
        if Path(target).exists():
            raise OSError(f"{target} exists")
        Path(source).rename(target)

    def get_file_info(self, paths: list[str]) -> list[Any]:
        found: list[Any] = self._local.get_file_info(paths)
        return found

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        found: list[Any] = self._local.get_file_info(selector)
        return found

    def create_dir(self, path: str, recursive: bool) -> None:
        self._local.create_dir(path, recursive=recursive)

    def delete_file(self, path: str) -> None:
        self._local.delete_file(path)

    def open_input_file(self, path: str) -> Any:
        return pa.PythonFile(self._local.open_input_file(path))

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


@pytest.fixture(params=["object store", "rename"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "object store":
        return open_folder(tmp_path, ConditionalPut())
    return ArrowFolder(pyarrow.fs.PyFileSystem(RenameNeverReplaces()), str(tmp_path), str(tmp_path), None)


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


def test_a_log_is_opened_by_its_uri(tmp_path: Path) -> None:
    first = VersionLog.open_or_create(tmp_path.as_uri(), DESCRIPTION)
    assert VersionLog.open(tmp_path).id == first.id
    assert VersionLog.open(tmp_path.as_uri(), put_if_absent=ConditionalPut()).id == first.id


@pytest.mark.parametrize("location", ["s3://bucket/state?region=eu-west-1", "unknown://host/state"])
def test_a_location_on_which_no_writer_could_win_is_refused(location: str) -> None:
    with pytest.raises(ConfigError):
        open_folder(location)
