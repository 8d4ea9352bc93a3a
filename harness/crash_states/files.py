"""A tree of files in memory: names, and the files that they name.

Names are entries of folders, and folders and files are numbers, as in a file system. A name change says which entries
are removed and which one is added, and keeps its meaning if an earlier change was lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

from harness.crash_states.changes import Change, Content, DataChange, Entry, NameChange, matches
from harness.io_trace.recorder import IoOperation, Kind

ROOT = 0
EMPTY = Content()
_FOLDER = b"/" * len(EMPTY.digest)


class PathListing:
    """Every path below the root with the number of its file or folder, in order, for the present ``names``.

    Entries of a lost folder are not included.
    """

    __slots__ = ("_told", "paths")

    def __init__(self, names: dict[Entry, int]) -> None:
        below: dict[int, list[tuple[str, int]]] = {}
        for (folder, name), number in names.items():
            below.setdefault(folder, []).append((name, number))

        def walk(folder: int, prefix: str) -> Iterator[tuple[str, int]]:
            for name, number in below.get(folder, ()):
                yield prefix + name, number
                yield from walk(number, f"{prefix}{name}/")

        self.paths = tuple(sorted(walk(ROOT, "")))
        self._told: dict[tuple[str, ...], tuple[bytes, tuple[int, ...]]] = {}

    def told(self, unread: tuple[str, ...]) -> tuple[bytes, tuple[int, ...]]:
        """Return the paths as bytes, and the numbers of their files, without the paths that match ``unread``."""
        text = self._told.get(unread)
        if text is None:
            kept = [(path, number) for path, number in self.paths if not matches(path, unread)]
            paths = "\0".join(path for path, _ in kept).encode(errors="surrogateescape")
            text = self._told[unread] = paths, tuple(number for _, number in kept)
        return text


class Tree:
    """Names, and contents by number. A number that has a name and no content is a folder. ``Tree()`` is empty.

    A recording has file numbers of its own. A file that existed before is first found by its path.
    """

    __slots__ = ("_listing", "_seen", "contents", "names")

    def __init__(
        self,
        names: dict[Entry, int] | None = None,
        contents: dict[int, Content] | None = None,
        listing: PathListing | None = None,
    ) -> None:
        self.names = {} if names is None else names
        self.contents = {} if contents is None else contents
        self._seen = {ROOT: ROOT}
        self._listing = listing

    @classmethod
    def read(cls, folder: Path) -> Tree:
        """Return the files below ``folder``. Their numbers are negative; two names of one file share a number."""
        tree = cls()
        numbers: dict[tuple[int, int], int] = {}
        folders = {folder: ROOT}
        for path in sorted(folder.rglob("*")):
            status = path.lstat()
            number = numbers.setdefault((status.st_dev, status.st_ino), -1 - len(numbers))
            tree.names[folders[path.parent], path.name] = number
            if path.is_dir():
                folders[path] = number
            else:
                tree.contents[number] = Content.of(path.read_bytes())
        return tree

    @classmethod
    def of(cls, recording: Iterable[IoOperation]) -> Tree:
        """Return the files at the end of a recording that began with none."""
        tree = cls()
        for operation in recording:
            tree.apply(operation)
        return tree

    def copy(self) -> Tree:
        """Return a copy that can be changed independently."""
        other = Tree(dict(self.names), dict(self.contents))
        other._seen = dict(self._seen)
        return other

    @property
    def listing(self) -> PathListing:
        """Every path with its number, in order."""
        if self._listing is None:
            self._listing = PathListing(self.names)
        return self._listing

    @property
    def paths(self) -> tuple[tuple[str, int], ...]:
        """Every path with its number, in order."""
        return self.listing.paths

    @property
    def files(self) -> dict[str, Content]:
        """The content of each file, by path; folders left out."""
        return {path: self.contents[number] for path, number in self.paths if number in self.contents}

    def digest(self, unread: tuple[str, ...] = ()) -> bytes:
        """Return a hash that is equal for equal paths and contents. Paths that match ``unread`` are ignored.

        It does not distinguish two names of one file from two equal files.
        """
        paths, numbers = self.listing.told(unread)
        contents = self.contents
        digests = [contents[number].digest if number in contents else _FOLDER for number in numbers]
        return blake2b(b"".join((*digests, paths)), digest_size=16).digest()

    def change(self, operation: IoOperation) -> Change | None:
        """Return the change that ``operation`` would make here, or None for an operation without one, such as a sync.

        Raises: ValueError if its file does not exist here.
        """
        match operation.kind:
            case Kind.CREATE | Kind.MKDIR:
                return NameChange(operation.index, operation.file, (), self._entry(operation, operation.path), True)
            case Kind.WRITE | Kind.TRUNCATE | Kind.ALLOCATE:
                return self._data_change(operation)
            case Kind.RENAME | Kind.LINK:
                source, target = self._entry(operation, operation.path), self._entry(operation, operation.target)
                old_entries = (source,) if operation.kind is Kind.RENAME else ()
                return NameChange(operation.index, self._met(operation, source), old_entries, target, False)
            case Kind.UNLINK | Kind.RMDIR:
                entry = self._entry(operation, operation.path)
                return NameChange(operation.index, self._met(operation, entry), (entry,), None, False)
        return None

    def perform(self, operation: IoOperation, change: Change | None) -> None:
        """Make the ``change`` that belongs to ``operation``."""
        self._listing = None
        if isinstance(change, NameChange):
            change.apply(self.names)
            if operation.kind is Kind.CREATE:
                self.contents[change.file] = EMPTY
            if change.creates:
                self._seen[operation.file] = change.file
        elif change is not None:
            self.contents[change.file] = change.apply(self.contents[change.file])

    def apply(self, operation: IoOperation) -> None:
        """Apply ``operation``. Raises: ValueError if its file does not exist here."""
        self.perform(operation, self.change(operation))

    def number(self, operation: IoOperation) -> int:
        """Return the number in this tree of the file of ``operation``. Raises: ValueError if it does not exist."""
        if operation.file not in self._seen:
            if not operation.path:
                raise ValueError(f"{_described(operation)}: file {operation.file} was never named before")
            return self._met(operation, self._entry(operation, operation.path))
        return self._seen[operation.file]

    def write_into(self, folder: Path) -> None:
        """Create the files below ``folder``, which exists and is empty."""
        root = os.fspath(folder)
        first_paths: dict[int, str] = {}
        for path, number in self.paths:
            full = f"{root}/{path}"
            content = self.contents.get(number)
            if content is None:
                os.mkdir(full)
            elif number in first_paths:
                os.link(first_paths[number], full)
            else:
                first_paths[number] = full
                descriptor = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                try:
                    content.write_to(descriptor)
                finally:
                    os.close(descriptor)

    def _data_change(self, operation: IoOperation) -> DataChange | None:
        number = self.number(operation)
        if number not in self.contents:
            raise ValueError(f"{_described(operation)}: {operation.path or operation.file} is a folder")
        size = self.contents[number].size
        if operation.kind is Kind.WRITE:
            end = operation.offset + len(operation.data)
            gap = max(operation.offset - size, 0)
            return DataChange(operation.index, number, operation, end > size, gap) if operation.data else None
        if operation.kind is Kind.TRUNCATE:
            return DataChange(operation.index, number, operation, operation.length > size)
        # An allocation that extends nothing may extend the file if an earlier write is lost.
        grows = operation.offset + operation.length > size
        return DataChange(operation.index, number, operation, grows) if operation.grows else None

    def _entry(self, operation: IoOperation, path: str) -> Entry:
        folder = ROOT
        *parents, name = path.split("/")
        for parent in parents:
            folder = self._named(operation, (folder, parent))
        return folder, name

    def _met(self, operation: IoOperation, entry: Entry) -> int:
        return self._seen.setdefault(operation.file, self._named(operation, entry))

    def _named(self, operation: IoOperation, entry: Entry) -> int:
        number = self.names.get(entry)
        if number is None:
            raise ValueError(f"{_described(operation)}: there is no {entry[1]} in what came before")
        return number


def _described(operation: IoOperation) -> str:
    return f"operation {operation.index} ({operation.kind})"
