"""The processes of an opening trial, ``python -m harness.experiments.opening.steps STEP REPEAT FOLDER``.

``log`` writes a changelog. ``fill`` restores a store from a copy of it, and closes it cleanly. ``tail`` makes some
commits and is killed (SIGKILL) within one: the changelog has it, the store does not. ``apart`` opens that store by
itself, and a copy with the bare engine. ``reopen`` opens that store with its task, and closes it cleanly.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

import numpy as np

from harness.experiments.throughput.measurement import die
from harness.experiments.throughput.partition_work import log_durability
from harness.processes.child import end_with_starter, read_figures, write_figures
from harness.workloads.synthetic import Integers, Values, keys_of
from stores import failpoints
from stores.changelog import SqliteChangelog
from stores.changelog.interface import Record
from stores.files.plain_files import replace_file
from stores.interface import Durability, KeyValueStore, TopicPartition
from stores.registry import backend_named, open_store
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

TAIL_COMMITS = 10
TAIL_COMMIT_RECORDS = 1_000
_TAIL_COMMITS_MAX = 400
_TAIL_BYTES = 12_000_000
"""Slightly less than the changelog that fills a write buffer of RocksDB, and is then flushed: the worst tail."""
_MARK_BYTES = 128
ORDER_FILE = "order"
_LOG_FILE = "changelog.sqlite"
_FILL_COMMIT_RECORDS = 50_000
_WARM_UPS = 10
"""A process of a task opens many stores, so the first opening is not what an opening takes."""
_KEY = keys_of(np.zeros(1, dtype=np.int64))[0]
"""A key that every store has."""
_STRIDE = 7_919
"""A prime, so that the keys that the tail overwrites are far apart."""
_APPLICATION = "opening"
_STORE = "state"
_INPUT = TopicPartition("opening-input", 0)
_CHANGELOG = TopicPartition(f"{_APPLICATION}-{_STORE}-changelog", 0)
Order = Mapping[str, Any]
"""The parameters of a step: ``backend``, ``durability``, ``records``, ``seed``, ``repeat``."""


def log(folder: Path, order: Order) -> dict[str, Any]:
    """Write the changelog of a store of ``records`` records, whatever its backend."""
    with _log(folder, order) as changelog:
        changelog.create_topic(_CHANGELOG.topic)
        with changelog.producer() as producer:
            for first in range(0, order["records"], _FILL_COMMIT_RECORDS):
                numbers = np.arange(first, min(first + _FILL_COMMIT_RECORDS, order["records"]))
                for record in _records(numbers, order["seed"], first):
                    producer.send(_CHANGELOG, record.key, record.value)
                producer.flush()
    return {}


def fill(folder: Path, order: Order) -> dict[str, Any]:
    """Create the store, restored from a copy of the changelog in the folder above, and closed cleanly."""
    shutil.copyfile(folder.parent / _LOG_FILE, folder / _LOG_FILE)
    with _log(folder, order) as changelog:
        figures = _open_and_close(folder, order, changelog)
    # A long-lived store was written long ago, so the disk must not write it while the next steps are timed.
    os.sync()
    return figures


def tail(folder: Path, order: Order) -> dict[str, Any]:
    """Make commits of 1,000 records, and one in the middle of which the process is killed. Does not return.

    There are ten, or, if a kill loses commits, as many as it may lose, up to half of the store's records.
    """
    changelog = _log(folder, order)
    task = _task(folder, order, changelog)
    task.open()
    first = task.input_offsets().get(_INPUT, 0)
    numbers = np.arange(first, first + (_TAIL_COMMITS_MAX + 1) * TAIL_COMMIT_RECORDS)
    records = _records(numbers * _STRIDE % order["records"], order["seed"] + 1, first)
    for count, record in enumerate(records, 1):
        task.process(_INPUT, record)
        if count % TAIL_COMMIT_RECORDS == 0:
            task.commit()
            if count >= TAIL_COMMITS * TAIL_COMMIT_RECORDS:
                unpersisted_bytes = task.metrics.stores[_STORE].unpersisted_bytes
                if not 0 < unpersisted_bytes < _TAIL_BYTES or 2 * count >= order["records"]:
                    failpoints.arm("task.after_log_commit", die)
    raise AssertionError("the last commit did not reach its failpoint")


def apart(folder: Path, order: Order) -> dict[str, Any]:
    """Measure the time to open and recover the killed store by itself, and to open a copy with the bare engine.

    Both then look one key up. Which is first changes with each repeat. Both have opened a new store some times before.
    ``mark_s`` is the time of writing a file as small as the mark that a store is open, so that it survives power loss;
    None if an opening after a kill need not write one. The killed store is left as it was, in a copy.
    """
    from harness.experiments.opening.bare import bare_seconds  # It imports every engine.

    level, state = Durability(order["durability"]), folder / "state"
    kept = _copied(state, folder / "copy-kept")
    try:
        without, mark = _copied(state, folder / "copy-bare"), folder / "copy-mark"
        _warm_up(folder / "copy-new", order, bare_seconds)
        timed: dict[str, Callable[[], float | None]] = {
            # In its place: the mark of a copy is written again, because a copy may not survive power loss.
            "alone_s": lambda: _alone_seconds(_store_below(state), order),
            "bare_s": lambda: bare_seconds(without, level, _KEY),
            "mark_s": lambda: None if _keeps_mark(order) else _mark_seconds(mark),
        }
        found = {}
        for name in sorted(timed, reverse=order["repeat"] % 2 == 1):
            # A sync of one file may otherwise wait for those that were written before.
            os.sync()
            found[name] = timed[name]()
        return found
    finally:
        shutil.rmtree(state)
        kept.replace(state)
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


def _warm_up(new: Path, order: Order, bare_seconds: Callable[[Path, Durability, bytes], float | None]) -> None:
    """Import and use what an opening needs."""
    with _open_alone(new, order) as store:
        store.put(_KEY, b"value")
        store.commit()
    for _ in range(_WARM_UPS):
        bare_seconds(new, Durability(order["durability"]), _KEY)
        _alone_seconds(new, order)


def _store_below(folder: Path) -> Path:
    (described,) = folder.rglob("store.json")
    return described.parent


def _alone_seconds(path: Path, order: Order) -> float:
    began = perf_counter()
    store = _open_alone(path, order)
    value = store.get(_KEY)
    seconds = perf_counter() - began
    assert value is not None, "every store has the first key"
    store.close()
    return seconds


def _open_alone(path: Path, order: Order) -> KeyValueStore:
    return open_store(order["backend"], path, name=_STORE, durability=Durability(order["durability"]))


def _keeps_mark(order: Order) -> bool:
    """Return True if an opening after a kill takes over the mark of the killed process (``stores.files.open_mark``)."""
    return backend_named(order["backend"]).load_engine().torn_by_power_loss(Durability(order["durability"]))


def _mark_seconds(folder: Path) -> float:
    folder.mkdir()
    file, text = folder / "mark", "x" * _MARK_BYTES
    replace_file(file, text)
    os.sync()
    began = perf_counter()
    replace_file(file, text)
    return perf_counter() - began


def reopen(folder: Path, order: Order) -> dict[str, Any]:
    """Measure the time to open the store that ``tail`` left."""
    # Import the backend before the clock starts.
    assert backend_named(order["backend"]).options is not None
    return _open_and_close(folder, order, None)


STEPS: Mapping[str, Callable[[Path, Order], dict[str, Any]]] = MappingProxyType(
    {"log": log, "fill": fill, "tail": tail, "apart": apart, "reopen": reopen}
)


def figures_file(step: str) -> str:
    """Return the name of the file with a step's figures; ``tail`` writes none."""
    return f"{step}-figures"


def _open_and_close(folder: Path, order: Order, changelog: SqliteChangelog | None) -> dict[str, Any]:
    restores: list[RestoreProgress] = []
    began = perf_counter()
    changelog = changelog or _log(folder, order)
    task = _task(folder, order, changelog, restores.append)
    (report,) = task.open()
    opened_s = perf_counter() - began
    task.close(clean=True)
    changelog.close()
    restore_s = restores[-1].seconds if restores else 0.0
    return {"open_s": opened_s - restore_s, "restore_s": restore_s, "replayed": report.records}


def _records(numbers: Integers, seed: int, first: int) -> Iterator[Record]:
    values = Values(seed)
    for place, key in enumerate(keys_of(numbers), first):
        yield Record(place, key, values.value(key, place))


def _log(folder: Path, order: Order) -> SqliteChangelog:
    return SqliteChangelog(folder / _LOG_FILE, log_durability(Durability(order["durability"])))


def _task(
    folder: Path, order: Order, changelog: SqliteChangelog, on_restore: Callable[[RestoreProgress], None] | None = None
) -> StreamTask:
    settings = StoreConfig(backend=order["backend"], durability=Durability(order["durability"]))
    return StreamTask(
        _APPLICATION,
        TaskId(0, 0),
        state_dir=folder / "state",
        changelog=changelog,
        stores={_STORE: settings},
        process=_keep,
        inputs=[_INPUT],
        settings=TaskSettings(
            commit_interval_ms=NO_INTERVAL, guarantee=ProcessingGuarantee.EXACTLY_ONCE, on_restore=on_restore
        ),
    )


def _keep(record: Record, context: TaskContext) -> None:
    assert record.key is not None
    context.store(_STORE).put(record.key, record.value)


def main() -> None:
    """Run one step."""
    end_with_starter()
    step, repeat, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    order = {**read_figures(folder / ORDER_FILE), "repeat": repeat}
    write_figures(folder / figures_file(step), STEPS[step](folder, order))


if __name__ == "__main__":
    main()
