"""The lock that a process holds while it writes to a changelog's file, or closes it.

SQLite 3.7.0 to 3.51.2 may corrupt a WAL if two connections write or checkpoint at the same moment. SQLite's own locks
do not prevent that, so this one does. It is taken with every SQLite, because another process may have an older one.
Source: SQLite, "Write-Ahead Logging", "The WAL-Reset Bug"; flock(2).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stores.errors import ChangelogError, ChangelogTimeoutError
from stores.files.locks import is_lock_file
from stores.files.plain_files import open_plain

_PAUSE_MIN_S, _PAUSE_MAX_S = 0.0002, 0.002


class WriterLock:
    """The lock on the file ``.NAME.txstores-writer`` beside the changelog ``path``. For one thread at a time.

    The lock is the system's: the file of a process that has ended blocks nobody. Closing the changelog removes
    it. Raises: ChangelogError if another file has that name; OSError.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._changelog, self._timeout_s = path, timeout_s
        target = path.resolve()
        self._file = target.with_name(f".{target.name}.txstores-writer")
        if not is_lock_file(self._file):
            raise ChangelogError(
                f"{self._file} is not a lock file of this library, which needs that name: move the file, or choose "
                "another path"
            )
        self._descriptor = self._open()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock during the block. Raises: ChangelogTimeoutError after the timeout; OSError."""
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def acquire(self) -> None:
        """Wait for the lock, and take it. Raises: ChangelogTimeoutError after the timeout; OSError."""
        deadline, pause_s = time.monotonic() + self._timeout_s, _PAUSE_MIN_S
        while not self._try():
            if time.monotonic() >= deadline:
                raise ChangelogTimeoutError(
                    f"cannot write to the changelog {self._changelog}: another process was writing to it for the whole "
                    "time limit. Nothing was written, try again"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def remove_file(self) -> None:
        """Remove the lock's file. The lock must be held. A process that waits for it then creates another file."""
        self._file.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the lock's file, and so release the lock unless a parent process has it. May be called twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _try(self) -> bool:
        while True:
            if self._descriptor < 0:
                self._descriptor = self._open()
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            try:
                if os.path.samestat(os.fstat(self._descriptor), os.lstat(self._file)):
                    return True
            except FileNotFoundError:
                pass
            # Another process has removed the file when it closed: a lock on a removed file excludes nobody.
            self.close()

    def _open(self) -> int:
        return open_plain(self._file, os.O_RDWR | os.O_CREAT, 0o600)
