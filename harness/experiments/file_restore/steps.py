"""The steps of a trial of restores by files, each in its own process.

``log`` writes a changelog, and ``fill`` restores a store from a copy of it. ``work`` continues with that store and copy
while a snapshot is taken and sent. ``change`` sends one more snapshot after a change of some keys. ``replay`` makes
another store from the changelog as it was written, ``restore`` one from the newest snapshot, and ``copy`` copies the
files of that one by ``cp -r``.

These three begin alike: what they write does not exist, what they read was read just before, and nothing waits to be
synced. Each has its time without a sync of all files at the end, and with one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from harness.experiments.store_of_records import INPUT, LOG_FILE, STORE, StoreOfRecords, pairs_of
from harness.processes.load import Clocks, clocks, seconds_since
from harness.workloads.ycsb import KEY_BYTES, Values, keys_of
from stores.changelog.interface import Record
from stores.metrics import TaskStoreMetrics
from stores.registry import backend_named
from stores.snapshots import Snapshots
from stores.snapshots.settings import AT_ONCE_MAX, CPU_SHARE
from stores.tasks import RestoreReport, StreamTask

T = TypeVar("T")
COMMIT_RECORDS = 2_000
CHANGED_SHARE = 100
"""One of so many keys is changed between two snapshots."""
SAMPLE = 1_000
SNAPSHOT_S = 300.0
"""The most time for a snapshot."""
_STRIDE = 7_919
"""A prime, so that the keys that a task overwrites are far apart."""
WARM_SHARE = 2
"""A task works for one part of so many of its time alone before that begins."""
_WORKED, _REPLAYED, _RESTORED, _COPY = "worked", "replayed", "restored", "copy"
_PAUSE_S = 0.005
_BLOCK_BYTES = 1 << 20


def log(folder: Path, **order: Any) -> dict[str, Any]:
    """Write the changelog."""
    StoreOfRecords(folder, **order).write_log()
    return {}


def fill(folder: Path, **order: Any) -> dict[str, Any]:
    """Restore the store from a copy of the changelog, and close it cleanly."""
    worked = folder / _WORKED
    worked.mkdir()
    for file in folder.glob(f"{LOG_FILE}*"):
        shutil.copy(file, worked)
    subject = StoreOfRecords(worked, **order)
    with subject.log() as changelog, closing(subject.task(changelog)) as task:
        _check_replayed(subject, task.open())
    return {}


class _Timed(NamedTuple):
    """The seconds until a store or a copy of files is there, and until it is synced as well."""

    done: Clocks
    synced: Clocks

    def columns(self, name: str) -> dict[str, float]:
        """Return the columns of a row."""
        return {f"{name}_s": self.done.wall_s, f"{name}_synced_s": self.synced.wall_s, f"{name}_cpu_s": self.done.cpu_s}


def _timed(make: Callable[[], T], target: Path, *sources: Path) -> tuple[T, _Timed]:
    """Return what ``make`` returns, and the time in which it makes ``target`` from files and folders."""
    shutil.rmtree(target, ignore_errors=True)
    for source in sources:
        _read(source)
    # A sync of one file may otherwise wait for those that were written before.
    os.sync()
    began = clocks()
    made = make()
    done = seconds_since(began)
    os.sync()
    return made, _Timed(done, seconds_since(began))


def _read(source: Path) -> None:
    """Read a file, or all files of a folder, into the page cache."""
    for file in [source] if source.is_file() else filter(Path.is_file, source.rglob("*")):
        with file.open("rb", buffering=0) as opened:
            while opened.read(_BLOCK_BYTES):
                pass


def replay(folder: Path, repeat: int, **order: Any) -> dict[str, Any]:
    """Measure the restore of a store from its changelog."""
    subject = StoreOfRecords(folder, **order)
    backend_named(subject.backend).load()
    with subject.log() as changelog, closing(subject.task(changelog, state=_REPLAYED)) as task:
        reports, timed = _timed(task.open, folder / _REPLAYED, folder / LOG_FILE)
        _check_replayed(subject, reports)
    return timed.columns("replay")


def _check_replayed(subject: StoreOfRecords, reports: Sequence[RestoreReport]) -> None:
    (report,) = reports
    assert report.records == subject.records, f"{report.records:,} records were replayed, not {subject.records:,}"


class _Worker:
    """A task that puts records into its store, and the numbers of its input."""

    def __init__(self, subject: StoreOfRecords, task: StreamTask) -> None:
        self._records, self._seed = subject.records, subject.seed
        self._task = task
        self._next = task.input_offsets().get(INPUT, 0)

    @property
    def metrics(self) -> TaskStoreMetrics:
        """The metrics of the store."""
        return self._task.metrics.stores[STORE]

    def commit(self, records: int) -> float:
        """Process so many records with keys that are far apart, and commit; return the seconds."""
        first = self._next
        self._next += records
        numbers = np.arange(first, self._next) * _STRIDE % self._records
        pairs = list(pairs_of(numbers, Values(self._seed + 1), first))
        began = perf_counter()
        for offset, (key, value) in enumerate(pairs, first):
            self._task.process(INPUT, Record(offset, key, value))
        self._task.commit()
        return perf_counter() - began

    def snap(self) -> None:
        """Commit single records until a snapshot is in place that has all that was committed before."""
        (reached,), until = self._task.changelog_offsets().values(), perf_counter() + SNAPSHOT_S
        assert reached is not None
        while (self.metrics.snapshot_offset or 0) < reached:
            self.check(until)
            self.commit(1)
            time.sleep(_PAUSE_S)

    def check(self, until: float) -> None:
        """Check that it is not too late for a snapshot. One that fails is taken again: LMDB's map may grow under it."""
        failed = self.metrics.snapshot_failed_total
        assert perf_counter() < until, f"no snapshot was taken in {SNAPSHOT_S:g} s, and {failed} failed"


class Commit(NamedTuple):
    """The time of a commit, and when it ended."""

    ended_s: float
    seconds: float


def work(folder: Path, repeat: int, alone_s: float, **order: Any) -> dict[str, Any]:
    """Process records for ``alone_s``, and then until a first snapshot is in place, in a folder of its own.

    Before that, records are processed that do not count: caches fill, and RocksDB compacts what was restored.
    """
    subject = StoreOfRecords(folder / _WORKED, **order)
    commits: list[Commit] = []
    snapshot_from_s = alone_s / WARM_SHARE + alone_s
    snapshots = _snapshots(folder, repeat, interval_ms=round(1_000 * snapshot_from_s))
    os.sync()
    with subject.log() as changelog, subject.task(changelog, snapshots=snapshots) as task:
        began, worker = perf_counter(), _Worker(subject, task)
        while not worker.metrics.snapshot_total:
            worker.check(began + snapshot_from_s + SNAPSHOT_S)
            seconds = worker.commit(COMMIT_RECORDS)
            commits.append(Commit(perf_counter() - began, seconds))
    return speeds(commits, alone_s)


def speeds(commits: Sequence[Commit], alone_s: float) -> dict[str, float | None]:
    """Return the columns about commits of a task that took a snapshot once it had worked ``alone_s``."""
    warm_s = alone_s / WARM_SHARE
    alone_until_s = warm_s + alone_s
    counted = [each for each in commits if each.ended_s - each.seconds >= warm_s]
    return {
        "alone_per_s": _rate([each.seconds for each in counted if each.ended_s < alone_until_s]),
        "beside_per_s": _rate([each.seconds for each in counted if each.ended_s >= alone_until_s]),
        "snapshot_s": max(0.0, commits[-1].ended_s - alone_until_s),
    }


def _rate(seconds: list[float]) -> float | None:
    return COMMIT_RECORDS * len(seconds) / sum(seconds) if seconds else None


def change(folder: Path, repeat: int, **order: Any) -> dict[str, Any]:
    """Send a snapshot, change keys in one commit, and send another one. Return the bytes that were changed and sent."""
    subject = StoreOfRecords(folder / _WORKED, **order)
    records = max(1, subject.records // CHANGED_SHARE)
    snapshots = _snapshots(folder, repeat, interval_ms=0, cpu_share=None)
    with subject.log() as changelog, subject.task(changelog, snapshots=snapshots) as task:
        worker = _Worker(subject, task)
        worker.snap()
        _await_end(snapshots)
        before = worker.metrics.snapshot_sent_bytes_total
        worker.commit(records)
        worker.snap()
        sent_bytes = worker.metrics.snapshot_sent_bytes_total - before
        sample = _sample(task, subject)
    return {
        "changed_bytes": records * (KEY_BYTES + subject.value_bytes),
        "sent_bytes": sent_bytes,
        "sample": sample,
    }


def restore(folder: Path, repeat: int, sample: str, **order: Any) -> dict[str, Any]:
    """Measure the restore of another store from the newest snapshot; ``sample`` is that of the first store."""
    subject = StoreOfRecords(folder / _WORKED, **order)
    backend_named(subject.backend).load()
    target, snapshots = folder / _WORKED / _RESTORED, _snapshots(folder, repeat, interval_ms=3_600_000)
    sources = subject.folder / LOG_FILE, _snapshot_folder(folder, repeat)
    with subject.log() as changelog, closing(subject.task(changelog, state=_RESTORED, snapshots=snapshots)) as task:
        (report,), timed = _timed(task.open, target, *sources)
        assert report.snapshot_offset is not None, f"no snapshot was used: {report.reason}"
        assert _sample(task, subject) == sample, "the store that was restored has other records"
    return {**timed.columns("files"), "file_bytes": report.snapshot_bytes}


def copy(folder: Path, repeat: int, **order: Any) -> dict[str, Any]:
    """Measure ``cp -r`` of the store that was restored. File systems that could share its blocks copy them as well."""
    source, target = folder / _WORKED / _RESTORED, folder / _COPY
    command = ["cp", "-r", "--reflink=never", source, target]
    _, timed = _timed(partial(subprocess.run, command, check=True), target, source)
    assert _file_bytes(target) == _file_bytes(source)
    shutil.rmtree(target)
    return {"copy_s": timed.done.wall_s, "copy_synced_s": timed.synced.wall_s}


def _file_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _snapshot_folder(folder: Path, repeat: int) -> Path:
    return folder / f"snapshots-{repeat}"


def _snapshots(folder: Path, repeat: int, interval_ms: int, cpu_share: float | None = CPU_SHARE) -> Snapshots:
    """Return snapshots in the folder of a repeat, and remove those of other repeats."""
    own = _snapshot_folder(folder, repeat)
    for other in folder.glob("snapshots-*"):
        if other != own:
            shutil.rmtree(other)
    return Snapshots(own, interval_ms=interval_ms, cpu_share=cpu_share)


def _await_end(snapshots: Snapshots) -> None:
    """Wait until no snapshot is under way."""
    for _ in range(AT_ONCE_MAX):
        assert snapshots.turns.acquire(timeout=SNAPSHOT_S)
    snapshots.turns.release(AT_ONCE_MAX)


def _sample(task: StreamTask, subject: StoreOfRecords) -> str:
    """Return a digest of some of the store's records."""
    numbers = np.random.default_rng(subject.seed).integers(0, subject.records, SAMPLE)
    return sha256(b"".join(task.store(STORE).get(key) or b"" for key in keys_of(numbers))).hexdigest()
