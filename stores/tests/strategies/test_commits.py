"""A commit costs what its records cost and little more, in calls and bytes; and a reader never costs it a write."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from stores import IsolationLevel, TopicPartition, open_store
from stores.batch.buffer import IndexedBatch
from stores.changelog import MemoryChangelog, Record
from stores.config import StoreConfig
from stores.engines.engine import Writes
from stores.meta_entries import OFFSET, POSITION, encode_offsets
from stores.registry import backends
from stores.strategies.batch_staging import BatchStaging
from stores.strategies.store import Store
from stores.tasks import StreamTask, TaskContext, TaskId

_LOG, _INPUT = TopicPartition("changelog", 0), TopicPartition("input", 0)
_CALLS_MAX = 46
"""Calls of a commit of one record over the memory engine, that of ``commit`` and the engine's own included."""
_TASK_CALLS_MAX = 330
"""Calls of a task with two stores for a record with a write to each, and for its commit, those of the changelog and the
stores included."""


def _calls_of(action: Callable[[], object]) -> int:
    """Return the number of functions that ``action`` calls, Python's and the interpreter's."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def test_a_commit_makes_few_calls_beside_those_for_its_records(path: Path) -> None:
    with closing(open_store("memory-indexed-batch", path)) as store:
        for number in range(3):
            store.put(b"key", b"value")
            store.advance_position(_INPUT, number)
            store.commit({_LOG: number})
        store.put(b"key", b"value")
        store.advance_position(_INPUT, 3)
        assert _calls_of(lambda: store.commit({_LOG: 3})) <= _CALLS_MAX


def test_a_record_of_a_task_and_its_commit_make_few_calls(path: Path) -> None:
    def process(record: Record, context: TaskContext) -> None:
        context.store("one").put(b"key", b"value")
        context.store("other").put(b"key", b"value")

    changelog = MemoryChangelog()
    changelog.create_topic("input", 1)
    stores = {name: StoreConfig("memory-indexed-batch") for name in ("one", "other")}
    task = StreamTask(
        "application",
        TaskId(0, 0),
        state_dir=path,
        changelog=changelog,
        stores=stores,
        process=process,
        inputs=[_INPUT],
    )
    with closing(task):
        task.open()
        for number in range(3):
            task.process(_INPUT, Record(number, None, None))
            task.commit()
        # A commit in which the metrics begin a new window of time makes some more.
        calls = [
            _calls_of(partial(task.process, _INPUT, Record(number, None, None))) + _calls_of(task.commit)
            for number in (3, 4, 5)
        ]
        assert min(calls) <= _TASK_CALLS_MAX


def test_a_commit_writes_the_positions_that_have_advanced_and_no_others(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [TopicPartition("input", number) for number in range(8)]
    with closing(open_store("memory-indexed-batch", path)) as store:
        assert isinstance(store, Store)
        for partition in inputs:
            store.advance_position(partition, 5)
        store.commit({_LOG: 0})
        writes: list[Mapping[bytes, bytes | None]] = []
        write = store.staging.engine.write

        def note(layers: Sequence[Writes], meta: Mapping[bytes, bytes | None], **options: Any) -> None:
            writes.append(dict(meta))
            write(layers, meta, **options)

        monkeypatch.setattr(store.staging.engine, "write", note)
        store.advance_position(inputs[0], 6)
        store.advance_position(inputs[1], 4)
        store.commit({_LOG: 1})
        assert writes == [{**encode_offsets(OFFSET, {_LOG: 1}), **encode_offsets(POSITION, {inputs[0]: 6})}]
        assert store.position(IsolationLevel.READ_COMMITTED) == dict.fromkeys(inputs, 5) | {inputs[0]: 6}


@pytest.mark.parametrize("backend", sorted(set(backends()) - {"memory-indexed-batch"}))
def test_a_commit_allocates_nothing_that_grows_with_the_store(backend: str, path: Path) -> None:
    with closing(open_store(backend, path)) as store:

        def largest(numbers: range) -> int:
            """The most that one of some commits of ten records held at once."""
            most = 0
            tracemalloc.start()
            for number in numbers:
                for key in range(10):
                    store.put(b"%08d" % (number * 10 + key), bytes(100))
                store.advance_position(_INPUT, number)
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                store.commit({_LOG: number})
                most = max(most, tracemalloc.get_traced_memory()[1] - before)
            tracemalloc.stop()
            return most

        small = largest(range(1, 4))
        for key in range(100, 5_000):
            store.put(b"%08d" % key, bytes(100))
        store.commit()
        # It would show, if a commit held a twentieth of that.
        assert largest(range(4, 7)) < small + 20_000


class _InterruptedBatch(IndexedBatch):
    """Once armed, another thread's scan freezes the active layer just before or after an attribute is read."""

    moment: tuple[str, bool] | None = None

    def __getattribute__(self, name: str) -> Any:
        if name == "moment" or self.moment is None or self.moment[0] != name:
            return super().__getattribute__(name)
        before = self.moment[1]
        self.moment = None
        if before:
            self._freeze()
            return getattr(self, name)
        value = getattr(self, name)
        self._freeze()
        return value

    def _freeze(self) -> None:
        with self.lock:
            self.release(self.freeze())


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("attribute", ["writes", "deep"])
def test_a_scan_that_begins_while_a_commit_gathers_its_writes_costs_none_of_them(
    attribute: str, before: bool, path: Path
) -> None:
    with closing(open_store("memory-indexed-batch", path)) as store:
        assert isinstance(store, Store)
        assert isinstance(store.staging, BatchStaging)
        batch = store._batch = store.staging.batch = _InterruptedBatch()
        store.put(b"key", b"value")
        batch.moment = (attribute, before)
        store.commit()
        assert batch.moment is None
        assert store.read_only(IsolationLevel.READ_COMMITTED).get(b"key") == b"value"
        assert store.approximate_num_uncommitted_bytes() == 0
