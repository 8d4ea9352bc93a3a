"""A lock file keeps everybody else out, whatever becomes of the folder that it lies in."""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stores.errors import StoreLockedError
from stores.files import locks
from stores.files.locks import FileLock, is_lock_file, take


def test_a_lock_keeps_out_this_process_too_until_it_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    descriptor = take(file)
    assert file.read_text() == f"{os.getpid()}\n"
    with pytest.raises(StoreLockedError):
        take(file)
    os.close(descriptor)
    os.close(take(file))


def test_a_lock_that_is_held_takes_no_descriptor_and_keeps_out_everybody_until_it_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    before = os.listdir("/proc/self/fd")
    lock = FileLock(take(file))
    assert os.listdir("/proc/self/fd") == before
    with pytest.raises(StoreLockedError):
        take(file)
    script = "import sys; from pathlib import Path; from stores.files.locks import take; take(Path(sys.argv[1]))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    other = subprocess.run(
        [sys.executable, "-c", script, str(file)], env=environment, capture_output=True, check=False, timeout=600
    )
    assert b"StoreLockedError" in other.stderr
    for _ in range(2):
        lock.close()
    os.close(take(file))


def test_who_only_looks_leaves_no_trace(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    file.write_text("somebody\n")
    os.utime(file, (1, 1))
    os.close(take(file, note=False))
    assert (file.read_text(), file.stat().st_mtime) == ("somebody\n", 1)


def test_a_lock_whose_file_was_replaced_meanwhile_is_taken_on_the_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two would have one folder: one by the lock of the old, one by that of the new."""
    file = tmp_path / "lock"
    real = fcntl.flock
    calls = []

    def late(descriptor: int, operation: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            file.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    descriptor = take(file)
    assert len(calls) == 2
    with pytest.raises(StoreLockedError):
        take(file)
    os.close(descriptor)


def test_a_lock_says_no_more_than_the_number_of_its_process(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    for left in ("99999999999999999999\n", "", "1\n", f"{os.getpid()}\n"):
        file.write_text(left)
        os.close(take(file))
        assert file.read_text() == f"{os.getpid()}\n"


def test_a_lock_whose_file_can_not_be_mapped_is_held_by_its_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        """A system that has no addresses left: its ``mmap`` answers MAP_FAILED."""

        @staticmethod
        def mmap(*_: object) -> int:
            return (1 << 8 * ctypes.sizeof(ctypes.c_void_p)) - 1

    file = tmp_path / "lock"
    with monkeypatch.context() as patch:
        patch.setattr(locks, "_LIBC", Full)
        lock = FileLock(take(file))
    with pytest.raises(StoreLockedError):
        take(file)
    lock.close()
    os.close(take(file))


@pytest.mark.parametrize(
    ("content", "is_ours"),
    [
        (b"", True),
        (b"4711\n", True),
        (b"4711", True),
        (b"\0\0\0\0\0", True),
        # Power loss: the file has its length, and a part of its number.
        (b"47\0\0\0", True),
        (b"\0\0\0\n", True),
        (b"\0\0123\n", True),
        (b"4711 is mine\n", False),
        (b"\0\0letter", False),
        (b"-1\n", False),
    ],
)
def test_a_torn_number_is_that_of_a_lock_file_and_foreign_text_is_not(
    content: bytes, is_ours: bool, tmp_path: Path
) -> None:
    file = tmp_path / "lock"
    file.write_bytes(content)
    assert is_lock_file(file) is is_ours
