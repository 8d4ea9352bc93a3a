"""The files of one partition of a version log, by name: they are checked before they are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

from stores.changelog.files.format import Header, PartitionFiles, check, folder_name, listed, read_header
from stores.errors import ChangelogError
from stores.files.folder import Folder
from stores.files.plain_files import translated_system_errors

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")
Created = AbstractContextManager[IO[bytes]]


class PartitionFolder:
    """The folder of a partition. Raises, all methods: StoreUnavailableError; ChangelogError for a damaged file."""

    def __init__(self, folder: Folder, partition: int) -> None:
        self._folder = folder
        self.partition = partition

    def listing(self) -> PartitionFiles:
        """Return the files of the partition."""
        return listed(self._folder.names(folder_name(self.partition)))

    def place(self, name: str) -> str:
        """Return where a file is, for messages."""
        return f"{self._folder.location}/{self._path(name)}"

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Put a file in place in one step; return False if the name is taken."""
        return self._folder.put_if_absent(self._path(name), content)

    def settle(self, name: str) -> None:
        """Make a file that another process put in place survive power loss."""
        self._folder.settle(self._path(name))

    def create(self, name: str) -> Created:
        """Return a context with a new file, in place at its end."""
        return self._folder.create(self._path(name))

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        self._folder.remove(self._path(name))

    @contextmanager
    def opened(self, name: str) -> Iterator[tuple[Header, pyarrow.RecordBatchStreamReader]]:
        """Open a file. Raises: FileNotFoundError."""
        file = self._folder.open(self._path(name))
        with file:
            with translated_system_errors(Path(self.place(name))):
                check(file, self.place(name))
                header_and_reader = read_header(file, self.place(name))
            yield header_and_reader

    def misplaced(self, name: str, header: Header) -> ChangelogError:
        """Return the error for a file whose header is that of another one."""
        return ChangelogError(
            f"{self.place(name)} holds version {header.version} of partition {header.partition}: bring the right file "
            "back from a copy"
        )

    def translated(self, pieces: Iterator[T], name: str) -> Iterator[T]:
        """Return the pieces of a file. Raises: StoreUnavailableError for an error of the file system."""
        with translated_system_errors(Path(self.place(name))):
            yield from pieces

    def _path(self, name: str) -> str:
        return f"{folder_name(self.partition)}/{name}"
