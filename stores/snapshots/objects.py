"""The objects of one store in a folder of snapshots.

    TOPIC-PARTITION/index/OFFSET-DIGEST.json   the indexes
    TOPIC-PARTITION/files/SHA256-UPLOAD        parts of files, by their content and the upload that has put them
    TOPIC-global/...                           the same for a global store, which follows all partitions

Each store has objects of its own, so that its owner can see which are in use, without a look at other stores. A part
is sent once, but two uploads never share one that no index names: what one of them removes or leaves torn is its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote, unquote

from stores.errors import StoreCorruptedError, StoreUnavailableError
from stores.files.folder import Folder
from stores.files.plain_files import translated_system_errors
from stores.interface import TopicPartition
from stores.snapshots.index import INDEX_BYTES_MAX, IndexName, SnapshotIndex, StoredPart

INDEX, FILES = "index", "files"
WHOLE_TOPIC = -1
"""The number in place of a partition's for a store that follows all partitions of its topic."""
_GLOBAL = "global"
_TRIES, _PAUSE_S = 3, 0.2
Value = TypeVar("Value")
Write = Callable[[int, memoryview], object]


def _patiently(call: Callable[[], Value]) -> Value:
    """Return what ``call`` returns, which is tried again after an error that may pass."""
    for left in reversed(range(_TRIES)):
        try:
            return call()
        except StoreUnavailableError:
            if not left:
                raise
        time.sleep(_PAUSE_S)
    raise AssertionError("the last attempt raises")


def folder_name(partition: TopicPartition) -> str:
    """Return the name of the folder of the store that follows ``partition``."""
    number = _GLOBAL if partition.partition == WHOLE_TOPIC else partition.partition
    return f"{quote(partition.topic, safe='')}-{number}"


def partition_of(name: str) -> TopicPartition | None:
    """Return the partition of a store's folder, None for the name of something else."""
    topic, dash, number = name.rpartition("-")
    if not (dash and topic and (number == _GLOBAL or number.isdecimal())):
        return None
    return TopicPartition(unquote(topic), WHOLE_TOPIC if number == _GLOBAL else int(number))


class StoreObjects:
    """The objects of the store that follows ``partition``, in ``folder``. For any thread.

    Raises, all methods: StoreUnavailableError if the file system fails or is full.
    """

    def __init__(self, folder: Folder, partition: TopicPartition) -> None:
        self.folder, self.partition = folder, partition
        self._name = folder_name(partition)

    @property
    def of_whole_topic(self) -> bool:
        """True for a global store: each process has it, and it follows all partitions of its topic."""
        return self.partition.partition == WHOLE_TOPIC

    def offset_in(self, offsets: Mapping[TopicPartition, int]) -> int | None:
        """Return the offset of a snapshot of a store with these committed ones; None if it has none.

        That of a store of a whole topic counts the records before it in all partitions, as if they were in one.
        """
        if not self.of_whole_topic:
            return offsets.get(self.partition)
        return sum(offset + 1 for offset in offsets.values()) - 1 if offsets else None

    def path(self, kind: str, name: object = "") -> str:
        """Return the path of an object, or of the sub-folder of all of its kind."""
        return f"{self._name}/{kind}/{name}" if name else f"{self._name}/{kind}"

    def put(self, part: StoredPart, content: bytes) -> None:
        """Put a part in place. After an error that may pass, it is tried again.

        Its name survives power loss once the index is put.
        """

        _patiently(lambda: self.folder.put(self.path(FILES, part), content))

    def fetch(self, part: StoredPart, write: Write = lambda at, piece: None) -> None:
        """Call ``write`` with each piece of a part, and verify the part: it counts once this call has returned.

        ``write`` gets the place of the piece in the part, and bytes that are valid during the call. After an error that
        may pass, it begins again. Raises: StoreCorruptedError if the part is missing, or is not what was put; errors of
        ``write``.
        """
        if _patiently(lambda: self._digest_of(part, write)) != part.digest:
            raise StoreCorruptedError(
                f"{self._where(FILES, part)} is not what was put there, which had {part.num_bytes:,} bytes"
            )

    def _digest_of(self, part: StoredPart, write: Write) -> str | None:
        """Pass a part on, and return its digest; None if it has another size."""
        digest, at = sha256(), 0
        # One byte more shows a part that is too long.
        buffer = memoryview(bytearray(min(self.folder.piece_bytes, part.num_bytes + 1)))
        with self._opened(self.path(FILES, part)) as file:
            while num_bytes := self._read_into(file, buffer):
                if at + num_bytes > part.num_bytes:
                    return None
                digest.update(buffer[:num_bytes])
                write(at, buffer[:num_bytes])
                at += num_bytes
        return digest.hexdigest() if at == part.num_bytes else None

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all objects with parts, by name."""
        return self.folder.names(self.path(FILES))

    def times(self, kind: str) -> dict[str, float]:
        """Return when each object of one kind was put, by name, in seconds of the file system's clock."""
        return self.folder.times(self.path(kind))

    def remove(self, kind: str, name: str) -> None:
        """Remove an object, if it is there."""
        self.folder.remove(self.path(kind, name))

    def put_index(self, index: SnapshotIndex) -> bool:
        """Put an index in place; return False if there is one of its name. All parts survive power loss before it."""
        part = next(index.parts(), None)
        if part is not None:
            # All parts are beside each other.
            self.folder.settle(self.path(FILES, part))
        return self.folder.put_if_absent(self.path(INDEX, index.name), index.encoded())

    def indexes(self) -> list[IndexName]:
        """Return the names of all indexes, the newest by their offsets first."""
        names = map(IndexName.parse, self.folder.names(self.path(INDEX)))
        return sorted((name for name in names if name is not None), reverse=True)

    def index(self, name: IndexName) -> SnapshotIndex:
        """Return an index. Raises: StoreCorruptedError if it is missing, damaged, or is that of another store."""
        where = self._where(INDEX, name)
        content = _patiently(lambda: self._read(self.path(INDEX, name), INDEX_BYTES_MAX))
        index = SnapshotIndex.decode(content, where)
        if index.partition != self.partition or index.name != name:
            raise StoreCorruptedError(f"{where} is the index of another snapshot: remove it")
        return index

    def _read(self, path: str, bytes_max: int) -> bytes:
        with self._opened(path) as file, translated_system_errors(Path(self.folder.location)):
            return file.read(bytes_max + 1)

    def _read_into(self, file: Any, buffer: memoryview) -> int:
        with translated_system_errors(Path(self.folder.location)):
            num_bytes: int = file.readinto(buffer)
            return num_bytes

    def _opened(self, path: str) -> IO[bytes]:
        try:
            return self.folder.open(path)
        except FileNotFoundError as error:
            raise StoreCorruptedError(f"{self.folder.location}/{path} is missing") from error

    def _where(self, kind: str, name: object) -> str:
        return f"{self.folder.location}/{self.path(kind, name)}"
