"""A folder of files that are put in place whole, once, and never changed: that of a version log, or of snapshots.

On a local file system a file is written aside, synced and linked to its name, which fails if the name is taken. On a
distributed one it is written aside and renamed, where a rename never replaces a file (HDFS). An object store needs a
put that fails if the object exists. ``pyarrow.fs`` has none, so it is an argument. An object appears whole when its
writer closes it, so it needs no other name before that.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath
from secrets import token_hex
from typing import IO, Any, ClassVar

from stores.errors import ConfigError, StoreError, StoreUnavailableError
from stores.failpoints import Part, declare, reach
from stores.files.plain_files import make_file, make_folder, open_plain, sync_folder, translated_system_errors

ASIDE = ".aside"
"""The ending of a file that is not in place yet."""
ASIDE_WRITTEN = declare(
    "version_log.aside_written", "a file is written and synced aside, its name is still free", part=Part.CHANGE
)
IN_PLACE = declare("version_log.in_place", "a file has its name, which is not synced yet", part=Part.CHANGE)

PutIfAbsent = Callable[[str, bytes], bool]
"""Puts an object at a path in one step, and returns True; returns False, without a change, if there is one already."""


def aside_name(name: str) -> str:
    """Return a new name for the file ``name`` while it is not in place yet."""
    return f"{name.partition('.')[0]}-{token_hex(8)}{ASIDE}"


class Folder(ABC):
    """A folder with names of files, as ``p00003/v0000000007.arrows``. Any process may use it at any time.

    Raises, all methods: StoreUnavailableError if the file system fails or is full.
    """

    location: str
    """The folder as it was given, for messages."""
    piece_bytes: int
    """The bytes to read from a file at a time."""

    @abstractmethod
    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Put a file in place in one step; return False if the name is taken.

        After the return the file with that name, this one or the other, survives power loss.
        """

    @abstractmethod
    def create(self, name: str, *, settled: bool = True) -> AbstractContextManager[IO[bytes]]:
        """Return a context with a new file to write to, in place at its end. The name belongs to this caller alone.

        An exception in the block leaves no file of that name. The file survives power loss afterwards. Unless
        ``settled``, its content does if it is there, but its name only after a ``settle`` of a file beside it.
        """

    @abstractmethod
    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading. Raises: FileNotFoundError."""

    @abstractmethod
    def names(self, folder: str = "") -> dict[str, int]:
        """Return the sizes of the files of one sub-folder, by name within it; empty if there is no such folder."""

    @abstractmethod
    def times(self, folder: str = "") -> dict[str, float]:
        """Return when each file of one sub-folder was put there, by name, as ``names``.

        Times are in seconds since 1970, by the clock of the file system.
        """

    @abstractmethod
    def folders(self, folder: str = "") -> list[str]:
        """Return the names of the sub-folders of one sub-folder, in order; empty if there is no such folder."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    @abstractmethod
    def settle(self, name: str) -> None:
        """Make a file that another process put in place survive power loss."""

    def put(self, name: str, content: bytes) -> None:
        """Put a file in place, as ``create`` without ``settled``: the name belongs to this caller alone."""
        with self.create(name, settled=False) as file:
            file.write(content)

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises: FileNotFoundError."""
        with self.open(name) as file:
            return file.read()


@contextmanager
def missing_stays_missing() -> Iterator[None]:
    """Let a missing file be FileNotFoundError, which a reader of a folder that changes must expect."""
    try:
        yield
    except StoreUnavailableError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise error.__cause__ from None
        raise


_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class LocalFolder(Folder):
    """A folder on a file system of this machine, or mounted on it, that has hard links."""

    piece_bytes = 256 << 10
    """As much as a processor keeps in its cache while it is hashed and written elsewhere."""
    _durable: ClassVar[set[Path]] = set()
    """The folders whose names this process has synced."""

    def __init__(self, path: Path) -> None:
        self.location = str(path)
        self._path = path

    def put_if_absent(self, name: str, content: bytes) -> bool:
        with translated_system_errors(self._path):
            final, aside = self._prepared(name)
            try:
                with open(make_file(aside), "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                reach(ASIDE_WRITTEN)
                placed = self._link(aside, final)
                reach(IN_PLACE)
            finally:
                aside.unlink(missing_ok=True)
            sync_folder(final.parent)
            return placed

    @contextmanager
    def create(self, name: str, *, settled: bool = True) -> Iterator[IO[bytes]]:
        with translated_system_errors(self._path):
            final, aside = self._prepared(name)
            try:
                with open(make_file(aside), "wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                aside.replace(final)
            finally:
                aside.unlink(missing_ok=True)
            if settled:
                sync_folder(final.parent)

    def open(self, name: str) -> IO[bytes]:
        with missing_stays_missing(), translated_system_errors(self._path):
            return open(open_plain(self._path / name, os.O_RDONLY), "rb")

    def names(self, folder: str = "") -> dict[str, int]:
        return {name: status.st_size for name, status in self._entries(folder) if stat.S_ISREG(status.st_mode)}

    def times(self, folder: str = "") -> dict[str, float]:
        return {name: status.st_mtime for name, status in self._entries(folder) if stat.S_ISREG(status.st_mode)}

    def folders(self, folder: str = "") -> list[str]:
        return sorted(name for name, status in self._entries(folder) if stat.S_ISDIR(status.st_mode))

    def _entries(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        with translated_system_errors(self._path):
            try:
                with os.scandir(self._path / folder) as entries:
                    for entry in entries:
                        try:
                            yield entry.name, entry.stat(follow_symlinks=False)
                        except FileNotFoundError:  # removed meanwhile
                            continue
            except FileNotFoundError:
                return

    def remove(self, name: str) -> None:
        with translated_system_errors(self._path):
            (self._path / name).unlink(missing_ok=True)

    def settle(self, name: str) -> None:
        with translated_system_errors(self._path):
            folder = (self._path / name).parent
            sync_folder(folder)
            self._sync_name(folder)

    def _prepared(self, name: str) -> tuple[Path, Path]:
        final = self._path / name
        make_folder(final.parent)
        self._sync_name(final.parent)
        return final, final.with_name(aside_name(final.name))

    def _sync_name(self, folder: Path) -> None:
        """Make the names of ``folder`` and of the log survive power loss: who made them may have been killed before."""
        for each in (folder, self._path):
            if each not in self._durable:
                sync_folder(each.parent)
                self._durable.add(each)

    def _link(self, aside: Path, final: Path) -> bool:
        try:
            os.link(aside, final, follow_symlinks=False)
        except FileExistsError:
            return False
        except FileNotFoundError:
            # Another process has removed the file aside, because the log has gone on.
            if final.exists():
                return False
            raise
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise ConfigError(
                    f"the file system of {self._path} has no hard links, by which one of two writers wins: choose a "
                    "folder on another one"
                ) from error
            raise
        return True


_OBJECT_STORES = ("s3", "gcs", "abfs")
"""The names of ``pyarrow.fs`` for file systems whose files appear when they are closed, and that cannot rename."""
_READ_WHOLE_BYTES = 8 << 20
"""A file of a remote file system up to this size is read at once. Readers of Arrow ask for a few bytes many times."""


class ArrowFolder(Folder):
    """A folder on a file system of ``pyarrow.fs``.

    ``put_if_absent`` is given for an object store. Without it, a file is written aside and renamed: only for a file
    system whose rename fails if the name is taken, such as HDFS.
    """

    piece_bytes = 64 << 20
    """More than most files have: each reading may be a request."""

    def __init__(self, filesystem: Any, path: str, location: str, put_if_absent: PutIfAbsent | None) -> None:
        self.location = location
        self._filesystem, self._path, self._put = filesystem, PurePosixPath(path), put_if_absent
        self._renames = put_if_absent is None or filesystem.type_name not in _OBJECT_STORES

    def put_if_absent(self, name: str, content: bytes) -> bool:
        with self._translated():
            if self._put is not None:
                # A put whose answer is lost is repeated by the client, and then finds its own object.
                return self._conditional_put(name, content) or self.read(name) == content
            aside = aside_name(name)
            with self._written(aside) as file:
                file.write(content)
            reach(ASIDE_WRITTEN)
            try:
                if self._exists(name) or not (self._moved(aside, name) or self.read(name) == content):
                    return False
                reach(IN_PLACE)
                return True
            finally:
                self.remove(aside)

    def put(self, name: str, content: bytes) -> None:
        if self._put is None:
            super().put(name, content)
        elif not self.put_if_absent(name, content):  # One request: a stream of Arrow makes three or more.
            raise StoreUnavailableError(f"{self.location} has another file {name} already: remove it")

    @contextmanager
    def create(self, name: str, *, settled: bool = True) -> Iterator[IO[bytes]]:
        with self._translated():
            aside = aside_name(name) if self._renames else name
            with self._written(aside) as file:
                yield file
            if aside != name:
                try:
                    self._moved(aside, name)
                finally:
                    self.remove(aside)

    @contextmanager
    def _written(self, name: str) -> Iterator[IO[bytes]]:
        """Return a context with a new file to write to, which may be seen before it is complete."""
        with self._translated():
            path = self._path / name
            if self._renames:
                self._filesystem.create_dir(str(path.parent), recursive=True)
            file = self._filesystem.open_output_stream(str(path))
            try:
                yield file
            except BaseException:
                try:
                    file.close()
                finally:
                    self.remove(name)
                raise
            file.close()

    def open(self, name: str) -> IO[bytes]:
        with missing_stays_missing(), self._translated():
            stream: IO[bytes] = self._filesystem.open_input_file(str(self._path / name))
            num_bytes = stream.seek(0, os.SEEK_END)
            stream.seek(0)
            if num_bytes > _READ_WHOLE_BYTES:
                return stream
            with stream:
                return BytesIO(stream.read())

    def names(self, folder: str = "") -> dict[str, int]:
        import pyarrow.fs

        with self._translated():
            return {info.base_name: info.size for info in self._infos(folder) if info.type == pyarrow.fs.FileType.File}

    def times(self, folder: str = "") -> dict[str, float]:
        import pyarrow.fs

        with self._translated():
            return {
                info.base_name: info.mtime_ns / 1e9
                for info in self._infos(folder)
                if info.type == pyarrow.fs.FileType.File
            }

    def folders(self, folder: str = "") -> list[str]:
        import pyarrow.fs

        with self._translated():
            infos = self._infos(folder)
            return sorted(info.base_name for info in infos if info.type == pyarrow.fs.FileType.Directory)

    def _infos(self, folder: str) -> Any:
        import pyarrow.fs

        path = str(self._path / folder)
        return self._filesystem.get_file_info(pyarrow.fs.FileSelector(path, allow_not_found=True))

    def remove(self, name: str) -> None:
        with self._translated():
            try:
                self._filesystem.delete_file(str(self._path / name))
            except FileNotFoundError:
                return

    def settle(self, name: str) -> None:
        """Do nothing: a file of such a file system is durable when it has its name."""

    def _moved(self, aside: str, name: str) -> bool:
        """Give a file its name. Return False if that failed and there is one: this, if only the answer was lost."""
        try:
            self._filesystem.move(str(self._path / aside), str(self._path / name))
        except OSError:
            if not self._exists(name):
                raise
            return False
        return True

    def _exists(self, name: str) -> bool:
        import pyarrow.fs

        [info] = self._filesystem.get_file_info([str(self._path / name)])
        return bool(info.type != pyarrow.fs.FileType.NotFound)

    def _conditional_put(self, name: str, content: bytes) -> bool:
        """Call the function that was given. Its errors are those of a library that is not known here."""
        assert self._put is not None
        try:
            return self._put(str(self._path / name), content)
        except (StoreError, OSError):
            raise
        except Exception as error:
            text = f"{self.location} did not take {name}: {type(error).__name__}: {error}"
            raise StoreUnavailableError(text) from error

    def _translated(self) -> Any:
        return translated_system_errors(Path(self.location))


_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


def open_folder(
    location: str | os.PathLike[str], put_if_absent: PutIfAbsent | None = None, *, for_reading: bool = False
) -> Folder:
    """Return the folder at a path or URI of ``pyarrow.fs``, such as ``/data/state`` or ``hdfs://host/state``.

    ``put_if_absent`` is the conditional put of an object store: it is called with a path, as ``pyarrow.fs`` has it, and
    the bytes, on any executor. Raises: ConfigError for an unknown URI, and for an object store without that function:
    immediately, or ``for_reading`` at the first ``put_if_absent``.
    """
    text = os.fspath(location)
    if not _URI.match(text) and put_if_absent is None:
        return LocalFolder(Path(text).absolute())
    import pyarrow
    import pyarrow.fs

    try:
        if _URI.match(text):
            filesystem, path = pyarrow.fs.FileSystem.from_uri(text)
        else:
            filesystem, path = pyarrow.fs.LocalFileSystem(), str(Path(text).absolute())
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"{text} can't be opened by pyarrow.fs: {error}. Correct the location") from error
    if put_if_absent is not None:
        return ArrowFolder(filesystem, path, text, put_if_absent)
    if filesystem.type_name == "local":
        return LocalFolder(Path(path))
    if filesystem.type_name == "hdfs":
        return ArrowFolder(filesystem, path, text, None)

    def refused(path: str, content: bytes) -> bool:
        raise ConfigError(
            f"{text} is on an object store ({filesystem.type_name}), for which pyarrow.fs has no put that fails if the "
            "object exists: give one as put_if_absent"
        )

    if not for_reading:
        refused("", b"")
    return ArrowFolder(filesystem, path, text, refused)
