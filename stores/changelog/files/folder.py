"""The folder of a version log: files that are put in place whole, once, and never changed.

On a local file system a file is written aside, synced and linked to its name, which fails if the name is taken. On a
distributed one it is written aside and renamed, where a rename never replaces a file (HDFS). An object store needs a
put that fails if the object exists. ``pyarrow.fs`` has none, so it is an argument. An object appears whole when its
writer closes it, so it needs no other name before that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import IO, Any

from stores.errors import StoreUnavailableError
from stores.failpoints import Part, declare

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

    @abstractmethod
    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Put a file in place in one step; return False if the name is taken.

        After the return the file with that name, this one or the other, survives power loss.
        """

    @abstractmethod
    def create(self, name: str) -> _Created:
        """Return a context with a new file to write to, in place at its end. The name belongs to this caller alone.

        An exception in the block leaves no file of that name.
        """

    @abstractmethod
    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading. Raises: FileNotFoundError."""

    @abstractmethod
    def names(self, folder: str = "") -> dict[str, int]:
        """Return the sizes of the files of one sub-folder, by name within it; empty if there is no such folder."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    @abstractmethod
    def settle(self, name: str) -> None:
        """Make a file that another process put in place survive power loss."""

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises: FileNotFoundError."""
        with self.open(name) as file:
            return file.read()


_Created = Any
"""A context manager with a file that has ``write``; typing has no name for one that is abstract."""


@contextmanager
def missing_stays_missing() -> Iterator[None]:
    """Let a missing file be FileNotFoundError, which a reader of a folder that changes must expect."""
    try:
        yield
    except StoreUnavailableError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise error.__cause__ from None
        raise
