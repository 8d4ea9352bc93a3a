"""The embedded changelog: one SQLite file that a human can read.

One connection of a process writes, guarded by a lock; readers have connections of their own and see a snapshot, so
neither waits for the other. Processes write one after the other (``stores.changelog.log_file``).
Source: KIP-98 (transactions, epochs, last stable offset); SQLite's release notes, 3.51.3.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

from stores.changelog.arguments import (
    check_name,
    check_readable,
    check_topic,
    check_truncation,
    checked_partition,
    of_partitions,
)
from stores.changelog.file_group import FileGroupMember, check_members
from stores.changelog.interface import Changelog, Copies, GroupListener, Headers, IsExpired, Record, SharedProducer
from stores.changelog.log_file import BUSY_TIMEOUT_S, LogFile
from stores.changelog.producer import BufferedProducer, EmbeddedSharedProducer, ProducerIdentity
from stores.changelog.sqlite_writer import ABORTED, Compaction, SqliteWriter, is_sound
from stores.errors import ChangelogError, ConfigError
from stores.files.plain_files import parsed_json
from stores.files.sqlite_library import Connection, changes, roll_back
from stores.files.store_directory import checked_path
from stores.interface import Durability, TopicPartition

TIMEOUT_S_MAX = 1_000_000
"""Eleven days: SQLite counts milliseconds in 32 bits."""


class SqliteChangelog(Changelog):
    """A changelog in the file ``path``, created if it does not exist; its folder must exist.

    ``durability`` is the durability level of commits: DISK syncs each one. May be used from any thread, each producer
    from one. Closing it closes its producers. If another process writes to the file, a write waits for up to
    ``timeout_s`` seconds; then ChangelogTimeoutError is raised.

    ``compact_step`` begins a pass when at least ``compact_from_records`` records, and the share ``dirty_ratio`` of all
    records, are new since the last pass. With ``compact_from_records=-1`` it never does.

    Raises: ChangelogError if the path has another file or can't be used; ConfigError for an invalid path or setting.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        durability: Durability | str = Durability.DISK,
        *,
        timeout_s: float = BUSY_TIMEOUT_S,
        dirty_ratio: float = 0.5,
        compact_from_records: int = 1_000_000,
    ) -> None:
        if not isinstance(timeout_s, int | float) or not 0 <= timeout_s <= TIMEOUT_S_MAX:
            raise ConfigError(f"timeout_s is 0 to {TIMEOUT_S_MAX} seconds, not {timeout_s!r}")
        if not isinstance(dirty_ratio, int | float) or not 0 <= dirty_ratio <= 1:
            raise ConfigError(f"dirty_ratio is 0 to 1, not {dirty_ratio!r}")
        if type(compact_from_records) is not int or compact_from_records < -1:
            raise ConfigError(f"compact_from_records is 0 or more, or -1 for never, not {compact_from_records!r}")
        self._dirty_ratio, self._compact_from_records = dirty_ratio, compact_from_records
        self._compactions: dict[TopicPartition, Compaction] = {}
        self._due_at: dict[TopicPartition, int] = {}
        self._file = LogFile(checked_path(path), _level(durability), timeout_s)
        self.path = self._file.path
        self._producers: weakref.WeakSet[BufferedProducer] = weakref.WeakSet()
        self._partition_ids: dict[TopicPartition, int] = {}
        self._writer = SqliteWriter(self._file, self._topic_id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}, {'open' if self._file.is_open else 'closed'}>"

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        check_topic(topic, partitions)
        existing = self.topics().get(topic)
        if existing is None:
            with self._file.write() as writer:
                writer.execute(
                    "insert into topic (topic, partitions) values (?, ?) on conflict do nothing", (topic, partitions)
                )
                [topic_id, existing] = writer.execute(
                    "select topic_id, partitions from topic where topic = ?", (topic,)
                ).fetchone()
                writer.executemany(
                    "insert into topic_partition (topic_id, partition) values (?, ?) on conflict do nothing",
                    [(topic_id, partition) for partition in range(existing)],
                )
        if existing != partitions:
            raise ChangelogError(f"topic {topic!r} of {self.path} has {existing} partitions, not {partitions}")

    def topics(self) -> Mapping[str, int]:
        with self._file.read() as reader:
            return dict(reader.execute("select topic, partitions from topic order by topic").fetchall())

    def producer(self, transactional_id: str | None = None, timeout_s: float | None = None) -> BufferedProducer:
        identity = None
        if transactional_id is not None:
            check_name("transactional id", transactional_id)
            with self._file.write() as writer:
                [epoch] = writer.execute(
                    "insert into producer values (?, 0) on conflict do update set epoch = epoch + 1 returning epoch",
                    (transactional_id,),
                ).fetchone()
                writer.execute(
                    "update log_transaction set state = 'ABORTED' where state = 'OPEN' and transactional_id = ?",
                    (transactional_id,),
                )
            identity = ProducerIdentity(transactional_id, epoch)
        self._file.check_open()
        producer = BufferedProducer(self._writer, identity)
        self._producers.add(producer)
        return producer

    def shared_producer(self, transactional_id: str, timeout_s: float | None = None) -> SharedProducer:
        check_name("transactional id", transactional_id)
        self._file.check_open()
        return EmbeddedSharedProducer(self.producer, self._writer)

    def read(self, partition: TopicPartition, from_offset: int = 0) -> Iterator[Record]:
        scan = self._scan(partition, from_offset)
        next(scan)  # begins the snapshot, and raises errors here
        return scan

    def check_group(self, group: str, *, fingerprint: str, fencing: bool = False) -> None:
        check_name("group", group)
        self._file.check_open()
        check_members(self.path, group, fingerprint)

    def join_group(
        self,
        group: str,
        topics: Sequence[str],
        listener: GroupListener,
        *,
        fingerprint: str,
        session_timeout_s: float,
        server: str = "",
        copies: Copies | None = None,
        instance_id: str | None = None,
        fencing: bool = False,
    ) -> FileGroupMember:
        check_name("group", group)
        counts = self.topics()
        for topic in topics:
            self._topic_id(TopicPartition(topic, 0))
        partitions = [TopicPartition(topic, number) for topic in topics for number in range(counts[topic])]
        return FileGroupMember(self.path, group, partitions, listener, fingerprint, server, copies)

    def start_offset(self, partition: TopicPartition) -> int:
        with self._file.read() as reader:
            return self._bounds(reader, partition)[0]

    def end_offset(self, partition: TopicPartition) -> int:
        with self._file.read() as reader:
            return self._bounds(reader, partition)[1]

    def committed_offsets(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, int]:
        with self._file.read() as reader:
            rows = reader.execute(
                "select topic, partition, next_offset from group_offset where consumer_group = ?", (group,)
            )
            offsets = {TopicPartition(topic, partition): offset for topic, partition, offset in rows}
        return of_partitions(offsets, partitions)

    def compact(self, partition: TopicPartition, is_expired: IsExpired | None = None) -> int:
        topic_id = self._topic_id(partition)
        with self._file.write() as writer:
            start, end = self._bounds(writer, partition)
            num_removed = self._compaction(partition).whole(writer, start, end, is_expired)
            self._forget_aborted(writer, topic_id, partition.partition, end)
        return num_removed

    def compact_step(self, partition: TopicPartition, is_expired: IsExpired | None = None) -> int:
        # This is called after each commit, and usually returns here.
        due_at = self._due_at.get(partition, 0)
        if self._compact_from_records == -1 or self._writer.appended.get(partition, due_at) < due_at:
            return 0
        compaction = self._compaction(partition)
        with self._file.write() as writer:
            start, end = self._bounds(writer, partition)
            num_removed = 0
            if compaction.due_at(writer, start, end) <= end:
                num_removed = compaction.step(writer, start, end, is_expired)
            self._due_at[partition] = compaction.due_at(writer, start, end)
        return num_removed

    def dirty_share(self, partition: TopicPartition) -> float:
        """Return the share of the partition's records that no pass has compacted yet: 0 for none, 1 for all."""
        compaction = self._compaction(partition)
        with self._file.read() as reader:
            return compaction.share(reader, *self._bounds(reader, partition))

    def _compaction(self, partition: TopicPartition) -> Compaction:
        topic_id = self._topic_id(partition)
        return self._compactions.setdefault(
            partition, Compaction(topic_id, partition.partition, self._dirty_ratio, self._compact_from_records)
        )

    def truncate(self, partition: TopicPartition, before_offset: int) -> int:
        topic_id = self._topic_id(partition)
        with self._file.write() as writer:
            start, end = self._bounds(writer, partition)
            check_truncation(partition, before_offset, start, end)
            writer.execute(
                "delete from record where topic_id = ? and partition = ? and offset < ?",
                (topic_id, partition.partition, before_offset),
            )
            num_removed = changes(writer)
            writer.execute(
                "update topic_partition set start_offset = ? where topic_id = ? and partition = ?",
                (before_offset, topic_id, partition.partition),
            )
            self._forget_aborted(writer, topic_id, partition.partition, before_offset)
        self._due_at.pop(partition, None)
        return num_removed

    def verify(self) -> None:
        """Read the whole changelog and check it for damage: each record's checksum, and SQLite's own structure.

        It changes nothing. For any thread. It takes the time of a few reads of the whole. Raises: ChangelogError.
        """
        with self._file.read() as reader:
            problems = [text for (text,) in reader.execute("pragma integrity_check(1)")]
        if problems != ["ok"]:
            raise self._damaged(problems[0])
        for topic, partitions in self.topics().items():
            for number in range(partitions):
                for _ in self.read(TopicPartition(topic, number), self.start_offset(TopicPartition(topic, number))):
                    pass

    def _damaged(self, what: str) -> ChangelogError:
        return ChangelogError(
            f"the changelog {self.path} is damaged: {what}. Restore a complete copy without a -wal file of "
            "another one, or remove it to start with an empty one"
        )

    def close(self) -> None:
        if self._file.is_open:
            try:
                for producer in list(self._producers):
                    producer.close()
            finally:
                self._file.close()

    def _scan(self, partition: TopicPartition, from_offset: int) -> Generator[Record, None, None]:
        topic_id = self._topic_id(partition)
        with self._file.read() as reader:
            reader.execute("begin")
            try:
                start, end = self._bounds(reader, partition)
                check_readable(partition, from_offset, start, end)
                cursor = reader.execute(
                    "select offset, key, value, timestamp_ms, headers, checksum from record where topic_id = ? "
                    "and partition = ? and offset >= ? and offset < ? "
                    f"and transaction_id not in ({ABORTED}) order by offset",
                    (topic_id, partition.partition, from_offset, end),
                )
                yield Record(-1, None, None)
                for offset, key, value, timestamp_ms, headers, checksum in cursor:
                    if not is_sound(checksum, offset, key, value, timestamp_ms, headers):
                        raise self._damaged(
                            f"record {offset} of {partition.topic}-{partition.partition} fails its checksum"
                        )
                    try:
                        decoded = _decoded(headers) if headers else ()
                    except (ValueError, TypeError, AttributeError) as error:
                        raise self._damaged(
                            f"record {offset} of {partition.topic}-{partition.partition} has headers of another program"
                        ) from error
                    yield Record(offset, key, value, timestamp_ms, decoded)
            finally:
                if self._file.is_open:
                    roll_back(reader)

    def _bounds(self, connection: Connection, partition: TopicPartition) -> tuple[int, int]:
        """Return the start offset and the last stable offset: the first one of an open transaction, or the end."""
        topic_id = self._topic_id(partition)
        start, following, stable = connection.execute(
            """
            select start_offset, next_offset,
                   (select min(first_offset) from log_transaction cross join transaction_range using (transaction_id)
                    where state = 'OPEN' and topic_id = p.topic_id and partition = p.partition)
            from topic_partition p where topic_id = ? and partition = ?""",
            (topic_id, partition.partition),
        ).fetchone()
        return start, following if stable is None else stable

    def _forget_aborted(self, writer: Connection, topic_id: int, partition: int, end: int) -> None:
        """Remove the entries of aborted transactions that have no records left."""
        writer.execute(
            f"delete from transaction_range where topic_id = ? and partition = ? and last_offset < ? "
            f"and transaction_id in ({ABORTED})",
            (topic_id, partition, end),
        )
        writer.execute(
            "delete from log_transaction where state = 'ABORTED' "
            "and transaction_id not in (select transaction_id from transaction_range)"
        )

    def _topic_id(self, partition: TopicPartition) -> int:
        topic_id = self._partition_ids.get(partition)
        if topic_id is None:
            topic, number = checked_partition(partition)
            with self._file.read() as reader:
                row = reader.execute("select topic_id, partitions from topic where topic = ?", (topic,)).fetchone()
            if row is None:
                raise ChangelogError(f"{self.path} has no topic {topic!r}: create it with create_topic()")
            if not 0 <= number < row[1]:
                raise ChangelogError(
                    f"topic {topic!r} of {self.path} has the partitions 0 to {row[1] - 1}, not {number}"
                )
            topic_id = self._partition_ids[partition] = row[0]
        return topic_id


def _decoded(headers: str) -> Headers:
    pairs: Any = parsed_json(headers)
    return tuple((name, content.encode("latin-1")) for name, content in pairs)


def _level(given: Durability | str) -> Durability:
    try:
        return Durability(given)
    except ValueError as error:
        raise ConfigError(f"no durability {given!r}; there are: {', '.join(Durability)}") from error
