"""A capture of LMDB's file: a read transaction keeps the pages of one commit, which are copied from the file itself.

LMDB never writes to a page that an open read transaction can reach. Other pages may change while they are copied: the
captured commit does not refer to them. Its meta pages are read when the capture begins, and are written last. So page
numbers stay, and most of the file is the same in the next capture, unlike in a compacting copy by LMDB.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import lmdb

from stores.engines.checksum import ValueCodec
from stores.engines.engine import Capture
from stores.engines.lmdb.environment import reading_error
from stores.engines.lmdb.file import DATA_FILE
from stores.engines.lmdb.meta_pages import captured_meta_pages
from stores.errors import StoreUnavailableError
from stores.files.plain_files import translated_system_errors

_STEP_BYTES = 1 << 20
"""A larger step, in a buffer of its own each, takes the processor longer for new memory than for the copy."""


class LmdbCapture(Capture):
    """A capture of the environment ``env`` in the folder ``path``, as of its last commit.

    Until it is complete the file grows with each commit, because no page can be used again.
    """

    def __init__(self, env: Any, path: Path, page_bytes: int, folder: Path) -> None:
        """Begin it, on the thread that writes. Raises: lmdb.Error; StoreUnavailableError, StoreCorruptedError."""
        self._file, self._folder, self._page_bytes = path / DATA_FILE, folder, page_bytes
        self._lock = Lock()
        with translated_system_errors(folder):
            folder.mkdir()
            self._txn = env.begin()
            try:
                descriptor = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    self._meta_pages, last_page = captured_meta_pages(descriptor, page_bytes, self._txn.id())
                finally:
                    os.close(descriptor)
            except BaseException:
                self.end()
                raise
        self._num_bytes = (last_page + 1) * page_bytes

    def complete(self) -> None:
        with translated_system_errors(self._folder):
            source = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                with open(self._folder / DATA_FILE, "xb") as target:
                    self._copy(source, target.fileno())
            finally:
                os.close(source)
                self.end()

    def _copy(self, source: int, target: int) -> None:
        # Pages at the end that were never written are zeros.
        os.ftruncate(target, self._num_bytes)
        at, buffer = len(self._meta_pages), memoryview(bytearray(_STEP_BYTES))
        while at < self._num_bytes:
            num_bytes = os.preadv(source, [buffer[: self._num_bytes - at]], at)
            # After the read: what was read before the end is of the commit.
            if self._txn is None:
                raise StoreUnavailableError(
                    f"{self._file} was closed, or has grown, while it was copied: copy it again"
                )
            if not num_bytes:
                break
            at += os.pwrite(target, buffer[:num_bytes], at)
        os.pwrite(target, self._meta_pages, 0)

    def end(self) -> None:
        with self._lock:
            txn, self._txn = self._txn, None
            if txn is not None:
                txn.abort()


class LmdbReading:
    """The values that a read transaction ``txn`` shows in its database, until it ends or the map must grow."""

    def __init__(self, txn: Any, path: Path, codec: ValueCodec) -> None:
        self._txn, self._path, self._codec = txn, path, codec
        self._lock = Lock()

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._lock:
            if self._txn is None:
                raise StoreUnavailableError(
                    f"{self._path} was closed, or has grown, while its changes were read: read them again"
                )
            try:
                found = list(map(self._txn.get, keys))
            except lmdb.Error as error:
                raise reading_error(error) from error
        return self._codec.decode_many(keys, found)

    def end(self) -> None:
        with self._lock:
            txn, self._txn = self._txn, None
            if txn is not None:
                txn.abort()
