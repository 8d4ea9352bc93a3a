"""The interface of a log to its producers: it appends records as a part of a transaction, or as its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stores.interface import TopicPartition

FIELDS_PER_RECORD = 4

Pending = list[object]
"""Records in a flat list: key, value, timestamp in milliseconds, headers or None. SQLite binds a flat list fastest."""

GroupOffsets = Mapping[tuple[str, TopicPartition], int]

Appended = tuple[int | None, dict[TopicPartition, int]]
"""The number of the transaction if it stays open, and the last offset of each partition."""


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """The identity of a producer: its transactional ID, and an epoch that is higher for a newer producer."""

    transactional_id: str
    epoch: int


@dataclass(slots=True)
class AppendRequest:
    """The content of one append: pending records, and the state of their transaction.

    ``transaction`` is the number that the log gave to the transaction's first request, or None before that.
    ``ends`` marks the last request; a request without ``identity`` is committed as it is appended.
    """

    identity: ProducerIdentity | None
    transaction: int | None
    ends: bool
    records: Mapping[TopicPartition, Pending]
    group_offsets: GroupOffsets = field(default_factory=dict)
    num_bytes: int = 0
    """The bytes of the keys, values and headers of all records."""


class LogWriter(ABC):
    """The interface of a log to its producers. Each call is atomic: after an error, the log is unchanged."""

    @abstractmethod
    def check_partition(self, partition: TopicPartition) -> None:
        """Check that the log has ``partition``. Raises: ChangelogError."""

    @abstractmethod
    def append(self, request: AppendRequest) -> Appended:
        """Append; return the number of the transaction if it stays open, and the last offset of each partition.

        Raises: ProducerFencedError if the identity's epoch is not the newest; ChangelogError.
        """

    @abstractmethod
    def abort(self, transaction: int) -> None:
        """Mark the transaction as aborted if it is still open."""


class AtomicWriter(LogWriter):
    """A log that appends requests of several producers as one."""

    @abstractmethod
    def append_together(self, requests: Sequence[AppendRequest]) -> list[Appended]:
        """Append all requests or none; return the results in order. Raises: as ``append``."""

    def append(self, request: AppendRequest) -> Appended:
        [appended] = self.append_together([request])
        return appended
