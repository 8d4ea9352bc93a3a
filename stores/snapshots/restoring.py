"""A store that begins from the files of a snapshot: the choice of one, and its files beside the store's place.

Each part is verified while it is written. The store that is made is complete, verified and synced, or none. The files
of another backend make a store of that one, whose records are copied.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import chain
from pathlib import Path

from stores.engines.changes import apply_changes
from stores.errors import StoreError, StoreIncompatibleError
from stores.failpoints import Part, declare, reach
from stores.files.creation import CAPTURED, LOCK_FILE, create, is_unused, wipe
from stores.files.identity import present_version
from stores.files.locks import take
from stores.files.plain_files import make_file, make_folder, remove, translated_system_errors
from stores.interface import Durability, KeyValueStore
from stores.meta_entries import OFFSET, POSITION, decode_marks, decode_offsets
from stores.records.pieces import PIECE_BYTES, in_pieces
from stores.registry import Backend, StoreBackend, backends
from stores.snapshots.index import IndexName, SnapshotFile, SnapshotIndex, SnapshotKind, StoredPart
from stores.snapshots.objects import StoreObjects
from stores.strategies.staging import open_engine
from stores.strategies.store import Store

PART_FETCHED = declare(
    "snapshot.part_fetched", "one more part of the files is in the store that is made", part=Part.CHANGE
)
CHANGES_APPLIED = declare(
    "snapshot.changes_applied", "one more file of changes is in the store that is made", part=Part.CHANGE
)
FILES_FETCHED = declare(
    "snapshot.files_fetched", "all files are in the store that is made, which does not count yet", part=Part.CHANGE
)
_SYNC_BYTES = 32 << 20
Refuse = Callable[[IndexName, object], None]
"""Called with the name of a snapshot and the reason why it is not used."""


def fitting(
    objects: StoreObjects, kind: SnapshotKind, misfit: Callable[[IndexName], str | None], refuse: Refuse
) -> Iterator[SnapshotIndex]:
    """Return the snapshots of this kind from the newest to the oldest, then those of other backends in this order.

    ``misfit`` says why one is not read at all. Raises: StoreUnavailableError if the folder can't be read.
    """
    of_others: list[IndexName] = []
    # It has those of other backends by the time that they are due.
    for name in chain(objects.indexes(), of_others):
        reason = misfit(name)
        if reason is None:
            try:
                index = objects.index(name)
                reason = index.kind.misfit(kind) or _without_files(index.kind.backend)
            except StoreError as error:
                reason = str(error)
        if reason is not None:
            refuse(name, reason)
        elif index.kind.backend == kind.backend or name in of_others:
            yield index
        else:
            of_others.append(name)


def _without_files(backend: str) -> str | None:
    """Return why no store can be made of files of ``backend``; None if one can."""
    known = backends().get(backend)
    if known is None or isinstance(known, StoreBackend) or not known.load_engine().captures:
        return f"it is of the backend {backend}, whose files can't be read here"
    return None


def make_store(
    objects: StoreObjects,
    index: SnapshotIndex,
    path: Path,
    backend: Backend,
    threads: int,
    fetched: Callable[[int], None] = lambda num_bytes: None,
) -> None:
    """Make the store of a snapshot in the folder ``path``, in place of one that was begun there before.

    ``fetched`` is called on this thread with the bytes that are there, again and again. An exception in it ends the
    call, and nothing is left.

    Raises: StoreCorruptedError if a part is missing or changed; StoreUnavailableError.
    """

    def build(folder: Path) -> None:
        # Changes are there twice, until they are applied.
        _check_room(folder, index.num_bytes + sum(file.num_bytes for file in index.changes))
        _build(folder, backend)
        data, done = folder / "data", _Fetched(fetched)
        _fetch_files(objects, index.files, data, threads, done)
        if index.changes:
            changes = folder / CAPTURED  # Whatever ends the call, it is removed with the store.
            make_folder(changes)
            numbered = [SnapshotFile(str(number), file.parts) for number, file in enumerate(index.changes)]
            _fetch_files(objects, numbered, changes, threads, done)
            _apply(data, [changes / file.name for file in numbered], backend, done)
            shutil.rmtree(changes)
        reach(FILES_FETCHED)

    wipe(path)
    with translated_system_errors(path):
        make_folder(path)
        lock = take(path / LOCK_FILE)
        try:
            if not is_unused(path):
                raise StoreIncompatibleError(f"{path} has other files than a store's: move them away")
            create(path, backend.name, build)
        finally:
            os.close(lock)


def copy_store(source: Store, target: KeyValueStore, copied: Callable[[], None]) -> None:
    """Copy the records of a store into an empty one, then its offsets, position and marks in one write.

    ``copied`` is called again and again. An exception in it ends the call.

    Raises: StoreIncompatibleError if the backend of ``target`` does not take a key; StoreCorruptedError;
    StoreUnavailableError; CommitFailedError.
    """
    if source.timestamps.is_split:
        raise StoreIncompatibleError("some of its records are in an older format, which is not copied")
    try:
        with source.all() as pairs:
            for piece in in_pieces(([pair] for pair in pairs), PIECE_BYTES):
                target.restore(piece, {})
                copied()
    except ValueError as error:
        raise StoreIncompatibleError(f"the backend {target.backend} does not take it: {error}") from error
    meta = source.staging.engine.meta()
    target.restore([], decode_offsets(OFFSET, meta), decode_offsets(POSITION, meta), decode_marks(meta))


def _check_room(folder: Path, num_bytes: int) -> None:
    """Check that the disk has room for the files, before any of them is fetched. Raises: OSError, ENOSPC."""
    if shutil.disk_usage(folder).free < num_bytes:
        raise OSError(errno.ENOSPC, f"the files of the snapshot have {num_bytes:,} bytes", str(folder))


def _build(folder: Path, backend: Backend) -> None:
    """Build a new store without its data: a strategy may have more than that, such as a second engine."""
    level = next(level for level in reversed(Durability) if level in backend.durabilities)
    backend.load_strategy().build(backend.load_engine(), folder, level, backend.options)
    for path in (folder / "data").iterdir():
        remove(path)


def _apply(data: Path, files: Sequence[Path], backend: Backend, fetched: _Fetched) -> None:
    """Write the changes in ``files``, in their order, to the engine in the folder ``data``."""
    level = min(backend.durabilities)  # All files are synced at the end.
    with closing(open_engine(backend.load_engine(), data, level, backend.options)) as engine:
        for file in files:
            apply_changes(file, engine, lambda: fetched.add(0))
            reach(CHANGES_APPLIED)


def _fetch_files(
    objects: StoreObjects, files: Sequence[SnapshotFile], folder: Path, threads: int, fetched: _Fetched
) -> None:
    targets: list[int] = []
    pieces = []
    try:
        for file in files:
            targets.append(make_file(folder / file.name))
            os.ftruncate(targets[-1], file.num_bytes)
            at = 0
            for part in file.parts:
                pieces.append((targets[-1], part, at))
                at += part.num_bytes
        _fetch(objects, pieces, threads, fetched)
    finally:
        for descriptor in targets:
            os.close(descriptor)


class _Fetched:
    """Calls ``fetched`` with the bytes that are there, while files are fetched and applied one after the other."""

    def __init__(self, fetched: Callable[[int], None]) -> None:
        self.num_bytes = 0
        self._fetched = fetched

    def add(self, num_bytes: int) -> None:
        """Add some bytes."""
        self.num_bytes += num_bytes
        self._fetched(self.num_bytes)


def _fetch(objects: StoreObjects, pieces: list[tuple[int, StoredPart, int]], threads: int, fetched: _Fetched) -> None:
    def fetch(descriptor: int, part: StoredPart, at: int) -> int:
        objects.fetch(part, lambda place, piece: _write(descriptor, piece, at + place))
        reach(PART_FETCHED)
        return part.num_bytes

    synced, written = fetched.num_bytes, set()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="snapshot")
    try:
        for descriptor, done in [(piece[0], pool.submit(fetch, *piece)) for piece in pieces]:
            num_bytes = done.result()
            written.add(descriptor)
            fetched.add(num_bytes)
            # The disk writes while the next parts are read and hashed: the store is synced at the end anyway.
            if fetched.num_bytes - synced >= _SYNC_BYTES:
                for each in written:
                    os.fsync(each)
                synced, written = fetched.num_bytes, set()
    finally:
        # The descriptors are in use until the last part is written.
        pool.shutdown(cancel_futures=True)


def _write(descriptor: int, piece: memoryview, at: int) -> None:
    if os.pwrite(descriptor, piece, at) != len(piece):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def kind_of(changelog_id: str, backend: Backend, marks: Mapping[str, bytes | None]) -> SnapshotKind:
    """Return the kind of a store of this release, whose records ``marks`` describe."""
    texts = {name: None if mark is None else mark.decode("latin-1") for name, mark in marks.items()}
    return SnapshotKind(changelog_id, backend.name, present_version(), texts)
