"""The stream time of a task: the highest timestamp of its input, kept across restarts.

It is committed in the same transaction as the input's offsets, as the offset of a separate consumer group for the
partition of the latest record. No application can have the name of this group. So every changelog that keeps offsets
keeps it. The stream time of a task is the highest value committed for any of its partitions.

Source: Kafka Streams, ``TopicPartitionMetadata``, which has it in the metadata of the committed offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stores.interface import TopicPartition

UNKNOWN_MS = -1


class StreamTime:
    """The highest timestamp so far, and the highest that is committed."""

    def __init__(self, application_id: str) -> None:
        self.group = f"{application_id}/stream-time"
        """The consumer group by which it is committed."""
        self.ms = UNKNOWN_MS
        """The highest timestamp, -1 if there was none. The task sets it with each later record."""
        self.partition = TopicPartition("", -1)
        """The partition of that record."""
        self._committed_ms = UNKNOWN_MS

    def begin(self, committed: Mapping[TopicPartition, int], inputs: Iterable[TopicPartition]) -> None:
        """Return to the committed stream time."""
        known = (committed[partition] for partition in inputs if partition in committed)
        self.ms = self._committed_ms = max(known, default=UNKNOWN_MS)

    def uncommitted(self) -> dict[TopicPartition, int]:
        """The entry to commit with the offsets, empty if unchanged; it counts as committed from then on."""
        if self.ms == self._committed_ms:
            return {}
        self._committed_ms = self.ms
        return {self.partition: self.ms}
