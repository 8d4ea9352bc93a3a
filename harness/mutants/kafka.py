"""Mutants of the changelog in Kafka. Only building one in needs the extra ``kafka``."""

from __future__ import annotations

import os

from harness.mutants.mutant import BrokerTrial, Mutant
from harness.mutants.patches import Patches
from stores.changelog.interface import Producer


def _own_transactional_id(patches: Patches, subject: str) -> None:
    """Add the process's number to each transactional ID."""
    from stores.changelog.kafka import KafkaChangelog

    producer = KafkaChangelog.producer

    def mutated(self: KafkaChangelog, transactional_id: str | None = None) -> Producer:
        return producer(self, transactional_id and f"{transactional_id}-{os.getpid()}")

    patches.replace(KafkaChangelog, "producer", mutated)


MUTANTS = (
    Mutant(
        "own-transactional-id",
        "each instance of a task has a transactional ID of its own, so that it fences no other one",
        _own_transactional_id,
        (
            BrokerTrial("zombie wakes", "task.before_log_commit", "repeated"),
            BrokerTrial("commit held back", "changelog.before_commit", "repeated"),
        ),
    ),
)
