"""Typed stores over persistent stores of other packages: plain values stay plain, unless a store takes timestamps.

They keep no marks: those of window and session stores are pairs among the data then. A window store over a direct one
shows what a killed process has written, whether or not it was committed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stores import IsolationLevel, StoreError, StoreIncompatibleError, TopicPartition, open_store
from stores.errors import ConfigError
from stores.interface import Timestamps
from stores.records import (
    BYTES,
    INT64,
    STR,
    KeyValue,
    Session,
    TimestampedKeyValue,
    ValueAndTimestamp,
    Versioned,
    Window,
    Windowed,
)
from stores.records.expiry import STREAM_TIME
from stores.records.segment_values import LOG_FORM, STREAMS_FORM, marks_of
from stores.tests.minimal_store import KINDS, Direct, InMemory, Transactional
from stores.tests.records.segmented import Logged


class WithTimestamps(Transactional):
    """Says that it keeps timestamps."""

    @property
    def timestamps(self) -> Timestamps:
        return Timestamps(self)


@pytest.fixture
def plain(path: Path) -> Iterator[Direct]:
    with Transactional(path, name="plain") as store:
        yield store


def test_a_value_that_was_there_has_the_time_minus_one(plain: Direct) -> None:
    plain.put(b"old", b"value")
    plain.commit()
    times = TimestampedKeyValue(STR, STR).over(plain)
    assert times.get("old") == ("value", -1)
    assert times.get_many(["old", "none"]) == [("value", -1), None]
    assert list(times.all()) == list(times.reverse_prefix_scan("o")) == [("old", ValueAndTimestamp("value", -1))]
    view = times.read_only(IsolationLevel.READ_UNCOMMITTED)
    assert view.get("old") == ("value", -1)
    assert view.plain().get("old") == "value"


def test_a_write_leaves_its_time_out(plain: Direct) -> None:
    times = TimestampedKeyValue(STR, STR).over(plain)
    times.put("a", "one", 10)
    times.put_all([("b", "two", 20), ("c", "three", 30), ("c", None, 40)])
    assert times.put_if_absent("d", "", 50) is None
    assert list(plain.all()) == [(b"a", b"one"), (b"b", b"two"), (b"d", b"")]
    pairs = [("a", "one"), ("b", "two"), ("d", "")]
    assert list(times.all()) == [(key, ValueAndTimestamp(value, -1)) for key, value in pairs]
    assert times.delete("d") == ("", -1)
    times.delete_range("a", "a")
    assert list(plain.all()) == [(b"b", b"two")]


@pytest.mark.parametrize("kind", [WithTimestamps, InMemory])
def test_a_store_that_takes_timestamps_or_has_no_disk_keeps_them(path: Path, kind: type[Direct]) -> None:
    with kind(path, name="own") as store:
        times = TimestampedKeyValue(STR, STR).over(store)
        times.put("a", "one", 10)
        assert times.get("a") == ("one", 10)
        assert times.read_only(IsolationLevel.READ_UNCOMMITTED).get("a") == ("one", 10)
        assert store.get(b"a") == b"\0\0\0\0\0\0\0\x0aone"


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_records_do_not_expire_where_that_cannot_be_kept(path: Path, kind: type[Direct]) -> None:
    with kind(path, name="own") as store:
        with pytest.raises(ConfigError):
            TimestampedKeyValue(STR, STR, ttl_ms=1).over(store)
        assert list(store.all()) == []


def test_values_with_serdes_need_nothing_of_a_store(plain: Direct) -> None:
    texts = KeyValue(STR, STR).over(plain)
    texts.put("a", "é")
    texts.commit()
    assert list(plain.all()) == [(b"a", "é".encode())]
    assert texts.get("a") == "é"


def test_every_lookup_and_scan_of_plain_values_has_the_time_minus_one(plain: Direct) -> None:
    for key in (b"a", b"ab", b"b"):
        plain.put(key, b"value of " + key)
    plain.commit()
    times = TimestampedKeyValue(STR, STR).over(plain)
    pairs = [(key, ValueAndTimestamp(f"value of {key}", -1)) for key in ("a", "ab", "b")]
    for reads in (times, times.read_only(IsolationLevel.READ_UNCOMMITTED)):
        assert reads.get("ab") == ("value of ab", -1)
        assert reads.get_many(["a", "ab", "b"]) == [value for _, value in pairs]
        assert list(reads.all()) == list(reads.range("a", "b")) == list(reads.prefix_scan("")) == pairs
        assert list(reads.reverse_all()) == list(reads.reverse_range("a", "b")) == pairs[::-1]
        assert list(reads.prefix_scan("a")) == list(reads.range(None, "ab")) == pairs[:2]
        assert list(reads.reverse_prefix_scan("a")) == list(reads.reverse_range(None, "ab")) == pairs[1::-1]


UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED
KIND_CASES = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def window(**given: Any) -> Window[str, Any]:
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
def test_versions_are_kept_and_expire(path: Path, kind: type[Direct]) -> None:
    described = Versioned(STR, INT64, 30)
    with described.over(kind(path, name="own")) as versions:
        for value, time_ms in ((1, 10), (3, 40), (2, 20), (0, 9)):
            versions.put("k", value, time_ms)
        assert versions.late_total == 1
        for reads in (versions, versions.read_only(UNCOMMITTED)):
            assert [tuple(record) for record in reads.get_versions("k")] == [(1, 10, 20), (2, 20, 40), (3, 40, None)]
            assert reads.get("k", 39) == (2, 20)
        versions.put("other", 1, 70)
        versions.put("gone", None, 30)
        versions.commit()
        assert [tuple(record) for record in versions.get_versions("k")] == [(3, 40, None)]
        assert versions.get("k", 39) is None
        versions.put("other", 2, 100)
        versions.commit()
        assert len([key for key, _ in versions.store.all() if key < b"\xff"]) == 4
        if not versions.store.persistent:
            return
    with described.over(kind(path, name="own")) as versions:
        assert not versions.put("k", 4, 69)
        assert versions.late_total == 1
    with pytest.raises(StoreIncompatibleError):
        window().over(kind(path, name="own"))


PUTS = ((1, 10), (3, 40), (2, 20), (0, 9), (5, 50))


@KIND_CASES
def test_a_restore_of_versions_brings_the_stream_time(path: Path, kind: type[Direct]) -> None:
    described = Versioned(STR, INT64, 30)
    log = [Logged(b"k", INT64.serialize(value), time_ms) for value, time_ms in PUTS]
    with closing(kind(path, name="own")) as store:
        described.prepare(store)
        converter = described.converter(store)
        pairs = [pair for record in log for pair in converter.convert(record)]
        store.restore(pairs, {TopicPartition("log", 0): 4})
        converter.written()
        versions = described.over(store)
        found = [tuple(record) for record in versions.get_versions("k")]
        assert found == [(2, 20, 40), (3, 40, 50), (5, 50, None)]
        assert not versions.put("k", 4, 19)
        assert versions.late_total == 1


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
        value, timestamp_ms, headers = INT64.serialize(1), 7, ()

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


KIND = Window(STR, BYTES, size_ms=10, retention_ms=1_000)


def test_windows_above_the_last_committed_stream_time_are_seen_after_a_kill(path: Path) -> None:
    other_path = path.with_name("killed")
    with KIND.over(open_store("rocksdb-direct", path, durability="PROCESS")) as windows:
        windows.put("a", b"1", 100)
        windows.commit({})
        for start_ms in (200, 300):
            windows.put("a", b"2", start_ms)
        shutil.copytree(path, other_path)
    with KIND.over(open_store("rocksdb-direct", other_path, durability="PROCESS")) as windows, windows.all() as found:
        assert [window for window, _ in found] == [Windowed("a", start, start + 10) for start in (100, 200, 300)]


def test_a_key_that_is_too_long_is_told_with_its_length_in_the_store(path: Path) -> None:
    """It is logged in the form of Kafka Streams, with another length."""
    store = open_store("lmdb-indexed-batch", path)
    with KIND.over(store) as windows:
        store.restore([], {}, marks={LOG_FORM: STREAMS_FORM})
        with pytest.raises(ValueError, match=f"has {store.max_key_bytes + 17} bytes"):
            windows.put("a" * store.max_key_bytes, b"1", 5_000)


def test_a_put_that_is_refused_leaves_the_stream_time(path: Path) -> None:
    for backend in ("rocksdb-direct", "lmdb-indexed-batch"):
        store = open_store(backend, path.with_name(backend))
        with KIND.over(store) as windows:
            windows.put("a", b"1", 100)
            with pytest.raises((StoreError, ValueError)) as error:
                windows.put("a" * store.max_key_bytes, b"1", 5_000)
            if isinstance(error.value, ValueError):
                for words in (repr(store.name), str(store.max_key_bytes), str(store.max_key_bytes + 17)):
                    assert words in str(error.value)
            windows.put("b", b"1", 90)
            assert windows.fetch_one("b", 90) == b"1"
            assert windows.fetch_one("a", 100) == b"1"
