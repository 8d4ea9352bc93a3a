"""Window and session stores: restores from a changelog, late records, and segments that expire."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from stores import StoreIncompatibleError, TopicPartition, open_store
from stores.records import (
    INT64,
    Windowed,
)
from stores.records.segments import packed
from stores.tests.records.segmented import Logged, LoggingStaging, Opened, session, window

LOG = TopicPartition("log", 0)


# Restores


@pytest.mark.parametrize("timestamped", [False, True])
@pytest.mark.parametrize("duplicates", [False, True])
def test_a_restore_makes_the_same_of_the_changelog(
    opened: Opened, path: Path, timestamped: bool, duplicates: bool
) -> None:
    described = window(timestamped=timestamped, retain_duplicates=duplicates)
    log: list[Logged] = []
    with opened() as store:
        described.prepare(store)
        windows = described.staged(LoggingStaging(store, log))
        for number, start in enumerate((0, 5, 5, 12, 60, 31, 33, 62, 30)):
            windows.put("k", number, start, number)
            windows.put("\0", number, start)
        windows.put("k", None, 33)
        windows._before_commit()
        store.commit()
        expected, late = list(windows.all()), windows.late_total
    assert late == 2
    assert len(log) == 16 + (not duplicates)
    with open_store("rocksdb-indexed-batch", path.with_name("other"), name="store") as store:
        described.prepare(store)
        for at in range(len(log)):
            # A new converter for each piece, as after an interrupted restore.
            converter = described.converter(store)
            pairs = [pair for record in log[at : at + 1] for pair in converter.convert(record)]
            store.restore(pairs, {LOG: at}, marks=converter.marks())
        copy = described.over(store)
        assert list(copy.all()) == expected
        copy.put("k", 9, 62)
        if duplicates:
            assert [value.value if timestamped else value for _, value in copy.fetch("k", 62, 62)] == [7, 9]
        copy.put("k", 0, 33)
        assert copy.late_total == 0
        copy.put("k", 0, 32)
        assert copy.late_total == 1


def test_a_restore_keeps_old_segments_old(opened: Opened) -> None:
    with session().over(opened()) as sessions:
        sessions.put(Windowed("k", 0, 5), 5)
        sessions.commit()
    with opened() as store:
        described = session(timestamped=True)
        described.prepare(store)
        converter = described.converter(store)
        logged = [described.keys.logged(b"k", 0, end) for end in (6, 16)]
        pairs = [pair for key in logged for pair in converter.convert(Logged(key, INT64.serialize(1), 60))]
        store.restore(pairs, {LOG: 1}, marks=converter.marks())
        assert [value for _, value in described.over(store).fetch("k")] == [(5, -1), (1, -1), (1, 60)]


def test_a_changelog_of_another_kind_is_refused(opened: Opened) -> None:
    with opened() as store:
        for described in (window(), window(retain_duplicates=True), session()):
            converter = described.converter(store)
            assert list(converter.convert(Logged(None, b"v", 1))) == []
            with pytest.raises(StoreIncompatibleError):
                list(converter.convert(Logged(b"plain key", b"v", 1)))


def test_a_restore_leaves_out_what_has_expired_by_then(opened: Opened) -> None:
    with opened() as store:
        described = session()
        converter = described.converter(store)
        lengths = [
            len(list(converter.convert(Logged(described.keys.logged(b"k", 0, end), b"v" * 8, 1))))
            for end in (5, 40, 10, 11, 5)
        ]
        assert lengths == [1, 1, 0, 1, 0]
        assert converter.marks() == {"stream_time": packed(40)}


def test_a_tombstone_stays_one(opened: Opened) -> None:
    with opened() as store:
        described = window(timestamped=True)
        [(_, kept)] = described.converter(store).convert(Logged(described.keys.logged(b"k", 1), None, 60))
        assert kept is None


# Late records, and segments that expire


def test_the_first_late_record_is_reported_and_later_ones_now_and_then(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    with window().over(opened()) as windows:
        windows.put("k", 1, 1000)
        with caplog.at_level(logging.WARNING):
            for _ in range(10_001):
                windows.put("k", 1, 1)
        assert windows.late_total == 10_001
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


def test_many_expired_records_leave_in_bounded_parts_or_at_once_and_are_never_seen(opened: Opened) -> None:
    with window().over(opened()) as windows:
        for number in range(5000):
            windows.put(f"{number}", number, 5)
        windows.commit()
        left = []
        for start in range(100, 110):
            windows.put("k", 1, start)
            assert list(windows.fetch_range(None, None, 0, 99)) == []
            windows.commit()
            left.append(len(list(windows.store.range(None, packed(1)))))
        if windows.store.deletes_ranges_whole:
            assert left == [0] * 10
        else:
            assert left == [4000, 3000, 2000, 1000, 0, 0, 0, 0, 0, 0]


def test_what_is_dropped_is_not_dropped_again(opened: Opened) -> None:
    with window().over(opened()) as windows:
        windows.put("k", 1, 5)
        windows.put("k", 1, 100)
        windows.commit()
        windows._before_commit()
        assert windows.store.approximate_num_uncommitted_bytes() == 0


def test_records_expire_as_fast_as_they_come(path: Path) -> None:
    with window().over(open_store("sqlite", path, name="store")) as windows:
        for round_ in range(10):
            for number in range(3000):
                windows.put(f"{number}", number, 100 * round_ + 5)
            windows.commit()
            # What is expired is the round before at most.
            assert len(list(windows.store.all())) <= 6000
