"""A driver's folder goes when it ends, and where it was killed, with the next one; nobody else's is touched."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.folders import IN_USE, PREFIX, temporary_folder

DRIVER = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from harness.folders import temporary_folder
with temporary_folder("test") as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_temporary_folder_is_removed_at_the_end_of_its_block(place: Path) -> None:
    with temporary_folder("test") as folder:
        assert folder.parent == place
        (folder / "file").touch()
    assert list(place.iterdir()) == []


def test_the_folder_of_a_killed_driver_goes_with_the_next_one_and_that_of_a_living_one_stays(place: Path) -> None:
    not_ready = place / f"{PREFIX}new"
    not_ready.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        left = Path(driver.stdout.readline().strip())
        with temporary_folder("test"):
            assert left.is_dir()
        driver.kill()
    assert left.is_dir()
    with temporary_folder("test") as folder:
        assert not left.exists()
        assert {*place.iterdir()} == {folder, not_ready}


def test_what_only_looks_like_such_a_folder_stays(place: Path) -> None:
    """A link to one, one whose lock is a link or a pipe, and one of another name."""
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / IN_USE).touch()
    (place / f"{PREFIX}link").symlink_to(elsewhere)
    for name, make in (("linked", lambda file: file.symlink_to(elsewhere / IN_USE)), ("piped", os.mkfifo)):
        (place / f"{PREFIX}{name}").mkdir()
        make(place / f"{PREFIX}{name}" / IN_USE)
    before = sorted(place.rglob("*"))
    with temporary_folder("test"):
        pass
    assert sorted(place.rglob("*")) == before


def test_a_folder_that_is_made_again_after_an_interruption_is_gone_when_the_process_ends(tmp_path: Path) -> None:
    """As Spark does it, which still writes when the block has ended."""
    code = f"""
from pathlib import Path
from harness.folders import temporary_folder
try:
    with temporary_folder("test", Path({str(tmp_path)!r})) as folder:
        raise KeyboardInterrupt
except KeyboardInterrupt:
    (folder / "yield").mkdir(parents=True)
    print(folder.name)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.startswith(PREFIX)
    assert list(tmp_path.iterdir()) == []
