"""Global stores: all partitions of a topic in one store, which each process follows by itself, in a folder of its own.

Functions only read them. A store keeps the offsets of all partitions with its data, and every commit has both. After a
kill it goes on from a commit: the last one, or at the level CHANGELOG an earlier one, ``restore_max_bytes`` before it
at most.

Source: KIP-99; KIP-892, "Atomic Checkpointing".
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypeVar, overload

from stores.changelog.arguments import check_changelog
from stores.changelog.interface import Changelog, Record
from stores.config import StoreConfig
from stores.contract.arguments import check_type
from stores.declarations import StoreSetting, check_name, check_setting, configured
from stores.errors import ChangelogError, ConfigError, StoreClosedError, StoreIncompatibleError, StoreLockedError
from stores.files.creation import wipe
from stores.files.locks import take
from stores.files.plain_files import check_no_link, make_folder, translated_system_errors
from stores.files.store_directory import checked_path
from stores.interface import Closeable, IsolationLevel, KeyValueStore, PositionBound, TopicPartition
from stores.records.handles import Kinds, ViewHandle
from stores.records.key_value import KeyValue
from stores.records.record_kind import RecordKind, is_empty
from stores.records.timestamped import TimestampedKeyValue
from stores.registry import backend_named
from stores.tasks.directory.store_places import places
from stores.tasks.first_error import FirstError
from stores.tasks.identifier import check_stores, check_topic
from stores.tasks.stores.log_follower import LogFollower, Piece
from stores.tasks.stores.log_format import VERSION_HEADER, Conversion
from stores.topic import Topic, topic_name

View = TypeVar("View")
_log = logging.getLogger(__name__)

_TOLD_EVERY = 10_000
"""One of this number of records that are left out causes a warning, always the first one."""
COMMIT_BYTES_MAX = 8 * 1024 * 1024
"""The keys and values after which a commit takes no more records."""
RECORDS_MAX = 10_000
"""The most records of a commit of one store."""
PROCESSES_MAX = 64
"""The most processes that share a state directory."""
FOLDER, LOCK_FILE = "global", ".lock"


@dataclass(frozen=True, init=False)
class GlobalStore:
    """The description of a global store: its topic, and the declaration of the store, as for a task.

    The store has the bytes of the topic. That of a ``Topic`` has its serdes: it is a KeyValue store if ``store`` is
    None, else a description with the same serdes.

    The last record of a key in the order of its partition wins, and one without a value deletes the key. Records
    without a key are left out, and so are those with an empty key, with a warning. So all records of a key are to be in
    one partition.

    Raises: TypeError; ConfigError for a store that does not isolate uncommitted writes or keep offsets, or has other
    records than bytes, KeyValue and TimestampedKeyValue without a time to live.
    """

    topic: str
    store: StoreSetting

    def __init__(self, topic: str | Topic[Any, Any], store: StoreSetting = None) -> None:
        check_setting("a global store", store)
        object.__setattr__(self, "topic", topic_name(topic))
        object.__setattr__(self, "store", _typed(topic, store) if isinstance(topic, Topic) else store)
        check_topic(self.topic)
        _check(self.config)

    @property
    def config(self) -> StoreConfig:
        """The configuration: that of the store, or the default one with what is declared."""
        return configured(self.store, StoreConfig())


class TopicConversion(Conversion):
    """The conversion of a topic's records, which anybody may write: those with an empty key are left out."""

    def __init__(self, store: KeyValueStore, records: RecordKind | None, copy: GlobalCopy) -> None:
        super().__init__(store, records, None)
        self._copy = copy

    def fitting(self, partition: TopicPartition, record: Record) -> Iterator[tuple[bytes, bytes | None]]:
        if not record.key:
            self._copy.leave_out(partition, record.offset)
            return
        try:
            yield from super().fitting(partition, record)
        except StoreIncompatibleError:
            reason = f"it is of the changelog of an upgraded store (header {VERSION_HEADER})"
            raise self.unfit(partition, record, reason) from None

    def unfit(self, partition: TopicPartition, record: Record, reason: str) -> ChangelogError:
        return ChangelogError(
            f"global store {self._copy.name!r} can't have the record at offset {record.offset} of "
            f"{partition.topic}-{partition.partition}: {reason}. Remove the record from the topic, or name another one"
        )


class GlobalCopy(LogFollower):
    """The copy of one global store in this process, at ``path``. For the thread that opens it, but for ``view``."""

    def __init__(self, name: str, path: Path, described: GlobalStore, changelog: Changelog) -> None:
        super().__init__(name, path, described.config)
        self._topic, self._changelog = described.topic, changelog
        self._next: dict[TopicPartition, int] = {}
        """The next offset to read of each partition."""
        self._ends: dict[TopicPartition, int] = {}
        """The ends that ``ends`` has returned last."""
        self.skipped_total = 0
        """The records that were left out because their key is empty."""

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
        self._next = {partition: self._changelog.start_offset(partition) for partition in partitions}
        try:
            self.open_or_wipe()
        except StoreIncompatibleError as error:
            raise StoreIncompatibleError(
                f"global store {self.name!r} is not as described: {error}. To read its topic whole instead, remove "
                f"{self.path}"
            ) from error
        for partition in partitions:
            offset = self.store.committed_offset(partition)
            if offset is not None:
                self._next[partition] = offset + 1

    def follow(self, records_max: int) -> int:
        """Write up to ``records_max`` new records of all partitions in one commit; return how many were read.

        0 means that the store has all that is committed. After an error nothing of the call is in the store.

        Raises: ChangelogError for a record that the store can't have, and if the topic no longer has the next record;
        ChangelogTimeoutError; as ``KeyValueStore.commit``.
        """
        piece, whole_partitions = Piece(), []
        conversion = TopicConversion(self.store, self._config.records, self)
        for partition, offset in self._next.items():
            # No name holds the read: it ends here, and with it a snapshot of the changelog.
            if piece.add(
                partition, iter(self._changelog.read(partition, offset)), conversion, records_max, COMMIT_BYTES_MAX
            ):
                break
            whole_partitions.append(partition)
        if piece.read:
            self.bound.make_room(piece.num_bytes)
            self._commit(piece)
            self.bound.committed(piece.num_bytes)
        else:
            self.bound.idle()
        # Those that were read now come last the next time, so that none of them waits for another one's end.
        for partition in piece.offsets:
            del self._next[partition]
        self._next.update({partition: offset + 1 for partition, offset in piece.offsets.items()})
        # Markers, aborted records and gaps may be before an end that was known before this read.
        for partition in whole_partitions:
            self._next[partition] = max(self._next[partition], self._ends.get(partition, 0))
        return piece.read

    def ends(self) -> dict[TopicPartition, int]:
        """Return the end of each partition."""
        self._ends = {partition: self._changelog.end_offset(partition) for partition in self._next}
        return self._ends

    def lag(self, ends: Mapping[TopicPartition, int]) -> int:
        """Return the number of offsets before these ends that were not read yet, of all partitions."""
        return sum(max(end - self._next[partition], 0) for partition, end in ends.items())

    def view(self, bound: PositionBound | None = None) -> Any:
        """Return a typed view of the committed state for any thread. Raises: StoreClosedError."""
        view = self.store.read_only(IsolationLevel.READ_COMMITTED, bound)
        records = self._config.records
        return view if records is None else records.view(view)

    def leave_out(self, partition: TopicPartition, offset: int) -> None:
        """Count a record with an empty key: no store has one, so nobody could read it."""
        self.skipped_total += 1
        if self.skipped_total % _TOLD_EVERY == 1:
            _log.warning(
                "global store %r leaves out the record at offset %d of %s-%d, because its key is empty; %d such "
                "records were left out since it was opened",
                self.name,
                offset,
                *partition,
                self.skipped_total,
            )

    def _misfit(self) -> str | None:
        offsets = {partition: self.store.committed_offset(partition) for partition in self._next}
        if not is_empty(self.store) and all(offset is None for offset in offsets.values()):
            return f"it has data, and no offset of topic {self._topic!r}"
        for partition in self.store.position(IsolationLevel.READ_COMMITTED):
            if partition not in offsets:
                return f"it has data of {partition.topic}-{partition.partition}, which does not exist"
        for partition, offset in offsets.items():
            end = self._changelog.end_offset(partition)
            if offset is not None and not self._next[partition] <= offset + 1 <= end:
                return (
                    f"it goes on at offset {offset + 1} of {partition.topic}-{partition.partition}, which can be "
                    f"read from {self._next[partition]} to {end}"
                )
        return None

    def _commit(self, piece: Piece) -> None:
        try:
            self.store.put_all(piece.pairs)
            for partition, offset in piece.offsets.items():
                self.store.advance_position(partition, offset)
            self.store.commit(piece.offsets)
        except BaseException:
            with suppress(Exception):
                self.store.rollback()
            raise


class GlobalStores(Closeable):
    """Stores that tasks read and topics fill. One thread opens, follows and closes them; any thread reads.

        state_dir/global/ENGINE/NAME     a store
        state_dir/global/.lock           held (flock) by its process
        state_dir/global-2/              the same for the second process that shares the state directory

    In a ``with`` block they are opened, brought to the ends of their topics, and closed. Give them to ``StreamTask``,
    whose function then gets a view of each by ``TaskContext.store``, and call ``follow`` again and again. A worker does
    both. Two reads of one record may see different commits.

    Raises: TypeError, ConfigError. Source: KIP-99; Kafka Streams, ``GlobalStateUpdateTask``.
    """

    def __init__(self, state_dir: str | PathLike[str], changelog: Changelog, stores: Mapping[str, GlobalStore]) -> None:
        check_changelog(changelog)
        check_descriptions(stores)
        self._state, self._changelog, self._stores = checked_path(state_dir), changelog, dict(stores)
        self._copies: dict[str, GlobalCopy] = {}
        self._lock: int | None = None
        self._readable: Mapping[str, GlobalCopy] | None = None
        """The copies from the end of the opening on: before, a store may lack what it has had."""
        self.restored = 0
        """The records that were read since ``open`` was called."""

    def __repr__(self) -> str:
        state = "closed" if self._readable is None else "open"
        return f"<{type(self).__name__} {', '.join(self._stores) or 'none'}, {state}>"

    @property
    def names(self) -> frozenset[str]:
        """The names of the stores."""
        return frozenset(self._stores)

    @property
    def kinds(self) -> Kinds:
        """The descriptions of the stores by name."""
        return {name: described.config.records for name, described in self._stores.items()}

    def __enter__(self) -> Self:
        self.open()
        return self

    def open(self, on_progress: Callable[[int], None] | None = None) -> None:
        """Open the stores, and bring each to the end of its topic as of now.

        ``on_progress`` is called after each commit with the number of offsets that were left before; its exception ends
        the opening. A store that is damaged or does not fit its topic is wiped, and read whole. The store that another
        engine has left under the same name is removed.

        Raises: ChangelogError if a topic does not exist; ChangelogTimeoutError; StoreLockedError if too many processes
        share the state directory; as ``open_store``.
        """
        self.close()
        try:
            folder = self._taken()
            for name, described in self._stores.items():
                place = folder / backend_named(described.config.backend).engine / name
                with translated_system_errors(place):
                    check_no_link(self._state, place)
                    make_folder(place.parent, 0o700)
                self._copies[name] = copy = GlobalCopy(name, place, described, self._changelog)
                copy.open()
                for other in places(folder):  # Of an earlier configuration.
                    if other.store == name and other.engine != place.parent.name:
                        with suppress(StoreIncompatibleError):  # It is no store's folder.
                            wipe(other.within(folder))
            self._read_to_the_ends(on_progress)
            self._readable = self._copies
        except BaseException:
            self.close()
            raise

    def follow(self, records_max: int = RECORDS_MAX) -> int:
        """Write up to ``records_max`` records into each store, and commit it; return how many were read."""
        self._readable_copies()
        return self._follow(records_max)

    def lag(self) -> int:
        """Return the number of offsets that the stores have not read yet, together. For the thread that follows.

        It is 0 after a ``follow`` that has read all, also if markers of transactions come last. Raises:
        ChangelogTimeoutError.
        """
        return sum(copy.lag(copy.ends()) for copy in self._copies.values())

    def wiped(self) -> dict[str, str]:
        """Return the reason for each store that was wiped when it was opened."""
        return {name: copy.wiped_because for name, copy in self._copies.items() if copy.wiped_because is not None}

    @overload
    def view(self, store: ViewHandle[View], bound: PositionBound | None = None) -> View: ...

    @overload
    def view(self, store: str, bound: PositionBound | None = None) -> Any: ...

    def view(self, store: object, bound: PositionBound | None = None) -> Any:
        """Return a view of the committed state, for any thread, of a store by its description or its name.

        Raises: KeyError, StoreClosedError.
        """
        name = store.name if isinstance(store, RecordKind) else store
        if not isinstance(name, str) or name not in self._stores:
            raise KeyError(name)
        return self._readable_copies()[name].view(bound)

    def views(self) -> dict[str, Any]:
        """Return a view of each store by name. Raises: StoreClosedError."""
        return {name: self.view(name) for name in self._stores}

    def opened(self) -> dict[Path, KeyValueStore]:
        """Return the stores by their folders: another process may have its own copies. Raises: StoreClosedError."""
        return {copy.path: copy.store for copy in self._readable_copies().values()}

    def close(self) -> None:
        """Close the stores. Their views are closed with them. May be called more than once."""
        self._readable = None
        copies, self._copies = self._copies, {}
        errors = FirstError()
        for copy in copies.values():
            with errors.step():
                copy.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)
        self.restored = 0
        errors.reraise()

    def _follow(self, records_max: int = RECORDS_MAX) -> int:
        read = sum(copy.follow(records_max) for copy in self._copies.values())
        self.restored += read
        return read

    def _read_to_the_ends(self, on_progress: Callable[[int], None] | None) -> None:
        ends = {name: copy.ends() for name, copy in self._copies.items()}
        # If nothing is read, markers, aborted records and gaps are all that is left.
        while (remaining := sum(copy.lag(ends[name]) for name, copy in self._copies.items())) and self._follow():
            if on_progress is not None:
                on_progress(remaining)

    def _taken(self) -> Path:
        """Lock the first folder that no process has, and return it."""
        with translated_system_errors(self._state):
            make_folder(self._state, 0o700)
        for number in range(1, PROCESSES_MAX + 1):
            folder = self._state / (FOLDER if number == 1 else f"{FOLDER}-{number}")
            try:
                with translated_system_errors(folder):
                    check_no_link(self._state, folder)
                    make_folder(folder, 0o700)
                    self._lock = take(folder / LOCK_FILE)
                return folder
            except StoreLockedError:
                continue
        raise StoreLockedError(
            f"{PROCESSES_MAX} processes have global stores in {self._state}: give this one another state directory"
        )

    def _readable_copies(self) -> Mapping[str, GlobalCopy]:
        copies = self._readable
        if copies is None:
            raise StoreClosedError("the global stores are closed: open them")
        return copies


def check_descriptions(stores: Mapping[str, GlobalStore]) -> None:
    """Check the descriptions of global stores by name. Raises: TypeError, ConfigError."""
    check_type(stores, Mapping, "global stores are a mapping of names to GlobalStore")
    check_stores(stores)
    for name, described in stores.items():
        check_type(described, GlobalStore, f"global store {name!r} needs a GlobalStore")
        check_name(name, described.store)


def check_apart(global_names: Collection[str], names: Collection[str]) -> None:
    """Check that no store of a task has the name of a global store. Raises: ConfigError."""
    check_stores(sorted({*global_names, *names}))
    for name in sorted(set(global_names).intersection(names)):
        raise ConfigError(f"{name!r} is the name of a global store and of a store of a task: rename one of them")


def _typed(topic: Topic[Any, Any], store: StoreSetting) -> StoreSetting:
    """Return the declaration of a store with the serdes of ``topic``. Raises: ConfigError if it has others."""
    if store is None:
        return KeyValue(key=topic.key, value=topic.value)
    kind = store.records if isinstance(store, StoreConfig) else store
    serdes = kind.description() if isinstance(kind, RecordKind) else {}
    if (serdes.get("key"), serdes.get("value")) != (topic.key.name, topic.value.name):
        raise ConfigError(
            f"the global store of {topic} has other serdes than its topic, whose bytes it has: give it a description "
            "with the same ones, or name the topic only"
        )
    return store


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
