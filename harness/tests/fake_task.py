"""A task over dicts, and over typed stores in memory: what a workload does, without a changelog."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.workloads.workload import Event, Workload, plain_pairs, records_of
from stores.changelog.interface import Record
from stores.interface import IsolationLevel, KeyValueStore
from stores.records import RecordKind, TypedStore
from stores.records.values import StoreStaging
from stores.registry import open_store


class DictState(dict[bytes, bytes]):
    """The state of one store."""

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        return list(map(self.get, keys))

    def put_many(self, pairs: Mapping[bytes, bytes | None]) -> None:
        for key, value in pairs.items():
            self.put(key, value)

    def put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.pop(key, None)
        else:
            self[key] = value


class FakeTask:
    """Keeps states by store name, and outputs in order; ``records`` says which stores are typed."""

    def __init__(self, records: Mapping[str, RecordKind] = MappingProxyType({})) -> None:
        self.records = records
        self.outputs: list[tuple[str, bytes | None, bytes | None, int]] = []
        self.timestamp_ms = -1
        self._plain: defaultdict[str, DictState] = defaultdict(DictState)
        self._typed: dict[str, TypedStore] = {}

    def store(self, name: str) -> Any:
        if name not in self.records:
            return self._plain[name]
        if name not in self._typed:
            inner = open_store("memory-indexed-batch", Path(name), name=name)
            self.records[name].prepare(inner)
            self._typed[name] = self.records[name].staged(_AtRecord(inner, self))
        return self._typed[name]

    @property
    def states(self) -> dict[str, dict[bytes, bytes]]:
        """The content of each store, as plain pairs."""
        typed = {
            name: dict(plain_pairs(self.records[name], store.read_only(IsolationLevel.READ_UNCOMMITTED)))
            for name, store in self._typed.items()
        }
        return {**self._plain, **typed}

    def forward(self, topic: str, key: bytes | None, value: bytes | None, timestamp_ms: int = -1) -> None:
        self.outputs.append((topic, key, value, timestamp_ms))

    def forward_many(
        self, topic: str, keys: Sequence[bytes | None], values: Sequence[bytes | None], timestamps_ms: Any = None
    ) -> None:
        self.outputs += zip([topic] * len(keys), keys, values, timestamps_ms, strict=True)


class _AtRecord(StoreStaging):
    """Staging at the time of the task's current record."""

    def __init__(self, store: KeyValueStore, task: FakeTask) -> None:
        super().__init__(store)
        self._task = task

    @property
    def timestamp_ms(self) -> int:
        return self._task.timestamp_ms


def run(workload: Workload, events: Iterable[Event]) -> FakeTask:
    """The task after all ``events``; each must have led to exactly one output."""
    task = FakeTask(records_of(workload))
    for offset, event in enumerate(events):
        task.timestamp_ms = event.timestamp_ms
        workload.process(Record(offset, event.key, event.value, event.timestamp_ms), task)
        assert len(task.outputs) == offset + 1
    return task
