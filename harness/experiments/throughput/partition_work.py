"""The parameters for the processes of a measurement, and their task: a partition's events through a workload."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from harness.experiments.throughput.configuration import Configuration, log_durability
from harness.experiments.throughput.pairs import read_pairs
from harness.workloads.workload import Workload, records_of
from stores.changelog import SqliteChangelog
from stores.changelog.interface import Record
from stores.interface import TopicPartition
from stores.registry import backend_named
from stores.tasks import (
    NO_INTERVAL,
    BudgetShare,
    ProcessingGuarantee,
    SharedResources,
    StoreConfig,
    StreamTask,
    TaskId,
    TaskSettings,
)

APPLICATION = "throughput"
INPUT_TOPIC = "events"
STATE_FOLDER = "state"
DUMP_FILE = "dump"
_LOG_FILE = "changelog.sqlite"
_WORK_FILE = "work"


@dataclass(frozen=True, slots=True)
class PartitionWork:
    """One partition's share of a measurement. ``events_path`` holds its ``events`` events (``pairs``).

    The task processes them ``laps`` times, as one log: times are ``span_ms`` later in each lap.
    """

    configuration: Configuration
    workload: Workload
    partition: int
    events_path: Path
    events: int
    laps: int = 1
    span_ms: int = 0

    def write(self, folder: Path) -> None:
        """Write the work for the processes that will work in ``folder``."""
        # Pickled, so that a process imports its own workload and no other.
        (folder / _WORK_FILE).write_bytes(pickle.dumps(self))

    @classmethod
    def read(cls, folder: Path) -> PartitionWork:
        """Return the work that was written to ``folder``."""
        work = pickle.loads((folder / _WORK_FILE).read_bytes())
        assert isinstance(work, cls)
        return work

    @property
    def input(self) -> TopicPartition:
        """The input partition of the task."""
        return TopicPartition(INPUT_TOPIC, self.partition)

    def records(self) -> Iterator[Record]:
        """Yield the events of all laps as the task's input, read from the file one by one."""
        for lap in range(self.laps):
            first, later_ms = lap * self.events, lap * self.span_ms
            for place, (key, value, timestamp_ms) in enumerate(read_pairs(self.events_path)):
                yield Record(first + place, key, value, timestamp_ms + later_ms)

    @property
    def records_number(self) -> int:
        """The number of records in all laps."""
        return self.laps * self.events

    def load_engine(self) -> None:
        """Import the modules of the backend, so that the import is not timed."""
        assert backend_named(self.configuration.backend).options is not None

    def changelog(self, folder: Path) -> SqliteChangelog:
        """Open the embedded changelog, with the topics of the input and the output."""
        changelog = SqliteChangelog(folder / _LOG_FILE, log_durability(self.configuration.durability))
        for topic in (INPUT_TOPIC, self.workload.output_topic):
            changelog.create_topic(topic, self.configuration.partitions)
        return changelog

    def task(self, folder: Path, changelog: SqliteChangelog, memory: BudgetShare | None = None) -> StreamTask:
        """Return the task, not opened. It commits when called to, or before it exceeds what ``memory`` allows."""
        kinds = records_of(self.workload)
        settings = StoreConfig(
            backend=self.configuration.backend,
            durability=self.configuration.durability,
            options=dict(self.configuration.options),
        )
        return StreamTask(
            APPLICATION,
            TaskId(0, self.partition),
            state_dir=folder / STATE_FOLDER,
            changelog=changelog,
            stores={name: replace(settings, records=kinds.get(name)) for name in self.workload.store_names},
            process=self.workload.process,
            inputs=[self.input],
            settings=TaskSettings(commit_interval_ms=NO_INTERVAL, guarantee=ProcessingGuarantee.EXACTLY_ONCE),
            shared=SharedResources(memory=memory),
        )
