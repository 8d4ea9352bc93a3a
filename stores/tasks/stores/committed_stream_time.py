"""The stream time of a store with a time to live, committed with the changelog.

If a value was replaced by one with an earlier timestamp, no changelog record has the highest time.
"""

from __future__ import annotations

from stores.changelog.interface import Changelog, Producer
from stores.interface import KeyValueStore, TopicPartition
from stores.records.expiry import STREAM_TIME, stream_time_ms
from stores.records.record_kind import RecordKind
from stores.records.timestamps import TIME


class CommittedStreamTime:
    """The stream time that the changelog of one store has."""

    def __init__(self, partition: TopicPartition, changelog: Changelog) -> None:
        self._partition, self._changelog = partition, changelog
        self._group = f"{partition.topic}/store-time"
        """The consumer group by which it is committed; no application has such a name."""

    def send(self, store: KeyValueStore, records: RecordKind | None, producer: Producer) -> None:
        """Add the stream time of ``store`` to the open transaction. Raises: as ``Producer.send_offsets``."""
        if records is not None and records.commits_stream_time:
            time_ms = stream_time_ms(store.mark)
            if time_ms >= 0:
                producer.send_offsets(self._group, {self._partition: time_ms})

    def restore(self, store: KeyValueStore, records: RecordKind | None) -> None:
        """Give a restored store its stream time, unless it has a later one."""
        if records is not None and records.commits_stream_time:
            time_ms = self._changelog.committed_offsets(self._group, [self._partition]).get(self._partition, -1)
            if time_ms > stream_time_ms(store.mark):
                store.restore([], {}, marks={STREAM_TIME: TIME.pack(time_ms)})
