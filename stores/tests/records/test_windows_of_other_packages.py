"""Window and session stores over stores of other packages, which keep no marks: these are pairs among the data then."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stores import IsolationLevel, StoreIncompatibleError, TopicPartition
from stores.records import INT64, STR, Session, Window, Windowed
from stores.records.expiry import STREAM_TIME
from stores.records.segment_values import marks_of
from stores.tests.minimal_store import KINDS, Direct, Transactional

UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED
KIND_CASES = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def window(**given: Any) -> Window[str, int]:
    return Window(STR, INT64, **{"size_ms": 5, "retention_ms": 30, "segment_ms": 10, **given})


@KIND_CASES
def test_windows_are_kept_and_expire(path: Path, kind: type[Direct]) -> None:
    described = window(retain_duplicates=True)
    with described.over(kind(path, name="own")) as windows:
        for number, start in enumerate((1, 1, 40, 40, 9)):
            windows.put("k", number, start)
        windows.commit()
        assert windows.late_total == 1
        found = [(40, 2), (40, 3)]
        assert list(windows.fetch("k", 0, 100)) == found
        assert list(windows.read_only(UNCOMMITTED).fetch("k", 0, 100)) == found
        assert [window.start_ms for window, _ in windows.all()] == [40, 40]
        assert [key for key, _ in windows.store.all() if key < b"\xff"] != []
        if not windows.store.persistent:
            return
    with described.over(kind(path, name="own")) as windows:
        windows.put("k", 4, 40)
        windows.put("k", 5, 10)
        assert windows.late_total == 1
        assert list(windows.fetch("k", 0, 100)) == [*found, (40, 4)]
        assert [window.start_ms for window, _ in windows.backward_all()] == [40] * 3


@KIND_CASES
def test_sessions_are_kept_and_expire(path: Path, kind: type[Direct]) -> None:
    with Session(STR, INT64, retention_ms=30, segment_ms=10).over(kind(path, name="own")) as sessions:
        sessions.put(Windowed("k", 0, 9), 1)
        sessions.put(Windowed("k", 20, 50), 2)
        sessions.commit()
        assert [value for _, value in sessions.fetch("k")] == [2]
        assert [value for _, value in sessions.read_only(UNCOMMITTED).fetch_range(None, None)] == [2]


@KIND_CASES
def test_a_view_has_the_stream_time_at_one_moment_among_the_data(path: Path, kind: type[Direct]) -> None:
    with window().over(kind(path, name="own")) as windows:
        windows.put("k", 1, 7)
        windows.commit()
        view = windows.store.read_only(UNCOMMITTED)
        expected = marks_of(windows.store).mark(STREAM_TIME)
        assert marks_of(view).at_one_moment(STREAM_TIME, lambda mark, source: (mark, source)) == (expected, view)
        assert expected is not None


@KIND_CASES
def test_another_description_is_refused(path: Path, kind: type[Direct]) -> None:
    with kind(path, name="own") as store:
        window().over(store)
        for other in (window(retain_duplicates=True), Session(STR, INT64, retention_ms=30)):
            with pytest.raises(StoreIncompatibleError):
                other.over(store)
        window().over(store)


@KIND_CASES
def test_another_length_of_segments_is_taken(path: Path, kind: type[Direct]) -> None:
    with kind(path, name="own") as store:
        windows = window().over(store)
        for start_ms in (1, 12, 23):
            windows.put("k", start_ms, start_ms)
        windows.commit()
        other = window(segment_ms=4, size_ms=6, retention_ms=60).over(store)
        assert [(found.start_ms, found.end_ms, value) for found, value in other.all()] == [
            (start_ms, start_ms + 6, start_ms) for start_ms in (1, 12, 23)
        ]


def test_data_of_others_is_refused(path: Path) -> None:
    with Transactional(path, name="own") as store:
        store.put(b"key", b"value")
        store.commit()
        with pytest.raises(StoreIncompatibleError):
            window().over(store)


def test_a_rollback_takes_the_stream_time_back(path: Path) -> None:
    with window().over(Transactional(path, name="own")) as windows:
        windows.put("k", 1, 5)
        windows.commit()
        windows.put("k", 1, 500)
        windows.rollback()
        assert list(windows.fetch("k", 0, 1000)) == [(5, 1)]


def test_a_restore_brings_the_stream_time(path: Path) -> None:
    described = window()

    class Logged:
        value, timestamp_ms = INT64.serialize(1), 7

        def __init__(self, start_ms: int) -> None:
            self.key = described.keys.logged(b"k", start_ms)

    with closing(Transactional(path, name="own")) as store:
        described.prepare(store)
        converter = described.converter(store)
        pairs = [pair for start in (5, 40, 9) for pair in converter.convert(Logged(start))]
        store.restore(pairs, {TopicPartition("log", 0): 2})
        windows = described.over(store)
        assert list(windows.fetch("k", 0, 100)) == [(40, 1)]
        windows.put("k", 1, 10)
        assert windows.late_total == 1
