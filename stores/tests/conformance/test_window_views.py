"""Views of window stores over every backend: each scan is of one moment, its stream time included.

Reads of many segments, and of many keys with a time to live, are linear, and made in one try. Calls of the store below
are counted, not seconds. A view asked up to nine times for all ranges, if the writer moved the stream time meanwhile:
with 20,000 segments an answer took minutes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from time import monotonic, sleep
from typing import Any

import pytest

from stores import IsolationLevel, KeyValueStore, failpoints
from stores.records import BYTES, Session, TimestampedKeyValue, Window, Windowed, WindowStore, segment_scans
from stores.records.record_kind import TypedStore
from stores.records.segment_scans import existing_segments
from stores.strategies.store import Store
from stores.strategies.store.views import StoreSnapshot
from stores.tests.conformance.cases import Case
from stores.tests.conformance.gaps import ISOLATED, carries
from stores.tests.overtaken_view import Overtaken

pytestmark = pytest.mark.typed

Windows = WindowStore[bytes, bytes]


def kind() -> Window[bytes, bytes]:
    return Window(BYTES, BYTES, size_ms=5, retention_ms=25, segment_ms=10)


@pytest.fixture
def windows(store: KeyValueStore) -> Windows:
    """A new store, which closes with the one below."""
    return kind().over(store)


def test_a_reader_sees_whole_commits_wherever_the_writer_is(case: Case, windows: Windows) -> None:
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
    windows: Windows, monkeypatch: pytest.MonkeyPatch
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


def test_a_view_shows_its_level_and_the_stream_time_of_that(windows: Windows) -> None:
    windows.put(b"k", b"v", 1)
    windows.commit()
    windows.put(b"k", b"v", 100)
    assert list(windows.read_only(IsolationLevel.READ_UNCOMMITTED).fetch(b"k", 0, 200)) == [(100, b"v")]
    committed = (1, b"v") if carries(windows.store, ISOLATED) else (100, b"v")
    assert list(windows.read_only(IsolationLevel.READ_COMMITTED).fetch(b"k", 0, 200)) == [committed]


def test_a_scan_is_of_one_moment_and_ends_however_fast_the_stream_time_moves(windows: Windows) -> None:
    """Each put lets those before expire: one lives at every moment, two while the stream time has not moved yet."""
    windows.put(b"k", b"v", 100)
    below = Overtaken(windows.store, IsolationLevel.READ_UNCOMMITTED)
    view = kind().view(below)
    later = count(125, 25)

    def write(_: int) -> None:
        for _ in range(3):
            windows.put(b"k", b"v", next(later))
            windows.commit()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(lambda: list(view.fetch(b"k", 0, 10_000)))
        assert below.overtake(future, write) > 5
    assert 1 <= len(future.result()) <= 2


FEW, SOME, MANY = 20, 40, 200
WAIT_S = 0.005
FIRST_WAIT_S = 600.0
"""The seconds that a reader gives the writer before each call. A writer that waits for the reader writes none."""
WINDOWS = Window(BYTES, BYTES, size_ms=1, retention_ms=1 << 40, segment_ms=10)
SESSIONS = Session(BYTES, BYTES, retention_ms=1 << 40, segment_ms=10)
READS: dict[str, tuple[Any, Callable[[Any], Any], bool]] = {
    "fetch": (WINDOWS, lambda view: view.fetch(b"k", 0, 1 << 40), False),
    "backward_fetch_range": (WINDOWS, lambda view: view.backward_fetch_range(None, None, 0, 1 << 40), False),
    "fetch_all": (WINDOWS, lambda view: view.fetch_all(0, 1 << 40), True),
    "backward_all": (WINDOWS, lambda view: view.backward_all(), True),
    "find_sessions": (SESSIONS, lambda view: view.find_sessions(b"k", 0, 1 << 40), False),
    "fetch_range": (SESSIONS, lambda view: view.fetch_range(None, None), False),
}
"""The kind, the read, and whether one range is enough for it."""


def put(typed: Any, number: int) -> None:
    """Put a record into the segment of that number."""
    if isinstance(typed.kind, Session):
        typed.put(Windowed(b"k", 10 * number, 10 * number), b"v")
    else:
        typed.put(b"k", b"v", 10 * number)


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the ranges that readers ask of stores and their snapshots, and the snapshots."""
    counted: Counter[str] = Counter()

    def counting(owner: type, name: str, size: Callable[..., int]) -> None:
        method = getattr(owner, name)

        def call(*given: Any, **named: Any) -> Any:
            counted["ranges"] += size(*given)
            return method(*given, **named)

        monkeypatch.setattr(owner, name, call)

    counting(Store, "_scan", lambda *_: 1)
    counting(Store, "_scan_many", lambda _, level, ranges: len(ranges))
    counting(StoreSnapshot, "_scan", lambda *_: 1)
    return counted


@pytest.mark.as_is
@pytest.mark.spread_over(level=[*IsolationLevel, "writer"], read=list(READS))
def test_a_read_of_ten_times_as_many_segments_asks_for_ten_times_as_many_ranges(
    store: KeyValueStore, ranges: Counter[str], read: str, level: str
) -> None:
    kind, ask, is_whole = READS[read]
    typed: TypedStore = kind.over(store)
    asked = {}
    written = 0
    for segments in (FEW, MANY):
        while written < segments:
            put(typed, written)
            written += 1
        typed.commit()
        ranges.clear()
        reader: Any = typed if level == "writer" else typed.read_only(IsolationLevel(level))
        with ask(reader) as found:
            assert len(list(found)) == segments
        asked[segments] = ranges["ranges"]
    if is_whole:
        assert asked[MANY] == asked[FEW] <= 3
    else:
        # A range for each segment, and two looks at which segments there are.
        assert asked[MANY] <= 3 * (MANY + 1)


@pytest.mark.as_is
@pytest.mark.spread_over(level=list(IsolationLevel), read=list(READS))
def test_a_read_of_many_segments_is_made_once_however_often_the_writer_commits(
    store: KeyValueStore, ranges: Counter[str], read: str, level: IsolationLevel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer moves the stream time and commits whenever the reader asks, unless it has to wait for the reader."""
    kind, ask, _ = READS[read]
    typed: Any = kind.over(store)
    for number in range(SOME):
        put(typed, number)
    typed.commit()
    view = typed.read_only(level)
    later = count(SOME)
    with ThreadPoolExecutor(1) as pool:
        writes = Writes(typed, later)
        for owner, name in ((Store, "_scan"), (Store, "_scan_many"), (StoreSnapshot, "_scan")):
            monkeypatch.setattr(owner, name, writes.before(getattr(owner, name)))
        future = pool.submit(lambda: [window for window, _ in ask(view)])
        writes.serve(future)
        found = future.result(60)
    assert writes.served > 0
    # One moment: the first segments, without a gap.
    assert SOME <= len(found) <= SOME + writes.served
    # A range for each segment, two looks at which there are, and no second try of all of that.
    assert ranges["ranges"] <= 3 * (len(found) + 2) + 8


class Writes:
    """Lets the writer's thread, which calls ``serve``, write and commit before a reader's calls, as far as it can."""

    def __init__(self, typed: Any, later: Any) -> None:
        self._typed, self._later = typed, later
        self._wanted = self.served = 0

    def before(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self._wanted = wanted = self._wanted + 1
            # The reader's first call holds nothing that the writer waits for.
            deadline = monotonic() + (WAIT_S if self.served else FIRST_WAIT_S)
            while self.served < wanted and monotonic() < deadline:
                sleep(0.0002)
            return method(*given, **named)

        return call

    def serve(self, asked: Any) -> None:
        while not asked.done():
            if self.served < self._wanted:
                self.served += 1
                put(self._typed, next(self._later))
                self._typed.commit()


@pytest.mark.as_is
@pytest.mark.parametrize("level", IsolationLevel)
def test_a_lookup_of_many_keys_with_a_time_to_live_is_made_once(
    store: KeyValueStore, level: IsolationLevel, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [b"%04d" % number for number in range(1_500)]
    if not (store.keeps_marks and store.timestamps.are_kept):
        return
    typed = TimestampedKeyValue(BYTES, BYTES, ttl_ms=1_000_000).over(store)
    typed.put_all([(key, b"v", 1) for key in keys])
    typed.commit()
    looked: list[int] = []
    view = typed.read_only(level)

    def counted(owner: type) -> None:
        get_many = owner.get_many  # type: ignore[attr-defined]

        def call(self: Any, wanted: Sequence[bytes], *given: Any) -> Any:
            looked.append(len(wanted))
            return get_many(self, wanted, *given)

        monkeypatch.setattr(owner, "get_many", call)

    counted(type(store.read_only(level)))
    counted(StoreSnapshot)
    later = count(2)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(lambda: [view.get_many(keys) for _ in range(3)])
        while not future.done():
            typed.put(b"later", b"v", next(later))
            typed.commit()
        for values in future.result(60):
            assert [value and value.timestamp_ms for value in values] == [1] * len(keys)
    assert looked == [len(keys)] * 3
