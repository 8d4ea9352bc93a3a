"""The time until readers on other threads see a write, at each isolation level, against the commit interval.

A writer numbers its writes to one key, some hundred a second, and commits once per interval. A reader at each level
looks the key up repeatedly. A write is seen when a reader returns it or a later one. The reader's interval limits the
resolution to about a millisecond. A task, which commits by its own interval, is measured in the same way. Each backend
has its own process.

Source: KIP-892, "Interactive Queries": committed writes are visible after at most the commit interval; uncommitted
ones at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import perf_counter, sleep
from typing import Any

from harness.experiments.store_of_records import INPUT, STORE, task_of
from stores.changelog.interface import Record
from stores.changelog.sqlite import SqliteChangelog
from stores.config import StoreConfig
from stores.interface import Durability, IsolationLevel, KeyValueStore, KeyValueView, TopicPartition
from stores.registry import open_store
from stores.tasks import TaskContext, TaskSettings

SECONDS_AT_LEAST = 1.0
SEEN_WITHIN_S = 10.0
"""The longest wait for the last commit to be seen."""
DEADLINE_S = 120
_WRITE_EVERY_S, _LOOK_EVERY_S = 2e-3, 2e-4
_KEY = b"latest"
_CHANGELOG = TopicPartition("changelog", 0)


class Looker:
    """Reads a view until ``over`` is set. ``lags_s`` has the time until each write was seen."""

    def __init__(self, view: KeyValueView, written: array[float], over: Event) -> None:
        self._view, self._written, self._over = view, written, over
        self.lags_s: list[float] = []

    def look(self) -> None:
        """Read the view repeatedly until ``over`` is set."""
        newest = 0
        while not self._over.is_set():
            value = self._view.get(_KEY)
            now = perf_counter()
            latest = 0 if value is None else int(value)
            self.lags_s += [now - self._written[number] for number in range(newest, latest)]
            newest = max(newest, latest)
            sleep(_LOOK_EVERY_S)


Lags = dict[IsolationLevel, list[float]]
"""The time until each write was seen, by level."""


def seen(store: KeyValueStore, interval_s: float, commits: int) -> Lags:
    """Write for ``commits`` intervals with a commit at the end of each, and return the times until writes were seen."""
    write_times: array[float] = array("d")

    def write() -> None:
        ends = perf_counter()
        for _ in range(_intervals(interval_s, commits)):
            ends += interval_s
            while perf_counter() < ends:
                write_times.append(perf_counter())
                store.put(_KEY, b"%d" % len(write_times))
                sleep(_WRITE_EVERY_S)
            store.commit({_CHANGELOG: len(write_times)})

    return _looked_at({level: store.read_only(level) for level in IsolationLevel}, write_times, write)


def seen_of_task(backend: str, interval_s: float, commits: int, folder: Path) -> Lags:
    """Let a task write for ``commits`` of its commit intervals, which it measures by the system's clock."""
    write_times: array[float] = array("d")

    def put(record: Record, context: TaskContext) -> None:
        context.store(STORE).put(_KEY, record.value)

    with SqliteChangelog(folder / "log.sqlite", Durability.PROCESS) as log:
        log.create_topic(INPUT.topic)
        settings = TaskSettings(commit_interval_ms=round(1_000 * interval_s))
        task = task_of("visibility", folder / STORE, log, StoreConfig(backend), put, settings)

        def write() -> None:
            ends = perf_counter() + interval_s * _intervals(interval_s, commits)
            while perf_counter() < ends:
                write_times.append(perf_counter())
                task.process(INPUT, Record(len(write_times) - 1, None, b"%d" % len(write_times)))
                sleep(_WRITE_EVERY_S)
            task.commit()

        task.open()
        try:
            return _looked_at({level: task.store(STORE, level) for level in IsolationLevel}, write_times, write)
        finally:
            task.close()


def _intervals(interval_s: float, commits: int) -> int:
    return max(commits, round(SECONDS_AT_LEAST / interval_s))


def writing_s(interval_s: float, commits: int) -> float:
    """Return for how long a writer writes."""
    return interval_s * _intervals(interval_s, commits)


def _looked_at(views: Mapping[IsolationLevel, KeyValueView], written: array[float], write: Callable[[], None]) -> Lags:
    """Let a reader at each level read while ``write`` adds the time of each write to ``written``."""
    over = Event()
    lookers = {level: Looker(view, written, over) for level, view in views.items()}
    with ThreadPoolExecutor(len(lookers)) as pool:
        looking = [pool.submit(looker.look) for looker in lookers.values()]
        try:
            write()
            ends = perf_counter() + SEEN_WITHIN_S
            while perf_counter() < ends and any(len(looker.lags_s) < len(written) for looker in lookers.values()):
                sleep(_WRITE_EVERY_S)
        finally:
            over.set()
        for each in looking:
            each.result()
    return {level: looker.lags_s for level, looker in lookers.items()}


def measured(backend: str, intervals_s: Sequence[float], commits: int, folder: Path) -> dict[str, Any]:
    """Return a row per interval, isolation level, and committer: the store's writer or a task."""
    rows = []
    for number, interval_s in enumerate(intervals_s):
        with open_store(backend, folder / f"{number}", durability=Durability.CHANGELOG) as store:
            by_writer = seen(store, interval_s, commits)
        of_task = folder / f"task-{number}"
        of_task.mkdir()
        by_task = seen_of_task(backend, interval_s, commits, of_task)
        for committed_by, lags in (("writer", by_writer), ("task", by_task)):
            for level, lags_s in lags.items():
                lags_s.sort()
                rows.append(
                    {
                        "backend": backend,
                        "durability": "CHANGELOG",
                        "committed_by": committed_by,
                        "isolation_level": str(level),
                        "commit_interval_s": interval_s,
                        "writes": len(lags_s),
                        "lag_p50_s": lags_s[len(lags_s) // 2],
                        "lag_p99_s": lags_s[len(lags_s) * 99 // 100],
                        "lag_max_s": lags_s[-1],
                    }
                )
    return {"rows": rows}
