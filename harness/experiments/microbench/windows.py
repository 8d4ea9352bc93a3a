"""Window stores: fetches of one key's windows against plain prefix scans, and commits in which a segment expires."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from harness.experiments.microbench.case import EXPIRE, FETCH, Case
from harness.experiments.microbench.load import KEY_BYTES, Load
from stores import KeyValueStore
from stores.records import BYTES, Window

WINDOWS = 100
"""The number of windows of a key, and of pairs of a prefix."""
_SIZE_MS, _RETENTION_MS = 60_000, 86_400_000
_SEGMENT_MS = _RETENTION_MS // 2
_BEGIN_MS = 1_700_000_000_000 // _SEGMENT_MS * _SEGMENT_MS
_BATCH = 10_000

Fetch = Callable[[bytes], Any]


def time_windows(case: Case, store: KeyValueStore, load: Load, benchmark: Any) -> None:
    """Time a case of the suites ``fetch`` and ``expire``."""
    if case.suite == FETCH:
        keys = [key for key, _ in load.fresh(case.keys)]
        fetch = filled(case.form, store, keys)
        drawn = [key for key, _ in load.of(keys, case.records // WINDOWS, case.distribution)]
        benchmark.pedantic(fetch_all, args=(fetch, drawn), rounds=case.rounds, warmup_rounds=1)
        return
    assert case.suite == EXPIRE
    segments = expiring(store, case.staged)
    benchmark.pedantic(expire, setup=lambda: ((next(segments),), {}), rounds=case.rounds, warmup_rounds=1)


def filled(form: str, store: KeyValueStore, keys: list[bytes]) -> Fetch:
    """Commit ``WINDOWS`` windows of each key, or as many pairs with that prefix. Return the function that scans."""
    values = [b"%0100d" % number for number in range(WINDOWS)]
    if form == "windows":
        windows = Window(BYTES, BYTES, _SIZE_MS, _RETENTION_MS, _SEGMENT_MS).over(store)
        for key in keys:
            for number, value in enumerate(values):
                windows.put(key, value, _BEGIN_MS + number * _SIZE_MS)
        windows.commit()
        return lambda key: windows.fetch(key, _BEGIN_MS, _BEGIN_MS + _SEGMENT_MS)
    for key in keys:
        # As long as keys of windows: eight bytes each for segment and start, and one that ends the key.
        store.put_all([(key + b"%017d" % number, value) for number, value in enumerate(values)])
    store.commit()
    return store.prefix_scan


def fetch_all(fetch: Fetch, keys: list[bytes]) -> None:
    """Read all windows or pairs of each key."""
    found = 0
    for key in keys:
        with fetch(key) as pairs:
            for _ in pairs:
                found += 1
    assert found == WINDOWS * len(keys)


def expiring(store: KeyValueStore, records: int) -> Iterator[Callable[[], None]]:
    """Commit a segment of ``records`` records. Yield a function that commits the record that expires it. Repeat.

    Two segments of one record expire right before it. A million writes displace the code and data of such a commit from
    the processor's caches, and a thousand writes do not. Without these two the timed commit took up to 3.5 times as
    long after a million writes, although it makes exactly the same calls.
    """
    windows = Window(BYTES, BYTES, _SIZE_MS, _RETENTION_MS, _SEGMENT_MS).over(store)
    keys = [number.to_bytes(KEY_BYTES, "big") for number in range(records)]

    def put_last(at_ms: int) -> None:
        windows.put(b"last", b"v" * 100, at_ms)
        windows.commit()

    for turn in count():
        start_ms = _BEGIN_MS + 4 * turn * _RETENTION_MS
        put_last(start_ms - 2 * _SEGMENT_MS)
        put_last(start_ms - _SEGMENT_MS)
        for at in range(0, records, _BATCH):
            for key in keys[at : at + _BATCH]:
                windows.put(key, b"v" * 100, start_ms)
            windows.commit()
        put_last(start_ms + _SEGMENT_MS - 1)
        put_last(start_ms + 2 * _SEGMENT_MS - 1)
        yield lambda at_ms=start_ms + 2 * _RETENTION_MS: put_last(at_ms)  # type: ignore[misc]


def expire(let_expire: Callable[[], None]) -> None:
    """Let one segment expire."""
    let_expire()
