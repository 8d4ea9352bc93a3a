"""The start of a store's changelog: the first record that a restore needs, and the stream time that no record has.

The changelog of a window or session store loses what has expired by stream time, never by the wall clock: event times
may be years old. The task remembers the stream time at some offsets. All records up to such an offset have at most its
time. Once that time has expired, they have, too, and the changelog may drop them in one request, whatever their number.

The offset is committed with the changelog, in a consumer group of the store's own. A restore of the whole store begins
there. So it can tell what the task has dropped from what is missing.

The stream time of a store with a time to live is committed in the same way, in another group. If a value was replaced
by one with an earlier timestamp, no changelog record has the highest time.

Source: KIP-107, ``deleteRecords``; Kafka Streams, which drops records of its repartition topics in this way (KIP-811).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from stores.changelog.interface import Changelog, Producer
from stores.contract.levels import Persistence
from stores.interface import KeyValueStore, TopicPartition
from stores.records.expiry import STREAM_TIME, stream_time_ms, stream_time_of
from stores.records.record_kind import RecordKind
from stores.records.segment_values import marks_of, preparable
from stores.records.segments import RecordRetention

_log = logging.getLogger(__name__)

LOG_TIMES: Final = "log_times"
"""The mark of a store with the stream times at some offsets of its changelog."""
STEPS: Final = 8
"""The offsets that are remembered in a retention: so much more than it, one part of so many, the changelog keeps."""
INTERVAL_S = 30.0
"""The least time between two requests. Source: Kafka Streams, ``repartition.purge.interval.ms``."""
RENEWAL_S = 86_400.0
"""The time after which the offset is committed again. Brokers forget that of a group without members: source, Kafka,
``offsets.retention.minutes``, 7 days."""
_ENTRY = Struct(">qq")


def needed_from(changelog: Changelog, partition: TopicPartition) -> int:
    """Return the first offset that a restore of the whole store needs; 0 if nothing was dropped or superseded."""
    needed = changelog.committed_offsets(_group(partition), [partition]).get(partition, 0)
    # An offset beyond the end is that of an earlier changelog of this name.
    return needed if needed <= changelog.written_end(partition) else 0


def first_needed(changelog: Changelog, partition: TopicPartition) -> int:
    """Return the first offset that a restore of the whole store reads."""
    return max(changelog.start_offset(partition), needed_from(changelog, partition))


def send_needed_from(producer: Producer, partition: TopicPartition, offset: int) -> None:
    """Add the first offset that a restore needs to the open transaction. Raises: as ``Producer.send_offsets``."""
    producer.send_offsets(_group(partition), {partition: offset})


def _group(partition: TopicPartition) -> str:
    """Return the consumer group of the offset; no application has such a name."""
    return f"{partition.topic}/first-needed"


class Reached(NamedTuple):
    """Every record of the changelog up to ``offset`` has a time of at most ``time_ms``.

    A kill takes the store back to no earlier offset once its ``persistence`` has come to ``mark``.
    """

    time_ms: int
    offset: int
    mark: int


class LogStart:
    """The start of the changelog of one window or session store, as its task moves it. For the task's thread."""

    def __init__(self, partition: TopicPartition, changelog: Changelog) -> None:
        self._partition, self._changelog = partition, changelog
        self._reached: list[Reached] = []
        self.encoded = b""
        """The mark that ``stage`` stages; empty if there is none."""
        self._dropped = 0
        """The offset before which the task has dropped everything."""
        self.due: int | None = None
        """The offset of the open transaction: the records before it are dropped once it is committed."""
        self._next_try_s = self._renewal_at_s = 0.0

    def follow(self, store: KeyValueStore) -> None:
        """Continue with what the store, just opened, has remembered."""
        mark = store.mark(LOG_TIMES) if store.keeps_marks else None
        self.due, self.encoded = None, mark or b""
        try:
            entries = [*_ENTRY.iter_unpack(self.encoded)]
        except struct_error:
            entries = []
        self._reached = [Reached(time_ms, offset, -1) for time_ms, offset in entries]

    def note(self, store: KeyValueStore, offset: int, retention: RecordRetention) -> bool:
        """Remember the stream time of the committed state, which is at ``offset``, if due; return whether it was."""
        time_ms, reached = stream_time_of(marks_of(store).mark(STREAM_TIME)), self._reached
        step_ms = max(retention.retention_ms // STEPS, 1)
        if time_ms < 0 or (reached and (time_ms < reached[-1].time_ms + step_ms or offset <= reached[-1].offset)):
            return False
        reached.append(Reached(time_ms, offset, store.persistence.mark()))
        expired = self._expired(time_ms, retention)
        del reached[: expired - 1 if expired else 0]
        self.encoded = _encoded(reached)
        return True

    def forget_before(self, store: KeyValueStore, offset: int) -> None:
        """Forget the offsets before the first one that a rewritten changelog needs. Nothing may be staged."""
        reached = [each for each in self._reached if each.offset >= offset]
        if reached != self._reached:
            self._reached, self.encoded = reached, _encoded(reached)
            self.keep(store)

    def keep(self, store: KeyValueStore) -> None:
        """Write what is remembered into the store immediately. Nothing may be staged."""
        if store.keeps_marks:
            store.restore([], {}, marks={LOG_TIMES: self.encoded})

    def stage(self, store: KeyValueStore) -> None:
        """Stage what is remembered in the store's open transaction."""
        if store.keeps_marks and store.mark(LOG_TIMES) != self.encoded:
            store.set_mark(LOG_TIMES, self.encoded)

    def send(self, store: KeyValueStore, retention: RecordRetention, producer: Producer) -> None:
        """Add the first offset that is needed to the open transaction, if older ones have expired."""
        self.due = None
        now_s = time.monotonic()
        if not self._changelog.compacts_itself or now_s < self._next_try_s:
            return
        expired = self._expired(stream_time_of(marks_of(store).mark(STREAM_TIME)), retention)
        before = self._reached[expired - 1].offset + 1 if expired else 0
        if before <= self._dropped:
            if self._dropped and now_s >= self._renewal_at_s:
                self._commit_offset(producer, self._dropped, now_s)
            return
        if _survives(store.persistence, self._reached[expired - 1].mark):
            self._next_try_s = now_s + INTERVAL_S
            self._commit_offset(producer, before, now_s)
            self.due = before

    def _commit_offset(self, producer: Producer, offset: int, now_s: float) -> None:
        self._renewal_at_s = now_s + RENEWAL_S
        send_needed_from(producer, self._partition, offset)

    def drop(self) -> None:
        """Let the changelog drop what the last commit has left behind. Raises: ChangelogError."""
        if self.due is not None:
            self._dropped, self.due = self.due, None
            self._changelog.drop_before(self._partition, self._dropped)

    def _expired(self, stream_time_ms: int, retention: RecordRetention) -> int:
        """Return the number of remembered offsets up to which all records have expired."""
        first_live_ms = retention.first_live_ms(stream_time_ms)
        return sum(each.time_ms < first_live_ms for each in self._reached)


def _encoded(reached: Iterable[Reached]) -> bytes:
    return b"".join(_ENTRY.pack(each.time_ms, each.offset) for each in reached)


def _survives(persistence: Persistence, mark: int) -> bool:
    """Return whether a kill takes the store back to no commit before ``mark``; if not, begin to persist them."""
    if persistence.persisted() >= mark:
        return True
    persistence.begin()
    return False


class CommittedStreamTime:
    """The stream time that the changelog of one store has."""

    def __init__(self, partition: TopicPartition, changelog: Changelog) -> None:
        self._partition, self._changelog = partition, changelog
        self._group = f"{partition.topic}/store-time"
        """The consumer group by which it is committed; no application has such a name."""

    def send(self, store: KeyValueStore, records: RecordKind | None, producer: Producer) -> None:
        """Add the stream time of ``store`` to the open transaction. Raises: as ``Producer.send_offsets``."""
        if records is not None and records.commits_stream_time:
            time_ms = stream_time_ms(marks_of(store).mark)
            if time_ms >= 0:
                producer.send_offsets(self._group, {self._partition: time_ms})

    def restore(self, store: KeyValueStore, records: RecordKind | None) -> None:
        """Give a restored store its stream time, unless it has a later one."""
        if records is not None and records.commits_stream_time:
            time_ms = self._changelog.committed_offsets(self._group, [self._partition]).get(self._partition, -1)
            if time_ms > stream_time_ms(marks_of(store).mark):
                preparable(store).restore([], {}, marks=records.marks_at(store, time_ms))
