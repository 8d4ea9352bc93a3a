"""Views of window stores over every backend: each scan is of one moment, its stream time included."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from stores import IsolationLevel, KeyValueStore, failpoints
from stores.records import BYTES, Window, WindowStore, segment_scans
from stores.records.segment_scans import existing_segments
from stores.tests.conformance.cases import Case
from stores.tests.conformance.gaps import ISOLATED, carries
from stores.tests.overtaken_view import Overtaken

Store = WindowStore[bytes, bytes]


def kind() -> Window[bytes, bytes]:
    return Window(BYTES, BYTES, size_ms=5, retention_ms=25, segment_ms=10)


@pytest.fixture
def windows(store: KeyValueStore) -> Store:
    """A new store, which closes with the one below."""
    return kind().over(store)


def test_a_reader_sees_whole_commits_wherever_the_writer_is(case: Case, windows: Store) -> None:
    """A commit that changes an older window, adds a later one and lets another expire is seen whole or not at all."""
    windows.put(b"k", b"1", 76)
    windows.put(b"k", b"1", 100)
    windows.commit()
    view = windows.read_only(IsolationLevel.READ_COMMITTED)
    before, after = [(76, b"1"), (100, b"1")], [(100, b"2"), (104, b"2")]
    seen: list[list[tuple[int, bytes]]] = []
    windows.put(b"k", b"2", 100)
    for number in range(20):
        windows.put(b"other %d" % number, b"2", 100)
    windows.put(b"k", b"2", 104)

    def look() -> None:
        seen.append(pool.submit(lambda: list(view.fetch(b"k", 0, 200))).result(30))

    with ThreadPoolExecutor(1) as pool:
        try:
            for failpoint in case.backend.failpoints:
                failpoints.arm(failpoint, look)
            windows.commit()
        finally:
            failpoints.disarm()
        look()
    assert seen[-1] == after
    if carries(windows.store, ISOLATED):
        assert all(found in (before, after) for found in seen)
        assert seen == sorted(seen, key=lambda found: found == after)


def test_a_commit_between_the_stream_time_and_the_scans_is_not_seen_in_half(
    windows: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows.put(b"k", b"1", 76)
    windows.put(b"k", b"1", 100)
    windows.commit()
    below = windows.store.read_only(IsolationLevel.READ_COMMITTED)
    view = kind().view(below)
    windows.put(b"k", b"2", 100)
    windows.put(b"k", b"2", 104)
    scan = below.range_many

    def commit_first(*bounds: Any, **how: Any) -> Any:
        windows.commit()
        return scan(*bounds, **how)

    monkeypatch.setattr(below, "range_many", commit_first)
    assert list(view.fetch(b"k", 0, 200)) == [(100, b"2"), (104, b"2")]


def test_a_segment_that_a_late_record_begins_is_seen_with_the_writes_after_it(
    store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dirty read of many segments first looks up those that have records, and only changes of marks wait for it.

    A late record moves no stream time. So it may begin a segment between that look and the scans.
    """
    described = Window(BYTES, BYTES, size_ms=5, retention_ms=1_000, segment_ms=1)
    windows = described.over(store)
    windows.put(b"k", b"1", 100)
    windows.put(b"k", b"1", 500)
    windows.commit()
    below = store.read_only(IsolationLevel.READ_UNCOMMITTED)
    scan = below.range_many
    scans = []

    def write_first(*bounds: Any, **how: Any) -> Any:
        scans.append(bounds)
        if len(scans) == 1:
            windows.put(b"k", b"2", 300)
            windows.put(b"k", b"2", 500)
        return scan(*bounds, **how)

    monkeypatch.setattr(below, "range_many", write_first)
    assert list(described.view(below).fetch(b"k", 0, 600)) == [(100, b"1"), (300, b"2"), (500, b"2")]
    assert scans


def test_a_commit_with_a_late_record_is_seen_whole_or_not_at_all_in_many_segments(
    store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of many segments at READ_COMMITTED is of one snapshot, if the store isolates uncommitted writes."""
    described = Window(BYTES, BYTES, size_ms=5, retention_ms=1_000, segment_ms=1)
    windows = described.over(store)
    windows.put(b"k", b"1", 100)
    windows.put(b"k", b"1", 500)
    windows.commit()
    if not carries(store, ISOLATED):
        return
    below = store.read_only(IsolationLevel.READ_COMMITTED)
    windows.put(b"k", b"2", 300)
    windows.put(b"k", b"2", 500)
    looks = []

    def committing_first(source: Any, first: int = 0, last: int | None = None) -> list[int]:
        """Commit after the look at which segments exist."""
        looks.append(list(existing_segments(source, first, last)))
        if len(looks) == 1:
            windows.commit()
        return looks[-1]

    monkeypatch.setattr(segment_scans, "existing_segments", committing_first)
    view = described.view(below)
    before, after = [(100, b"1"), (500, b"1")], [(100, b"1"), (300, b"2"), (500, b"2")]
    assert list(view.fetch(b"k", 0, 600)) in (before, after)
    assert list(view.fetch(b"k", 0, 600)) == after
    assert looks


def test_a_view_shows_its_level_and_the_stream_time_of_that(windows: Store) -> None:
    windows.put(b"k", b"v", 1)
    windows.commit()
    windows.put(b"k", b"v", 100)
    assert list(windows.read_only(IsolationLevel.READ_UNCOMMITTED).fetch(b"k", 0, 200)) == [(100, b"v")]
    committed = (1, b"v") if carries(windows.store, ISOLATED) else (100, b"v")
    assert list(windows.read_only(IsolationLevel.READ_COMMITTED).fetch(b"k", 0, 200)) == [committed]


def test_a_scan_is_of_one_moment_and_ends_however_fast_the_stream_time_moves(windows: Store) -> None:
    """Each put lets those before expire: one lives at every moment, two while the stream time has not moved yet."""
    windows.put(b"k", b"v", 100)
    below = Overtaken(windows.store.read_only(IsolationLevel.READ_UNCOMMITTED))
    view = kind().view(below)
    later = count(125, 25)

    def write(_: int) -> None:
        for _ in range(3):
            windows.put(b"k", b"v", next(later))
            windows.commit()

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: list(view.fetch(b"k", 0, 10_000)))
        assert below.overtake(asked, write) > 5
    assert 1 <= len(asked.result()) <= 2
