"""Window and session stores are opened again with another retention, size or length of segments, over every backend."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stores import KeyValueStore, StoreIncompatibleError
from stores.contract.arguments import TIME_BOUND_MS
from stores.records import BYTES, Session, Window, Windowed, pieces
from stores.records.segment_values import OLD_SEGMENTS, preparable
from stores.records.segments import packed
from stores.registry import open_store
from stores.tests.conformance.cases import Case
from stores.tests.forked_call import was_killed

pytestmark = pytest.mark.typed

SIZE, RETENTION, SEGMENT = 5, 100, 20
COMMON: dict[str, Any] = {"key": BYTES, "value": BYTES, "retention_ms": RETENTION, "segment_ms": SEGMENT}
KINDS: dict[str, Any] = {
    "window": Window(size_ms=SIZE, **COMMON),
    "timestamped window": Window(size_ms=SIZE, timestamped=True, **COMMON),
    "window with headers": Window(size_ms=SIZE, headers=True, **COMMON),
    "duplicates": Window(size_ms=SIZE, retain_duplicates=True, **COMMON),
    "session": Session(**COMMON),
    "timestamped session": Session(timestamped=True, **COMMON),
}
CHANGES: dict[str, dict[str, Any]] = {
    "longer": {"retention_ms": 300},
    "shorter": {"retention_ms": 50},
    "longer, with the segments of its own": {"retention_ms": 300, "segment_ms": None},
    "shorter segments": {"segment_ms": 7},
    "longer segments": {"segment_ms": 1_000},
    "both": {"retention_ms": 40, "segment_ms": 3},
}
KEYS = (b"", b"a", b"a\0", b"\xff")
TIMES = range(1_000, 1_100, 3)


def write(typed: Any, times: range) -> None:
    """Put a value for each time, in the way of the store's kind; the time is its value."""
    for number, time_ms in enumerate(times):
        key, value = KEYS[number % len(KEYS)], b"%d" % time_ms
        if isinstance(typed.kind, Session):
            typed.put(Windowed(key, time_ms - number, time_ms), value)
        else:
            typed.put(key, value, time_ms)
    typed.commit()


def shown(typed: Any) -> list[int]:
    """Return the times of all visible values; each is under its key, and fits its own lookup."""
    times = []
    for number, time_ms in enumerate(TIMES):
        key = KEYS[number % len(KEYS)]
        if isinstance(typed.kind, Session):
            one = typed.fetch_session(key, time_ms - number, time_ms)
        else:
            with typed.fetch(key, time_ms, time_ms) as found:
                one = next((value for _, value in found), None)
        if one is not None:
            times.append(int(getattr(one, "value", one)))
    scan = typed.fetch_range(None, None) if isinstance(typed.kind, Session) else typed.all()
    with scan as pairs:
        every = [getattr(value, "value", value) for _, value in pairs]
    assert sorted({*map(int, every)} & {*TIMES}) == times
    return times


def kept(store: KeyValueStore) -> int:
    """Return the number of records that lie in segments."""
    with store.range(packed(0), packed(TIME_BOUND_MS)) as pairs:
        return sum(1 for _ in pairs)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("window", "longer, with the segments of its own"),
        ("timestamped window", "longer segments"),
        ("duplicates", "both"),
        ("session", "longer"),
        ("session", "shorter"),
        ("timestamped session", "shorter segments"),
        ("window with headers", "both"),
    ],
)
def test_another_retention_or_length_of_segments_is_taken(case: Case, path: Path, kind: str, change: str) -> None:
    before, after = KINDS[kind], replace(KINDS[kind], **CHANGES[change])
    store = case.open(path)
    write(before.over(store), TIMES)
    store = reopened(case, path, store)
    typed = after.over(store)
    assert shown(typed) == live(after)
    # What was late before is kept, if it is not late now.
    late_ms = TIMES[-1] - after.retention_ms + 1
    write(typed, range(late_ms, late_ms + 1))
    assert kept(store) >= len(live(after))
    store = reopened(case, path, store)
    typed = before.over(store)
    assert set(live(before)) >= set(shown(typed)) >= set(live(before)) & set(live(after))
    check_drops(typed)
    store.close()


@pytest.mark.parametrize("kind", ["duplicates", "session"])
def test_with_a_longer_retention_late_records_of_dropped_segments_are_dropped_again(
    case: Case, path: Path, kind: str
) -> None:
    store = case.open(path)
    typed = KINDS[kind].over(store)
    for time_ms in (1_000, 1_400, 1_500):
        write(typed, range(time_ms, time_ms + 1))
    typed = replace(KINDS[kind], retention_ms=400).over(store)
    write(typed, range(1_110, 1_111))
    assert kept(store) == 3
    check_drops(typed)
    store.close()


def reopened(case: Case, path: Path, store: KeyValueStore) -> KeyValueStore:
    """Return the store, opened again if its backend keeps it."""
    if not case.backend.persistent:
        return store
    store.close()
    return case.open(path)


def live(kind: Any) -> list[int]:
    return [time_ms for time_ms in TIMES if time_ms > TIMES[-1] - kind.retention_ms]


def check_drops(typed: Any) -> None:
    """Check that nothing stays once all has expired."""
    for far_ms in (1_000_000, 2_000_000):
        write(typed, range(far_ms, far_ms + 1))
    assert kept(typed.store) == 1


@pytest.mark.parametrize("kind", ["timestamped window"])
def test_another_size_changes_the_ends_of_windows(case: Case, path: Path, kind: str) -> None:
    store = case.open(path)
    with KINDS[kind].over(store) as typed:
        write(typed, TIMES)
        larger = replace(KINDS[kind], size_ms=9).over(store)
        with larger.all() as pairs:
            ends = [windowed.end_ms - windowed.start_ms for windowed, _ in pairs]
        assert ends == [9] * len(TIMES)


@pytest.mark.parametrize("kind", ["window", "session"])
def test_timestamps_and_other_segments_come_together(case: Case, path: Path, kind: str) -> None:
    after = replace(KINDS[kind], timestamped=True, segment_ms=7)
    store = case.open(path)
    write(KINDS[kind].over(store), TIMES)
    assert shown(after.over(store)) == list(TIMES)
    if store.timestamps.are_kept:
        assert preparable(store).mark(OLD_SEGMENTS) is not None
        with pytest.raises(StoreIncompatibleError, match="Upgrade"):
            replace(after, segment_ms=11).over(store)
        assert shown(after.over(store)) == list(TIMES)
    store.close()


@pytest.mark.parametrize(
    "other",
    [
        Window(size_ms=SIZE, retain_duplicates=True, **COMMON),
        Session(**COMMON),
    ],
)
def test_what_cannot_be_taken_names_the_upgrade(case: Case, path: Path, other: Any) -> None:
    store = case.open(path)
    write(KINDS["window"].over(store), TIMES)
    with pytest.raises(StoreIncompatibleError, match="Upgrade"):
        other.over(store)
    assert shown(KINDS["window"].over(store)) == list(TIMES)
    store.close()


def reopen_and_die(path: str, backend: str, number: int) -> None:
    """Open the store with other segments, and die at write ``number`` of the move."""
    store = open_store(backend, path, name="store")
    restore, left = type(store).restore, number

    def counted(*arguments: Any, **named: Any) -> None:
        nonlocal left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        restore(*arguments, **named)

    type(store).restore = counted  # type: ignore[method-assign]
    pieces.PIECE_BYTES = 100  # type: ignore[misc]
    replace(KINDS["timestamped window"], segment_ms=7).over(store).close()


@pytest.mark.parametrize("number", [1, 5, 1_000])
def test_a_kill_while_records_move_leaves_them_to_the_next_opening(case: Case, path: Path, number: int) -> None:
    if not case.backend.persistent or case.options:
        return
    with KINDS["timestamped window"].over(case.open(path)) as typed:
        write(typed, TIMES)
    assert was_killed(reopen_and_die, str(path), case.backend.name, number) == (number < 1_000)
    for segment_ms in (SEGMENT, 7, SEGMENT):
        with replace(KINDS["timestamped window"], segment_ms=segment_ms).over(case.open(path)) as typed:
            assert shown(typed) == list(TIMES)
            assert kept(typed.store) == len(TIMES)
