"""One record whose function stages many times the limit on the memory of staged writes: its memory and time.

It is a step of a task with an embedded changelog, including its commit, which the limit causes at once. Each backend
and size has its own process. ``OPTIONS`` keeps the other
memory of the process small, so that a step that is not spilled cannot hide in it. ``bound_bytes`` computes the rest.

Source: KIP-844, "Transactions via Secondary State Store" (transactions that memory does not bound); KIP-892,
"In-memory Transaction Buffers", for the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from harness.experiments.memory.memory_watch import MemoryWatch
from harness.experiments.store_of_records import INPUT, LOG_FILE, STORE, log_durability, task_of
from harness.experiments.throughput.measurement import bytes_on_disk
from harness.workloads.ycsb import Values
from stores import failpoints
from stores.changelog import SqliteChangelog
from stores.changelog.interface import Record
from stores.changelog.producer import PENDING_BYTES_MAX
from stores.interface import Durability, IsolationLevel
from stores.registry import Backend, backend_named
from stores.tasks import NO_INTERVAL, ProcessingGuarantee, StoreConfig, StreamTask, TaskContext, TaskSettings

LIMIT_BYTES = 16 << 20
_MIB = 1 << 20
VALUE_BYTES = 8_000
OPTIONS: Mapping[str, int] = {
    "write_buffer_size_bytes": 4 * _MIB,
    "block_cache_size_bytes": 4 * _MIB,
    "cache_size_bytes": 4 * _MIB,
    "copy_part_bytes": _MIB,
}
"""Options for the backends that have them. By default RocksDB has write buffers of 48 MiB and a cache of 50 MiB, and
SQLite a cache of 50 MiB; parts are 4 MiB. A step that is not spilled could hide in these."""
DEADLINE_S = 1_200.0
"""The time of the largest step of a night, and more."""

_PAIR_BYTES = 200
"""The memory for each pair of the step: a native store keeps its key and the length of its value, a batch some 120
bytes in addition to the key and the value."""
_PARTS = 4
"""The number of copies of a part on its way from one engine to the other: as read, as written, in the engine's write,
and in the flush of that write."""
_LOG_PARTS = 2
"""The number of copies of a changelog part: pending in its producer, and in SQLite."""
_ALLOCATOR_BYTES = 16 * _MIB
"""Freed memory that allocators keep, some of it per thread."""

_KEY_BYTES, _SCATTER, _LOOKED_AT_EVERY = 16, 0x9E3779B97F4A7C15, 64
_WARM_UP_PAIRS = 64
_BEFORE_COMMIT = "task.before_log_commit"


def bound_bytes(backend: Backend, pairs: int) -> int | None:
    """Return the memory that a step of ``pairs`` pairs and its commit may use in addition; None if it has no bound.

    It is the sum of the limit, of what the engines have by their options, and of what a commit copies. A store that
    spills has two engines. A backend without a disk, or whose engine keeps its transaction in memory, has no bound.
    """
    if not backend.bounded_memory:
        return None
    has: dict[str, Any] = {**backend.options, **OPTIONS}
    engine_bytes: int = sum(
        has[name] * has.get(times, 1)
        for name, times in (
            ("write_buffer_size_bytes", "max_write_buffer_number"),
            ("offsets_write_buffer_size_bytes", ""),
            ("block_cache_size_bytes", ""),
            ("cache_size_bytes", ""),
        )
        if name in backend.options
    )
    return (
        LIMIT_BYTES
        + 2 * engine_bytes
        + _PARTS * OPTIONS["copy_part_bytes"]
        + _LOG_PARTS * PENDING_BYTES_MAX
        + pairs * _PAIR_BYTES
        + _ALLOCATOR_BYTES
    )


class _Steps:
    """The function of the task: a record asks for the pairs from one number up to another."""

    def __init__(self, seed: int) -> None:
        self._values = Values(seed, VALUE_BYTES)

    def process(self, record: Record, context: TaskContext) -> None:
        store = context.store(STORE)
        for key, value in self.pairs(*map(int, (record.value or b"").split())):
            store.put(key, value)

    def pairs(self, first: int, end: int) -> Iterator[tuple[bytes, bytes]]:
        for number in range(first, end):
            key = b"%016x" % (number * _SCATTER % (1 << 64))
            yield key, self._values.value(key, number)

    def state(self, found: Iterable[tuple[bytes, bytes]], end: int) -> str:
        """Return "equal" if ``found`` are the pairs up to number ``end``, each key once, else "different"."""
        count = 0
        for count, (key, value) in enumerate(found, 1):  # noqa: B007
            number = int.from_bytes(value[:8], "big")
            if not (number < end and (key, value) in self.pairs(number, number + 1)):
                return "different"
        return "equal" if count == end else "different"


def measured(backend: str, step_bytes: int, seed: int, folder: Path, spill_above: int = LIMIT_BYTES) -> dict[str, Any]:
    """Process one step with a task in ``folder``, check the state, and return the row.

    With ``spill_above`` -1 the task has no limit, and its store spills nothing.
    """
    pairs = step_bytes // (_KEY_BYTES + VALUE_BYTES)
    steps = _Steps(seed)
    task = _task(backend, folder, steps, spill_above)
    task.open()
    task.process(INPUT, Record(0, None, b"0 %d" % _WARM_UP_PAIRS))
    task.commit()
    end = _WARM_UP_PAIRS + pairs
    at_commit = _AtCommit(task, folder, [key for key, _ in steps.pairs(_WARM_UP_PAIRS, end)][::_LOOKED_AT_EVERY])
    with MemoryWatch() as watch:
        began = perf_counter()
        task.process(INPUT, Record(1, None, b"%d %d" % (_WARM_UP_PAIRS, end)))
        if not at_commit.commits:
            task.commit()
        seconds = perf_counter() - began
        peak = watch.stop()
    failpoints.disarm(_BEFORE_COMMIT)
    task.close(clean=True)
    task = _task(backend, folder, steps, spill_above)
    task.open()
    state = steps.state(task.store(STORE).all(), end)
    task.close(clean=True)
    kind = backend_named(backend)
    row = {
        "backend": backend,
        "durability": str(Durability.CHANGELOG),
        "transactional": kind.transactional,
        "limit_bytes": LIMIT_BYTES,
        "step_bytes": step_bytes,
        "bound_bytes": bound_bytes(kind, pairs),
        "seed": seed,
        "pairs": pairs,
        "peak_bytes": peak,
        "staged_disk_bytes": at_commit.disk_bytes,
        "uncommitted_bytes": at_commit.uncommitted_bytes,
        "seen_early": at_commit.seen,
        "commits": at_commit.commits,
        "state": state,
        "seconds": seconds,
    }
    return {"rows": [row]}


class _AtCommit:
    """The size of a step when its commit begins: on disk, staged, and visible to a reader of committed data."""

    def __init__(self, task: StreamTask, folder: Path, keys: Sequence[bytes]) -> None:
        self._task, self._state, self._keys = task, folder / STORE, keys
        self._view = task.store(STORE, IsolationLevel.READ_COMMITTED)
        self._disk_before = bytes_on_disk(self._state)
        self.commits = self.disk_bytes = self.uncommitted_bytes = self.seen = 0
        failpoints.arm(_BEFORE_COMMIT, self._look)

    def _look(self) -> None:
        self.commits += 1
        self.disk_bytes = bytes_on_disk(self._state) - self._disk_before
        self.uncommitted_bytes = self._task.uncommitted_bytes()
        self.seen = sum(self._view.get(key) is not None for key in self._keys)


def _task(backend: str, folder: Path, steps: _Steps, limit_bytes: int) -> StreamTask:
    level = Durability.CHANGELOG
    changelog = SqliteChangelog(folder / LOG_FILE, log_durability(level))
    changelog.create_topic(INPUT.topic)
    options = {name: size for name, size in OPTIONS.items() if name in backend_named(backend).options}
    config = StoreConfig(backend, level, options=options, uncommitted_max_bytes=limit_bytes)
    settings = TaskSettings(commit_interval_ms=NO_INTERVAL, guarantee=ProcessingGuarantee.EXACTLY_ONCE)
    return task_of("large-steps", folder / STORE, changelog, config, steps.process, settings)
