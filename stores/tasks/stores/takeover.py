"""Takeover: a store continues with the folder, offset and position that Kafka Streams has left for it.

The records are copied into a store of the configured backend, which is built in ``NAME.prepare``. Its last write has
the offset of the checkpoint file and the position. Then it is closed and takes its place, and Kafka's files are removed
(``stores.tasks.directory.replacement``). Until that is decided Kafka's folder counts, and the next opening starts over.
If RocksDB is the backend's engine, Kafka's folder of a key-value store is in that place; else it is removed last.

Before that is decided, the state directory is closed to Kafka Streams: it would trust the offsets of stores that it
does not have any more.

A folder that can't be taken over is removed like a store that can't be trusted, and restored from its changelog. One
that another configuration could take over is refused unchanged, as a store of the library is.

The checkpoint file in the folder ``global`` has the offset of the next record of each partition of a global store's
topic. A partition without one is read from its start.

Source: KIP-892, "Upgrading", "Interactive Query .position Offsets"; KIP-99; Kafka Streams 4.1,
``GlobalStateManagerImpl``, ``GlobalStateUpdateTask``.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from stores.changelog.interface import Record
from stores.errors import (
    ChangelogLostError,
    CommitFailedError,
    OffsetOutOfRangeError,
    StoreCorruptedError,
    StoreError,
    StoreIncompatibleError,
    StoreUnavailableError,
    TaskCorruptedError,
)
from stores.files.creation import is_complete, is_store, wipe
from stores.files.plain_files import remove_durably, sync_folder, translated_system_errors
from stores.interface import KeyValueStore, TopicPartition
from stores.records.key_value import KeyValue
from stores.records.pieces import in_pieces
from stores.records.segmented import SegmentedKind
from stores.records.serdes import Float64Serde, Int64Serde
from stores.records.timestamped import TimestampedKind
from stores.records.versioned import VersionedKind
from stores.registry import StoreBackend, backend_named
from stores.tasks.directory.entry_files import CheckpointFile
from stores.tasks.directory.replacement import replace_store
from stores.tasks.directory.state_directory import CHECKPOINT_FILE
from stores.tasks.directory.store_places import (
    ENGINE_FOLDER,
    FORMER_END,
    PREPARE_END,
    SWAP_END,
    StreamsFolder,
    beside,
    is_streams_store,
    kept_from_streams,
    left_by_streams,
    remove_streams_store,
    segment_folders,
    shut_out_streams,
)
from stores.tasks.directory.task_files import FollowingStore, StorePlan
from stores.tasks.stores.left_store import End, LeftStore, NotTakenOverError

PIECE_BYTES = 8 << 20
"""The size of keys and values from which a piece is written. A piece is in memory, and one atomic write."""

_log = logging.getLogger(__name__)


class Takeover(ABC):
    """The takeover of the database at ``source``, or of the segments in the folder ``segments``, by a store."""

    def __init__(self, plan: FollowingStore, source: Path, segments: Path | None = None) -> None:
        self._name, self._path, self._config = plan.name, plan.path, plan.config
        self._changelog = plan.changelog
        self._source, self._segments = source, segments
        self._left_in = source
        """The folder that Kafka Streams has left."""

    @abstractmethod
    def _log_lost(self) -> ChangelogLostError | None:
        """Return the error to raise if the store has records; None if its changelog is not empty."""

    @abstractmethod
    def _end(self, kept: End | None) -> End:
        """Return what the databases have ``kept``, or the checkpoint file.

        Raises: TaskCorruptedError, StoreIncompatibleError.
        """

    def _take(self) -> None:
        """Take over what is there, or complete a takeover that was interrupted."""
        if not backend_named(self._config.backend).persistent:
            return
        with translated_system_errors(self._source):
            self._remove_rest()
            folder = self._folder()
            if folder is None:
                return
            with kept_from_streams(*folder.databases):
                self._remove_begun()
                in_place = folder.path == self._path
                if in_place or not (is_complete(self._path) and is_store(self._path)):
                    self._build(folder)
                elif self._log_lost() is not None:
                    return
                if not in_place:
                    folder.remove()

    def discard(self) -> None:
        """Remove the folder that Kafka Streams has left, if there is one. Raises: StoreLockedError."""
        if not backend_named(self._config.backend).persistent:
            return
        with translated_system_errors(self._source):
            folder = self._folder()
            if folder is None:
                return
            with kept_from_streams(*folder.databases):
                self._remove_begun()
                shut_out_streams(folder.databases[0])
                if folder.path == self._path:
                    self._clear_place()
                else:
                    folder.remove()

    def _remove_begun(self) -> None:
        """Remove what a takeover by a store of RocksDB has begun, if another engine is configured now."""
        if self._source != self._path:
            remove_durably(beside(self._source, SWAP_END))
            wipe(beside(self._source, PREPARE_END))

    def _folder(self) -> StreamsFolder | None:
        folder = left_by_streams(self._source, self._segments)
        if folder is not None:
            self._left_in = folder.path
        return folder

    def _build(self, folder: StreamsFolder) -> None:
        """Build the new store beside its place, and put it there. An unfinished one is removed first."""
        new = beside(self._path, PREPARE_END)
        wipe(new)
        try:
            self._copy(folder, new)
        except CommitFailedError as error:
            with suppress(StoreError):
                wipe(new)
            raise StoreUnavailableError(
                f"{self._left_in} could not be taken over, and is as it was: {error}"
            ) from error
        except BaseException as error:
            with suppress(StoreError):
                wipe(new)
            lost = self._log_lost() if isinstance(error, StoreCorruptedError) else None
            if lost is not None:
                raise lost from error
            raise
        replace_store(self._path, lambda: shut_out_streams(folder.databases[0]))

    def _copy(self, folder: StreamsFolder, into: Path) -> None:
        """Copy all records into a new store in ``into``, then the offsets and the position."""
        self._check_serdes()
        with self._told(), closing(self._opened(folder)) as left:
            left.check_families()
            lost = self._log_lost()
            if lost is not None and not left.is_empty():
                raise lost
            end = self._end(left.end())
            self._check_config(folder)
            left.check()
            self._check_last(left, end.offsets)
            with closing(self._config.open(into, name=self._name)) as store:
                num_pairs = self._write(store, left, end)
        _log.info(
            "store %r: took over %d pairs of Kafka Streams in %s, at %s",
            self._name,
            num_pairs,
            self._left_in,
            ", ".join(f"offset {offset} of {topic}-{number}" for (topic, number), offset in end.offsets.items()),
        )

    def _opened(self, folder: StreamsFolder) -> LeftStore:
        # They need rocksdict, which the configured backend may not need.
        from stores.tasks.stores.streams_records import LeftPairs, LeftSegments, LeftVersions

        records = self._config.records
        if folder.is_segmented and isinstance(records, SegmentedKind):
            return LeftSegments(folder.databases, records)
        if isinstance(records, VersionedKind):
            return LeftVersions(folder.path, records)
        return LeftPairs(folder.path, records if isinstance(records, TimestampedKind) else None)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Name the store in the error for one that can't be taken over."""
        try:
            yield
        except NotTakenOverError as error:
            raise (self._unfit if error.fits_another else self._refused)(str(error)) from error

    def _check_serdes(self) -> None:
        """Check that the serdes may read what Kafka's write. Raises: StoreIncompatibleError."""
        records = self._config.records
        for part in ("key", "value"):
            serde = getattr(records, part, None)
            if isinstance(serde, Int64Serde | Float64Serde):
                raise self._unfit(
                    f"{serde!r}, the serde of its {part}s, does not read the numbers that Kafka's serializers write: "
                    "give a serde that does, as on the page kafka.md"
                )

    def _check_config(self, folder: StreamsFolder) -> None:
        """Check the configured store. Raises: StoreIncompatibleError if another one would do; TaskCorruptedError."""
        config, records = self._config, self._config.records
        backend = backend_named(config.backend)
        if isinstance(backend, StoreBackend) or not backend.manages_offsets:
            raise self._unfit(f"stores of {backend.name} do not keep its offset with its records")
        if not (
            folder.is_segmented or records is None or isinstance(records, KeyValue | TimestampedKind | VersionedKind)
        ):
            raise self._unfit(f"it is configured as a {records.kind} store")
        if isinstance(records, TimestampedKind) and records.ttl_ms is not None:
            raise self._unfit("its configuration has a ttl_ms")
        if config.upgrade is not None:
            raise self._refused("its configuration has an upgrade")

    def _check_last(self, left: LeftStore, offsets: Mapping[TopicPartition, int]) -> None:
        """Check that the store has the changelog records at its offsets. Raises: TaskCorruptedError."""
        for partition, offset in offsets.items():
            record = self._record_at(partition, offset)
            if record is not None and left.lacks(record):
                topic, number = partition
                raise self._refused(f"it does not have the record at its offset {offset} of {topic}-{number}")

    def _record_at(self, partition: TopicPartition, offset: int) -> Record | None:
        """Return the record at an offset, None if it is not there any more or has no key."""
        try:
            record = next(self._changelog.read(partition, offset), None)
        except OffsetOutOfRangeError:
            return None
        return record if record is not None and record.offset == offset and record.key is not None else None

    def _write(self, store: KeyValueStore, left: LeftStore, end: End) -> int:
        if self._config.records is not None:
            self._config.records.prepare(store)
        num_pairs = 0
        with closing(left.steps(store)) as steps:
            for piece in in_pieces(steps, PIECE_BYTES):
                try:
                    store.restore(piece, {})
                except ValueError as error:
                    raise self._unfit(str(error)) from error
                num_pairs += len(piece)
        store.restore([], end.offsets, end.position, left.marks() or None)
        return num_pairs

    def _clear_place(self) -> None:
        """Remove Kafka's folder, and move foreign files of it out of the way."""
        former = beside(self._path, FORMER_END)
        wipe(former)
        self._path.rename(former)
        sync_folder(former.parent)
        remove_streams_store(former)

    def _remove_rest(self) -> None:
        """Remove the rest of a Kafka's folder whose removal was interrupted."""
        in_place = self._source == self._path
        rest = beside(self._path, FORMER_END) if in_place else self._source
        if not is_streams_store(rest):
            _remove_empty([rest])
        elif in_place and not is_streams_store(self._path):
            remove_streams_store(rest)
        if self._segments is not None:
            _remove_empty([*segment_folders(self._segments), self._segments])

    def _unfit(self, reason: str) -> StoreIncompatibleError:
        return StoreIncompatibleError(
            f"Kafka Streams has left the store {self._name!r} in {self._left_in}, and it can't be taken over: "
            f"{reason}. Change the configuration, or remove that folder to restore the store from its changelog. "
            "Nothing of it was changed"
        )

    def _refused(self, reason: str) -> TaskCorruptedError:
        return TaskCorruptedError(f"Kafka Streams has left it in {self._left_in}, and it can't be taken over: {reason}")


class TaskTakeover(Takeover):
    """The takeover of a store by the one of ``plan``, whose checkpoint file is Kafka's."""

    def __init__(self, plan: StorePlan) -> None:
        folder, path = plan.checkpoint.path.parent, plan.path
        segmented = isinstance(plan.config.records, SegmentedKind)
        # In the layout store-partition the folder is the store's own, and the engine's folder is the store.
        if path.parent == folder:
            super().__init__(plan, path.with_name(ENGINE_FOLDER))
        else:
            super().__init__(plan, folder / ENGINE_FOLDER / plan.name, folder / plan.name if segmented else None)
        self._plan, self._partition = plan, plan.partition
        self._offset: int | None = None
        self._position: Callable[[], Mapping[TopicPartition, int]] = dict

    def run(self, offset: int | None, position: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Take the store over if Kafka Streams has left one, or complete a takeover that was interrupted.

        ``offset`` is that of the checkpoint file, and ``position`` returns that of the position file.

        Raises: TaskCorruptedError, StoreCorruptedError if the store must be restored from its changelog;
        StoreIncompatibleError if only another configuration can take it over; StoreLockedError if Kafka Streams has it
        open; ChangelogLostError; StoreUnavailableError. Kafka's folder is then as it was.
        """
        self._offset, self._position = offset, position
        self._take()

    def _end(self, kept: End | None) -> End:
        where = "the checkpoint file has" if kept is None else "its database has"
        offset = self._offset if kept is None else kept.offsets.get(self._partition)
        if offset is None:
            if other := self._other_changelog(kept):
                raise self._unfit(f"{where} the offset of {other}, of another application ID")
            raise self._refused(f"{where} no offset for it, so Kafka Streams was not closed cleanly")
        return End({self._partition: offset}, self._position() if kept is None else kept.position)

    def _other_changelog(self, kept: End | None) -> str | None:
        """Return the changelog topic of this store and another application in ``kept`` or the file; None for none."""
        topic, number = self._partition
        end = f"-{self._name}-changelog"
        own = f"{topic.removesuffix(end)}-"
        with suppress(StoreCorruptedError):
            for other, of in self._plan.checkpoint.read() if kept is None else kept.offsets:
                if of == number and other.endswith(end) and not other.startswith(own):
                    return other
        return None

    def _log_lost(self) -> ChangelogLostError | None:
        if not self._plan.is_log_empty:
            return None
        topic, number = self._partition
        return ChangelogLostError(
            f"the changelog {topic}-{number} is empty, and Kafka Streams has left records in {self._left_in}: "
            "use its application ID and its brokers, or remove that folder to start over"
        )


class GlobalTakeover(Takeover):
    """The takeover of a global store by the one of ``plan``, which is at ``FOLDER/ENGINE/NAME``."""

    def __init__(self, plan: FollowingStore) -> None:
        self._folder_path = folder = plan.path.parents[1]
        super().__init__(plan, folder / ENGINE_FOLDER / plan.name)
        self._checkpoint = CheckpointFile(folder / CHECKPOINT_FILE)
        self._starts: Mapping[TopicPartition, int] = {}

    def run(self, starts: Mapping[TopicPartition, int]) -> str | None:
        """Take the store over if Kafka Streams has left one. ``starts`` has the first offset of each partition.

        Return the reason if it was removed instead, to be read whole. Raises: StoreIncompatibleError if only another
        configuration can take it over; StoreLockedError if Kafka Streams has it open; StoreUnavailableError;
        ChangelogError. Kafka's folder is then as it was.
        """
        if not backend_named(self._config.backend).persistent:
            return None
        self._starts, reason = starts, None
        try:
            self._take()
        except (StoreCorruptedError, TaskCorruptedError) as error:
            reason = str(error)
            _log.warning("global store %r is to be read whole: %s", self._name, reason)
            self.discard()
        # What they say is in the store now, or is gone with that of Kafka Streams.
        for partition in starts:
            self._checkpoint.forget(partition)
        position = self._folder_path / f"{self._name}.position"
        with translated_system_errors(position):
            remove_durably(position)
        return reason

    def _end(self, kept: End | None) -> End:
        known = self._checkpoint.known() if kept is None else kept.offsets
        following = {partition: at for partition, at in known.items() if partition in self._starts}
        if not following:
            where = "the checkpoint file" if kept is None else "its database"
            raise self._refused(f"{where} has no offset of its topic")
        for partition, at in following.items():
            end = self._changelog.end_offset(partition)
            if not self._starts[partition] <= at <= end:
                raise self._refused(
                    f"it goes on at offset {at} of {partition.topic}-{partition.partition}, which can be read from "
                    f"{self._starts[partition]} to {end}"
                )
        offsets = {partition: at - 1 for partition, at in following.items() if at}
        return End(offsets, offsets)

    def _log_lost(self) -> None:
        return None


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        if not folder.is_symlink():
            with suppress(OSError):
                folder.rmdir()
