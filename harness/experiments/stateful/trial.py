"""A trial of stateful queries: all subjects with so many keys, in turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from harness.experiment import check_counts
from harness.workloads.suggestion import check_known
from stores.registry import backend_named


@dataclass(frozen=True)
class StatefulSubject:
    """One way. Spark's own have no ``backend``."""

    name: str
    called: str
    """The function that is called, and for which piece of the data."""
    backend: str | None = None

    @property
    def full_backend(self) -> str | None:
        """The full name of the backend."""
        return None if self.backend is None else backend_named(self.backend).name


BY_RECORD, IN_ARROW, IN_BATCHES = "each record", "Arrow", "batches of records"
"""The functions of ``stateful``: one reads and writes the state for each record, the others count in Arrow first.

The last one is that of a task, ``process_batch``.
"""
APPLY, PANDAS, ROWS, JVM = (
    "applyInPandasWithState",
    "transformWithStateInPandas",
    "transformWithState",
    "groupBy-count",
)
_ENGINES = ("rocksdb", "lmdb", "sqlite")
_ALL = (
    *(StatefulSubject(f"stateful-{engine}", f"`stateful`, {BY_RECORD}", engine) for engine in _ENGINES),
    *(StatefulSubject(f"stateful-{engine}-arrow", f"`stateful`, {IN_ARROW}", engine) for engine in _ENGINES),
    StatefulSubject("stateful-rocksdb-batch", f"`stateful`, {IN_BATCHES}", "rocksdb"),
    StatefulSubject(ROWS, "Python, rows of each key"),
    StatefulSubject(PANDAS, "Python, a DataFrame for each key"),
    StatefulSubject(APPLY, "Python, a DataFrame for each key"),
    StatefulSubject(JVM, "no Python"),
)
SUBJECTS: Mapping[str, StatefulSubject] = MappingProxyType({subject.name: subject for subject in _ALL})
OURS = "stateful-rocksdb"
"""The subject against which the others are compared: it touches the state for each record, as Spark's do."""
OURS_IN_ARROW, OURS_IN_BATCHES = "stateful-rocksdb-arrow", "stateful-rocksdb-batch"

BATCH_EVENTS = (10_000, 100_000)
ROWS_FILE = "rows.jsonl"
"""The file with the rows so far of a process that measures, which may be killed."""


@dataclass(frozen=True)
class StatefulTrial:
    """The state of each subject is filled with ``keys``. Then rounds follow: each subject has a batch in turn.

    There are ``rounds`` with each size of ``batch_events``, those of the smallest first. ``restarts`` is how often the
    driver of each is killed and started again afterwards.
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
