"""The cost of readers: lookups of committed data beside a writer, and the creation of iterators."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Self

from harness.experiments.microbench.case import Case
from harness.experiments.microbench.load import Load, Pairs, batches
from stores import IsolationLevel, KeyValueStore, KeyValueView, TopicPartition, open_store

READ = "read"
_STEPS = 100
COMMIT_INTERVAL_S = 0.1
"""The commit interval. Source: Kafka, ``commit.interval.ms`` under exactly once; KIP-892, "Interactive Queries"."""
_CHANGELOG = TopicPartition("changelog", 0)


class WriterBeside:
    """A store with its own thread, which opens and fills it, and in some cases commits to it once per interval.

    Use it in a ``with`` block; ``view`` is for the timed thread.
    """

    def __init__(self, case: Case, path: Path, known: Pairs, load: Load) -> None:
        self._case, self._path, self._known, self._load = case, path, known, load
        self._over = Event()
        self._thread = ThreadPoolExecutor(1)
        self.commits = 0
        self.view: KeyValueView

    def __enter__(self) -> Self:
        self._store: KeyValueStore = self._thread.submit(self._open).result()
        self.view = self._store.read_only(IsolationLevel.READ_COMMITTED)
        self._writing = self._thread.submit(self._write)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._writing.result()
        self._thread.submit(self._store.close).result()
        self._thread.shutdown()

    def _open(self) -> KeyValueStore:
        store = open_store(self._case.subject, self._path, durability=self._case.durability)
        for batch in batches(self._known, 10_000):
            store.put_all(batch)
            store.commit()
        return store

    def _write(self) -> None:
        if not self._case.commits_beside:
            return
        keys = [key for key, _ in self._known]
        while not self._over.wait(COMMIT_INTERVAL_S):
            for key, value in self._load.of(keys, self._case.records_per_commit, "uniform"):
                self._store.put(key, value)
            self.commits += 1
            self._store.commit({_CHANGELOG: self.commits})


def look_up(view: KeyValueView, keys: list[bytes]) -> None:
    """Look up every key; all of them exist."""
    get = view.get
    missing = 0
    for key in keys:
        missing += get(key) is None
    assert not missing


def make_iterators(store: KeyValueStore, count: int) -> None:
    """Create an iterator over all pairs, let the writer put one, and close it; ``count`` times."""
    view = store.read_only(IsolationLevel.READ_UNCOMMITTED)
    for number in range(count):
        scan = view.all()
        store.put(b"meanwhile", b"%d" % number)
        scan.close()


def step_iterators(store: KeyValueStore, count: int) -> None:
    """Create an iterator over all pairs, read a hundred of them, and let the writer put one; ``count`` times."""
    view = store.read_only(IsolationLevel.READ_UNCOMMITTED)
    for number in range(count):
        with view.all() as scan:
            taken = sum(1 for _ in islice(scan, _STEPS))
        store.put(b"meanwhile", b"%d" % number)
        assert taken == _STEPS
