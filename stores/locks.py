"""Lock files: held by one owner at a time for as long as the process that took them lives, however that ends.

The lock is the system's (flock), not the file: one that a dead process has left behind holds nobody up.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from stores.errors import StoreLockedError


def take(file: Path, *, note: bool = True) -> int:
    """Lock ``file``, making it where there is none; returns the descriptor, whose closing gives the lock back.

    ``note`` writes this process's number into the file, for whoever is refused; without it nothing is changed.
    Raises: OSError; StoreLockedError where somebody has it, also this process.
    """
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(descriptor, file)
            if not _is_still_there(descriptor, file):
                # Whoever had it has removed the folder meanwhile: a lock on what is gone keeps nobody out.
                os.close(descriptor)
                continue
            if note:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def _lock(descriptor: int, file: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        who = "this process" if holder == str(os.getpid()) else f"process {holder}"
        raise StoreLockedError(f"{file.parent} is open in {who}: close it there first") from error


def _is_still_there(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False
