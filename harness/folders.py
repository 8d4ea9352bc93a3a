"""The folders of runs and scenarios, and temporary folders for trials.

A temporary folder is removed when its block ends. If its process was killed, the next process that makes a folder there
removes it. It is recognised by its name, its owner, and a file that is locked as long as its process lives.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import harness
from stores.files.plain_files import StrangeFileError, make_file, open_plain

SOURCE = Path(harness.__file__).resolve().parents[1]
"""The folder of the code: a clone, or where a wheel is installed."""
ROOT = SOURCE if (SOURCE / "pyproject.toml").is_file() else Path.cwd()
"""The folder of runs and results: the clone, else the working folder, as nothing is written among installed code."""
RUNS = ROOT / "runs"
SCENARIOS = SOURCE / "scenarios"
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 1 << 30

PREFIX = "txstores-harness-"
"""The prefix of the names of temporary folders."""
IN_USE = "in-use"
"""The file in each temporary folder that is locked as long as its process lives."""


def quick_folder() -> Path:
    """Return the folder for processes that are killed: in memory if there is room, else on disk.

    A kill loses no written data in either, because the kernel has it. Only a sync is slower on disk. A TMPDIR in the
    environment takes precedence.
    """
    roomy = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES
    return _MEMORY if roomy and "TMPDIR" not in os.environ else Path(tempfile.gettempdir())


@contextlib.contextmanager
def temporary_folder(kind: str, within: Path | None = None) -> Iterator[Path]:
    """Yield a new folder for ``kind`` of work ``within`` another folder, and remove it afterwards.

    The folders of processes that were killed are removed now.
    """
    place = Path(tempfile.gettempdir()) if within is None else within
    remove_abandoned(place)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-", dir=place))
    lock = hold(folder)
    try:
        yield folder
    except KeyboardInterrupt:
        # Spark, which ends later, may still write there, and makes the folder again for that.
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        raise
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def hold(folder: Path) -> int:
    """Mark ``folder`` as used by this process, until the returned descriptor is closed."""
    # The file is locked before it gets its name. So a process that can lock it by that name knows that its owner is
    # gone.
    new = folder / f"{IN_USE}.new"
    lock = make_file(new)
    fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(folder / IN_USE)
    return lock


def remove_abandoned(place: Path) -> None:
    """Remove this user's temporary folders in ``place`` whose processes have ended."""
    for folder in place.glob(f"{PREFIX}*"):
        # A folder of another user, in use, not ready, or being removed stays.
        with contextlib.suppress(OSError, StrangeFileError):
            if folder.is_symlink() or folder.lstat().st_uid != os.getuid():
                continue
            lock = open_plain(folder / IN_USE, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
