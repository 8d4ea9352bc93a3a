"""A version log is opened by its description, to which stores may be added, and by nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from stores.changelog.files import VersionLog
from stores.errors import (
    ChangelogError,
    ChangelogLostError,
    ConfigError,
    StoreIncompatibleError,
    StoreUnavailableError,
)
from stores.tests.changelog.files.log_model import (
    DESCRIPTION,
    append,
    header,
    opened,
    restored,
    state_at,
)


def test_a_folder_in_which_a_killed_process_began_a_description_is_used(tmp_path: Path) -> None:
    (tmp_path / f"log-{'0' * 16}.aside").write_text("half")
    assert opened(tmp_path).id == opened(tmp_path).id


def test_a_log_is_opened_with_its_description_only(tmp_path: Path) -> None:
    first = opened(tmp_path)
    assert opened(tmp_path).id == first.id
    assert VersionLog.open(tmp_path).description == DESCRIPTION
    with pytest.raises(StoreIncompatibleError) as error:
        VersionLog.open_or_create(tmp_path, {**DESCRIPTION, "partitions": 3})
    assert "2" in str(error.value)
    assert "3" in str(error.value)


def test_a_log_without_or_with_a_damaged_description_is_refused(tmp_path: Path) -> None:
    append(opened(tmp_path).partition(0), 0)
    file = tmp_path / "log.json"
    whole = file.read_bytes()
    for content in (b"", b"[]", b"{}", whole.replace(b"2", b"3", 1)):
        file.write_bytes(content)
        with pytest.raises(ChangelogError):
            opened(tmp_path)
    file.unlink()
    with pytest.raises(ChangelogLostError):
        opened(tmp_path)
    with pytest.raises(ChangelogError):
        VersionLog.open(tmp_path / "nothing")


@pytest.mark.parametrize("others", [{}, {"id": "1", "description": {}, "owner": "me"}])
def test_a_description_of_another_format_is_not_called_damaged(tmp_path: Path, others: dict[str, Any]) -> None:
    """It may have other names."""
    content = {"format": 2, **others}
    summed = {**content, "checksum": crc32(json.dumps(content, sort_keys=True).encode())}
    (tmp_path / "log.json").write_text(json.dumps(summed, sort_keys=True))
    with pytest.raises(ChangelogError) as error:
        opened(tmp_path)
    assert "format 2" in str(error.value)


def test_a_version_is_complete_when_every_partition_has_it(tmp_path: Path) -> None:
    log = opened(tmp_path)
    append(log.partition(0), 0)
    assert log.newest_complete() is None
    log.partition(1).append(replace(header(0), partition=1), {})
    assert log.newest_complete() == 0


def test_a_folder_that_can_not_be_made_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailableError):
        opened(tmp_path / "file" / "state")


PLAIN: dict[str, Any] = {"partitions": 2, "stores": {"counts": {"kind": "bytes"}}}


TIMED: dict[str, Any] = {**PLAIN, "stores": {**PLAIN["stores"], "_times": {"kind": "times"}}}


def test_a_store_is_added_to_a_log_that_was_created_without_it(tmp_path: Path) -> None:
    log = VersionLog.open_or_create(tmp_path, PLAIN)
    append(log.partition(0), 0)
    for _ in range(2):
        timed = VersionLog.open_or_create(tmp_path, TIMED, may_add=("_times",))
        assert timed.id == log.id
        assert timed.description == VersionLog.open(tmp_path).description == TIMED
    assert restored(timed.partition(0), None, 0) == state_at(0)


def test_a_store_is_added_only_if_nothing_else_differs_and_is_not_taken_away(tmp_path: Path) -> None:
    VersionLog.open_or_create(tmp_path, PLAIN)
    other = {"counts": {"kind": "window"}, "_times": {"kind": "times"}}
    for wrong in ({**TIMED, "partitions": 3}, {**TIMED, "stores": other}, {**TIMED, "key": ["plane"]}):
        with pytest.raises(StoreIncompatibleError):
            VersionLog.open_or_create(tmp_path, wrong, may_add=("_times",))
    with pytest.raises(StoreIncompatibleError):
        VersionLog.open_or_create(tmp_path, TIMED)
    assert [file.name for file in tmp_path.iterdir()] == ["log.json"]
    VersionLog.open_or_create(tmp_path, TIMED, may_add=("_times",))
    with pytest.raises(StoreIncompatibleError) as error:
        VersionLog.open_or_create(tmp_path, PLAIN, may_add=("_times",))
    assert 'store _times {"kind": "times"} (given: none)' in str(error.value)
    assert "counts" not in str(error.value)


def test_added_stores_that_are_damaged_or_of_another_log_are_refused(tmp_path: Path) -> None:
    for name in ("one", "other"):
        VersionLog.open_or_create(tmp_path / name, PLAIN)
        VersionLog.open_or_create(tmp_path / name, TIMED, may_add=("_times",))
    file = tmp_path / "one/added.json"
    whole = file.read_bytes()
    others = (tmp_path / "other/added.json").read_bytes()
    for content in (b"", b"[]", b"{}", whole.replace(b"times", b"timer", 1), others):
        file.write_bytes(content)
        with pytest.raises(ChangelogError):
            assert VersionLog.open(tmp_path / "one").description


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "../../x"},
        {"id": "0" * 31},
        {"description": {}},
        {"description": {"partitions": 0}},
        {"description": {"partitions": 2, "stores": []}},
    ],
)
def test_a_description_with_an_unknown_field_or_type_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """Its ID becomes the name of a folder, in which an executor wipes stores."""
    opened(tmp_path)
    content = {**json.loads((tmp_path / "log.json").read_text()), **wrong}
    del content["checksum"]
    content["checksum"] = crc32(json.dumps(content, sort_keys=True).encode())
    (tmp_path / "log.json").write_text(json.dumps(content, sort_keys=True))
    with pytest.raises(ChangelogError) as error:
        VersionLog.open(tmp_path)
    assert f"{tmp_path}/log.json" in str(error.value)


@pytest.mark.parametrize("file", ["log.json", "added.json"])
def test_a_description_of_brackets_is_damaged(tmp_path: Path, file: str) -> None:
    opened(tmp_path)
    (tmp_path / file).write_bytes(b"[" * 100_000)
    with pytest.raises(ChangelogError) as error:
        _ = VersionLog.open(tmp_path).description
    assert f"{tmp_path}/{file}" in str(error.value)


def test_a_log_is_not_created_without_a_number_of_partitions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        VersionLog.open_or_create(tmp_path, {"key": ["plane"]})
    assert list(tmp_path.iterdir()) == []
