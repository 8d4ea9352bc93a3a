"""The producers of a Kafka changelog: one for each transactional ID, and one that the tasks of a thread share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stores.changelog.interface import SharedProducer
from stores.changelog.kafka.cluster import Cluster
from stores.changelog.kafka.group_offsets import GroupOffsets
from stores.changelog.kafka.writer import KafkaWriter
from stores.changelog.producer import BufferedProducer, ProducerIdentity
from stores.errors import ChangelogError
from stores.interface import TopicPartition

_HELD_RECORDS = 500
"""The records that the client gets in one go: many for the cost of a call, few for those that wait for a commit."""


class KafkaProducer(BufferedProducer):
    """A producer of a Kafka changelog. It holds few records, so that the client sends them while others are made."""

    def __init__(self, writer: KafkaWriter, transactional_id: str | None) -> None:
        # The broker keeps the epoch.
        identity = None if transactional_id is None else ProducerIdentity(transactional_id, 0)
        super().__init__(writer, identity, _HELD_RECORDS)
        self._writer = writer
        self._closing = False

    def abort(self) -> None:
        self._check_open()
        if self._in_doubt and self._identity is not None:
            self._writer.forget()  # Only the next producer can decide it.
        else:
            self._writer.abort_open(is_last=self._closing)
        self._finish()

    def close(self) -> None:
        self._closing = True
        try:
            super().close()
        finally:
            self._writer.release()


class KafkaSharedProducer(SharedProducer):
    """One producer with ``transactional_id``, for tasks of a group that fences its offsets (``GroupOffsets``).

    ``make`` opens a producer of an ID, with a transaction timeout in seconds, None for the client's own. Source:
    KIP-447; Kafka Streams, ``exactly_once_v2``.
    """

    def __init__(
        self,
        make: Callable[[str, float | None], KafkaProducer],
        cluster: Cluster,
        groups: GroupOffsets,
        transactional_id: str,
        timeout_s: float | None,
    ) -> None:
        self._make, self._cluster, self._groups = make, cluster, groups
        self._id, self._timeout_s = transactional_id, timeout_s
        self._producer = make(transactional_id, timeout_s)
        self._begun = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id!r}>"

    def join(
        self,
        transactional_id: str,
        group: str,
        inputs: Sequence[TopicPartition],
    ) -> None:
        if not self._groups.is_fenced(group):
            raise ChangelogError(
                f"tasks in one transaction are fenced by their group, and this process is no member of {group!r}: call "
                "join_group(..., fencing=True) first, or give each task a transaction of its own"
            )
        # Before the committed offsets are read: if the group takes the task away meanwhile, no commit has its offsets.
        self._groups.begin(group, inputs)
        # Fence an instance of the task with a transaction of its own, as it was configured before.
        self._make(transactional_id, None).close()
        self._groups.await_decided(group, inputs)

    def of(self, transactional_id: str) -> KafkaProducer:
        return self._producer

    def leave(self, transactional_id: str) -> None:
        """Do nothing: the producer has nothing of a task alone."""

    def begin(self) -> None:
        if not self._begun:
            self._producer.begin()
            self._begun = True

    def commit(self) -> Mapping[TopicPartition, int]:
        last_offsets = self._producer.commit()
        self._begun = False
        return last_offsets

    def abort(self) -> None:
        self._producer.abort()
        self._begun = False

    def renew(self) -> None:
        self._producer = self._make(self._id, self._timeout_s)
        self._begun = False

    def close(self) -> None:
        self._producer.close()
