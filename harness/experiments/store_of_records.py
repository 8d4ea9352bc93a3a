"""A store of many records in the folder of a trial: its records, its changelog, and a task that keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from harness.workloads.ycsb import VALUE_BYTES, Integers, Values, keys_of
from stores.changelog import SqliteChangelog
from stores.changelog.interface import Changelog, Record
from stores.interface import Durability, KeyValueStore, TopicPartition
from stores.snapshots import Snapshots
from stores.tasks import (
    NO_INTERVAL,
    ProcessingGuarantee,
    RestoreProgress,
    StoreConfig,
    StreamTask,
    TaskContext,
    TaskId,
    TaskSettings,
)

STORE = "state"
"""The store's name, and the folder of all state in that of a trial."""
LOG_FILE = "changelog.sqlite"
INPUT = TopicPartition("input", 0)
_APPLICATION = "measured"
_CHANGELOG = TopicPartition(f"{_APPLICATION}-{STORE}-changelog", 0)
_LOG_TRANSACTION_RECORDS = 50_000


@dataclass(frozen=True)
class StoreOfRecords:
    """``records`` records with keys at random. The changelog has the same ones, in the order of their numbers."""

    folder: Path
    backend: str
    durability: str
    records: int
    seed: int
    value_bytes: int = VALUE_BYTES
    memory_max_bytes: int | None = None
    """The limit on memory that the store gets (``StoreConfig.memory_max_bytes``)."""

    @property
    def level(self) -> Durability:
        """The level of durability."""
        return Durability(self.durability)

    @cached_property
    def values(self) -> Values:
        """The source of the values."""
        return Values(self.seed, self.value_bytes)

    def pairs(self, first: int, end: int) -> list[tuple[bytes, bytes]]:
        """Return the records with numbers from ``first`` up to ``end``."""
        return list(pairs_of(np.arange(first, end), self.values, first))

    def open(self, path: Path | None = None) -> KeyValueStore:
        """Open the store by itself, without a changelog, at ``path`` or in its folder."""
        return self.config.open(path or self.folder / STORE, name=STORE)

    @property
    def config(self) -> StoreConfig:
        """The configuration of the store."""
        return StoreConfig(self.backend, self.level, memory_max_bytes=self.memory_max_bytes)

    def log(self) -> SqliteChangelog:
        """Open the changelog."""
        return SqliteChangelog(self.folder / LOG_FILE, log_durability(self.level))

    def write_log(self, say: Callable[[int], object] = lambda done: None) -> None:
        """Write all records to a new changelog. ``say`` gets how many it has."""
        with self.log() as changelog:
            changelog.create_topic(_CHANGELOG.topic)
            with changelog.producer() as producer:
                for first in range(0, self.records, _LOG_TRANSACTION_RECORDS):
                    end = min(first + _LOG_TRANSACTION_RECORDS, self.records)
                    for key, value in self.pairs(first, end):
                        producer.send(_CHANGELOG, key, value)
                    producer.flush()
                    say(end)

    def task(
        self,
        changelog: Changelog,
        on_restore: Callable[[RestoreProgress], None] | None = None,
        state: str = STORE,
        snapshots: Snapshots | None = None,
    ) -> StreamTask:
        """Return a task that puts its input into the store, not opened. Its state is in the folder ``state``."""
        settings = TaskSettings(
            commit_interval_ms=NO_INTERVAL,
            guarantee=ProcessingGuarantee.EXACTLY_ONCE,
            on_restore=on_restore,
            snapshots=snapshots,
        )
        return task_of(_APPLICATION, self.folder / state, changelog, self.config, _keep, settings)


def _keep(record: Record, context: TaskContext) -> None:
    assert record.key is not None
    context.store(STORE).put(record.key, record.value)


def task_of(
    application: str,
    state: Path,
    changelog: Changelog,
    config: StoreConfig,
    process: Callable[[Record, TaskContext], None],
    settings: TaskSettings,
) -> StreamTask:
    """Return a task with one store, over the input ``INPUT``. It is not opened."""
    return StreamTask(
        application,
        TaskId(0, INPUT.partition),
        state_dir=state,
        changelog=changelog,
        stores={STORE: config},
        process=process,
        inputs=[INPUT],
        settings=settings,
    )


def pairs_of(numbers: Integers, values: Values, first: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pairs of the keys with these numbers, whose values are written one by one from number ``first`` on."""
    return ((key, values.value(key, place)) for place, key in enumerate(keys_of(numbers), first))


def log_durability(durability: Durability) -> Durability:
    """Return the level of the changelog for stores of a level: it survives a kill, and power loss if they do.

    If the changelog survived less than its stores, they could be ahead of it.
    """
    return Durability.DISK if durability is Durability.DISK else Durability.PROCESS
