"""The steps of a trial of scale, each in its own process.

``load`` puts all records, in commits of 10,000. ``read`` opens the store, looks up keys that were put first and last,
and scans. ``compact`` rewrites the files of the closed store. ``update`` reads keys at random and puts other values.
``windows`` fills a window store, most of whose windows expire. ``log`` writes the changelog of the first records, and
``restore`` restores a task's store from it. Each checks what it reads.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from io import StringIO
from itertools import islice
from operator import ne
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any
from zlib import crc32

import numpy as np

from harness.experiments.store_of_records import INPUT, STORE, StoreOfRecords
from harness.experiments.throughput.measurement import bytes_on_disk, bytes_written, peak_memory_bytes
from harness.progress import PROGRESS_FILE, note_progress
from harness.workloads.ycsb import KEY_BYTES, Values, keys_of
from stores.command import main
from stores.interface import Durability, KeyValueStore
from stores.records import BYTES, Window, WindowStore
from stores.registry import backend_named
from stores.tasks import RestoreProgress

LEVEL = Durability.CHANGELOG
COMMIT_RECORDS, COMMIT_BYTES_MAX = 10_000, 4 << 20
"""The records of a commit, or a tenth of all if that is less, or fewer that have so many bytes."""
PARTS = 10
"""Puts are timed in so many parts: the first and the last ones have the old and the new keys."""
LOOKUPS_MAX, LOOKUP_S = 20_000, 20.0
"""Lookups of one kind of keys end after so many, or after so many seconds."""
SCANS, SCAN_RECORDS = 100, 1_000
TIMED_OF = 100
"""One put of so many is timed by itself."""
UPDATES_MAX = 200_000
"""Updates end after so many, or as many as there are records, or after ``LOOKUP_S``."""
WINDOWS_OF, WINDOW_MS, HOURS, HOURS_KEPT = 10, 3_600_000, 400, 100
"""A tenth as many windows as records, each of an hour, over 400 hours. Those of the last 100 hours are kept."""
WINDOWS = "windows"
"""The folder of the window store."""
_LOOKUPS_AT_ONCE = 500
Pairs = list[tuple[bytes, bytes]]
SAY_EVERY_S = 2.0


class ProgressWriter:
    """Appends lines to the file of the process that prints them, one in two seconds."""

    def __init__(self, folder: Path, what: str) -> None:
        self._file, self._what = folder / PROGRESS_FILE, what
        self._began = self._told = monotonic()

    def say(self, done: int, of: int, unit: str = "records") -> None:
        """Say how much is done, and how fast."""
        now = monotonic()
        if now - self._told >= SAY_EVERY_S:
            self._told = now
            note_progress(self._file, f"{self._what}: {done:,} of {of:,} {unit}, {done / (now - self._began):,.0f}/s")


def load(folder: Path, **order: Any) -> dict[str, Any]:
    """Put all records into a new store, and close it."""
    subject, progress = StoreOfRecords(folder, **order), ProgressWriter(folder, "put")
    records = subject.records
    part_s = [0.0] * PARTS
    put_s, random = array("d"), np.random.default_rng(subject.seed)
    commit_max_s = 0.0
    written_before = bytes_written()
    with subject.open() as store:
        put, size = store.put, _commit_records(subject)
        for first in range(0, records, size):
            end = min(first + size, records)
            pairs = subject.pairs(first, end)
            timed = random.integers(0, TIMED_OF, -(-len(pairs) // TIMED_OF)).tolist()
            began = perf_counter()
            put_s.extend(_puts(put, pairs, timed))
            commit_max_s = max(commit_max_s, _commit(store, end))
            part_s[first * PARTS // records] += perf_counter() - began
            progress.say(end, records)
        peak_bytes = peak_memory_bytes()
    return {
        "put_s": sum(part_s),
        "parts": [[count, seconds] for count, seconds in zip(_part_records(subject), part_s, strict=True) if count],
        "put_p999_s": float(np.quantile(put_s, 0.999)),
        "commit_max_s": commit_max_s,
        "bytes_written": bytes_written() - written_before,
        "load_peak_bytes": peak_bytes,
        "bytes_on_disk": bytes_on_disk(folder / STORE),
    }


def _puts(put: Callable[[bytes, bytes], None], pairs: Pairs, timed: Sequence[int]) -> list[float]:
    """Put all ``pairs``, and return the seconds of some: in each block of ``TIMED_OF``, the one at that place."""
    seconds = []
    for number, place in enumerate(timed):
        block = pairs[number * TIMED_OF : (number + 1) * TIMED_OF]
        for key, value in block[:place]:
            put(key, value)
        for key, value in block[place : place + 1]:
            began = perf_counter()
            put(key, value)
            seconds.append(perf_counter() - began)
        for key, value in block[place + 1 :]:
            put(key, value)
    return seconds


def read(folder: Path, **order: Any) -> dict[str, Any]:
    """Open the store, look keys up, and scan it."""
    subject = StoreOfRecords(folder, **order)
    records, values, random = subject.records, subject.values, np.random.default_rng(subject.seed)
    backend_named(subject.backend).load()
    began = perf_counter()
    store = subject.open()
    open_s = perf_counter() - began
    wrong = []
    with store:
        if store.manages_offsets and store.committed_offset(INPUT) != records:
            wrong.append(f"its committed offset is {store.committed_offset(INPUT)}, not {records}")
        part = max(1, records // PARTS)
        places = {"old": (0, part), "new": (records - part, records), "absent": (records, records + part)}
        speeds: dict[str, float] = {}
        for kind, (low, high) in places.items():
            numbers = random.integers(low, high, min(LOOKUPS_MAX, 4 * part))
            expected = None if kind == "absent" else values
            speeds[f"gets_{kind}_per_s"], wrong_values = _looked_up(
                store, numbers, expected, ProgressWriter(folder, f"get {kind}")
            )
            wrong += [f"{wrong_values:,} lookups of {kind} keys gave another value"] if wrong_values else []
        speeds["scan_per_s"], unsorted = _short_scans(store, random.integers(0, records, SCANS))
        began = perf_counter()
        scanned, also_unsorted = _counted(store.all(), ProgressWriter(folder, "scan"), records)
        speeds["whole_scan_per_s"] = scanned / (perf_counter() - began)
        if scanned != records:
            wrong.append(f"a scan shows {scanned:,} records, not {records:,}")
        wrong += ["a scan is not in the order of keys"] if unsorted or also_unsorted else []
        peak_bytes = peak_memory_bytes()
    return {"open_s": open_s, **speeds, "read_peak_bytes": peak_bytes, "read_wrong": "; ".join(wrong)}


def compact(folder: Path, **order: Any) -> dict[str, Any]:
    """Rewrite the files of the closed store without unused space, as ``txstores compact``."""
    note_progress(folder / PROGRESS_FILE, "compact")
    began = perf_counter()
    with redirect_stdout(StringIO()):
        status = main(["compact", str(folder / STORE)])
    seconds = perf_counter() - began
    subject = StoreOfRecords(folder, **order)
    with subject.open() as store:
        records, unsorted = _counted(store.all(), ProgressWriter(folder, "scan"), subject.records)
    wrong = [f"txstores compact ended with {status}"] if status else []
    if records != subject.records:
        wrong.append(f"{records:,} records are left after a compaction, not {subject.records:,}")
    wrong += ["a scan after a compaction is not in the order of keys"] if unsorted else []
    return {
        "compact_s": seconds,
        "compacted_bytes": bytes_on_disk(folder / STORE),
        "compact_wrong": "; ".join(wrong),
    }


def update(folder: Path, **order: Any) -> dict[str, Any]:
    """Read keys at random and put other values, in commits as those of the load. Then look them up again."""
    subject, progress = StoreOfRecords(folder, **order), ProgressWriter(folder, "update")
    records, values, random = subject.records, subject.values, np.random.default_rng(subject.seed)
    updates, size = min(UPDATES_MAX, records), _commit_records(subject)
    seconds, done, wrong_values, commit_max_s = 0.0, 0, 0, 0.0
    changed: set[int] = set()
    with subject.open() as store:
        get, put = store.get, store.put
        while done < updates and seconds < LOOKUP_S:
            numbers = random.integers(0, records, min(size, updates - done)).tolist()
            keys = keys_of(np.array(numbers))
            expected, pairs = [], []
            for key, number in zip(keys, numbers, strict=True):
                other = values.value(key, records + number)
                expected.append(other if number in changed else values.value(key, number))
                pairs.append((key, other))
                changed.add(number)
            answers: list[bytes | None] = []
            began = perf_counter()
            for key, value in pairs:
                answers.append(get(key))
                put(key, value)
            commit_max_s = max(commit_max_s, _commit(store, records))
            seconds += perf_counter() - began
            done += len(pairs)
            wrong_values += sum(map(ne, answers, expected))
            progress.say(done, updates, "updates")
    with subject.open() as store:
        lost = sum(
            store.get(key) != values.value(key, records + number)
            for number, key in zip(changed, keys_of(np.fromiter(changed, np.int64)), strict=True)
        )
    wrong = [f"{wrong_values:,} updates read another value"] if wrong_values else []
    wrong += [f"{lost:,} updates are lost"] if lost else []
    return {
        "updates_per_s": done / seconds,
        "update_commit_max_s": commit_max_s,
        "update_wrong": "; ".join(wrong),
    }


def windows(folder: Path, **order: Any) -> dict[str, Any]:
    """Fill a window store while most of its windows expire, and compare what is left."""
    subject, progress = StoreOfRecords(folder, **order), ProgressWriter(folder, "put windows")
    count, size = -(-subject.records // WINDOWS_OF), _commit_records(subject)
    last_hour = (count - 1) * HOURS // count
    seconds, commit_max_s, wanted, wanted_sum = 0.0, 0.0, 0, 0
    kind = Window(BYTES, BYTES, WINDOW_MS, HOURS_KEPT * WINDOW_MS)
    with kind.over(subject.open(folder / WINDOWS)) as store:
        put = store.put
        for first in range(0, count, size):
            end = min(first + size, count)
            hours = [number * HOURS // count for number in range(first, end)]
            rows = [(*pair, hour * WINDOW_MS) for pair, hour in zip(subject.pairs(first, end), hours, strict=True)]
            began = perf_counter()
            for key, value, start_ms in rows:
                put(key, value, start_ms)
            commit_max_s = max(commit_max_s, _commit(store, end))
            seconds += perf_counter() - began
            kept_rows = [row for row, hour in zip(rows, hours, strict=True) if hour > last_hour - HOURS_KEPT]
            wanted += len(kept_rows)
            wanted_sum += sum(map(_window_sum, kept_rows))
            progress.say(end, count, "windows")
        kept = kept_sum = 0
        for window, value in store.all():
            kept += 1
            kept_sum += _window_sum((window.key, value, window.start_ms))
    wrong = [f"{kept:,} windows are left, not {wanted:,}"] if kept != wanted else []
    wrong += ["windows have other keys, starts or values than were put"] if not wrong and kept_sum != wanted_sum else []
    return {
        "window_puts_per_s": count / seconds,
        "window_commit_max_s": commit_max_s,
        "window_bytes_kept": wanted * (KEY_BYTES + subject.value_bytes),
        "window_bytes_on_disk": bytes_on_disk(folder / WINDOWS),
        "window_wrong": "; ".join(wrong),
    }


def _window_sum(row: tuple[bytes, bytes, int]) -> int:
    """Return a number whose sum over windows, in any order, is that of the same windows only."""
    key, value, start_ms = row
    return crc32(value, crc32(key, start_ms & 0xFFFFFFFF)) + start_ms


def log(folder: Path, **order: Any) -> dict[str, Any]:
    """Write the changelog."""
    progress, records = ProgressWriter(folder, "changelog"), order["records"]
    StoreOfRecords(folder, **order).write_log(lambda done: progress.say(done, records))
    return {}


def restore(folder: Path, **order: Any) -> dict[str, Any]:
    """Open a task without files, which restores its store from the changelog."""
    subject, progress = StoreOfRecords(folder, **order), ProgressWriter(folder, "restore")
    records = subject.records
    last_progress: list[RestoreProgress] = []

    def on_restore(now: RestoreProgress) -> None:
        last_progress[:] = [now]
        progress.say(now.records, records)

    with subject.log() as changelog, subject.task(changelog, on_restore, "state-of-task") as task:
        numbers = np.random.default_rng(subject.seed).integers(0, records, min(1_000, records))
        _, wrong_values = _looked_up(task.store(STORE), numbers, subject.values, progress)
        peak_bytes = peak_memory_bytes()
    restored = last_progress[-1].records if last_progress else 0
    wrong = [f"{restored:,} records were restored, not {records:,}"] if restored != records else []
    wrong += [f"{wrong_values:,} lookups after the restore gave another value"] if wrong_values else []
    return {
        "restore_s": last_progress[-1].seconds if last_progress else None,
        "restore_peak_bytes": peak_bytes,
        "restore_wrong": "; ".join(wrong),
    }


STEPS = (load, read, compact, update, windows, log, restore)
"""All steps, in their order."""


def _commit(store: KeyValueStore | WindowStore[bytes, bytes], offset: int) -> float:
    """Commit with this offset of the input, and return the seconds."""
    began = perf_counter()
    store.commit({INPUT: offset})
    return perf_counter() - began


def _looked_up(store: Any, numbers: Any, values: Values | None, progress: ProgressWriter) -> tuple[float, int]:
    """Look up the keys of ``numbers``. Return lookups per second, and how many gave another value than ``values``."""
    seconds, count, wrong_values = 0.0, 0, 0
    get = store.get
    for at in range(0, len(numbers), _LOOKUPS_AT_ONCE):
        some = numbers[at : at + _LOOKUPS_AT_ONCE]
        keys = keys_of(some)
        began = perf_counter()
        answers = [get(key) for key in keys]
        seconds += perf_counter() - began
        count += len(keys)
        for number, key, value in zip(some.tolist(), keys, answers, strict=True):
            wrong_values += value != (None if values is None else values.value(key, number))
        progress.say(count, len(numbers), "lookups")
        if seconds >= LOOKUP_S:
            break
    return count / seconds, wrong_values


def _short_scans(store: KeyValueStore, numbers: Any) -> tuple[float, bool]:
    """Scan from the keys of ``numbers``. Return records per second, and whether any scan was out of order."""
    seconds, scanned, unsorted = 0.0, 0, False
    for key in keys_of(numbers):
        began = perf_counter()
        with store.range(key, None) as scan:
            pairs = list(islice(scan, SCAN_RECORDS))
        seconds += perf_counter() - began
        scanned += len(pairs)
        keys = [each for each, _ in pairs]
        unsorted |= keys != sorted(set(keys)) or keys[:1] != [key]
        if seconds >= LOOKUP_S:
            break
    return scanned / seconds, unsorted


def _counted(pairs: Iterable[tuple[bytes, bytes]], progress: ProgressWriter, records: int) -> tuple[int, bool]:
    """Return the number of pairs, and whether any key was out of order."""
    last, count, unsorted = b"", 0, False
    for count, (key, _) in enumerate(pairs, 1):
        unsorted |= key <= last
        last = key
        if count % COMMIT_RECORDS == 0:
            progress.say(count, records)
    return count, unsorted


def _part_records(subject: StoreOfRecords) -> Sequence[int]:
    """Return how many records each part has: whole commits, by where they begin."""
    records, counts, size = subject.records, [0] * PARTS, _commit_records(subject)
    for first in range(0, records, size):
        counts[first * PARTS // records] += min(size, records - first)
    return counts


def _commit_records(subject: StoreOfRecords) -> int:
    fitting = COMMIT_BYTES_MAX // (KEY_BYTES + subject.value_bytes)
    return max(1, min(COMMIT_RECORDS, subject.records // PARTS, fitting))
