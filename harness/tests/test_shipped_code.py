"""The code that a session sends: executors import it without compiling it again, and never an earlier source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from harness.spark import session
from harness.spark.session import write_archive


def imported(archive: Path, *words: str) -> str:
    """The output of a program that has its modules from ``archive`` alone."""
    code = f"import {words[0]} as module; print({words[1]})"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env={"PYTHONPATH": str(archive)}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def _compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only package that is shipped: its one module."""
    monkeypatch.setattr(session, "SHIPPED_PACKAGES", ("shipped_in_test",))
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "shipped_in_test" / "__init__.py"
    module.parent.mkdir()
    module.write_text("number = 1\n")
    return module


def test_a_module_is_imported_as_it_was_compiled_here(tmp_path: Path) -> None:
    write_archive(tmp_path / "code.zip")
    found = imported(tmp_path / "code.zip", "harness.experiments.crash.writer", "module.__file__")
    assert found == str(tmp_path / "code.zip" / "harness" / "experiments" / "crash" / "writer.pyc")


def test_a_source_that_was_changed_is_compiled_again(package: Path, tmp_path: Path) -> None:
    for number, later_s in ((1, 0), (2, 100)):
        package.write_text(f"number = {number}\n")
        moment = package.stat().st_mtime + later_s
        os.utime(package, (moment, moment))
        write_archive(tmp_path / "code.zip")
        assert imported(tmp_path / "code.zip", package.parent.name, "module.number") == str(number)


def test_a_compiled_form_of_an_earlier_source_is_not_taken(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_archive(tmp_path / "code.zip")
    package.write_text("number = 22\n")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write_archive(tmp_path / "code.zip")
    assert len(ZipFile(tmp_path / "code.zip").namelist()) == 2
    assert imported(tmp_path / "code.zip", package.parent.name, "module.number") == "22"


def test_where_python_keeps_no_compiled_form_the_source_is_enough(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write_archive(tmp_path / "code.zip")
    assert ZipFile(tmp_path / "code.zip").namelist() == ["shipped_in_test/__init__.py"]
    assert imported(tmp_path / "code.zip", package.parent.name, "module.number") == "1"
    assert [file.name for file in package.parent.iterdir()] == ["__init__.py"]
