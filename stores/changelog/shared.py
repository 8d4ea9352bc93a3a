"""The shared producer of embedded logs: a producer for each task, all of which commit in one append.

Each task keeps its own transactional ID. So an older instance of it is fenced, and its open transaction aborted, as
without sharing; and a log that is opened after a crash has nothing else to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stores.changelog.interface import SharedProducer
from stores.changelog.log_writer import AtomicWriter
from stores.changelog.producer import BufferedProducer, commit_together
from stores.interface import TopicPartition


class EmbeddedSharedProducer(SharedProducer):
    """The producers of some tasks, each opened with ``open_producer``, which write to ``log``."""

    def __init__(self, open_producer: Callable[[str], BufferedProducer], log: AtomicWriter) -> None:
        self._open_producer, self._log = open_producer, log
        self._producers: dict[str, BufferedProducer] = {}
        self._begun = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._producers)} tasks>"

    def join(
        self,
        transactional_id: str,
        group: str,
        inputs: Sequence[TopicPartition],
        changelogs: Sequence[TopicPartition],
    ) -> None:
        producer = self._open_producer(transactional_id)
        if self._begun:
            producer.begin()
        self._producers[transactional_id] = producer

    def of(self, transactional_id: str) -> BufferedProducer:
        return self._producers[transactional_id]

    def leave(self, transactional_id: str) -> None:
        producer = self._producers.pop(transactional_id, None)
        if producer is not None:
            producer.close()

    def begin(self) -> None:
        if not self._begun:
            for producer in self._producers.values():
                producer.begin()
            self._begun = True

    def commit(self) -> Mapping[TopicPartition, int]:
        last_offsets = commit_together(self._log, list(self._producers.values()))
        self._begun = False
        return last_offsets

    def abort(self) -> None:
        for producer in self._producers.values():
            producer.abort()
        self._begun = False

    def renew(self) -> None:
        for transactional_id in self._producers:
            self._producers[transactional_id] = self._open_producer(transactional_id)
        self._begun = False

    def close(self) -> None:
        for transactional_id in list(self._producers):
            self.leave(transactional_id)
