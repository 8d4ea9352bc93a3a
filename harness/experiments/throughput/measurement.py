"""The measured processes and their task: the first one works, writes its figures, and dies. The second one opens it.

The first one processes its partition's events with one task, exactly once, and is killed (SIGKILL) with a transaction
open.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import pickle
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any, NoReturn

from harness.experiments.store_of_records import LOG_FILE, log_durability
from harness.processes.child import die_with
from harness.processes.load import LoadWatch, SpeedMeter, waited_ns
from harness.workloads.batches import SUFFIX
from harness.workloads.workload import Workload, plain_pairs, records_of
from stores import failpoints
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

Function = Callable[[Any, Any], None]
"""The function of a task."""
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
    def in_batches(self) -> bool:
        """True if the task gets many records at a time."""
        return self.workload.name.endswith(SUFFIX)

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

    def task(
        self,
        folder: Path,
        changelog: SqliteChangelog,
        memory: BudgetShare | None = None,
        around: Callable[[Function], Function] = lambda function: function,
    ) -> StreamTask:
        """Return the task, not opened. It commits when called to, or before it exceeds what ``memory`` allows.

        Its function is the result of ``around``, called with that of the workload.
        """
        kinds = records_of(self.workload)
        batches: Function | None = getattr(self.workload, "process_batch", None) if self.in_batches else None
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
            process=None if batches is not None else around(self.workload.process),
            process_batch=None if batches is None else around(batches),
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


_LENGTH = struct.Struct("<I")
_PAIRS_PER_BLOCK = 1_000
_BUFFER_BYTES = 1 << 20
Pair = tuple[bytes, bytes, int]
"""A key, a value and a number: an event's time in ms, or the place of the pair's store among the workload's stores."""


def write_pairs(path: Path, pairs: Iterable[Pair]) -> int:
    """Write a new file, or replace one. Return the number of pairs.

    Only a process of the same Python reads it. Blocks of pairs are read in a fifth of the time of single ones.
    """
    count, remaining = 0, iter(pairs)
    with path.open("wb", buffering=_BUFFER_BYTES) as file:
        while block := [tuple(pair) for pair in islice(remaining, _PAIRS_PER_BLOCK)]:
            body = marshal.dumps(block)
            file.write(_LENGTH.pack(len(body)) + body)
            count += len(block)
    return count


def read_pairs(path: Path) -> Iterator[Pair]:
    """Yield the pairs in order; one block of them is in memory. Raises: EOFError if the file ends within a block."""
    with path.open("rb", buffering=_BUFFER_BYTES) as file:
        while head := file.read(_LENGTH.size):
            if len(head) < _LENGTH.size:
                raise EOFError(f"{path} ends within a block of pairs")
            (length,) = _LENGTH.unpack(head)
            body = file.read(length)
            if len(body) < length:
                raise EOFError(f"{path} ends within a block of pairs")
            yield from marshal.loads(body)


LATENCY_MAX_US = 3_600_000_000
LATENCY_DIGITS = 3
"""The number of correct digits of percentiles, up to an hour."""
WARM_UP_EVENTS_MAX = 10_000
_CHUNK_EVENTS = 1_000
LOG_COMMITTED = "task.after_log_commit"


class Stopwatch:
    """Processes records with a task and records the times, without the time for reading the records.

    Times of commits are also without the time in which this thread was ready to run and had no processor.
    """

    def __init__(self, task: StreamTask, partition: TopicPartition) -> None:
        self._task, self._partition = task, partition
        self._log_committed_ns = 0
        self.records = 0
        self.busy_ns = 0
        self.waited_ns = 0
        """The part of ``busy_ns`` in which this thread was ready to run and had no processor."""
        self.commits_ns = array("q")
        """The time of each commit, of the changelog and the stores together."""
        self.store_commits_ns = array("q")
        """The time of each commit after that of the changelog: the stores and the checkpoint file."""
        failpoints.arm(LOG_COMMITTED, self._note_log_committed)

    def reset(self) -> None:
        """Discard all measured times."""
        self.records = self.busy_ns = self.waited_ns = 0
        self.commits_ns, self.store_commits_ns = array("q"), array("q")

    def run(self, records: Iterator[Record], every: int, meter: SpeedMeter | None = None) -> None:
        """Process all records, with a commit after ``every`` of them and at the end. ``meter`` takes turns."""
        staged = 0
        while chunk := list(islice(records, min(every - staged, _CHUNK_EVENTS))):
            with self._timed():
                self._process(chunk)
            self.records += len(chunk)
            staged += len(chunk)
            if staged == every:
                self._commit()
                staged = 0
            if meter is not None:
                meter.turn_if_due()
        if staged:
            self._commit()

    def _process(self, chunk: Sequence[Record]) -> None:
        self._task.process_all(self._partition, chunk)

    def _commit(self) -> None:
        busy_ns, waited_ns = self.busy_ns, self.waited_ns
        with self._timed():
            self._task.commit()
            end = perf_counter_ns()
        self.commits_ns.append(self.busy_ns - busy_ns - (self.waited_ns - waited_ns))
        self.store_commits_ns.append(end - self._log_committed_ns)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        waited, began = waited_ns(), perf_counter_ns()
        yield
        busy_ns = perf_counter_ns() - began
        # The system counts the time of waiting by another clock.
        self.waited_ns += min(busy_ns, waited_ns() - waited)
        self.busy_ns += busy_ns

    def _note_log_committed(self) -> None:
        self._log_committed_ns = perf_counter_ns()


def measured(folder: Path) -> NoReturn:
    """Do the work in ``folder``, leave the figures there, and die in the middle of a transaction."""
    work = PartitionWork.read(folder)
    every = work.configuration.records_per_commit
    task = work.task(folder, work.changelog(folder))
    task.open()
    figures = timed(task, work)
    more = islice(work.records(), min(every, _CHUNK_EVENTS))
    task.process_all(work.input, [record._replace(offset=work.records_number + record.offset) for record in more])
    die_with(figures, folder)


def timed(task: StreamTask, work: PartitionWork) -> dict[str, Any]:
    """Process the records of ``work`` with its open task, and return the figures without those of the warm-up."""
    every = work.configuration.records_per_commit
    stopwatch = Stopwatch(task, work.input)
    records = work.records()
    stopwatch.run(islice(records, min(work.events // 10, WARM_UP_EVENTS_MAX)), every)
    stopwatch.reset()
    meter = SpeedMeter()
    written_before = bytes_written()
    watch = LoadWatch()
    stopwatch.run(records, every, meter)
    load = watch.figures()
    bytes_more = bytes_written() - written_before
    peak = peak_memory_bytes()
    return {
        "records": stopwatch.records,
        "seconds": stopwatch.busy_ns / 1e9,
        "waited_s": stopwatch.waited_ns / 1e9,
        "commits": histogram(stopwatch.commits_ns),
        "store_commits": histogram(stopwatch.store_commits_ns),
        "bytes_written": bytes_more,
        "peak_memory_bytes": peak,
        "open_files": open_files(),
        "machine_speed": meter.pairs_per_s(),
        "fixed_cpu_s": meter.cpu_s,
        **load,
    }


def bytes_written() -> int:
    """Return the bytes that this process and its threads have passed to write calls so far (``wchar``).

    Unlike ``write_bytes``, this depends neither on the file system nor on when the kernel writes pages back.
    """
    return _number_in("/proc/self/io", "wchar:")


def peak_memory_bytes() -> int:
    """The largest resident size of this process so far (``VmHWM``), its interpreter and modules included."""
    # Not getrusage(): its maximum is inherited from the process that started this one.
    return _number_in("/proc/self/status", "VmHWM:") * 1024


def open_files() -> int:
    """Return the number of open files of this process, with sockets and pipes: a dual store has twice as many."""
    return len(os.listdir("/proc/self/fd"))


def histogram(latencies_ns: array[int]) -> str:
    """Return the latencies as an encoded HdrHistogram of microseconds."""
    from hdrh.histogram import HdrHistogram  # only now: the peak of memory has been read

    folded = HdrHistogram(1, LATENCY_MAX_US, LATENCY_DIGITS)
    for latency_ns in latencies_ns:
        folded.record_value(min(max(1, latency_ns // 1000), LATENCY_MAX_US))
    encoded: bytes = folded.encode()
    return encoded.decode()


def _number_in(path: str, field: str) -> int:
    for line in Path(path).read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise OSError(f"{path} has no {field}")


def reopened(folder: Path, known: Sequence[str] = ()) -> dict[str, Any]:
    """Open the killed task, dump its state unless ``known`` has its digest, close it, and return the figures."""
    work = PartitionWork.read(folder)
    work.load_engine()
    began = perf_counter()
    changelog = work.changelog(folder)
    task = work.task(folder, changelog)
    reports = task.open()
    opened_at = perf_counter()
    digest = _digest(_state(task, work))
    if digest not in known:
        write_pairs(folder / DUMP_FILE, _state(task, work))
    task.close(clean=True)
    changelog.close()
    return {
        "open_after_kill_s": opened_at - began,
        "replayed": sum(report.records for report in reports),
        "bytes_on_disk": bytes_on_disk(folder / STATE_FOLDER),
        "state_digest": digest,
    }


def bytes_on_disk(folder: Path) -> int:
    """Return the disk space of the files below ``folder`` in whole blocks, as ``du`` counts it; 0 without a folder."""
    return sum((Path(parent) / name).stat().st_blocks * 512 for parent, _, names in os.walk(folder) for name in names)


def _state(task: StreamTask, work: PartitionWork) -> Iterator[Pair]:
    kinds = records_of(work.workload)
    for place, name in enumerate(work.workload.store_names):
        for key, value in plain_pairs(kinds.get(name), task.store(name)):
            yield key, value, place


def _digest(pairs: Iterable[Pair]) -> str:
    digest = hashlib.sha256()
    for key, value, place in pairs:
        digest.update(b"%d:%d:%d:%b%b" % (place, len(key), len(value), key, value))
    return digest.hexdigest()
