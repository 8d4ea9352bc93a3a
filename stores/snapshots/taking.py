"""The snapshots of one store, taken after commits, beside the work of its task.

On the task's thread a snapshot only begins: RocksDB makes hard links to its tables, LMDB and SQLite begin a read
transaction. Before that, RocksDB's write buffers are flushed in the background. Another thread copies the files, sends
the parts that the last snapshot lacks, and puts the index last. A snapshot that fails is logged and counted, and its
task continues.

After a first snapshot of LMDB and SQLite the keys are kept that commits change. The next one then sends only their
values, in a file of changes, and names the files of the first one as well. Files of changes are joined as in a
log-structured merge tree: each has more than twice as many keys as the one after it.

A snapshot shows one commit of the store, and so the changelog up to one committed offset. That never becomes wrong:
neither if another owner has the task by the time it is in place, nor if that one takes snapshots as well.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from threading import Event, Lock, Thread
from time import monotonic
from typing import NamedTuple

from stores.changed_keys import ChangedKeys
from stores.engines.engine import Capture, Engine
from stores.errors import StoreError, StoreUnavailableError
from stores.failpoints import Part, declare, reach
from stores.files.creation import CAPTURED
from stores.files.plain_files import make_folder, open_plain, translated_system_errors
from stores.meta_entries import OFFSET, POSITION, decode_marks, decode_offsets
from stores.records.expiry import STREAM_TIME, stream_time_of
from stores.snapshots.index import TOKEN_CHARS, IndexName, SnapshotFile, SnapshotIndex, SnapshotKind, StoredPart
from stores.snapshots.objects import StoreObjects
from stores.snapshots.pruning import prune
from stores.snapshots.settings import Snapshots
from stores.strategies.store import Store

_log = logging.getLogger(__name__)

BEGUN = declare("snapshot.begun", "the files of a commit are held, and nothing of them is sent", part=Part.CHANGE)
PART_SENT = declare("snapshot.part_sent", "one more part of a snapshot is in place, without an index", part=Part.CHANGE)
SENT = declare("snapshot.sent", "all parts of a snapshot are in place, without an index", part=Part.CHANGE)
INDEXED = declare("snapshot.indexed", "the index of a snapshot is in place", part=Part.CHANGE)
_CHANGES_SHARE = 2
"""A snapshot is whole again after one whose files of changes have more than one of so many parts of its other files."""
_CHANGES_PART_BYTES = 16 << 20
END_S = 30.0
"""The time to wait for the end of an upload whose store is closed. A part that is on its way is not interrupted."""


@dataclass(slots=True)
class SnapshotFigures:
    """The figures of the snapshots of one store, since its task was made. Written by one thread at a time."""

    total: int = 0
    """Snapshots that were put in place."""
    failed_total: int = 0
    bytes_total: int = 0
    """Bytes of files that were sent."""
    objects_total: int = 0
    """Objects that were sent."""
    offset: int | None = None
    """The changelog offset of the last snapshot; None before the first."""
    restore_total: int = 0
    """Restores that began from a snapshot."""


class _Last(NamedTuple):
    """The last snapshot, which another one may continue."""

    snapshot: SnapshotIndex
    runs: Sequence[ChangedKeys]
    """The keys in each of its files of changes."""
    changed: ChangedKeys | None
    """The changes since; None if the engine keeps none."""


class _Begun(NamedTuple):
    """A snapshot that has begun."""

    capture: Capture
    folder: Path
    part_bytes: int
    snapshot: SnapshotIndex
    """Its index, with the files of the last snapshot that it continues, and without its own."""
    runs: Sequence[ChangedKeys]
    """The keys in each of its files of changes; none if it is whole."""
    changed: ChangedKeys | None
    """The changes after this snapshot; None if the engine keeps none."""


class SnapshotTaker:
    """Takes the snapshots of the store in the folder ``path``. For the thread that writes to the store.

    ``kind`` returns the kind of the open store, or raises StoreError. Each process has a global store: a snapshot of it
    is left out if another one has put one since the last look.
    """

    def __init__(
        self,
        settings: Snapshots,
        objects: StoreObjects,
        path: Path,
        kind: Callable[[Store], SnapshotKind],
        figures: SnapshotFigures,
    ) -> None:
        self._settings, self._objects, self._kind = settings, objects, kind
        self._path, self._figures, self._turns = path, figures, settings.turns
        self._due_s = 0.0
        self._flush_mark: int | None = None
        """The commits that are to be flushed before the next snapshot; None if it is not due."""
        self._last_offset: int | None = None
        """The offset of the last snapshot that was begun, and has not failed."""
        self._last: _Last | None = None
        """The last snapshot, if the next one may continue it."""
        self._digests: Mapping[Place, str] = {}
        self._newest: IndexName | None = None
        """The newest index at the last look for another process's turn."""
        self._thread: Thread | None = None
        self._ended = Event()
        self._capture: Capture | None = None

    def begin(self) -> None:
        """Start the clock: the store was opened, or has returned to its last commit."""
        self._due_s, self._flush_mark = self._next_s(), None

    def after_commit(self, store: Store, offset: int | None) -> None:
        """Begin a snapshot of the state at ``offset``, if one is due. An error is logged and counted."""
        if monotonic() < self._due_s or offset is None or self.is_running:
            return
        try:
            # A snapshot that has begun keeps pages from reuse: it does not wait for its turn.
            if offset == self._last_offset or not self._is_flushed(store) or not self._turns.acquire(blocking=False):
                return
            try:
                self._take(store, offset)
            except BaseException:
                self._turns.release()
                raise
        except Exception as error:
            self._due_s, self._flush_mark = self._next_s(), None
            self._failed(error)

    @property
    def is_running(self) -> bool:
        """True while a snapshot is copied or sent."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the snapshot that is under way; return False if that takes too long."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return not self.is_running

    def end(self) -> None:
        """End the snapshot that is under way, without one. The store may then be closed, moved or removed."""
        self._ended.set()
        capture, thread = self._capture, self._thread
        if capture is not None:
            capture.end()
        if thread is not None:
            thread.join(END_S)
        # Another owner may take and remove snapshots until the store is opened again.
        self._last_offset = None
        self._forget()
        if self.is_running:
            _log.warning("an upload to %s does not end, and is left to itself", self._settings.location)
            self._ended = Event()  # The one of that upload stays set.
            return
        self._thread = self._capture = None
        self._ended.clear()

    def _forget(self) -> None:
        """Let the next snapshot be whole."""
        last, self._last = self._last, None
        if last is not None and last.changed is not None:
            last.changed.release()

    def _next_s(self) -> float:
        return monotonic() + self._settings.interval_ms / 1_000

    def _is_flushed(self, store: Store) -> bool:
        """Return whether most of the store is flushed; else begin that. A snapshot then has little to flush."""
        persistence = store.persistence
        if self._flush_mark is None:
            self._flush_mark = persistence.mark()
        if persistence.persisted() >= self._flush_mark:
            return True
        persistence.begin()
        return False

    def _take(self, store: Store, offset: int) -> None:
        self._due_s, self._flush_mark = self._next_s(), None
        kind = self._kind(store)
        engine = store.staging.engine
        folder = self._path / CAPTURED / token_hex(4)
        with translated_system_errors(folder):
            make_folder(folder.parent)
        snapshot, last = self._index_at(engine.meta(), offset, kind), self._last
        runs: list[ChangedKeys] = []
        to_send = [] if last is None else _to_send(last, engine, kind)
        if last is not None and to_send:
            kept = len(last.runs) - len(to_send) + 1
            runs = [*last.runs[:kept], to_send[-1]]
            snapshot = replace(snapshot, files=last.snapshot.files, changes=last.snapshot.changes[:kept])
        self._capture = capture = engine.capture_changes(folder, to_send) if to_send else engine.capture(folder)
        # Those of later commits. The present ones are in ``to_send``, or a whole snapshot has them.
        engine.changed = ChangedKeys(self._settings.key_room) if engine.captures_changes else None
        try:
            part_bytes = _CHANGES_PART_BYTES if runs else engine.kind.part_bytes
            begun = _Begun(capture, folder, part_bytes, snapshot, runs, engine.changed)
            self._last_offset = offset
            reach(BEGUN)
            thread = Thread(target=self._run, args=(begun, self._ended), name="snapshot", daemon=True)
            thread.start()
        except BaseException:
            self._last_offset = self._last = None
            capture.end()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._thread = thread

    def _index_at(self, meta: Mapping[bytes, bytes], offset: int, kind: SnapshotKind) -> SnapshotIndex:
        """Return the index of the state with these meta entries, without files."""
        reached = self._objects.offset_in(decode_offsets(OFFSET, meta))
        if reached != offset:
            raise StoreError(
                f"the store {self._path} is at offset {reached}, and not at {offset}: no snapshot is taken"
            )
        return SnapshotIndex(
            partition=self._objects.partition,
            offset=offset,
            kind=kind,
            position=decode_offsets(POSITION, meta),
            stream_time_ms=stream_time_of(decode_marks(meta).get(STREAM_TIME)),
            created_ms=time.time_ns() // 1_000_000,
            files=(),
        )

    def _run(self, begun: _Begun, ended: Event) -> None:
        try:
            if self._objects.of_whole_topic and self._was_anothers_turn(begun.snapshot.kind):
                self._forget()
                return
            begun.capture.complete()
            self._upload(begun, ended)
        except EndedError:
            _log.debug("a snapshot of %s was ended, because the store is closed", self._path)
        except Exception as error:
            self._last = self._last_offset = None
            if not ended.is_set():
                self._failed(error)
        finally:
            last = self._last
            if begun.changed is not None and (last is None or last.changed is not begun.changed):
                begun.changed.release()  # No snapshot continues this one.
            begun.capture.end()
            self._capture = None
            shutil.rmtree(begun.folder, ignore_errors=True)
            with suppress(OSError):
                begun.folder.parent.rmdir()
            self._turns.release()

    def _upload(self, begun: _Begun, ended: Event) -> None:
        began_s = monotonic()
        known, index = self._known(begun.snapshot.kind), begun.snapshot
        if any(part.digest not in known for part in index.parts()):
            raise StoreUnavailableError("files of the last one are no longer there, and the next one is whole")
        upload = Upload(self._objects, self._settings, known, self._digests, ended)
        try:
            sent = upload.send(begun.folder, begun.part_bytes, never_change=begun.capture.shares_files)
        finally:
            self._figures.bytes_total += upload.num_bytes
            self._figures.objects_total += upload.num_objects
        reach(SENT)
        index = replace(index, changes=[*index.changes, *sent]) if begun.runs else replace(index, files=sent)
        is_new = self._objects.put_index(index)
        reach(INDEXED)
        # Another owner has put that of the same commit: nothing names the parts of this one.
        self._last = _Last(index, begun.runs, begun.changed) if is_new else None
        self._digests, self._newest = upload.digests, index.name
        self._figures.total += is_new
        self._figures.offset = index.offset
        _log.info(
            "a snapshot of %s at offset %d is in %s: %d of %d bytes were sent, in %.1f s",
            self._path,
            index.offset,
            self._settings.location,
            upload.num_bytes,
            index.num_bytes,
            monotonic() - began_s,
        )
        self._prune()

    def _was_anothers_turn(self, kind: SnapshotKind) -> bool:
        """Return whether another process has put a snapshot since the last call. Raises: StoreUnavailableError."""
        before, self._newest = self._newest, next(self._indexes(kind), None)
        return self._newest is not None and self._newest != before

    def _indexes(self, kind: SnapshotKind) -> Iterator[IndexName]:
        """Return the indexes of this kind, from the newest on.

        One of an earlier changelog of the same name may have a higher offset, and nothing in common with this store.
        """
        return (name for name in self._objects.indexes() if name.digest == kind.digest)

    def _known(self, kind: SnapshotKind) -> Mapping[str, StoredPart]:
        """Return the parts that this store's last index names, by digest, as far as they are there.

        Somebody may have removed some since they were sent. Raises: StoreUnavailableError.
        """
        sizes = self._objects.sizes()
        index = self._newest_index(kind) if self._last is None else self._last.snapshot
        parts = () if index is None else index.parts()
        return {part.digest: part for part in parts if sizes.get(str(part)) == part.num_bytes}

    def _newest_index(self, kind: SnapshotKind) -> SnapshotIndex | None:
        """Return the newest index of this kind; None without one, or if it can't be read."""
        with suppress(StoreError):
            for name in self._indexes(kind):
                return self._objects.index(name)
        return None

    def _prune(self) -> None:
        try:
            prune(self._objects, self._settings.keep, self._settings.grace_ms / 1_000)
        except StoreError as error:
            _log.warning("old snapshots in %s are not removed: %s", self._settings.location, error)

    def _failed(self, error: Exception) -> None:
        self._figures.failed_total += 1
        _log.warning("a snapshot of %s was not taken, and its task continues: %s", self._path, error)


def _to_send(last: _Last, engine: Engine, kind: SnapshotKind) -> list[ChangedKeys]:
    """Return the runs of changes that a snapshot sends which continues ``last``; none if it has to be whole.

    It sends what has changed since, together with earlier runs that are not much larger. So there are few files, and a
    change is sent again about as often as their number doubles.
    """
    changed, index = engine.changed, last.snapshot
    if changed is None or changed is not last.changed or not changed.complete or index.kind != kind:
        return []
    if sum(file.num_bytes for file in index.changes) > sum(file.num_bytes for file in index.files) // _CHANGES_SHARE:
        return []
    runs, count = [changed], len(changed)
    for earlier in reversed(last.runs):
        # There may be no room for its keys any more: its file stays as it is.
        if len(earlier) > 2 * count or not earlier.complete:
            break
        runs.insert(0, earlier)
        count += len(earlier)
    return runs


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
