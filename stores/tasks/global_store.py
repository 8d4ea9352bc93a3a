"""A global store: all partitions of a topic in one store, which each process follows by itself.

Functions only read it. It keeps the offsets of all partitions with its data, and every commit has both. After a kill it
goes on from a commit: the last one, or at the level CHANGELOG an earlier one, ``restore_max_bytes`` before it at most.
Source: KIP-99; KIP-892, "Atomic Checkpointing".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from stores.changelog.interface import Changelog, Record
from stores.config import StoreConfig
from stores.errors import (
    ChangelogError,
    ConfigError,
    StoreCorruptedError,
    StoreIncompatibleError,
    StoreTooNewError,
)
from stores.interface import Closeable, IsolationLevel, KeyValueStore, PositionBound, TopicPartition
from stores.records.key_value import KeyValue
from stores.records.record_kind import RecordKind, check_untyped, is_empty
from stores.records.timestamped import TimestampedKeyValue
from stores.registry import backend_named
from stores.tasks.directory.names import check_topic
from stores.tasks.stores.conversion import VERSION_HEADER, Conversion
from stores.tasks.stores.replay_bound import ReplayBound

_log = logging.getLogger(__name__)

_TOLD_EVERY = 10_000
"""One of this number of records that are left out causes a warning, always the first one."""
COMMIT_BYTES_MAX = 8 * 1024 * 1024
"""The keys and values after which a commit takes no more records."""


@dataclass(frozen=True)
class GlobalStore:
    """The description of a global store: its topic, and its configuration, kind of records, or None for bytes.

    The last record of a key in the order of its partition wins, and one without a value deletes the key. Records
    without a key are left out, and so are those with an empty key, with a warning. So all records of a key are to be in
    one partition.

    Raises: TypeError; ConfigError for a store that does not isolate uncommitted writes or keep offsets, or has other
    records than bytes, KeyValue and TimestampedKeyValue without a time to live.
    """

    topic: str
    store: StoreConfig | RecordKind | None = None

    def __post_init__(self) -> None:
        check_topic(self.topic)
        if self.store is not None and not isinstance(self.store, StoreConfig | RecordKind):
            raise TypeError(
                f"the store of a GlobalStore is a StoreConfig, a kind of stores.records or None, not "
                f"{type(self.store).__name__}"
            )
        _check(self.config)

    @property
    def config(self) -> StoreConfig:
        """The configuration: that of the store, or the default one with its kind of records."""
        if isinstance(self.store, StoreConfig):
            return self.store
        return StoreConfig(records=self.store)


class GlobalCopy(Closeable):
    """The copy of one global store in this process, at ``path``. For the thread that opens it, but for ``view``."""

    def __init__(self, name: str, path: Path, described: GlobalStore, changelog: Changelog) -> None:
        self.name = name
        self.wiped_because: str | None = None
        """The reason why ``open`` has wiped the store; None if it has not."""
        self.path = path
        """The store's folder."""
        self._topic, self._config = described.topic, described.config
        self._changelog = changelog
        self._store: KeyValueStore | None = None
        self._next: dict[TopicPartition, int] = {}
        """The next offset to read of each partition."""
        self._ends: dict[TopicPartition, int] = {}
        """The ends that ``ends`` has returned last."""
        self._bound = ReplayBound(self._config.restore_max_bytes)
        self.skipped_total = 0
        """The records that were left out because their key is empty."""

    @property
    def store(self) -> KeyValueStore:
        """The store, which is open."""
        return self._open_store

    def open(self) -> None:
        """Open the store, and find out where it goes on in each partition. Nothing is read yet.

        A store that is damaged, or has data that the topic has no more, is wiped. Raises: ChangelogError if the topic
        does not exist; StoreIncompatibleError if the store is of another backend or kind; as ``open_store``.
        """
        count = self._changelog.topics().get(self._topic, 0)
        if not count:
            raise ChangelogError(f"the topic {self._topic!r} of global store {self.name!r} does not exist: create it")
        self._changelog.expect_reads_to_end(self._topic)
        partitions = [TopicPartition(self._topic, number) for number in range(count)]
        try:
            store = self._opened()
        except (StoreCorruptedError, StoreTooNewError) as error:
            self.wiped_because = str(error)
        except StoreIncompatibleError as error:
            raise StoreIncompatibleError(
                f"global store {self.name!r} is not as described: {error}. To read its topic whole instead, remove "
                f"{self.path}"
            ) from error
        else:
            self.wiped_because = self._misfit(store, partitions)
        if self.wiped_because is not None:
            _log.warning("global store %r is wiped, and read whole: %s", self.name, self.wiped_because)
            self.close()
            backend_named(self._config.backend).wipe(self.path)
            store = self._opened()
        for partition in partitions:
            offset = store.committed_offset(partition)
            self._next[partition] = self._changelog.start_offset(partition) if offset is None else offset + 1

    def follow(self, records_max: int) -> int:
        """Write up to ``records_max`` new records of all partitions in one commit; return how many were read.

        0 means that the store has all that is committed. After an error nothing of the call is in the store.

        Raises: ChangelogError for a record that the store can't have, and if the topic no longer has the next record;
        ChangelogTimeoutError; as ``KeyValueStore.commit``.
        """
        store = self._open_store
        conversion = Conversion(store, self._config.records, None)
        offsets: dict[TopicPartition, int] = {}
        ended = []
        read = num_bytes = 0
        try:
            for partition, offset in self._next.items():
                for record in islice(self._changelog.read(partition, offset), records_max - read):
                    read += 1
                    offsets[partition] = record.offset
                    if record.key is not None:
                        num_bytes += len(record.key) + len(record.value or b"")
                        self._put(store, conversion, partition, record)
                    if num_bytes >= COMMIT_BYTES_MAX:
                        break
                if read == records_max or num_bytes >= COMMIT_BYTES_MAX:
                    break
                ended.append(partition)
            if offsets:
                self._bound.make_room(num_bytes)
                self._commit(store, offsets)
                self._bound.committed(num_bytes)
            else:
                self._bound.idle()
        except BaseException:
            with suppress(Exception):
                store.rollback()
            raise
        # Those that were read now come last the next time, so that none of them waits for another one's end.
        for partition in offsets:
            del self._next[partition]
        self._next.update({partition: offset + 1 for partition, offset in offsets.items()})
        # Markers, aborted records and gaps may be before an end that was known before this read.
        for partition in ended:
            self._next[partition] = max(self._next[partition], self._ends.get(partition, 0))
        return read

    def ends(self) -> dict[TopicPartition, int]:
        """Return the end of each partition."""
        self._ends = {partition: self._changelog.end_offset(partition) for partition in self._next}
        return self._ends

    def lag(self, ends: Mapping[TopicPartition, int]) -> int:
        """Return the number of offsets before these ends that were not read yet, of all partitions."""
        return sum(max(end - self._next[partition], 0) for partition, end in ends.items())

    def view(self, bound: PositionBound | None = None) -> Any:
        """Return a view of the committed state for any thread, typed by the configuration.

        Raises: StoreClosedError; a write through it raises ReadOnlyViewError.
        """
        view = self._open_store.read_only(IsolationLevel.READ_COMMITTED, bound)
        records = self._config.records
        return view if records is None else records.view(view)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    @property
    def _open_store(self) -> KeyValueStore:
        assert self._store is not None
        return self._store

    def _opened(self) -> KeyValueStore:
        try:
            store = self._store = self._config.open(self.path, name=self.name)
            if self._config.records is None:
                check_untyped(store)
            else:
                self._config.records.prepare(store)
        except BaseException:
            self.close()
            raise
        self._bound.follow(store.persistence)
        return store

    def _misfit(self, store: KeyValueStore, partitions: list[TopicPartition]) -> str | None:
        """Return the reason why the store does not fit its topic; None if it does."""
        offsets = {partition: store.committed_offset(partition) for partition in partitions}
        if not is_empty(store) and all(offset is None for offset in offsets.values()):
            return f"it has data, and no offset of topic {self._topic!r}"
        for partition in store.position(IsolationLevel.READ_COMMITTED):
            if partition not in offsets:
                return f"it has data of {partition.topic}-{partition.partition}, which does not exist"
        for partition, offset in offsets.items():
            if offset is not None:
                start, end = self._changelog.start_offset(partition), self._changelog.end_offset(partition)
                if not start <= offset + 1 <= end:
                    return (
                        f"it goes on at offset {offset + 1} of {partition.topic}-{partition.partition}, which can be "
                        f"read from {start} to {end}"
                    )
        return None

    def _put(self, store: KeyValueStore, conversion: Conversion, partition: TopicPartition, record: Record) -> None:
        try:
            for key, value in conversion.convert(record):
                if key:
                    store.put(key, value)
                else:
                    self._skip(partition, record)
        except ValueError as error:
            raise ChangelogError(
                f"global store {self.name!r} can't have the record at offset {record.offset} of "
                f"{partition.topic}-{partition.partition}: {error}. Remove the record from the topic"
            ) from None
        except StoreIncompatibleError:
            raise ChangelogError(
                f"global store {self.name!r} can't have the record at offset {record.offset} of "
                f"{partition.topic}-{partition.partition}, which is of the changelog of an upgraded store (header "
                f"{VERSION_HEADER}): name another topic"
            ) from None

    def _skip(self, partition: TopicPartition, record: Record) -> None:
        """Leave out a record with an empty key: no store has one, so nobody could read it. Anyone may write it."""
        self.skipped_total += 1
        if self.skipped_total % _TOLD_EVERY == 1:
            _log.warning(
                "global store %r leaves out the record at offset %d of %s-%d, because its key is empty; %d such "
                "records were left out since it was opened",
                self.name,
                record.offset,
                *partition,
                self.skipped_total,
            )

    @staticmethod
    def _commit(store: KeyValueStore, offsets: Mapping[TopicPartition, int]) -> None:
        for partition, offset in offsets.items():
            store.advance_position(partition, offset)
        store.commit(offsets)


def _check(config: StoreConfig) -> None:
    backend = backend_named(config.backend)
    if not backend.transactional or not backend.manages_offsets:
        raise ConfigError(
            f"{config.backend} can't have a global store: it needs a backend that keeps its offsets in the same commit "
            "as its data, such as rocksdb-indexed-batch"
        )
    records = config.records
    if records is not None and not isinstance(records, KeyValue | TimestampedKeyValue):
        raise ConfigError(
            f"a global store has bytes, KeyValue or TimestampedKeyValue, not records of the kind {records.kind}"
        )
    if isinstance(records, TimestampedKeyValue) and records.ttl_ms is not None:
        raise ConfigError("a global store has no time to live: its topic says what it has. Drop ttl_ms")
    if config.upgrade is not None:
        raise ConfigError("a global store is not upgraded: give it another name, and it is read whole. Drop upgrade")
