"""A trial: an application with many records in its store is killed and started again, some times."""

from __future__ import annotations

from dataclasses import dataclass

from harness.experiment import check_counts
from harness.experiments.kafka.trial import STREAMS
from stores.config import StoreConfig
from stores.registry import backend_named

RECORDS = 5_000_000
"""The size for which the project promises a time."""
READY_S = 1.0
"""That time, from the assignment to the first processed record."""


@dataclass(frozen=True)
class RestartTrial:
    """A worker of ours and an instance of Kafka Streams, each with ``records`` keys in its store.

    In each round both are killed (SIGKILL) without an open transaction, and started again with new input.
    """

    records: int
    seed: int
    repeats: int = 5
    backend: str = StoreConfig().backend
    commit_interval_ms: int = 100
    with_streams: bool = True

    def __post_init__(self) -> None:
        """Raise ConfigError for a number that counts nothing, and for a backend that does not exist."""
        check_counts(records=self.records, repeats=self.repeats, commit_interval_ms=self.commit_interval_ms)
        backend_named(self.backend)

    @property
    def subjects(self) -> tuple[str, ...]:
        """The backend, and Kafka Streams unless it is left out."""
        return (self.backend, STREAMS) if self.with_streams else (self.backend,)
