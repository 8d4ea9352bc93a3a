"""The copy of one global store: its description, the records of its topic that it can have, and its commits.

Source: KIP-99; KIP-892, "Atomic Checkpointing"; KIP-161.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stores.changelog.interface import Changelog, Record
from stores.config import StoreConfig
from stores.declarations import StoreSetting, check_setting, configured
from stores.errors import ChangelogError, ConfigError, DeserializationError, StoreIncompatibleError
from stores.interface import IsolationLevel, KeyValueStore, PositionBound, TopicPartition
from stores.metrics import StoreMetrics
from stores.records.key_value import KeyValue
from stores.records.record_kind import RecordKind, is_empty
from stores.records.timestamped import TimestampedKind
from stores.registry import backend_named
from stores.snapshots import Snapshots
from stores.snapshots.objects import WHOLE_TOPIC
from stores.tasks.directory.replacement import complete, remove_unfinished
from stores.tasks.directory.task_files import FollowingStore
from stores.tasks.global_dead_letters import GlobalDeadLetters
from stores.tasks.identifier import check_topic
from stores.tasks.on_error import DeadLetterTopic, OnError, check_dead_letter_topic, checked_on_error
from stores.tasks.stores.file_snapshots import begin_from_snapshot, snapshots_of
from stores.tasks.stores.log_follower import RESTORING, ColumnReader, LogFollower, OnRestore, Piece, piece_limits
from stores.tasks.stores.log_format import VERSION_HEADER, Conversion
from stores.tasks.stores.takeover import GlobalTakeover
from stores.topic import Topic, topic_name

_log = logging.getLogger(__name__)

_TOLD_EVERY = 10_000
"""One of this number of records that are left out causes a warning, always the first one."""


@dataclass(frozen=True, init=False)
class GlobalStore:
    """The description of a global store: its topic, and the declaration of the store, as for a task.

    The store has the bytes of the topic. That of a ``Topic`` has its serdes: it is a KeyValue store if ``store`` is
    None, else a description with the same serdes.

    The last record of a key in the order of its partition wins, and one without a value deletes the key. Records
    without a key are left out, and so are those with an empty key, with a warning. So all records of a key are to be in
    one partition.

    ``on_deserialization_error`` is the choice for a record that the store's serdes can't read, or whose key is too long
    for the backend. ``"raise"`` raises the error to the thread that follows the topic. ``"skip"`` leaves the record
    out, counts it (``StoreMetrics.skipped_total``) and logs a warning. The key then keeps the value that it has.
    ``DeadLetterTopic(topic)`` also sends the record there, and so those with an empty key: once, although each process
    reads all records. Kafka Streams has no dead letters of global stores.

    Raises: TypeError; ConfigError for a store that does not isolate uncommitted writes or keep offsets, or has other
    records than bytes, KeyValue, and TimestampedKeyValue with headers or without and without a time to live.
    ConfigError also for dead letters that would go to the store's own topic. Source: KIP-161, KIP-1034.
    """

    topic: str
    store: StoreSetting
    on_deserialization_error: OnError | DeadLetterTopic

    def __init__(
        self,
        topic: str | Topic[Any, Any],
        store: StoreSetting = None,
        *,
        on_deserialization_error: OnError | DeadLetterTopic | str = OnError.RAISE,
    ) -> None:
        check_setting("a global store", store)
        object.__setattr__(self, "topic", topic_name(topic))
        object.__setattr__(self, "store", _typed(topic, store) if isinstance(topic, Topic) else store)
        check_topic(self.topic)
        on_error = checked_on_error(
            on_deserialization_error,
            [TopicPartition(self.topic, 0)],
            "on_deserialization_error",
            f"the global store of {self.topic!r}",
        )
        object.__setattr__(self, "on_deserialization_error", on_error)
        _check(self.config)

    @property
    def config(self) -> StoreConfig:
        """The configuration: that of the store, or the default one with what is declared."""
        return configured(self.store, StoreConfig())


class _UnfitKeyError(ChangelogError):
    """A record of a topic has a key that the store can't have."""


class TopicConversion(Conversion):
    """The conversion of a topic's records, which anybody may write: some may be left out.

    ``topic`` has the serdes that are to read them, None for bytes.
    """

    def __init__(
        self, store: KeyValueStore, records: RecordKind | None, copy: GlobalCopy, topic: Topic[Any, Any] | None
    ) -> None:
        super().__init__(store, records, None)
        self._copy, self._topic = copy, topic
        self.plain = self.plain and topic is None

    def fitting(self, partition: TopicPartition, record: Record) -> Iterator[tuple[bytes, bytes | None]]:
        if not record.key:
            reason = "its key is empty"
            self._copy.leave_out(
                partition, record, reason, ChangelogError(f"{self._refusal(partition, record)}: {reason}")
            )
            return
        try:
            if self._topic is not None:
                self._topic.decoded(record)
            yield from super().fitting(partition, record)
        except StoreIncompatibleError:
            raise ChangelogError(
                f"{self._refusal(partition, record)}: it is of the changelog of an upgraded store (header "
                f"{VERSION_HEADER}). Name another topic"
            ) from None
        except _UnfitKeyError as error:
            if not self._copy.skips:
                raise
            self._copy.leave_out(partition, record, str(error.__cause__), ChangelogError(str(error)))
        except DeserializationError as error:
            if not self._copy.skips:
                raise DeserializationError(f"{self._refusal(partition, record)}: {error}") from error.__cause__
            self._copy.leave_out(partition, record, "a serde can't read it", error)

    def unfit(self, partition: TopicPartition, record: Record, reason: str) -> ChangelogError:
        return _UnfitKeyError(
            f"{self._refusal(partition, record)}: {reason}. Give the store another backend, or choose by "
            "on_deserialization_error to leave such records out"
        )

    def _refusal(self, partition: TopicPartition, record: Record) -> str:
        topic, number = partition
        return f"global store {self._copy.name!r} can't have the record at offset {record.offset} of {topic}-{number}"


class GlobalCopy(LogFollower):
    """The copy of one global store in this process, at ``path``. For the thread that opens it, but for ``view``."""

    def __init__(
        self,
        name: str,
        path: Path,
        described: GlobalStore,
        changelog: Changelog,
        application_id: str,
        snapshots: Snapshots | None = None,
    ) -> None:
        super().__init__(name, path, described.config, changelog, described.topic)
        self._changelog = changelog
        self._serdes = _serdes(described)
        self._on_error = on_error = described.on_deserialization_error
        self._letters = None
        if isinstance(on_error, DeadLetterTopic):
            self._letters = GlobalDeadLetters(changelog, application_id, name, on_error.topic)
        whole_topic = TopicPartition(described.topic, WHOLE_TOPIC)
        plan = FollowingStore(name, path, described.config, whole_topic, changelog)
        # Letters of records before the snapshot of another store would never be sent.
        choice = str(on_error) if self._letters is None else self._letters.id
        self._takeover = GlobalTakeover(plan)
        self._snapshots = snapshots_of(plan, snapshots, {"on_deserialization_error": choice})
        self.skips = on_error is not OnError.RAISE
        """True if records that the store can't have are left out."""
        self._next: dict[TopicPartition, int] = {}
        """The next offset to read of each partition."""
        self._ends: dict[TopicPartition, int] = {}
        """The ends that ``ends`` has returned last."""
        self._written: dict[TopicPartition, int] = {}
        """The last offset of each partition that is in the store."""
        self.skipped_total = 0
        """The records with a key that were left out since the store was made."""

    @property
    def is_open(self) -> bool:
        """True while the store is open. For any thread."""
        return self.store.is_open

    @property
    def metrics(self) -> StoreMetrics:
        """The metrics of the store, with the number of records that were left out. For any thread."""
        dead_letter_total = 0 if self._letters is None else self._letters.sent_total
        return replace(self.store.metrics, skipped_total=self.skipped_total, dead_letter_total=dead_letter_total)

    def engine_metrics(self) -> Mapping[str, int]:
        """Return what ``StateStore.engine_metrics`` returns."""
        return self.store.engine_metrics()

    def open(self, on_restore: OnRestore | None = None) -> None:
        """Open the store, and find out where it goes on in each partition. Nothing is read yet.

        One that Kafka Streams has left is taken over first. A store that is damaged, or has data that the topic has no
        more, is wiped. An empty one begins from a snapshot, if there is one; ``on_restore`` gets its progress. Raises:
        ChangelogError if the topic does not exist; StoreIncompatibleError if the store is of another backend or kind;
        StoreLockedError if Kafka Streams has it open; as ``open_store``; errors of ``on_restore``.
        """
        self._snapshots.forget()
        complete(self.path)
        remove_unfinished(self.path)  # Of a process that was killed while it began from a snapshot.
        count = self._changelog.topics().get(self._topic, 0)
        if not count:
            raise ChangelogError(f"the topic {self._topic!r} of global store {self.name!r} does not exist: create it")
        check_dead_letter_topic(self._on_error, self._changelog, f"global store {self.name!r}")
        self._changelog.expect_reads_to_end(self._topic)
        partitions = [TopicPartition(self._topic, number) for number in range(count)]
        self._next = {partition: self._changelog.start_offset(partition) for partition in partitions}
        removed_because = self._takeover.run(self._next)
        try:
            self.open_or_wipe()
        except StoreIncompatibleError as error:
            raise StoreIncompatibleError(
                f"global store {self.name!r} is not as described: {error}. To read its topic whole instead, remove "
                f"{self.path}"
            ) from error
        self.wiped_because = self.wiped_because or removed_because
        if not self._committed():  # One of which all is deleted has offsets, too.
            begin_from_snapshot(self, self._snapshots, on_restore)
        self._written = self._committed()
        self._next.update({partition: offset + 1 for partition, offset in self._written.items()})
        self._snapshots.begin()

    def close(self) -> None:
        self._snapshots.end()
        super().close()

    def follow(self, records_max: int) -> int:
        """Write up to ``records_max`` new records of all partitions in one commit; return how many were read.

        0 means that the store has all that is committed. After an error nothing of the call is in the store.

        Raises: ChangelogError and DeserializationError for a record that the store can't have; ChangelogError if the
        topic no longer has the next record; ChangelogTimeoutError; as ``KeyValueStore.commit``.
        """
        with RESTORING:  # No piece of a restore is read and written at this time that does not count this one.
            return self._follow(*piece_limits(self.restore_bytes, records_max))

    def _follow(self, records_max: int, bytes_max: int) -> int:
        piece, whole_partitions = Piece(), []
        if self._letters is not None:
            self._letters.begin()
        conversion = TopicConversion(self.store, self._config.records, self, self._serdes)
        for partition, offset in self._next.items():
            # No name holds the read: it ends here, and with it a snapshot of the changelog.
            if piece.add(
                partition,
                ColumnReader(self._changelog.read_columns(partition, offset)),
                conversion,
                records_max,
                bytes_max,
            ):
                break
            whole_partitions.append(partition)
        if piece.read:
            if self._letters is not None:
                self._letters.send()  # Before the commit, after which nobody reads their records again.
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
        self._snapshots.after_commit(self.store, self._written)
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

    def leave_out(self, partition: TopicPartition, record: Record, reason: str, error: Exception) -> None:
        """Count a record that is not in the store, and log some of them. ``reason`` has none of its values.

        ``error`` is that of its dead letter.
        """
        if self._letters is not None:
            self._letters.add(partition, record, error)
        self.skipped_total += 1
        if self.skipped_total % _TOLD_EVERY == 1:
            _log.warning(
                "global store %r leaves out the record at offset %d of %s-%d, because %s; %d records with a key were "
                "left out since it was opened",
                self.name,
                record.offset,
                *partition,
                reason,
                self.skipped_total,
            )

    def _committed(self) -> dict[TopicPartition, int]:
        """Return the committed offset of each partition that has one."""
        offsets = {partition: self.store.committed_offset(partition) for partition in self._next}
        return {partition: offset for partition, offset in offsets.items() if offset is not None}

    def _misfit(self) -> str | None:
        offsets = self._committed()
        if not is_empty(self.store) and not offsets:
            return f"it has data, and no offset of topic {self._topic!r}"
        for partition in self.store.position(IsolationLevel.READ_COMMITTED):
            if partition not in self._next:
                return f"it has data of {partition.topic}-{partition.partition}, which does not exist"
        for partition, offset in offsets.items():
            end = self._changelog.end_offset(partition)
            if not self._next[partition] <= offset + 1 <= end:
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
            self._written.update(piece.offsets)
        except BaseException:
            with suppress(Exception):
                self.store.rollback()
            raise


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


def _serdes(described: GlobalStore) -> Topic[Any, Any] | None:
    """Return the topic with the serdes of its store, None if that takes all bytes."""
    records = described.config.records
    if not isinstance(records, KeyValue | TimestampedKind):
        return None
    return Topic(described.topic, key=records.key, value=records.value)


def _check(config: StoreConfig) -> None:
    backend = backend_named(config.backend)
    if not backend.transactional or not backend.manages_offsets:
        raise ConfigError(
            f"{config.backend} can't have a global store: it needs a backend that keeps its offsets in the same commit "
            "as its data, such as rocksdb-indexed-batch"
        )
    records = config.records
    if records is not None and not isinstance(records, KeyValue | TimestampedKind):
        raise ConfigError(
            "a global store has bytes, KeyValue, TimestampedKeyValue or TimestampedKeyValueWithHeaders, not records of "
            f"the kind {records.kind}"
        )
    if isinstance(records, TimestampedKind) and records.ttl_ms is not None:
        raise ConfigError("a global store has no time to live: its topic says what it has. Drop ttl_ms")
    if config.upgrade is not None:
        raise ConfigError("a global store is not upgraded: give it another name, and it is read whole. Drop upgrade")
