"""The parameters for the processes of a measurement, and their task: a partition's events through a workload."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from harness.experiments.store_of_records import LOG_FILE, log_durability
from harness.workloads.workload import Workload, records_of
from stores.changelog import SqliteChangelog
from stores.changelog.interface import Record
from stores.interface import Durability, TopicPartition
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
        changelog = SqliteChangelog(folder / LOG_FILE, log_durability(self.configuration.durability))
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


Options = tuple[tuple[str, str | int | bool], ...]


@dataclass(frozen=True, slots=True)
class Configuration:
    """One run of one configuration: a task per partition, with a commit after every ``records_per_commit`` records.

    ``repeat`` counts from 0. ``options`` are the backend's own.
    """

    backend: str
    durability: Durability
    workload: str
    records_per_commit: int
    partitions: int
    repeat: int
    seed: int
    options: Options = ()


_HEAD = struct.Struct("<IIq")
_BUFFER_BYTES = 1 << 20


class Pair(NamedTuple):
    """A pair. ``number`` is an event's time in ms, or the place of the pair's store among the workload's stores."""

    key: bytes
    value: bytes
    number: int


def write_pairs(path: Path, pairs: Iterable[tuple[bytes, bytes, int]]) -> int:
    """Write a new file, or replace one. Return the number of pairs."""
    count = 0
    with path.open("wb", buffering=_BUFFER_BYTES) as file:
        for key, value, number in pairs:
            file.write(_HEAD.pack(len(key), len(value), number) + key + value)
            count += 1
    return count


def read_pairs(path: Path) -> Iterator[Pair]:
    """Yield the pairs in order, read one by one. Raises: EOFError if the file ends within a pair."""
    with path.open("rb", buffering=_BUFFER_BYTES) as file:
        while head := file.read(_HEAD.size):
            if len(head) < _HEAD.size:
                raise EOFError(f"{path} ends within a pair")
            key_bytes, value_bytes, number = _HEAD.unpack(head)
            body = file.read(key_bytes + value_bytes)
            if len(body) < key_bytes + value_bytes:
                raise EOFError(f"{path} ends within a pair")
            yield Pair(body[:key_bytes], body[key_bytes:], number)
