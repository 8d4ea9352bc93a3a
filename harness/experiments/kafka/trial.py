"""A trial: rounds of measurements over one topic of a broker, in which everything takes turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple
from zlib import crc32

from harness.experiment import check_counts
from harness.workloads.tasks import Count, workload
from harness.workloads.workload import EventSource, Workload, records_of
from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.registry import backend_named

EVENTS_TOPIC = "events"
KAFKA, EMBEDDED = "Kafka", "embedded"
SHARED = "Kafka, one transaction"
"""Kafka with one transaction for all tasks, as in a worker with ``transaction.scope=thread``."""
BATCHES = "Kafka, batches"
"""Kafka with the workload's function of batches."""
BARE, STREAMS = "bare loop", "Kafka Streams"
"""The subjects beside our backends."""
COUNT = Count(keys=20_000)
"""Fewer keys than elsewhere: most records of a commit then change a key that is there."""
NEXMARK = ("nexmark_q4", "nexmark_q7", "nexmark_q11")
"""The queries of Nexmark that Kafka Streams does as well."""
IN_JAVA = (COUNT.name, *NEXMARK)
"""The workloads that ``Streams.java`` knows."""
TIMES_AS_LONG: Mapping[str, int] = MappingProxyType({"nexmark_q11": 10})
"""The time of a record relative to those of other workloads, about. With each bid the session of its bidder gets a new
key, so that a search for the session passes the deleted keys of the last ten seconds."""
WARM_UP_SHARE = 5
"""One of so many records is processed before the clock runs."""


class KafkaSubject(NamedTuple):
    """The subject of a measurement: a backend, the bare loop or Kafka Streams, and the changelog that it writes."""

    name: str
    changelog: str = KAFKA


class Cell(NamedTuple):
    """One measurement of a round."""

    subject: KafkaSubject
    commit_interval_ms: int
    repeat: int


@dataclass(frozen=True)
class KafkaTrial:
    """The events of a workload in ``partitions`` of a topic, processed by each subject at each commit interval.

    Tasks of all partitions take turns in one thread. The first backend is also measured with the embedded changelog,
    and over several partitions with one transaction for all tasks. With a function of batches, if the workload has one,
    it is measured as well; in Nexmark all backends are. The bare loop has no typed stores.
    """

    workload: str
    partitions: int
    seed: int
    events: int = 300_000
    commit_intervals_ms: tuple[int, ...] = (100, 1_000, 30_000)
    backends: tuple[str, ...] = (StoreConfig().backend,)
    repeats: int = 1

    def __post_init__(self) -> None:
        """Raise ConfigError for a number that counts nothing, and for a workload that has no events of its own."""
        check_counts(
            partitions=self.partitions,
            events=self.events,
            repeats=self.repeats,
            commit_intervals=len(self.commit_intervals_ms),
            shortest_commit_interval_ms=min(self.commit_intervals_ms, default=1),
        )
        if not isinstance(workload_of(self.workload), EventSource):
            raise ConfigError(f"the workload {self.workload!r} has no events of its own")
        for name in self.backends:
            backend_named(name)

    @property
    def subjects(self) -> list[KafkaSubject]:
        """All subjects. Kafka Streams does some workloads only."""
        work, first = workload_of(self.workload), self.backends[:1]
        in_batches = self.backends if self.workload in NEXMARK else first if hasattr(work, "process_batch") else ()
        return [
            *(KafkaSubject(name) for name in self.backends),
            *(KafkaSubject(name, BATCHES) for name in in_batches),
            *(KafkaSubject(name, SHARED) for name in first if self.partitions > 1),
            *(KafkaSubject(name, EMBEDDED) for name in first),
            *(() if records_of(work) else (KafkaSubject(BARE),)),
            *((KafkaSubject(STREAMS),) if self.workload in IN_JAVA else ()),
        ]

    def cells(self) -> list[Cell]:
        """Return all measurements in shuffled order: in each round every interval, and at that every subject."""
        cells: list[Cell] = []
        for repeat in range(self.repeats):
            order = Random(f"{self.seed} {repeat}")
            for interval_ms in order.sample(self.commit_intervals_ms, len(self.commit_intervals_ms)):
                subjects = order.sample(self.subjects, len(self.subjects))
                cells += [Cell(subject, interval_ms, repeat) for subject in subjects]
        return cells


def workload_of(name: str) -> Workload:
    """Return the workload of that name, in the shape of this experiment. Raises: ConfigError."""
    return COUNT if name == COUNT.name else workload(name)


RECORDS = 5_000_000
"""The size for which the project promises a time."""
READY_S = 1.0
"""That time, from the assignment to the first processed record."""
LOST_READY_S = 60.0
"""The promised time with ten times as many records, where the worker has lost its files and begins with a snapshot."""
KEPT, LOST = "kept", "lost"
"""The local files, when a subject is started again."""


@dataclass(frozen=True)
class RestartTrial:
    """A worker of ours and an instance of Kafka Streams, each with ``records`` keys in its store.

    In each round both are killed (SIGKILL) without an open transaction, and started again with new input. With
    ``loses_state`` their local files are removed before each restart, and the worker begins with a snapshot by files.
    Without ``streams`` there is the worker alone.
    """

    records: int
    seed: int
    repeats: int = 5
    backend: str = StoreConfig().backend
    commit_interval_ms: int = 100
    loses_state: bool = False
    streams: bool = True

    def __post_init__(self) -> None:
        """Raise ConfigError for a number that counts nothing, and for a backend that does not exist."""
        check_counts(records=self.records, repeats=self.repeats, commit_interval_ms=self.commit_interval_ms)
        backend_named(self.backend)

    @property
    def subjects(self) -> tuple[str, ...]:
        """The backend, and Kafka Streams if it takes part."""
        return (self.backend, STREAMS) if self.streams else (self.backend,)


def checksum_of(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, Any]:
    """Return the number of entries, and the sum of the CRC-32 of each, key and value together, modulo 2**32.

    The order of the pairs does not count. ``Streams.java`` computes the same, of typed stores as ``plain_pairs`` does.
    """
    entries = total = 0
    for key, value in pairs:
        entries += 1
        total += crc32(value, crc32(key))
    return {"entries": entries, "checksum": f"{total & 0xFFFFFFFF:08x}"}
