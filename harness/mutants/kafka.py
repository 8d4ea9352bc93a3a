"""Mutants of the changelog in Kafka. Only building one in needs the extra ``kafka``."""

from __future__ import annotations

import os
from collections.abc import Mapping

from harness.mutants.mutant import BrokerDetection, mutant
from harness.mutants.patches import Patches
from stores.changelog.interface import Producer
from stores.errors import ChangelogError, ChangelogTimeoutError, CommitInDoubtError
from stores.interface import TopicPartition


@mutant(
    "each instance of a task has a transactional ID of its own, so that it fences no other one",
    BrokerDetection("zombie wakes", "task.before_log_commit", "repeated"),
    BrokerDetection("commit held back", "changelog.before_commit", "repeated"),
)
def _own_transactional_id(patches: Patches, subject: str) -> None:
    """Add the process's number to each transactional ID."""
    from stores.changelog.kafka import KafkaChangelog

    producer = KafkaChangelog.producer

    def mutated(self: KafkaChangelog, transactional_id: str | None = None) -> Producer:
        return producer(self, transactional_id and f"{transactional_id}-{os.getpid()}")

    patches.replace(KafkaChangelog, "producer", mutated)


@mutant(
    "a commit for which the brokers need time ends the worker",
    BrokerDetection("broker paused under load", "transactions of threads", "process"),
)
def _errors_end_tasks(patches: Patches, subject: str) -> None:
    """Raise every error of a commit as one that does not pass."""
    from stores.changelog.kafka.writer import KafkaProducer

    commit = KafkaProducer.commit

    def mutated(self: KafkaProducer) -> Mapping[TopicPartition, int]:
        try:
            return commit(self)
        except (ChangelogTimeoutError, CommitInDoubtError) as error:
            raise ChangelogError(str(error)) from error

    patches.replace(KafkaProducer, "commit", mutated)
