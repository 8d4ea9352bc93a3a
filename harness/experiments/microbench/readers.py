"""The cost of readers: lookups of committed data beside a writer, and the creation of iterators."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from threading import Event
from time import perf_counter
from types import TracebackType
from typing import Self

from harness.experiments.microbench.case import READER_WAITS, Case, Load, Pairs, batches
from harness.experiments.microbench.claim import rounds_of
from harness.experiments.microbench.yardstick import TimedStore, open_subject
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
            steps = sum(1 for _ in islice(scan, _STEPS))
        store.put(b"meanwhile", b"%d" % number)
        assert steps == _STEPS


class StagedStores:
    """At most one open store: the one that the last case used. Each is made in ``folder``."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self._fill: object = None
        self._subject: TimedStore | None = None
        self.load = Load(seed)
        """The records to come, none of which is staged."""
        self.keys: list[bytes] = []
        """The keys of the records that are staged."""

    def opened(self, case: Case) -> TimedStore:
        """Return a store with the staged records of a case."""
        if self._subject is None or case.fill != self._fill:
            self.close()
            subject = open_subject(case, self._folder)
            assert isinstance(subject, TimedStore)
            self._subject, self._fill, self.load = subject, case.fill, Load(self._seed)
            pairs = self.load.fresh(case.staged)
            subject.store.put_all(pairs)
            self.keys = [key for key, _ in pairs]
        return self._subject

    def close(self) -> None:
        """Close the store and remove its files."""
        if self._subject is not None:
            self._subject.close()
            self._subject, self.keys = None, []
            shutil.rmtree(self._folder / "subject", ignore_errors=True)


SWITCH_INTERVAL_S = 1e-4
TRIES = 6
FRESH = 1_000
"""The number of records staged before each try, which are not sorted yet."""


def longest_waits(case: Case, store: KeyValueStore, staged: Sequence[bytes], load: Load) -> list[float]:
    """Return the seconds that a reader, or the writer of ``store`` in this thread, waits: one figure per round.

    It repeats its operation without a pause, while another thread makes a scan of staged writes and its first step. Its
    wait is the longest time between two operations, from before the scan is made until after its first step. It
    includes locks, steps of the interpreter that let no other thread run, and the thread's turn. The interpreter
    switches threads fifty times as often as by default here: otherwise each thread would wait 5 ms for any other that
    computes. Other processes only add to a wait, so each figure is the shortest of some tries.

    ``staged`` are keys that the store has staged already.
    """
    view = store.read_only(IsolationLevel.READ_UNCOMMITTED)

    def scan() -> None:
        with view.all() as pairs:
            next(iter(pairs))

    with _turns():
        waits = []
        for _ in range(rounds_of(case)):
            tries = []
            for _ in range(TRIES):
                for key, value in load.fresh(FRESH):
                    store.put(key, value)
                work = _reading(store, staged) if case.suite == READER_WAITS else _writing(store, load)
                tries.append(_longest_wait(work, scan))
            waits.append(min(tries))
    return waits


def _writing(store: KeyValueStore, load: Load) -> Callable[[], object]:
    pairs = load.fresh(FRESH)
    numbers = count()

    def write() -> None:
        key, value = pairs[next(numbers) % FRESH]
        store.put(key, value)

    return write


def _reading(store: KeyValueStore, staged: Sequence[bytes]) -> Callable[[], object]:
    view = store.read_only(IsolationLevel.READ_UNCOMMITTED)
    keys = staged[:FRESH]
    numbers = count()
    return lambda: view.get(keys[next(numbers) % len(keys)])


def _longest_wait(work: Callable[[], object], meanwhile: Callable[[], object]) -> float:
    """Return the longest time from one ``work`` to the next while another thread does ``meanwhile``."""
    start, end = Event(), Event()

    def act() -> None:
        start.wait()
        try:
            meanwhile()
        finally:
            end.set()

    with ThreadPoolExecutor(1) as thread:
        acting = thread.submit(act)
        longest = 0.0
        start.set()
        last = perf_counter()
        over = False
        while not over:
            over = end.is_set()
            work()
            now = perf_counter()
            longest = max(longest, now - last)
            last = now
        acting.result()
    return longest


@contextmanager
def _turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
