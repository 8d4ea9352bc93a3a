"""The upload of one snapshot: the parts of captured files that the last one lacks, and then the index."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from threading import Event, Lock
from typing import NamedTuple

from stores.errors import StoreUnavailableError
from stores.failpoints import Part, declare, reach
from stores.files.plain_files import open_plain, translated_system_errors
from stores.snapshots.index import TOKEN_CHARS, SnapshotFile, StoredPart
from stores.snapshots.objects import StoreObjects
from stores.snapshots.settings import Snapshots

PART_SENT = declare("snapshot.part_sent", "one more part of a snapshot is in place, without an index", part=Part.CHANGE)


class EndedError(StoreUnavailableError):
    """A snapshot was ended because its store is closed."""


class Unchanging(NamedTuple):
    """A file that never changes, by name, number, time of change and size, as long as the database lives."""

    name: str
    inode: int
    changed_ns: int
    num_bytes: int


Place = tuple[Unchanging, int]
"""A part of such a file, by its first byte."""


class _Piece(NamedTuple):
    """A part of a captured file that is to be sent, or is known to be there."""

    path: Path
    at: int
    num_bytes: int
    place: Place | None
    """Set if the file never changes."""


class Upload:
    """One upload of captured files. It ends early once ``ended`` is set.

    ``known`` are the parts of the last snapshot by digest, and ``digests`` those of its files that never change.
    """

    def __init__(
        self,
        objects: StoreObjects,
        settings: Snapshots,
        known: Mapping[str, StoredPart],
        digests: Mapping[Place, str],
        ended: Event,
    ) -> None:
        self._objects, self._settings, self._ended = objects, settings, ended
        self._known, self._known_digests = known, digests
        self._token = token_hex(TOKEN_CHARS // 2)
        self._lock = Lock()
        self._new: dict[str, StoredPart] = {}
        self.digests: dict[Place, str] = {}
        """The digests of the parts that never change, for the next upload."""

    @property
    def num_objects(self) -> int:
        """The number of parts that were sent."""
        return len(self._new)

    @property
    def num_bytes(self) -> int:
        """The bytes of the parts that were sent."""
        return sum(part.num_bytes for part in self._new.values())

    def send(self, folder: Path, part_bytes: int, *, never_change: bool) -> list[SnapshotFile]:
        """Send the parts that are not known of the files in ``folder``, each of ``part_bytes``; return the files.

        Raises: StoreUnavailableError, also if it is ended.
        """
        with translated_system_errors(folder):
            paths = sorted(path for path in folder.iterdir() if path.is_file())
            pieces = {path.name: list(_pieces(path, part_bytes, never_change=never_change)) for path in paths}
        threads = ThreadPoolExecutor(self._settings.threads, thread_name_prefix="snapshot")
        try:
            sent = {name: [threads.submit(self._part, piece) for piece in own] for name, own in pieces.items()}
            return [SnapshotFile(name, [each.result() for each in parts]) for name, parts in sent.items()]
        finally:
            threads.shutdown(cancel_futures=True)

    def _part(self, piece: _Piece) -> StoredPart:
        if self._ended.is_set():
            raise EndedError("the store is closed")
        with self._settings.pace.work(self._ended):
            return self._sent(piece)

    def _sent(self, piece: _Piece) -> StoredPart:
        digest = None if piece.place is None else self._known_digests.get(piece.place)
        if digest is None or digest not in self._known:
            content = _content(piece)
            digest = sha256(content).hexdigest()
            self._put(digest, content)
        if piece.place is not None:
            self.digests[piece.place] = digest
        return self._known.get(digest) or self._new[digest]

    def _put(self, digest: str, content: bytes) -> None:
        with self._lock:
            if digest in self._known or digest in self._new:
                return
            part = self._new[digest] = StoredPart(digest, len(content), self._token)
        self._settings.bandwidth.take(len(content), self._ended)
        self._objects.put(part, content)
        reach(PART_SENT)


def _pieces(path: Path, part_bytes: int, *, never_change: bool) -> Iterator[_Piece]:
    status = path.stat()
    file = Unchanging(path.name, status.st_ino, status.st_mtime_ns, status.st_size)
    for at in range(0, status.st_size, part_bytes):
        yield _Piece(path, at, min(part_bytes, status.st_size - at), (file, at) if never_change else None)


def _content(piece: _Piece) -> bytes:
    with translated_system_errors(piece.path):
        descriptor = open_plain(piece.path, os.O_RDONLY)
        try:
            content = os.pread(descriptor, piece.num_bytes, piece.at)
        finally:
            os.close(descriptor)
    if len(content) != piece.num_bytes:
        raise StoreUnavailableError(f"{piece.path} is shorter than when it was captured: take another snapshot")
    return content
