"""The stream time of a task: the highest timestamp of its input, kept across restarts.

It is committed with the input's offsets and in the same transaction, for the partition that it was last seen in: as the
offset of a consumer group of its own, whose name no application can have. So every changelog that keeps offsets keeps
it. The highest of what is committed for a task's partitions is its stream time.

Source: Kafka Streams, ``TopicPartitionMetadata``, which has it in the metadata of the committed offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stores.interface import TopicPartition

UNKNOWN_MS = -1


class StreamTime:
    """What has been seen of the input's timestamps."""

    def __init__(self, application_id: str) -> None:
        self.group = f"{application_id}/stream-time"
        """The consumer group by which it is committed."""
        self.ms = UNKNOWN_MS
        """The highest timestamp, -1 where there was none. The task sets it with each record that is later."""
        self.partition = TopicPartition("", -1)
        """The partition of that record."""
        self._committed_ms = UNKNOWN_MS

    def begin(self, committed: Mapping[TopicPartition, int], inputs: Iterable[TopicPartition]) -> None:
        """Go back to what was committed."""
        known = (committed[partition] for partition in inputs if partition in committed)
        self.ms = self._committed_ms = max(known, default=UNKNOWN_MS)

    def uncommitted(self) -> dict[TopicPartition, int]:
        """What is to be committed with the offsets, if anything; it counts as committed from then on."""
        if self.ms == self._committed_ms:
            return {}
        self._committed_ms = self.ms
        return {self.partition: self.ms}
