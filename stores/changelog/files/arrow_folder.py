"""A folder on a file system of ``pyarrow.fs``: a rename or a put decides which writer is first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Any

from stores.changelog.files.folder import (
    ASIDE_WRITTEN,
    IN_PLACE,
    Folder,
    PutIfAbsent,
    aside_name,
    missing_stays_missing,
)
from stores.failpoints import reach
from stores.files.plain_files import translated_system_errors

_OBJECT_STORES = ("s3", "gcs", "abfs")
"""The names of ``pyarrow.fs`` for file systems whose files appear when they are closed, and that cannot rename."""
_READ_WHOLE_BYTES = 8 << 20
"""A file of a remote file system up to this size is read at once. Readers of Arrow ask for a few bytes many times."""


class ArrowFolder(Folder):
    """A folder on a file system of ``pyarrow.fs``.

    ``put_if_absent`` is given for an object store. Without it, a file is written aside and renamed: only for a file
    system whose rename fails if the name is taken, such as HDFS.
    """

    def __init__(self, filesystem: Any, path: str, location: str, put_if_absent: PutIfAbsent | None) -> None:
        self.location = location
        self._filesystem, self._path, self._put = filesystem, PurePosixPath(path), put_if_absent
        self._renames = put_if_absent is None or filesystem.type_name not in _OBJECT_STORES

    def put_if_absent(self, name: str, content: bytes) -> bool:
        with self._translated():
            if self._put is not None:
                # A put whose answer is lost is repeated by the client, and then finds its own object.
                return self._put(str(self._path / name), content) or self.read(name) == content
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

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
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
            opened: IO[bytes] = self._filesystem.open_input_file(str(self._path / name))
            num_bytes = opened.seek(0, os.SEEK_END)
            opened.seek(0)
            if num_bytes > _READ_WHOLE_BYTES:
                return opened
            with opened:
                return BytesIO(opened.read())

    def names(self, folder: str = "") -> dict[str, int]:
        import pyarrow.fs

        with self._translated():
            found = self._filesystem.get_file_info(
                pyarrow.fs.FileSelector(str(self._path / folder), allow_not_found=True)
            )
            return {info.base_name: info.size for info in found if info.type == pyarrow.fs.FileType.File}

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

    def _translated(self) -> Any:
        return translated_system_errors(Path(self.location))
