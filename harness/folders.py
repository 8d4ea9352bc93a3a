"""Where runs and scenarios lie, in the folder of the harness itself wherever it is started from; where trials work.

A temporary folder is removed when its block ends, and where its process was killed, by the next one that makes a folder
there: it is recognised by its name, its owner, and a file that is locked for as long as its process lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import harness
from stores.files import StrangeFileError, make_file, open_plain

ROOT = Path(harness.__file__).resolve().parents[1]
RUNS = ROOT / "runs"
SCENARIOS = ROOT / "scenarios"
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 1 << 30

PREFIX = "txstores-harness-"
"""How the names of temporary folders begin."""
IN_USE = "in-use"
"""The file in each that is locked for as long as its process lives."""


def quick_folder() -> Path:
    """Where processes that are killed do their work: in memory where a file system there has room, else on disk.

    To a process that is killed both are the same: what it wrote is the kernel's. Only a sync takes time on disk.
    Whoever sets TMPDIR has said where.
    """
    roomy = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES
    return _MEMORY if roomy and "TMPDIR" not in os.environ else Path(tempfile.gettempdir())


@contextlib.contextmanager
def temporary_folder(kind: str, within: Path | None = None) -> Iterator[Path]:
    """Yield a new folder for ``kind`` of work ``within`` another, by default where temporary files go; remove it then.

    Those of processes that were killed are removed now.
    """
    place = Path(tempfile.gettempdir()) if within is None else within
    remove_abandoned(place)
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{kind}-", dir=place, ignore_cleanup_errors=True) as name:
        lock = hold(Path(name))
        try:
            yield Path(name)
        finally:
            os.close(lock)


def hold(folder: Path) -> int:
    """Say that this process has ``folder`` in use, until the descriptor returned is closed."""
    # Locked first and named then: who finds it by that name and can lock it knows that its process is gone.
    new = folder / f"{IN_USE}.new"
    lock = make_file(new)
    fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(folder / IN_USE)
    return lock


def remove_abandoned(place: Path) -> None:
    """Remove this user's temporary folders in ``place`` whose processes have ended."""
    for folder in place.glob(f"{PREFIX}*"):
        # Of another user, in use, not ready yet, or just being removed: it stays.
        with contextlib.suppress(OSError, StrangeFileError):
            if folder.is_symlink() or folder.lstat().st_uid != os.getuid():
                continue
            lock = open_plain(folder / IN_USE, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
