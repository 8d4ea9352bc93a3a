"""The embedded changelog: one SQLite file, whose records are in batches (``stores.changelog.batches``).

One connection of a process writes, guarded by a lock; readers have connections of their own and see a snapshot, so
neither waits for the other. Processes write one after the other (``stores.changelog.log_file``).
Source: KIP-98 (transactions, epochs, last stable offset); SQLite's release notes, 3.51.3.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from os import PathLike
from secrets import randbits

from stores.changelog.arguments import (
    check_name,
    check_readable,
    check_topic,
    check_truncation,
    checked_partition,
    of_partitions,
)
from stores.changelog.batches import COLUMNS, RecordBatch, UnsoundBatchError, batch_number, offset_of
from stores.changelog.file_group import FileGroupMember, check_members
from stores.changelog.group import Copies, GroupListener
from stores.changelog.interface import Changelog, IsExpired, IsNeeded, Record, RecordColumns, SharedProducer
from stores.changelog.log_file import BUSY_TIMEOUT_S, LogFile
from stores.changelog.producer import BufferedProducer, EmbeddedSharedProducer, ProducerIdentity
from stores.changelog.sqlite_writer import ABORTED, Compaction, Kept, SqliteWriter, batch_with, truncate
from stores.errors import ChangelogError, ConfigError
from stores.files.sqlite_library import Connection, roll_back
from stores.files.store_directory import checked_path
from stores.interface import Durability, TopicPartition

TIMEOUT_S_MAX = 1_000_000
"""Eleven days: SQLite counts milliseconds in 32 bits."""

_ASTRAY = """
    select batch_id from batch left join topic_partition on partition_id = batch_id >> 46
    where partition_id is null or batch_id & (1 << 46) - 1 not between start_offset and next_offset - 1"""


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
        self._writer = SqliteWriter(self._file, self._partition_id)

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
                    "insert into topic_partition (topic_id, partition) values (?, ?) "
                    "on conflict (topic_id, partition) do nothing",
                    [(topic_id, partition) for partition in range(existing)],
                )
        if existing != partitions:
            raise ChangelogError(f"topic {topic!r} of {self.path} has {existing} partitions, not {partitions}")

    def topics(self) -> Mapping[str, int]:
        with self._file.read() as reader:
            return dict(reader.execute("select topic, partitions from topic order by topic").fetchall())

    def topic_id(self, topic: str) -> str:
        """Return a random number, which is kept as the offset of a consumer group that no application has."""
        group = f"{topic}/identity"
        select = "select next_offset from group_offset where consumer_group = ? and topic = ? and partition = 0"
        with self._file.read() as reader:
            row = reader.execute(select, (group, topic)).fetchone()
        if row is None:
            if topic not in self.topics():
                raise ChangelogError(f"{self.path} has no topic {topic!r}")
            with self._file.write() as writer:
                writer.execute(
                    "insert into group_offset values (?, ?, 0, ?) on conflict do nothing",
                    (group, topic, randbits(62)),
                )
                row = writer.execute(select, (group, topic)).fetchone()
        return str(row[0])

    def producer(self, transactional_id: str | None = None, timeout_s: float | None = None) -> BufferedProducer:
        identity = None
        if transactional_id is not None:
            check_name("transactional id", transactional_id)
            with self._file.write() as writer:
                epoch = self._next_epoch(writer, transactional_id)
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
        return _records(self.read_columns(partition, from_offset))

    def read_columns(self, partition: TopicPartition, from_offset: int = 0) -> Generator[RecordColumns, None, None]:
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
            self._partition_id(TopicPartition(topic, 0))
        partitions = [TopicPartition(topic, number) for topic in topics for number in range(counts[topic])]
        return FileGroupMember(self.path, group, partitions, listener, fingerprint, server, copies)

    def start_offset(self, partition: TopicPartition) -> int:
        with self._file.read() as reader:
            return self._bounds(reader, partition)[0]

    def end_offset(self, partition: TopicPartition) -> int:
        with self._file.read() as reader:
            return self._bounds(reader, partition)[1]

    def written_end(self, partition: TopicPartition) -> int:
        with self._file.read() as reader:
            return self._written_end(reader, partition)

    def await_decided(self, partition: TopicPartition) -> None:
        if self.end_offset(partition) == self.written_end(partition):
            return
        with self._file.write() as writer:
            writers = writer.execute(
                "select distinct transactional_id from log_transaction cross join transaction_range "
                "using (transaction_id) where state = 'OPEN' and partition_id = ?",
                (self._partition_id(partition),),
            ).fetchall()
            for (transactional_id,) in writers:
                self._next_epoch(writer, transactional_id)

    def committed_offsets(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, int]:
        with self._file.read() as reader:
            rows = reader.execute(
                "select topic, partition, next_offset from group_offset where consumer_group = ?", (group,)
            )
            offsets = {TopicPartition(topic, partition): offset for topic, partition, offset in rows}
        return of_partitions(offsets, partitions)

    def compact(
        self, partition: TopicPartition, is_expired: IsExpired | None = None, is_needed: IsNeeded | None = None
    ) -> int:
        compaction = self._compaction(partition)
        with self._file.write("compact") as writer, self._sound(writer, partition):
            start, end = self._bounds(writer, partition)
            num_removed = compaction.whole(writer, start, end, Kept(is_expired, is_needed))
            self._forget_aborted(writer, partition, end)
        return num_removed

    def compact_step(
        self, partition: TopicPartition, is_expired: IsExpired | None = None, is_needed: IsNeeded | None = None
    ) -> int:
        # This is called after each commit, and usually returns here.
        due_at = self._due_at.get(partition, 0)
        if self._compact_from_records == -1 or self._writer.appended.get(partition, due_at) < due_at:
            return 0
        compaction = self._compaction(partition)
        try:
            with self._file.write("compact") as writer, self._sound(writer, partition):
                start, end = self._bounds(writer, partition)
                num_removed = 0
                if compaction.due_at(writer, start, end) <= end:
                    num_removed = compaction.step(writer, start, end, Kept(is_expired, is_needed))
                self._due_at[partition] = compaction.due_at(writer, start, end)
        except BaseException:
            compaction.give_up()
            self._due_at.pop(partition, None)
            raise
        return num_removed

    def dirty_share(self, partition: TopicPartition) -> float:
        """Return the share of the partition's records that no pass has compacted yet: 0 for none, 1 for all."""
        compaction = self._compaction(partition)
        with self._file.read() as reader:
            return compaction.share(reader, *self._bounds(reader, partition))

    def _compaction(self, partition: TopicPartition) -> Compaction:
        partition_id = self._partition_id(partition)
        return self._compactions.setdefault(
            partition, Compaction(partition_id, self._dirty_ratio, self._compact_from_records)
        )

    def truncate(self, partition: TopicPartition, before_offset: int) -> int:
        partition_id = self._partition_id(partition)
        with self._file.write() as writer, self._sound(writer, partition):
            start, end = self._bounds(writer, partition)
            check_truncation(partition, before_offset, start, end)
            num_removed = truncate(writer, partition_id, before_offset)
            writer.execute(
                "update topic_partition set start_offset = ? where partition_id = ?", (before_offset, partition_id)
            )
            self._forget_aborted(writer, partition, before_offset)
        self._due_at.pop(partition, None)
        return num_removed

    def verify(self) -> None:
        """Read the whole changelog and check it for damage: each batch's checksum, and SQLite's own structure.

        It changes nothing. For any thread. It takes the time of a few reads of the whole. Raises: ChangelogError.
        """
        with self._file.read() as reader:
            problems = [text for (text,) in reader.execute("pragma integrity_check(1)")]
            problems += [f"batch {number} is outside of its partition" for (number,) in reader.execute(_ASTRAY)]
        if problems != ["ok"]:
            raise self._damaged(problems[0])
        for topic, partitions in self.topics().items():
            for number in range(partitions):
                partition = TopicPartition(topic, number)
                with self._file.read() as reader, self._sound(reader, partition):
                    select = f"select {COLUMNS} from batch where batch_id >= ? and batch_id < ?"
                    for row in reader.execute(select, self._range(partition)):
                        RecordBatch(*row).columns()

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

    def _scan(self, partition: TopicPartition, from_offset: int) -> Generator[RecordColumns, None, None]:
        partition_id = self._partition_id(partition)
        with self._file.read() as reader:
            reader.execute("begin")
            try:
                start, end = self._bounds(reader, partition)
                check_readable(partition, from_offset, start, end, partial(self._written_end, reader))
                rows = reader.execute(
                    f"select {COLUMNS} from batch where batch_id >= ? and batch_id < ? "
                    f"and transaction_id not in ({ABORTED}) order by batch_id",
                    (batch_with(reader, partition_id, from_offset), batch_number(partition_id, end)),
                )
                yield RecordColumns((), (), (), ())
                with self._sound(reader, partition):
                    for row in rows:
                        columns = RecordBatch(*row).columns()
                        if columns.offsets[0] < from_offset:
                            columns = columns.part(bisect_left(columns.offsets, from_offset))
                        if columns.offsets:
                            yield columns
            finally:
                if self._file.is_open:
                    roll_back(reader)

    @contextmanager
    def _sound(self, connection: Connection, partition: TopicPartition) -> Iterator[None]:
        """Turn the error of a batch in the block into one that names the offsets which it may have."""
        try:
            yield
        except UnsoundBatchError as error:
            first, end = error.number, self._range(partition)[1]
            [following] = connection.execute(
                "select min(batch_id) from batch where batch_id > ? and batch_id < ?", (first, end)
            ).fetchone()
            last = self._bounds(connection, partition)[1] if following is None else offset_of(following)
            raise self._damaged(
                f"the records {offset_of(first)} to {last - 1} of {partition.topic}-{partition.partition} {error}"
            ) from error

    def _range(self, partition: TopicPartition) -> tuple[int, int]:
        """Return the numbers between which the batches of a partition are; the second one is exclusive."""
        partition_id = self._partition_id(partition)
        return batch_number(partition_id, 0), batch_number(partition_id + 1, 0)

    def _bounds(self, connection: Connection, partition: TopicPartition) -> tuple[int, int]:
        """Return the start offset and the last stable offset: the first one of an open transaction, or the end."""
        start, following, stable = connection.execute(
            """
            select start_offset, next_offset,
                   (select min(first_offset) from log_transaction cross join transaction_range using (transaction_id)
                    where state = 'OPEN' and partition_id = p.partition_id)
            from topic_partition p where partition_id = ?""",
            (self._partition_id(partition),),
        ).fetchone()
        return start, following if stable is None else stable

    def _next_epoch(self, writer: Connection, transactional_id: str) -> int:
        """Fence the producers of this ID, abort what they have open, and return the epoch of the next one."""
        [epoch] = writer.execute(
            "insert into producer values (?, 0) on conflict do update set epoch = epoch + 1 returning epoch",
            (transactional_id,),
        ).fetchone()
        writer.execute(
            "update log_transaction set state = 'ABORTED' where state = 'OPEN' and transactional_id = ?",
            (transactional_id,),
        )
        return int(epoch)

    def _written_end(self, connection: Connection, partition: TopicPartition) -> int:
        [end] = connection.execute(
            "select next_offset from topic_partition where partition_id = ?", (self._partition_id(partition),)
        ).fetchone()
        return int(end)

    def _forget_aborted(self, writer: Connection, partition: TopicPartition, end: int) -> None:
        """Remove the entries of aborted transactions that have no records left."""
        writer.execute(
            "delete from transaction_range where partition_id = ? and last_offset < ? "
            f"and transaction_id in ({ABORTED})",
            (self._partition_id(partition), end),
        )
        writer.execute(
            "delete from log_transaction where state = 'ABORTED' "
            "and transaction_id not in (select transaction_id from transaction_range)"
        )

    def _partition_id(self, partition: TopicPartition) -> int:
        partition_id = self._partition_ids.get(partition)
        if partition_id is None:
            topic, number = checked_partition(partition)
            with self._file.read() as reader:
                row = reader.execute(
                    "select partitions, (select partition_id from topic_partition p "
                    "where p.topic_id = t.topic_id and partition = ?) from topic t where topic = ?",
                    (number, topic),
                ).fetchone()
            if row is None:
                raise ChangelogError(f"{self.path} has no topic {topic!r}: create it with create_topic()")
            if row[1] is None:
                raise ChangelogError(
                    f"topic {topic!r} of {self.path} has the partitions 0 to {row[0] - 1}, not {number}"
                )
            partition_id = self._partition_ids[partition] = row[1]
        return partition_id


def _records(scan: Generator[RecordColumns, None, None]) -> Generator[Record, None, None]:
    with closing(scan):
        for columns in scan:
            yield from columns.records()


def _level(given: Durability | str) -> Durability:
    try:
        return Durability(given)
    except ValueError as error:
        raise ConfigError(f"no durability {given!r}; there are: {', '.join(Durability)}") from error
