"""A task over dicts: what a workload does, with neither stores nor a changelog."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from harness.workloads.workload import Event, Workload
from stores.changelog.interface import Record


class DictState(dict[bytes, bytes]):
    """The state of one store."""

    def put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.pop(key, None)
        else:
            self[key] = value


class FakeTask:
    """Keeps states by store name, and outputs in order."""

    def __init__(self) -> None:
        self.states: defaultdict[str, DictState] = defaultdict(DictState)
        self.outputs: list[tuple[str, bytes | None, bytes | None, int]] = []

    def store(self, name: str) -> DictState:
        return self.states[name]

    def forward(self, topic: str, key: bytes | None, value: bytes | None, timestamp_ms: int = -1) -> None:
        self.outputs.append((topic, key, value, timestamp_ms))


def run(workload: Workload, events: Iterable[Event]) -> FakeTask:
    """The task after all ``events``; each must have led to exactly one output."""
    task = FakeTask()
    for offset, event in enumerate(events):
        workload.process(Record(offset, event.key, event.value, event.timestamp_ms), task)
        assert len(task.outputs) == offset + 1
    return task
