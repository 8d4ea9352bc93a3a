"""Takeover: a store of a task continues with the folder, offset and position that Kafka Streams has left for it.

The records are copied into a store of the configured backend, which is built in ``NAME.prepare``. Its last write has
the offset of the task's checkpoint file and the position. Then it is closed and takes its place, and Kafka's files are
removed (``stores.tasks.directory.replacement``). Until that is decided Kafka's folder counts, and the next opening
starts over. If RocksDB is the backend's engine, Kafka's folder is in that place; else it is removed last.

A folder that can't be taken over is removed like a store that can't be trusted, and restored from its changelog. One
that another configuration could take over is refused unchanged, as a store of the library is.

Source: KIP-892, "Upgrading", "Interactive Query .position Offsets"; Kafka Streams 4.1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

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
from stores.files.plain_files import sync_folder, translated_system_errors
from stores.interface import KeyValueStore, TopicPartition
from stores.records.key_value import KeyValue
from stores.records.timestamped import TimestampedKind
from stores.records.values import TIME_BYTES
from stores.registry import StoreBackend, backend_named
from stores.tasks.directory.replacement import replace_store
from stores.tasks.directory.store_places import (
    ENGINE_FOLDER,
    FORMER_END,
    PREPARE_END,
    beside,
    is_streams_store,
    kept_from_streams,
    remove_streams_store,
)
from stores.tasks.directory.task_files import StorePlan

if TYPE_CHECKING:
    from stores.engines.rocksdb.streams import StreamsDatabase

PIECE_BYTES = 8 << 20
"""The size of keys and values from which a piece is written. A piece is in memory, and one atomic write."""

_log = logging.getLogger(__name__)


class Takeover:
    """The takeover of a store by the one of ``plan``, whose checkpoint file is Kafka's."""

    def __init__(self, plan: StorePlan) -> None:
        self._plan = plan
        self._name, self._path, self._config, self._partition = plan.name, plan.path, plan.config, plan.partition
        folder, path = plan.checkpoint.path.parent, plan.path
        # In the layout store-partition the folder is the store's own, and the engine's folder is the store.
        self._source = path.with_name(ENGINE_FOLDER) if path.parent == folder else folder / ENGINE_FOLDER / plan.name
        self._in_place = self._source == path
        self._timestamped = isinstance(plan.config.records, TimestampedKind)

    def run(self, offset: int | None, position: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Take the store over if Kafka Streams has left one, or complete a takeover that was interrupted.

        ``offset`` is that of the checkpoint file, and ``position`` returns that of the position file.

        Raises: TaskCorruptedError, StoreCorruptedError if the store must be restored from its changelog;
        StoreIncompatibleError if only another configuration can take it over; StoreLockedError if Kafka Streams has it
        open; ChangelogLostError; StoreUnavailableError. Kafka's folder is then as it was.
        """
        if not backend_named(self._config.backend).persistent:
            return
        with translated_system_errors(self._source):
            self._remove_rest()
            if not is_streams_store(self._source):
                return
            with kept_from_streams(self._source):
                if self._in_place or not (is_complete(self._path) and is_store(self._path)):
                    self._build(offset, position)
                elif self._plan.is_log_empty:
                    return
                if not self._in_place:
                    remove_streams_store(self._source)

    def discard(self) -> None:
        """Remove the folder that Kafka Streams has left, if there is one. Raises: StoreLockedError."""
        if not backend_named(self._config.backend).persistent:
            return
        with translated_system_errors(self._source):
            if not is_streams_store(self._source):
                return
            with kept_from_streams(self._source):
                wipe(beside(self._path, PREPARE_END))
                if self._in_place:
                    self._clear_place()
                else:
                    remove_streams_store(self._source)

    def _check_config(self) -> None:
        """Check the configured store. Raises: StoreIncompatibleError if another one would do; TaskCorruptedError."""
        config, records = self._config, self._config.records
        backend = backend_named(config.backend)
        if isinstance(backend, StoreBackend) or not backend.manages_offsets:
            raise self._unfit(f"stores of {backend.name} do not keep its offset with its records")
        if not (records is None or isinstance(records, KeyValue | TimestampedKind)):
            raise self._unfit(f"it is configured as a {records.kind} store")
        if isinstance(records, TimestampedKind) and records.ttl_ms is not None:
            raise self._unfit("its configuration has a ttl_ms")
        if config.upgrade is not None:
            raise self._refused("its configuration has an upgrade")

    def _build(self, offset: int | None, position: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Build the new store beside its place, and put it there. An unfinished one is removed first."""
        folder = beside(self._path, PREPARE_END)
        wipe(folder)
        try:
            records = self._copy(folder, offset, position)
        except CommitFailedError as error:
            with suppress(StoreError):
                wipe(folder)
            raise StoreUnavailableError(f"{self._source} could not be taken over, and is as it was: {error}") from error
        except BaseException as error:
            with suppress(StoreError):
                wipe(folder)
            if isinstance(error, StoreCorruptedError) and self._plan.is_log_empty:
                raise self._log_lost() from error
            raise
        _log.info(
            "store %r: took over %d records of Kafka Streams in %s, at offset %d of %s-%d",
            self._name,
            records,
            self._source,
            offset,
            *self._partition,
        )
        replace_store(self._path)

    def _copy(self, folder: Path, offset: int | None, position: Callable[[], Mapping[TopicPartition, int]]) -> int:
        """Copy all records into a new store in ``folder``, then the offset and the position. Return their number."""
        # It needs rocksdict, which the configured backend may not need.
        from stores.engines.rocksdb.streams import PLAIN, TIMESTAMPED, StreamsDatabase

        family = TIMESTAMPED if self._timestamped else PLAIN
        with closing(StreamsDatabase(self._source)) as database:
            unknown = sorted(database.families - {PLAIN, TIMESTAMPED})
            if unknown:
                raise self._unfit(f"it has the column families {', '.join(unknown)}, which are not known here")
            if self._plan.is_log_empty and not all(map(database.is_empty, database.families)):
                raise self._log_lost()
            if offset is None:
                if other := self._other_changelog():
                    raise self._unfit(f"the checkpoint file has the offset of {other}, of another application ID")
                raise self._refused("the checkpoint file has no offset for it, so Kafka Streams was not closed cleanly")
            self._check_config()
            if self._timestamped is not (TIMESTAMPED in database.families):
                raise self._unfit(
                    "it has no timestamps, and the configured store has"
                    if self._timestamped
                    else "it has timestamps, and the configured store has none"
                )
            if self._timestamped and not database.is_empty(PLAIN):
                raise self._refused("some of its records are from before it had timestamps")
            self._check_last(database, family, offset)
            with closing(self._config.open(folder, name=self._name)) as store:
                return self._write(store, database.chunks(family), offset, position())

    def _other_changelog(self) -> str | None:
        """Return the changelog topic of this store and another application in the checkpoint file; None for none."""
        topic, number = self._partition
        end = f"-{self._name}-changelog"
        own = f"{topic.removesuffix(end)}-"
        with suppress(StoreCorruptedError):
            for other, of in self._plan.checkpoint.read():
                if of == number and other.endswith(end) and not other.startswith(own):
                    return other
        return None

    def _write(
        self,
        store: KeyValueStore,
        chunks: Iterable[list[tuple[bytes, bytes]]],
        offset: int,
        position: Mapping[TopicPartition, int],
    ) -> int:
        if self._config.records is not None:
            self._config.records.prepare(store)
        records = 0
        for piece in _pieces(chunks):
            try:
                store.restore(piece, {})
            except ValueError as error:
                raise self._unfit(str(error)) from error
            records += len(piece)
        store.restore([], {self._partition: offset}, position)
        return records

    def _check_last(self, database: StreamsDatabase, family: str, offset: int) -> None:
        """Check that the store has the changelog record at its offset, if there is one. Raises: TaskCorruptedError."""
        try:
            record = next(self._plan.changelog.read(self._partition, offset), None)
        except OffsetOutOfRangeError:
            return
        if record is None or record.offset != offset or record.key is None:
            return
        value = database.get(family, record.key)
        if value is not None and self._timestamped:
            value = value[TIME_BYTES:]
        if value != record.value:
            raise self._refused(f"it does not have the changelog record at its offset {offset}")

    def _clear_place(self) -> None:
        """Remove Kafka's folder, and move foreign files of it out of the way."""
        former = beside(self._path, FORMER_END)
        wipe(former)
        self._path.rename(former)
        sync_folder(former.parent)
        remove_streams_store(former)

    def _remove_rest(self) -> None:
        """Remove the rest of a Kafka's folder whose removal was interrupted."""
        rest = beside(self._path, FORMER_END) if self._in_place else self._source
        if not is_streams_store(rest):
            if rest.is_dir():
                with suppress(OSError):
                    rest.rmdir()
        elif self._in_place and not is_streams_store(self._path):
            remove_streams_store(rest)

    def _log_lost(self) -> ChangelogLostError:
        topic, number = self._partition
        return ChangelogLostError(
            f"the changelog {topic}-{number} is empty, and Kafka Streams has left records in {self._source}: "
            "use its application ID and its brokers, or remove that folder to start over"
        )

    def _unfit(self, reason: str) -> StoreIncompatibleError:
        return StoreIncompatibleError(
            f"Kafka Streams has left the store {self._name!r} in {self._source}, and it can't be taken over: {reason}. "
            "Change the configuration, or remove that folder to restore the store from its changelog. Nothing of it "
            "was changed"
        )

    def _refused(self, reason: str) -> TaskCorruptedError:
        return TaskCorruptedError(f"Kafka Streams has left it in {self._source}, and it can't be taken over: {reason}")


def _pieces(chunks: Iterable[list[tuple[bytes, bytes]]]) -> Iterator[list[tuple[bytes, bytes | None]]]:
    """Join ``chunks`` to pieces of about ``PIECE_BYTES``."""
    piece: list[tuple[bytes, bytes | None]] = []
    piece_bytes = 0
    for chunk in chunks:
        piece += chunk
        piece_bytes += sum(len(key) + len(value) for key, value in chunk)
        if piece_bytes >= PIECE_BYTES:
            yield piece
            piece, piece_bytes = [], 0
    if piece:
        yield piece
