"""The parts of a record's time in a task: its function, the stores, outputs, the rest of the task, and the commit.

They are measured after all else, in the process that opens the killed task again. Its function gets a context and
stores that read the CPU time of the thread around each call, which adds about half a microsecond to a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from time import thread_time_ns
from typing import Any

from harness.experiments.throughput.measurement import LOG_COMMITTED, PartitionWork, read_pairs, reopened
from stores import failpoints
from stores.changelog import SqliteChangelog
from stores.changelog.interface import Record

_RECORDS_MAX, _WARM_UP_RECORDS, _AT_ONCE = 12_000, 2_000, 1_000
PARTS = ("function_us", "stores_us", "outputs_us", "task_us", "log_commit_us", "store_commit_us")
"""Microseconds of a record's CPU time: the function itself, its calls of stores and of ``forward``, the rest of the
task, and the commit of the changelog and of the stores. What a store logs counts for the store."""


class PartClock:
    """The time of a task's function, and of its calls of stores and of the context. Calls do not overlap."""

    def __init__(self) -> None:
        self.log_committed_ns = 0
        """The clock at the last commit of the changelog."""
        self.reset()

    def reset(self) -> None:
        """Discard all times."""
        self.function_ns = self.process_ns = self.log_commit_ns = self.store_commit_ns = 0
        self.records = 0
        self.called_ns = {"stores": 0, "outputs": 0}

    def note_log_committed(self) -> None:
        """Note that the changelog has committed, and that the stores begin."""
        self.log_committed_ns = thread_time_ns()

    def parts_ns(self) -> tuple[int, ...]:
        """Return the time of each of ``PARTS``."""
        stores_ns, outputs_ns = self.called_ns.values()
        own_ns = self.function_ns - stores_ns - outputs_ns
        task_ns = self.process_ns - self.function_ns
        return own_ns, stores_ns, outputs_ns, task_ns, self.log_commit_ns, self.store_commit_ns

    def around(self, function: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """Return a task's function that measures ``function``."""
        contexts: dict[int, Any] = {}

        def measured(given: Any, context: Any) -> None:
            own = contexts.get(id(context)) or contexts.setdefault(id(context), _TimedContext(context, self))
            began = thread_time_ns()
            function(given, own)
            self.function_ns += thread_time_ns() - began

        return measured

    def timed(self, call: Callable[..., Any], part: str) -> Callable[..., Any]:
        """Return a function like ``call``, whose time counts for ``part``."""

        def measured(*arguments: Any, **named: Any) -> Any:
            began = thread_time_ns()
            result = call(*arguments, **named)
            self.called_ns[part] += thread_time_ns() - began
            return _Timed(result, self) if hasattr(result, "__next__") else result

        return measured


class _Timed:
    """A store, or a scan of one, whose calls are timed."""

    def __init__(self, inner: Any, clock: PartClock) -> None:
        self._inner, self._clock = inner, clock

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value
        call = self.__dict__[name] = self._clock.timed(value, "stores")
        return call

    def __enter__(self) -> _Timed:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> _Timed:
        return self

    def __next__(self) -> Any:
        began = thread_time_ns()
        try:
            return next(self._inner)
        finally:
            self._clock.called_ns["stores"] += thread_time_ns() - began


class _TimedContext:
    """A context with timed stores."""

    def __init__(self, context: Any, clock: PartClock) -> None:
        self.forward = clock.timed(context.forward, "outputs")
        self.forward_many = clock.timed(context.forward_many, "outputs")
        self._context, self._clock = context, clock
        self._stores: dict[str, _Timed] = {}

    def store(self, name: str) -> Any:
        store = self._stores.get(name)
        if store is None:
            store = self._stores[name] = _Timed(self._context.store(name), self._clock)
        return store


def reopened_with_parts(folder: Path, known: Sequence[str] = ()) -> dict[str, Any]:
    """Return what ``reopened`` returns, and the parts of a record's time."""
    figures, work = reopened(folder, known), PartitionWork.read(folder)
    with work.changelog(folder) as changelog:
        return {**figures, **record_parts(work, folder, changelog)}


def record_parts(work: PartitionWork, folder: Path, changelog: SqliteChangelog) -> dict[str, float]:
    """Process records after those of ``work`` with its closed task, and return the parts of a record's time."""
    clock, every = PartClock(), work.configuration.records_per_commit
    task = work.task(folder, changelog, around=clock.around)
    task.open()
    failpoints.arm(LOG_COMMITTED, clock.note_log_committed)
    records, warm_up_records = _more(work), min(_WARM_UP_RECORDS, work.events // 10)
    done = 0
    while commit := list(islice(records, every)):
        if done <= warm_up_records:
            # The times so far are those of the warm-up.
            clock.reset()
        began = thread_time_ns()
        for at in range(0, len(commit), _AT_ONCE):
            task.process_all(work.input, commit[at : at + _AT_ONCE])
        clock.process_ns += (processed := thread_time_ns()) - began
        task.commit()
        clock.store_commit_ns += thread_time_ns() - clock.log_committed_ns
        clock.log_commit_ns += clock.log_committed_ns - processed
        clock.records += len(commit)
        done += len(commit)
    task.close()
    return {name: ns / 1e3 / max(1, clock.records) for name, ns in zip(PARTS, clock.parts_ns(), strict=True)}


def _more(work: PartitionWork) -> Iterator[Record]:
    """Yield the first records of ``work`` again, after its last one in offset and time."""
    times_ms = [timestamp_ms for _, _, timestamp_ms in read_pairs(work.events_path)]
    shift_ms = work.laps * (work.span_ms or max(times_ms, default=0) - min(times_ms, default=0))
    for record in islice(work.records(), min(_RECORDS_MAX, work.events)):
        yield record._replace(offset=work.records_number + record.offset, timestamp_ms=record.timestamp_ms + shift_ms)
