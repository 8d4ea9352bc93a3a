"""A trial of stateful queries: all subjects with so many keys, in turns."""

from __future__ import annotations

from dataclasses import dataclass

from harness.experiment import check_counts
from harness.experiments.stateful.subjects import SUBJECTS
from harness.workloads.suggestion import check_known

BATCH_EVENTS = (10_000, 100_000)


@dataclass(frozen=True, slots=True)
class QuerySize:
    """The amount of a trial, in a profile."""

    keys: int
    rounds: int
    batch_events: tuple[int, ...] = BATCH_EVENTS
    restarts: int = 0


@dataclass(frozen=True)
class StatefulTrial:
    """The state of each subject is filled with ``keys``. Then rounds follow: each subject has its batches in turn.

    ``restarts`` is how often the driver of each is killed and started again afterwards.
    """

    keys: int
    seed: int
    batch_events: tuple[int, ...] = BATCH_EVENTS
    rounds: int = 5
    restarts: int = 0
    subjects: tuple[str, ...] = tuple(SUBJECTS)
    partitions: int = 2

    def __post_init__(self) -> None:
        """Raise ConfigError for a number that counts nothing, and for an unknown subject."""
        check_counts(keys=self.keys, rounds=self.rounds, partitions=self.partitions, subjects=len(self.subjects))
        check_counts(batch_events=min(self.batch_events, default=0), restarts=self.restarts + 1)
        check_known("subject", list(SUBJECTS), *self.subjects)
