"""The dead letters of a global store: each record that the store can't have is sent once by all processes together.

Every process of an application reads every record of the topic, and one that reads the topic whole reads it again. So
the letters of a store have one transactional ID, and each of their transactions commits the offsets up to which letters
were sent, in a consumer group of the same name. A process opens a producer, which fences the other ones, reads these
offsets, and sends what is not sent yet. Then it commits the store. So a kill at any moment repeats and loses none.

Brokers forget the offsets of a group without members after their ``offsets.retention.minutes``: a process that reads
the topic whole after that sends the letters again.

Source: KIP-1034 (dead letter queue); KIP-98.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from typing import NamedTuple

from stores.changelog.interface import Changelog, Headers, Record
from stores.changelog.partitioners import of_murmur2
from stores.errors import ChangelogError, ChangelogTimeoutError, CommitInDoubtError, ProducerFencedError
from stores.interface import TopicPartition
from stores.tasks.on_error import dead_letter_headers

ATTEMPTS_MAX = 20
"""The most producers in a row for the same letters: other processes may fence each of them, and send letters then."""


class _Letter(NamedTuple):
    origin: TopicPartition
    record: Record
    headers: Headers
    """Those of the letter."""


class GlobalDeadLetters:
    """The dead letters of the global store ``store`` of an application, for ``topic``. For one thread.

    Letters are added while a piece of the topic is read, and sent before the store commits that piece.
    """

    def __init__(self, changelog: Changelog, application_id: str, store: str, topic: str) -> None:
        self._changelog, self._topic = changelog, topic
        self.id = f"{application_id}/{store}/dead-letters"
        """The transactional ID and the consumer group; no application has such a name."""
        self._letters: list[_Letter] = []
        self._sent: dict[TopicPartition, int] = {}
        """The offsets before which all letters are known to be sent."""
        self.sent_total = 0
        """The letters that this object has sent."""

    def begin(self) -> None:
        """Begin with a piece: drop letters of an earlier one, whose store was not committed."""
        self._letters = []

    def add(self, origin: TopicPartition, record: Record, error: Exception) -> None:
        """Add a letter for ``record``, unless it is known to be sent. Raises: as ``Changelog.committed_offsets``."""
        if origin not in self._sent:
            self._sent[origin] = self._committed([origin]).get(origin, 0)
        if record.offset >= self._sent[origin]:
            self._letters.append(_Letter(origin, record, dead_letter_headers(error, origin, record)))

    def send(self) -> None:
        """Send the letters that no process has sent.

        Raises: ChangelogTimeoutError if others do all the time; ChangelogError if the topic is gone.
        """
        if not self._letters:
            return
        for _ in range(ATTEMPTS_MAX):
            with suppress(ProducerFencedError, CommitInDoubtError):  # The next producer finds out what is sent.
                self._send_new()
                return
        raise ChangelogTimeoutError(
            f"the dead letters {self.id!r} were not sent: other processes have sent such letters {ATTEMPTS_MAX} times "
            "meanwhile. Follow the topic again"
        )

    def _send_new(self) -> None:
        with closing(self._changelog.producer(self.id)) as producer:
            # Not earlier: from now on nobody else commits letters.
            self._sent |= self._committed({letter.origin for letter in self._letters})
            new = [letter for letter in self._letters if letter.record.offset >= self._sent.get(letter.origin, 0)]
            if new:
                count = self._partitions()
                producer.begin()
                for letter in new:
                    record = letter.record
                    target = TopicPartition(self._topic, _partition(letter, count))
                    producer.send(target, record.key, record.value, record.timestamp_ms, letter.headers)
                following = {letter.origin: letter.record.offset + 1 for letter in new}
                producer.send_offsets(self.id, following)
                producer.commit()
                self._sent |= following
        self.sent_total += len(new)
        self._letters = []

    def _partitions(self) -> int:
        """Return the number of the topic's partitions. Raises: ChangelogError if it was deleted meanwhile."""
        count = self._changelog.topics().get(self._topic)
        if count is None:
            raise ChangelogError(
                f"the dead-letter topic {self._topic!r} of {self.id!r} does not exist any more: create it again"
            )
        return count

    def _committed(self, origins: set[TopicPartition] | list[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self._changelog.committed_offsets(self.id, origins)


def _partition(letter: _Letter, count: int) -> int:
    """Return the partition of a letter: that of its key, or by the number of its origin."""
    key = letter.record.key
    return letter.origin.partition % count if key is None else of_murmur2(key, count)
