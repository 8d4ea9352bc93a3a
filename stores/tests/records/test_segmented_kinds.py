"""Descriptions of window and session stores: what they refuse, and upgrades to timestamps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stores import IsolationLevel, StoreIncompatibleError, open_store
from stores.records import (
    BYTES,
    INT64,
    STR,
    KeyValue,
    Session,
    TimestampedKeyValue,
    ValueAndTimestamp,
    Window,
    Windowed,
)
from stores.records.record_kind import RecordKind
from stores.records.segment_values import OLD_SEGMENTS, mark_of, runs_from, runs_of, runs_without
from stores.tests.records.segmented import SESSION, WINDOW, Opened, session, window

# Bad input


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"size_ms": 0}, ValueError),
        ({"size_ms": -1}, ValueError),
        ({"size_ms": 1.0}, TypeError),
        ({"size_ms": True}, TypeError),
        ({"size_ms": 31}, ValueError),
        ({"retention_ms": 0}, ValueError),
        ({"retention_ms": "30"}, TypeError),
        ({"retention_ms": 1 << 62}, ValueError),
        ({"segment_ms": 0}, ValueError),
        ({"segment_ms": 2.5}, TypeError),
        ({"timestamped": 1}, TypeError),
        ({"headers": 1}, TypeError),
        ({"headers": None}, TypeError),
        ({"retain_duplicates": "no"}, TypeError),
        ({"key": "str"}, TypeError),
        ({"value": None}, TypeError),
    ],
)
def test_a_description_that_is_none_is_refused(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Window(**{"key": STR, "value": INT64, **WINDOW, **given})
    if not given.keys() & {"size_ms", "retain_duplicates"}:
        with pytest.raises(error):
            Session(**{"key": STR, "value": INT64, **SESSION, **given})


class Nameless:
    """As a serde, but for its name, which the store would have to keep."""

    serialize = staticmethod(bytes)
    deserialize = staticmethod(bytes)


@pytest.mark.parametrize("serde", [str, None, "str", Nameless()])
@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("kind", [KeyValue, TimestampedKeyValue, Window, Session])
def test_a_description_takes_nothing_but_serdes(kind: type[RecordKind], part: str, serde: object) -> None:
    sizes = {Window: WINDOW, Session: SESSION}.get(kind, {})
    with pytest.raises(TypeError):
        kind(**{"key": STR, "value": INT64, **sizes, part: serde})


@pytest.mark.parametrize("ttl_ms", [0, -1, 1 << 62, 1.0, True, "1"])
def test_what_is_no_time_to_live_is_refused(ttl_ms: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        TimestampedKeyValue(STR, INT64, ttl_ms)


@pytest.mark.parametrize(
    "kind", [KeyValue(STR, INT64), TimestampedKeyValue(STR, INT64), Window(STR, INT64, **WINDOW)], ids=lambda k: k.kind
)
def test_a_typed_store_lies_over_a_store_of_bytes_alone(opened: Opened, kind: RecordKind) -> None:
    for given in ("folder", None):
        with pytest.raises(TypeError):
            kind.over(given)  # type: ignore[arg-type]
    with kind.over(opened()) as typed:
        with pytest.raises(TypeError):
            kind.over(typed)  # type: ignore[arg-type]
        assert typed.is_open


def test_windows_may_be_kept_for_no_longer_than_their_size() -> None:
    assert window(size_ms=30, retention_ms=30).retention.retention_ms == 30


def test_segments_are_half_the_retention_and_a_minute_at_least() -> None:
    assert window(segment_ms=None).retention.segment_ms == 60_000
    assert session(segment_ms=None, retention_ms=86_400_000).retention.segment_ms == 43_200_000


@pytest.mark.parametrize("time", [-1, 1 << 62, 1.0, True, "1", None])
def test_what_is_no_time_is_refused_and_nothing_is_changed(opened: Opened, time: Any) -> None:
    errors = (TypeError, ValueError)
    with window().over(opened()) as windows:
        windows.put("k", 1, 5)
        for call in (
            lambda: windows.put("k", 2, time),
            *(() if time == -1 else read_windows(windows, time)),
        ):
            with pytest.raises(errors):
                call()
        if time is not None:
            with pytest.raises(errors):
                windows.put("k", 2, 5, time)
        assert list(windows.all()) == [(("k", 5, 10), 1)]


def read_windows(windows: Any, time: Any) -> list[Callable[[], Any]]:
    """Reads with ``time`` as a start or an end, which may be negative."""
    return [
        lambda: windows.fetch_one("k", time),
        lambda: windows.fetch("k", time, 10),
        lambda: windows.backward_fetch("k", 0, time),
        lambda: windows.fetch_range("k", "k", time, 10),
        lambda: windows.fetch_all(0, time),
    ]


@pytest.mark.parametrize("time", [-1, 1 << 62, 1.0, True, "1", None])
def test_what_is_no_session_is_refused_and_nothing_is_changed(opened: Opened, time: Any) -> None:
    with session().over(opened()) as sessions:
        sessions.put(Windowed("k", 1, 5), 1)
        for call in (
            lambda: sessions.put(Windowed("k", time, 5), 2),
            lambda: sessions.put(Windowed("k", 0, time), 2),
            lambda: sessions.remove(Windowed("k", 0, time)),
            *(() if time == -1 else read_sessions(sessions, time)),
        ):
            with pytest.raises((TypeError, ValueError)):
                call()
        assert list(sessions.fetch("k")) == [(("k", 1, 5), 1)]


def read_sessions(sessions: Any, time: Any) -> list[Callable[[], Any]]:
    """Reads with ``time`` as a bound, which may be negative."""
    return [
        lambda: sessions.fetch_session("k", time, 5),
        lambda: sessions.find_sessions("k", time, 5),
        lambda: sessions.find_sessions_range(None, None, 0, time),
    ]


def test_a_session_whose_end_is_before_its_start_or_that_is_no_windowed_is_refused(opened: Opened) -> None:
    with session().over(opened()) as sessions:
        with pytest.raises(ValueError):
            sessions.put(Windowed("k", 6, 5), 1)
        with pytest.raises(TypeError):
            sessions.put(("k", 5, 6), 1)  # type: ignore[call-overload]


def test_what_a_serde_refuses_changes_nothing(opened: Opened) -> None:
    with window().over(opened()) as windows:
        for key, value in ((5, 1), ("k", "one"), ("k", 1.5), ("\ud800", 1)):
            with pytest.raises((TypeError, ValueError)):
                windows.put(key, value, 5)  # type: ignore[arg-type]
        assert windows.store.mark("stream_time") is None
        assert list(windows.all()) == []


def test_a_key_that_the_engine_refuses_changes_nothing(path: Path) -> None:
    with window().over(open_store("lmdb", path, name="store")) as windows:
        with pytest.raises(ValueError):
            windows.put("k" * 1000, 1, 5)
        assert windows.store.mark("stream_time") is None
        assert list(windows.fetch("k" * 1000, 0, 10)) == []
        assert windows.fetch_one("k" * 1000, 5) is None


@pytest.mark.parametrize(
    "other",
    [
        window(retain_duplicates=True),
        window(timestamped=True, retain_duplicates=True),
        window(headers=True, retain_duplicates=True),
        Window(BYTES, INT64, **WINDOW),
        Window(STR, STR, **WINDOW),
        session(),
        TimestampedKeyValue(STR, INT64),
    ],
)
def test_another_description_than_the_store_was_made_with_is_refused(opened: Opened, other: Any) -> None:
    with window().over(opened()) as windows:
        windows.put("k", 1, 5)
        windows.commit()
    with opened() as store, pytest.raises(StoreIncompatibleError):
        other.over(store)
    with window().over(opened()) as windows:
        assert list(windows.all()) == [(("k", 5, 10), 1)]


def test_a_store_of_plain_bytes_is_refused(opened: Opened) -> None:
    with opened() as store:
        store.put(b"key", b"value")
        store.commit()
        for described in (window(), session()):
            with pytest.raises(StoreIncompatibleError):
                described.over(store)
        assert list(store.all()) == [(b"key", b"value")]


# Upgrade and downgrade


def test_old_windows_stay_plain_and_new_segments_have_timestamps(opened: Opened) -> None:
    with window().over(opened()) as windows:
        for start in (1, 2, 11):
            windows.put("k", start, start)
        windows.commit()
    with window(timestamped=True).over(opened()) as windows:
        windows.put("k", 21, 21, 210)
        windows.put("k", 12, 12, 120)
        windows.commit()
        found = [(1, (1, -1)), (2, (2, -1)), (11, (11, -1)), (12, (12, -1)), (21, (21, 210))]
        assert list(windows.fetch("k", 0, 40)) == found
        assert windows.fetch_one("k", 21) == ValueAndTimestamp(21, 210)
        assert list(windows.read_only(IsolationLevel.READ_COMMITTED).fetch("k", 0, 40)) == found
        assert {key[7]: len(value) for key, value in windows.store.all()} == {0: 8, 1: 8, 2: 16}
    with window(timestamped=True).over(opened()) as windows:
        assert list(windows.fetch("k", 0, 40)) == found


def test_old_sessions_stay_plain_and_new_segments_have_timestamps(opened: Opened) -> None:
    with session().over(opened()) as sessions:
        sessions.put(Windowed("k", 0, 5), 5)
        sessions.commit()
    with session(timestamped=True).over(opened()) as sessions:
        sessions.put(Windowed("k", 6, 7), 7, 70)
        sessions.put(Windowed("k", 8, 15), 15, 150)
        assert [value for _, value in sessions.fetch("k")] == [(5, -1), (7, -1), (15, 150)]


def test_a_view_changes_no_file(opened: Opened, path: Path) -> None:
    """Source: Kafka, where a query migrates the rows that it reads."""
    with window().over(opened()) as windows:
        for start in range(0, 60, 3):
            windows.put("k", start, start)
        windows.commit()
    with window(timestamped=True).over(opened()) as windows:
        windows.put("k", 61, 61, 610)
        windows.commit()
        windows.put("k", 62, 62, 620)
        before = contents(path)
        for level in IsolationLevel:
            view = windows.read_only(level)
            assert len(list(view.fetch("k", 0, 100))) == len(list(view.all())) == len(list(view.backward_all()))
            assert list(view.fetch_range(None, "z", 0, 100)) == list(view.fetch_all(0, 100))
            assert view.fetch_one("k", 57) == (57, -1)
        assert contents(path) == before


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of a store's files, without those in shared memory and RocksDB's info log."""
    left_out = {"lock.mdb", "store.db-shm", "LOG"}
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name not in left_out}


def test_with_its_last_old_segment_expired_a_store_is_one_that_never_was_old(opened: Opened) -> None:
    with window().over(opened()) as windows:
        windows.put("k", 1, 1)
        windows.put("k", 11, 11)
        windows.commit()
    with window(timestamped=True).over(opened()) as windows:
        windows.put("k", 40, 40, 400)
        windows.commit()
        assert runs_of(windows.store.mark(OLD_SEGMENTS)) == ((1, 1),)
        windows.put("k", 50, 50, 500)
        windows.commit()
        assert windows.store.mark(OLD_SEGMENTS) is None
        assert list(windows.fetch("k", 0, 100)) == [(40, (40, 400)), (50, (50, 500))]


def test_an_open_scan_still_knows_an_old_segment_that_a_commit_has_dropped(opened: Opened) -> None:
    with window().over(opened()) as windows:
        windows.put("k", 1, 1)
        windows.put("k", 12, 12)
        windows.commit()
    with window(timestamped=True).over(opened()) as windows:
        view = windows.read_only()
        scans: list[Any] = []
        for of in (windows, view):
            scans += [of.fetch("k", 0, 100), of.backward_fetch("k", 0, 100)]
            scans += [of.all(), of.fetch_range(None, None, 0, 100)]
        windows.put("k", 60, 60, 600)
        windows.commit()
        assert windows.store.mark(OLD_SEGMENTS) is None
        for scan in scans:
            assert sorted(value.value for _, value in scan) == [1, 12]
            scan.close()


def test_an_open_scan_of_sessions_still_knows_an_old_segment_that_a_commit_has_dropped(opened: Opened) -> None:
    with session().over(opened()) as sessions:
        sessions.put(Windowed("k", 0, 5), 5)
        sessions.commit()
    with session(timestamped=True).over(opened()) as sessions, sessions.fetch("k") as scan:
        sessions.put(Windowed("k", 80, 90), 90, 900)
        sessions.commit()
        assert sessions.store.mark(OLD_SEGMENTS) is None
        assert [value for _, value in scan] == [(5, -1)]


def test_a_timestamped_store_is_not_opened_as_a_plain_one(opened: Opened) -> None:
    with window(timestamped=True).over(opened()) as windows:
        windows.put("k", 1, 1, 10)
        windows.commit()
    with opened() as store, pytest.raises(StoreIncompatibleError):
        window().over(store)
    with window(timestamped=True).over(opened()) as windows:
        assert list(windows.fetch("k", 0, 10)) == [(1, (1, 10))]


def test_segments_are_listed_as_runs_and_a_list_too_long_for_a_mark_becomes_one_run() -> None:
    assert runs_from([]) == ()
    assert mark_of(()) is None
    assert runs_from([1, 2, 3, 7, 9, 10]) == ((1, 3), (7, 7), (9, 10))
    assert runs_of(mark_of(((1, 3), (7, 7)))) == ((1, 3), (7, 7))
    assert runs_without(((1, 3), (7, 9), (11, 12)), 8) == ((8, 9), (11, 12))
    assert runs_from(range(0, 10_000, 2)) == ((0, 9998),)
