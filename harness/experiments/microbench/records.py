"""The cost of typed stores: of their puts and lookups, of windows, and of openings with an upgrade.

Puts and lookups with times, or through serdes, are compared with plain bytes of the same size, and fetches of one key's
windows with plain prefix scans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

from harness.experiments.microbench.case import GET, GET_RECENT, KEY_BYTES, Case, Load, Pairs, batches
from harness.experiments.microbench.claim import rounds_of
from harness.experiments.microbench.yardstick import TimedStore, open_subject
from harness.experiments.recent_writes import forget_recent_writes
from stores import KeyValueStore
from stores.records import BYTES, INT64, STR, KeyValue, TimestampedKeyValue, Window

_TIME_MS = 1_700_000_000_000
Timed = Callable[[Callable[..., object], Callable[[], tuple[Any, ...]]], None]
"""Times the rounds of a case: calls the work of a round with the arguments that are made before each round."""


@dataclass(frozen=True)
class RecordForm:
    """The conversion of pairs of 16 and 100 bytes to the arguments of a ``put``."""

    over: Callable[[KeyValueStore], Any]
    arguments: Callable[[bytes, bytes], tuple[Any, ...]]
    columns: bool = False
    """True if its ``put_many`` takes columns, and not pairs."""


FORMS: Mapping[str, RecordForm] = {
    "bytes": RecordForm(lambda store: store, lambda key, value: (key, value)),
    "timestamped": RecordForm(
        TimestampedKeyValue(BYTES, BYTES).over, lambda key, value: (key, value[:-8], _TIME_MS + value[7]), columns=True
    ),
    "short-bytes": RecordForm(lambda store: store, lambda key, value: (key.hex()[:16].encode(), value[:8])),
    "text-to-number": RecordForm(
        KeyValue(STR, INT64).over, lambda key, value: (key.hex()[:16], int.from_bytes(value[:8]))
    ),
}
"""The forms by the name in ``Case.form``. On disk, a record of the second has the size of one of the first, and one of
the fourth that of one of the third."""


def time_puts(case: Case, store: KeyValueStore, load: Load, timed: Timed) -> None:
    """Time the suite ``record-put``."""
    typed = FORMS[case.form].over(store)
    timed(put_records, lambda: (typed, batches(_formed(case, load.fresh(case.records)), case.records_per_commit)))


def time_lookups(case: Case, store: KeyValueStore, load: Load, timed: Timed) -> None:
    """Time the suites ``record-get`` and ``record-get-recent``."""
    typed = FORMS[case.form].over(store)
    pairs = commit_known(case, store, load)
    lookups = _formed(case, load.of([key for key, _ in pairs], case.records, case.distribution))
    keys = [arguments[0] for arguments in lookups]
    timed(get_records, lambda: (typed, keys))


def time_reads_and_writes(case: Case, store: KeyValueStore, load: Load, timed: Timed) -> None:
    """Time the suite ``read-write``."""
    form = FORMS[case.form]
    typed = form.over(store)
    pairs = load.fresh(case.keys)
    put_records(typed, [_formed(case, pairs)])

    def arguments() -> tuple[Any, ...]:
        typed.commit()
        forget_recent_writes(store)
        rows = _formed(case, load.of([key for key, _ in pairs], case.records, case.distribution))
        keys = [row[0] for row in rows]
        # In the form that a caller has who computes for many records at a time.
        columns = tuple(map(list, zip(*rows, strict=True))) if form.columns else (rows,)
        return (typed, keys, columns) if case.at_once else (typed, rows)

    timed(read_and_write_many if case.at_once else read_and_write_each, arguments)


def read_and_write_many(typed: Any, keys: Sequence[Any], columns: tuple[Any, ...]) -> None:
    """Look up all keys, and then put all records, with one call each."""
    assert None not in typed.get_many(keys)
    typed.put_many(*columns)


def read_and_write_each(typed: Any, rows: Sequence[tuple[Any, ...]]) -> None:
    """Look up each key, and then put each record."""
    get_records(typed, [row[0] for row in rows])
    put = typed.put
    for row in rows:
        put(*row)


def _formed(case: Case, pairs: Pairs) -> list[tuple[Any, ...]]:
    arguments = FORMS[case.form].arguments
    return [arguments(key, value) for key, value in pairs]


def commit_known(case: Case, store: KeyValueStore, load: Load) -> Pairs:
    """Commit the records that are looked up, and return them as pairs of bytes."""
    assert case.suite in (GET, GET_RECENT)
    pairs = load.fresh(case.keys)
    put_records(FORMS[case.form].over(store), [_formed(case, pairs)])
    if case.suite == GET:
        forget_recent_writes(store)
    return pairs


def put_records(typed: Any, work: Sequence[Sequence[tuple[Any, ...]]]) -> None:
    """Put every record, and commit after each batch."""
    put = typed.put
    for batch in work:
        if len(batch[0]) == 3:
            for key, value, timestamp_ms in batch:
                put(key, value, timestamp_ms)
        else:
            for key, value in batch:
                put(key, value)
        typed.commit()


def get_records(typed: Any, keys: Sequence[Any]) -> None:
    """Look up every key; all of them exist."""
    get = typed.get
    missing = 0
    for key in keys:
        missing += get(key) is None
    assert not missing


WINDOWS = 100
"""The number of windows of a key, and of pairs of a prefix."""
_SIZE_MS, _RETENTION_MS = 60_000, 86_400_000
_SEGMENT_MS = _RETENTION_MS // 2
_BEGIN_MS = 1_700_000_000_000 // _SEGMENT_MS * _SEGMENT_MS
_BATCH = 10_000

Fetch = Callable[[bytes], Any]


def time_fetches(case: Case, store: KeyValueStore, load: Load, timed: Timed) -> None:
    """Time the suite ``fetch``."""
    keys = [key for key, _ in load.fresh(case.keys)]
    fetch = filled(case.form, store, keys)
    fetched_keys = [key for key, _ in load.of(keys, case.records // WINDOWS, case.distribution)]
    timed(fetch_all, lambda: (fetch, fetched_keys))


def time_expiries(case: Case, store: KeyValueStore, load: Load, timed: Timed) -> None:
    """Time the suite ``expire``."""
    segments = expiring(store, case.staged)
    timed(expire, lambda: (next(segments),))


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
    count = 0
    for key in keys:
        with fetch(key) as pairs:
            for _ in pairs:
                count += 1
    assert count == WINDOWS * len(keys)


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


_KIND = TimestampedKeyValue(BYTES, BYTES)


def opening_seconds(case: Case, folder: Path, load: Load) -> list[float]:
    """Fill a store with ``case.staged`` records, open it as a timestamped one again and again; return the seconds.

    The first opening, which begins the upgrade of a plain store, is not among them.
    """
    fill(case, folder, load)
    return [_opened_in(case, folder) for _ in range(rounds_of(case) + 1)][1:]


def fill(case: Case, folder: Path, load: Load) -> None:
    """Commit the records, in the form that the case names, and close the store."""
    subject = _open(case, folder)
    timed = _KIND.over(subject.store) if case.form == "timestamped" else None
    for begin in range(0, case.staged, _BATCH):
        pairs = load.fresh(min(_BATCH, case.staged - begin))
        if timed is None:
            subject.write(pairs)
            continue
        for key, value in pairs:
            timed.put(key, value, 1)
        timed.commit()
    subject.close()


def _opened_in(case: Case, folder: Path) -> float:
    began = perf_counter()
    store = _open(case, folder)
    _KIND.over(store.store)
    seconds = perf_counter() - began
    store.close()
    return seconds


def _open(case: Case, folder: Path) -> TimedStore:
    store = open_subject(case, folder)
    assert isinstance(store, TimedStore)
    return store
