"""Tests work in memory where it has room, and nowhere that the user has not asked for."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from stores.tests import quick_folder
from stores.tests.quick_folder import keep_temporary_files_in_memory


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the memory; what this process has chosen is left as it is."""
    monkeypatch.setattr(quick_folder, "_MEMORY", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", tempfile.gettempdir())
    set_room(monkeypatch, tmp_path, 4 << 30)
    return tmp_path


def set_room(monkeypatch: pytest.MonkeyPatch, folder: Path, free: int) -> None:
    usage = shutil.disk_usage(folder)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)


def chosen(**environment: str) -> dict[str, str]:
    keep_temporary_files_in_memory(environment)
    return environment


def test_temporary_files_are_in_memory_where_it_has_room(memory: Path) -> None:
    assert chosen() == {"TMPDIR": str(memory)}
    assert tempfile.tempdir is None


def test_a_folder_that_the_user_has_chosen_is_kept() -> None:
    assert chosen(TMPDIR="/mine") == {"TMPDIR": "/mine"}
    assert tempfile.tempdir is not None


def test_without_room_in_memory_files_stay_on_disk(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_room(monkeypatch, memory, 64 << 20)
    assert chosen() == {}


def test_where_no_program_may_be_run_files_stay_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_folder, "_runs_programs", lambda folder: False)
    assert chosen() == {}


def test_where_there_is_no_such_folder_files_stay_on_disk(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_folder, "_MEMORY", memory / "none")
    assert chosen() == {}
