"""The open SQLite file of a changelog: one connection that writes, others that read, and the lock of its writers."""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from stores.changelog.schema import check_file, check_schema, create_unless_there, sync_file
from stores.errors import ChangelogError, ChangelogTimeoutError, CommitInDoubtError, StoreClosedError
from stores.files.locks import is_lock_file
from stores.files.plain_files import open_plain, sync_folder
from stores.files.sqlite_library import (
    READ_ONLY,
    Connection,
    Error,
    connect,
    error_name,
    keep_log,
    roll_back,
    write_ahead,
)
from stores.interface import Durability
from stores.process import BELONGS_TO_PARENT, never_free, watch

_PAUSE_MIN_S, _PAUSE_MAX_S = 0.0002, 0.002


class WriterLock:
    """The lock that a process holds while it writes to the changelog ``path``, or closes it. For one thread at a time.

    SQLite 3.7.0 to 3.51.2 may corrupt a WAL if two connections write or checkpoint at the same moment. SQLite's own
    locks do not prevent that. This one is taken with every SQLite, because another process may have an older one.

    It is the system's lock on the file ``.NAME.txstores-writer``: the file of a process that has ended blocks nobody.
    Closing the changelog removes it. Raises: ChangelogError if another file has that name; OSError.
    Source: SQLite, "Write-Ahead Logging", "The WAL-Reset Bug"; flock(2).
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


BUSY_TIMEOUT_S = 30.0
WAL_BYTES_KEPT = 64 * 1024 * 1024
CHECKPOINT_PAGES = 4_000
"""The length of the WAL from which on a commit copies it into the file: 16 MB."""


class LogFile:
    """The open file at ``path``, made if there is none. For any thread. Raises: ChangelogError, as all its methods."""

    def __init__(self, path: Path, durability: Durability, timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self.path = path
        self._timeout_s = timeout_s
        self._durability = durability
        self._lock = threading.RLock()
        self._readers: list[Connection] = []
        self._idle_readers: list[Connection] = []
        self.is_open = True
        self._forked = False
        with self._chained("open"), ExitStack() as undo:
            create_unless_there(path)
            with _open_here.lock:
                status = path.stat()
                self._identity = (status.st_dev, status.st_ino)
                # Closing any other descriptor of the file releases the locks that SQLite holds on it for this process.
                # Another process would then believe to be the last one, and remove the WAL that is in use.
                # Source: SQLite's manual, "How To Corrupt An SQLite Database File", 2.2.
                if not any(other.is_open and other._identity == self._identity for other in _open_here.files):
                    check_file(path)
                    if durability is Durability.DISK:
                        # The last process that had it open may not have synced it.
                        sync_file(path)
                _open_here.files.add(self)
            undo.callback(_open_here.discard, self)
            self._writing = WriterLock(path, timeout_s)
            undo.callback(self._writing.close)
            with self._writing.held():
                self.writer = self._connect()
            undo.pop_all()
            if durability is Durability.DISK:
                # SQLite syncs its new WAL, but not the name of the WAL file.
                sync_folder(path.parent)
        watch(self, LogFile._disown)

    @contextmanager
    def write(self, deed: str = "write to", *, once: bool = False) -> Iterator[Connection]:
        """Run the block in an SQLite transaction, which is committed at its end and rolled back after an error.

        ``deed`` is for the error. If the commit itself failed, readers do not see it, but it may be complete in the
        WAL: the next process that opens the file finds it there, unless a later write has replaced it. A block that is
        ``once`` must not be carried out again before that is known.

        Raises: CommitInDoubtError if the commit itself of a block that is ``once`` failed.
        """
        with self._lock, self._chained(deed):
            self.check_open()
            writer = self.writer
            self._writing.acquire()
            try:
                writer.execute("begin immediate")
                yield writer
                self._commit(writer, once=once)
            except BaseException:
                roll_back(writer)
                raise
            finally:
                self._writing.release()

    def _commit(self, writer: Connection, *, once: bool) -> None:
        try:
            writer.execute("commit")
        except Error as error:
            if not once or error_name(error).startswith("SQLITE_BUSY"):
                raise
            raise CommitInDoubtError(
                f"it is unknown whether the changelog {self.path} has the last commit: {error}. Check the disk, then "
                "open another producer of the same ID, or the task, and continue from the committed offsets"
            ) from error

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Lend a read-only connection to the block."""
        with self._chained("read"):
            with self._lock:
                self.check_open()
                reader = self._idle_readers.pop() if self._idle_readers else self._open_reader()
            try:
                yield reader
            finally:
                self._idle_readers.append(reader)

    def close(self) -> None:
        """Close every connection; a read in progress ends with StoreClosedError."""
        with self._lock, self._chained("close"):
            self.is_open = False
            # If another process holds the lock for the whole time, it has a connection, and so none of these is the
            # last one, which checkpoints.
            alone = False
            with suppress(ChangelogTimeoutError, OSError):
                self._writing.acquire()
                alone = True
            try:
                # The writer goes last: the last connection to close checkpoints the WAL.
                for connection in (*self._readers, self.writer):
                    connection.close()
                if alone:
                    with suppress(OSError):
                        self._writing.remove_file()
            finally:
                self._writing.close()

    def check_open(self) -> None:
        """Check that the file is open. Raises: StoreClosedError."""
        if self._forked:
            raise StoreClosedError(f"the changelog {self.path} {BELONGS_TO_PARENT}")
        if not self.is_open:
            raise StoreClosedError(f"the changelog {self.path} is closed: open it again")

    def _disown(self) -> None:
        never_free([self._lock, self.writer, *self._readers])
        self._writing.close()
        self._lock = threading.RLock()
        self._readers, self._idle_readers = [], []
        self.is_open, self._forked = False, True

    def _connect(self) -> Connection:
        writer = connect(self.path, timeout_s=self._timeout_s)
        try:
            check_schema(self.path, writer)
            write_ahead(writer, self._durability)
            writer.execute(f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}").fetchone()
            writer.execute(f"pragma journal_size_limit = {WAL_BYTES_KEPT}").fetchone()
            if self._durability is Durability.DISK:
                keep_log(writer, self.path)
            else:
                writer.execute("begin immediate")  # a file that can't be written fails here, not at the first commit
                roll_back(writer)
        except BaseException:
            writer.close()
            raise
        return writer

    def _open_reader(self) -> Connection:
        reader = connect(self.path, READ_ONLY, timeout_s=self._timeout_s)
        self._readers.append(reader)
        return reader

    @contextmanager
    def _chained(self, deed: str) -> Iterator[None]:
        """Turn errors of SQLite and the system into a ChangelogError that names the file and says what to do."""
        try:
            yield
        except UnicodeDecodeError as error:
            # A name in the schema is damaged.
            raise ChangelogError(f"cannot {deed} the changelog {self.path}. {_ADVICE['SQLITE_CORRUPT']}") from error
        except Error as error:
            self.check_open()
            name = error_name(error)
            advice = next(
                (advice for prefix, advice in _ADVICE.items() if name.startswith(prefix)), _ADVICE["SQLITE_IOERR"]
            )
            kind = ChangelogTimeoutError if name.startswith("SQLITE_BUSY") else ChangelogError
            raise kind(f"cannot {deed} the changelog {self.path}: {error}. {advice}") from error
        except OSError as error:
            raise ChangelogError(
                f"cannot {deed} the changelog {self.path}: {error.strerror}. {_ADVICE['SQLITE_CANTOPEN']}"
            ) from error


class _OpenHere:
    """The log files that this process has open, or is about to; ``lock`` is held while one joins them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.files: weakref.WeakSet[LogFile] = weakref.WeakSet()

    def discard(self, file: LogFile) -> None:
        with self.lock:
            self.files.discard(file)

    def reset_after_fork(self) -> None:
        """Reset in a forked child: the files belong to the parent, one of whose threads may have held the lock."""
        self.lock, self.files = threading.Lock(), weakref.WeakSet()


_open_here = _OpenHere()
os.register_at_fork(after_in_child=_open_here.reset_after_fork)

_ADVICE = {
    "SQLITE_FULL": "Nothing was written: free some space and try again, or abort the transaction",
    "SQLITE_BUSY": "Another process was writing to it for the whole time limit: nothing was written, try again",
    "SQLITE_NOTADB": "It is no SQLite file: choose another path",
    "SQLITE_CORRUPT": "It is damaged: restore a complete copy without a -wal file of another one, or remove it to "
    "start with an empty log",
    "SQLITE_READONLY": "Allow writing to the file and its folder",
    "SQLITE_CONSTRAINT": "Nothing was written: begin another changelog for further records or partitions",
    "SQLITE_CANTOPEN": "Create its folder, allow writing there, or choose another path",
    "SQLITE_IOERR": "Nothing was written: check the disk and try again",
}
