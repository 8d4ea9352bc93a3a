"""The time that a writer or a reader waits for another thread, which makes a scan of staged writes and its first step.

A thread repeats its operation without a pause. Its wait is the longest time between two operations, from before the
scan is made until after its first step. It includes locks, steps of the interpreter that let no other thread run, and
the thread's turn. The interpreter switches threads fifty times as often as by default here. Otherwise each thread would
wait 5 ms for any other that computes. Other processes only add to a wait, so each figure is the shortest of some tries.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from threading import Event
from time import perf_counter

from harness.experiments.microbench.case import READER_WAITS, Case
from harness.experiments.microbench.load import Load
from stores import IsolationLevel, KeyValueStore

SWITCH_INTERVAL_S = 1e-4
TRIES = 6
FRESH = 1_000
"""The number of records staged before each try, which are not sorted yet."""


def longest_waits(case: Case, store: KeyValueStore, staged: Sequence[bytes], load: Load) -> list[float]:
    """Return the seconds that a reader, or the writer of ``store`` in this thread, waits: one figure per round.

    ``staged`` are keys that the store has staged already.
    """
    view = store.read_only(IsolationLevel.READ_UNCOMMITTED)

    def scan() -> None:
        with view.all() as pairs:
            next(iter(pairs))

    with _turns():
        waits = []
        for _ in range(case.rounds):
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
    begun, ended = Event(), Event()

    def act() -> None:
        begun.wait()
        try:
            meanwhile()
        finally:
            ended.set()

    with ThreadPoolExecutor(1) as thread:
        acting = thread.submit(act)
        longest = 0.0
        begun.set()
        last = perf_counter()
        over = False
        while not over:
            over = ended.is_set()
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
