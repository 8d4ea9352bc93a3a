"""A driver's folder for what is gone with it: removed when it ends, and where it was killed, by the next one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "harness-spark-"
IN_USE = "in-use"
"""The file in it that is locked for as long as its driver lives."""


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder where temporary files go, removed at the end; those of drivers that were killed are removed now."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        # Locked first and named then: whoever finds it by that name and can lock it knows that its driver is gone.
        with (folder / f"{IN_USE}.new").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.rename(lock.name, folder / IN_USE)
            yield folder


def _remove_abandoned(place: Path) -> None:
    for folder in place.glob(f"{PREFIX}*"):
        # Of another user, in use, not ready yet, or just being removed: let it be.
        with contextlib.suppress(OSError), (folder / IN_USE).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
