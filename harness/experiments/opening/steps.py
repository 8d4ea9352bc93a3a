"""The steps of an opening trial, each in its own process.

``log`` writes a changelog. ``fill`` restores a store from a copy of it, and closes it cleanly. ``tail`` makes some
commits and is killed (SIGKILL) within one: the changelog has it, the store does not. ``apart`` opens that store by
itself, and a copy with the bare engine. ``reopen`` opens that store with its task, and closes it cleanly.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from harness.experiments.store_of_records import INPUT, LOG_FILE, STORE, StoreOfRecords, pairs_of
from harness.processes.child import die_with
from harness.processes.load import Clocks, clocks, seconds_since, waited_ns
from harness.workloads.ycsb import Values, keys_of
from stores import failpoints
from stores.changelog import SqliteChangelog
from stores.changelog.interface import Record
from stores.files.plain_files import replace_file
from stores.interface import Durability
from stores.registry import backend_named
from stores.tasks import RestoreProgress

TAIL_COMMITS = 10
TAIL_COMMIT_RECORDS = 1_000
_TAIL_COMMITS_MAX = 400
_TAIL_BYTES = 12_000_000
"""Slightly less than the changelog that fills a write buffer of RocksDB, and is then flushed: the worst tail."""
_MARK_BYTES = 128
_WARM_UPS = 10
"""A process of a task opens many stores, so the first opening is not what an opening takes."""
_KEY = keys_of(np.zeros(1, dtype=np.int64))[0]
"""A key that every store has."""
_STRIDE = 7_919
"""A prime, so that the keys that the tail overwrites are far apart."""


def log(folder: Path, **order: Any) -> dict[str, Any]:
    """Write the changelog of a store, whatever its backend."""
    StoreOfRecords(folder, **order).write_log()
    return {}


def fill(folder: Path, **order: Any) -> dict[str, Any]:
    """Create the store, restored from a copy of the changelog in the folder above, and closed cleanly."""
    subject = StoreOfRecords(folder, **order)
    shutil.copyfile(folder.parent / LOG_FILE, folder / LOG_FILE)
    with subject.log() as changelog:
        figures = _open_and_close(subject, changelog)
    # A long-lived store was written long ago, so the disk must not write it while the next steps are timed.
    os.sync()
    return figures


def tail(folder: Path, **order: Any) -> dict[str, Any]:
    """Make commits of 1,000 records, and one in the middle of which the process is killed. Does not return.

    There are ten, or, if a kill loses commits, as many as it may lose, up to half of the store's records.
    """
    subject = StoreOfRecords(folder, **order)
    task = subject.task(subject.log())
    task.open()
    first = task.input_offsets().get(INPUT, 0)
    numbers = np.arange(first, first + (_TAIL_COMMITS_MAX + 1) * TAIL_COMMIT_RECORDS) * _STRIDE % subject.records
    for count, (key, value) in enumerate(pairs_of(numbers, Values(subject.seed + 1), first), 1):
        task.process(INPUT, Record(first + count - 1, key, value))
        if count % TAIL_COMMIT_RECORDS == 0:
            task.commit()
            if count >= TAIL_COMMITS * TAIL_COMMIT_RECORDS:
                unpersisted_bytes = task.metrics.stores[STORE].unpersisted_bytes
                if not 0 < unpersisted_bytes < _TAIL_BYTES or 2 * count >= subject.records:
                    failpoints.arm("task.after_log_commit", partial(die_with, {}, folder))
    raise AssertionError("the last commit did not reach its failpoint")


def apart(folder: Path, repeat: int, **order: Any) -> dict[str, Any]:
    """Measure the time to open and recover the killed store by itself, and to open a copy with the bare engine.

    Both then look one key up. Which is first changes with each repeat. Both have opened a new store some times before.
    ``mark_s`` is the time of writing a file as small as the mark that a store is open, so that it survives power loss;
    None if an opening after a kill need not write one. The killed store is left as it was, in a copy.
    """
    from harness.experiments.opening.bare import bare_seconds  # It imports every engine.

    subject, state = StoreOfRecords(folder, **order), folder / STORE
    original = _copied(state, folder / "copy-kept")
    try:
        without, mark = _copied(state, folder / "copy-bare"), folder / "copy-mark"
        _warm_up(folder / "copy-new", subject, bare_seconds)
        timed: dict[str, Callable[[], Clocks | None]] = {
            # In its place: the mark of a copy is written again, because a copy may not survive power loss.
            "alone": lambda: _alone_seconds(_store_below(state), subject),
            "bare": lambda: bare_seconds(without, subject.level, _KEY),
            "mark": lambda: None if _keeps_mark(subject) else _mark_seconds(mark),
        }
        seconds: dict[str, float | None] = {}
        for name in sorted(timed, reverse=repeat % 2 == 1):
            # A sync of one file may otherwise wait for those that were written before.
            os.sync()
            by_clock, on_cpu = timed[name]() or (None, None)
            seconds |= {f"{name}_s": by_clock, f"{name}_cpu_s": on_cpu}
        return seconds
    finally:
        shutil.rmtree(state)
        original.replace(state)
        for copy in folder.glob("copy-*"):
            shutil.rmtree(copy)


def _copied(state: Path, copy: Path) -> Path:
    """Copy the files, except for tables of RocksDB, which no process changes: they get a second name."""

    def copied(source: str, target: str) -> str:
        if source.endswith(".sst"):
            os.link(source, target)
            return target
        return shutil.copyfile(source, target)

    shutil.copytree(state, copy, copy_function=copied)
    return copy


def _warm_up(
    new: Path, subject: StoreOfRecords, bare_seconds: Callable[[Path, Durability, bytes], Clocks | None]
) -> None:
    """Import and use what an opening needs."""
    with subject.open(new) as store:
        store.put(_KEY, b"value")
        store.commit()
    for _ in range(_WARM_UPS):
        bare_seconds(new, subject.level, _KEY)
        _alone_seconds(new, subject)


def _store_below(folder: Path) -> Path:
    (described,) = folder.rglob("store.json")
    return described.parent


def _alone_seconds(path: Path, subject: StoreOfRecords) -> Clocks:
    began = clocks()
    store = subject.open(path)
    value = store.get(_KEY)
    seconds = seconds_since(began)
    assert value is not None, "every store has the first key"
    store.close()
    return seconds


def _keeps_mark(subject: StoreOfRecords) -> bool:
    """Return True if an opening after a kill takes over the mark of the killed process (``stores.files.identity``)."""
    return backend_named(subject.backend).load_engine().torn_by_power_loss(subject.level)


def _mark_seconds(folder: Path) -> Clocks:
    folder.mkdir()
    file, text = folder / "mark", "x" * _MARK_BYTES
    replace_file(file, text)
    os.sync()
    began = clocks()
    replace_file(file, text)
    return seconds_since(began)


def reopen(folder: Path, **order: Any) -> dict[str, Any]:
    """Measure the time to open the store that ``tail`` left."""
    subject = StoreOfRecords(folder, **order)
    # Import the backend before the clock starts.
    assert backend_named(subject.backend).options is not None
    return _open_and_close(subject, None)


def _open_and_close(subject: StoreOfRecords, changelog: SqliteChangelog | None) -> dict[str, Any]:
    """Return the seconds without those in which this thread was ready to run and had no processor."""
    restores: list[RestoreProgress] = []
    waited, began = waited_ns(), perf_counter()
    changelog = changelog or subject.log()
    task = subject.task(changelog, restores.append)
    (report,) = task.open()
    clock_s = perf_counter() - began
    running = 1 - min(1.0, (waited_ns() - waited) / 1e9 / clock_s)
    task.close(clean=True)
    changelog.close()
    opened_s, restore_s = clock_s * running, (restores[-1].seconds if restores else 0.0) * running
    return {"open_s": opened_s - restore_s, "restore_s": restore_s, "replayed": report.records}
