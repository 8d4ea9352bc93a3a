"""A folder on a local file system: hard links decide which writer of a file is first."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, ClassVar

from stores.changelog.files.folder import ASIDE_WRITTEN, IN_PLACE, Folder, aside_name, missing_stays_missing
from stores.errors import ConfigError
from stores.failpoints import reach
from stores.files.plain_files import make_file, make_folder, open_plain, sync_folder, translated_system_errors

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class LocalFolder(Folder):
    """A folder on a file system of this machine, or mounted on it, that has hard links."""

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
    def create(self, name: str) -> Iterator[IO[bytes]]:
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
            sync_folder(final.parent)

    def open(self, name: str) -> IO[bytes]:
        with missing_stays_missing(), translated_system_errors(self._path):
            return open(open_plain(self._path / name, os.O_RDONLY), "rb")

    def names(self, folder: str = "") -> dict[str, int]:
        found = {}
        with translated_system_errors(self._path):
            try:
                with os.scandir(self._path / folder) as entries:
                    for entry in entries:
                        if entry.is_file(follow_symlinks=False):
                            try:
                                found[entry.name] = entry.stat(follow_symlinks=False).st_size
                            except FileNotFoundError:  # removed meanwhile
                                continue
            except FileNotFoundError:
                return {}
        return found

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
        for made in (folder, self._path):
            if made not in self._durable:
                sync_folder(made.parent)
                self._durable.add(made)

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
