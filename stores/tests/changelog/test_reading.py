"""Topics, reading them back, compaction and truncation."""

from __future__ import annotations

import time
from typing import Any

import pytest

from stores.changelog.interface import Changelog, Record
from stores.changelog.producer import PENDING_RECORDS_MAX
from stores.errors import ChangelogError, OffsetOutOfRangeError, StoreClosedError
from stores.interface import TopicPartition
from stores.tests.changelog.records import DEADLINE_S, MANY, A, B, await_sent, marks, pairs, put


def test_what_is_committed_is_read_back_with_keys_values_tombstones_timestamps_and_headers(log: Changelog) -> None:
    headers = (("trace", b"\x00\xff"), ("trace", b""), ("none", None))
    with log.producer("p") as producer:
        producer.begin()
        producer.send(A, b"k", b"v", 1_700_000_000_000, headers)
        producer.send(A, b"k", None)
        producer.send(A, None, b"", 0)
        assert producer.commit() == {A: 2}
    assert list(log.read(A)) == [
        Record(0, b"k", b"v", 1_700_000_000_000, headers),
        Record(1, b"k", None, -1, ()),
        Record(2, None, b"", 0, ()),
    ]


def test_reading_begins_at_the_offset_asked_for_and_may_begin_at_the_end(log: Changelog) -> None:
    put(log, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    assert pairs(log, from_offset=1) == [(1, b"b", b"2"), (2, b"c", b"3")]
    assert pairs(log, from_offset=3) == []


def test_columns_have_the_records_of_a_read_from_any_offset_also_where_some_were_removed(log: Changelog) -> None:
    headers = (("h", b"\xff"),)
    with log.producer("p") as producer:
        for number in range(30):
            producer.begin()
            producer.send(A, b"%d" % (number % 7) if number % 5 else None, None if number % 4 else b"v", number)
            producer.send(A, b"with headers", b"%d" % number, -1, headers if number > 25 else ())
            if number % 6:
                producer.commit()
            else:
                producer.abort()
    # A broker compacts when it likes, and each read of it waits for an answer.
    step = 1 if log.compact(A) else 11
    for offset in range(log.start_offset(A), log.end_offset(A) + 1, step):
        read = list(log.read_columns(A, offset))
        assert all(columns.keys for columns in read)
        assert [record for columns in read for record in columns.records()] == list(log.read(A, offset))
    with pytest.raises(OffsetOutOfRangeError):
        log.read_columns(A, log.end_offset(A) + 1)


@pytest.mark.parametrize("offset", [-1, 4])
def test_reading_beyond_the_log_is_refused_at_the_call(log: Changelog, offset: int) -> None:
    put(log, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    with pytest.raises(OffsetOutOfRangeError):
        log.read(A, offset)


@pytest.mark.parametrize("before", [0, 1])
def test_beyond_an_open_transaction_nothing_is_read_and_nothing_is_out_of_range(log: Changelog, before: int) -> None:
    """A commit may be behind it: its store goes on from there."""
    assert log.written_end(A) == 0
    put(log, *[(b"before", b"1")] * before)
    assert log.written_end(A) == before
    with log.producer("open") as still_open, log.producer("p") as producer:
        still_open.begin()
        for _ in range(MANY):
            still_open.send(A, b"k", b"open")
        await_sent(log, still_open, before + MANY)
        producer.begin()
        producer.send(A, b"k", b"v")
        following = producer.commit()[A] + 1
        deadline = time.monotonic() + DEADLINE_S
        while log.written_end(A) < following + marks(log):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert log.end_offset(A) == before < following
        for offset in (following, log.written_end(A)):
            assert not pairs(log, from_offset=offset)
            assert not list(log.read_columns(A, offset))
        for refused in (log.read, log.read_columns):
            with pytest.raises(OffsetOutOfRangeError):
                refused(A, log.written_end(A) + 1)
        still_open.abort()
    assert pairs(log)[-1] == (following - 1, b"k", b"v")


def test_a_read_is_a_snapshot_of_its_call(log: Changelog) -> None:
    put(log, *((b"%d" % number, b"old") for number in range(3_000)))
    scan = log.read(A)
    put(log, *((b"%d" % number, b"new") for number in range(3_000)))
    log.compact(A)
    assert [record.value for record in scan] == [b"old"] * 3_000


def test_a_read_that_is_not_run_to_its_end_does_not_stop_writers(log: Changelog) -> None:
    put(log, *((b"%d" % number, b"old") for number in range(3_000)))
    scan = log.read(A)
    assert next(scan).offset == 0
    put(log, (b"k", b"new"))
    assert log.truncate(A, 3_000) == 3_000
    assert next(scan).offset == 1
    assert log.start_offset(A) == 3_000


def skip_unless_it_compacts_at_once(log: Changelog) -> None:
    if log.compacts_itself:
        assert log.compact(A) == 0
        pytest.skip("this log compacts its topics when it likes")


def test_compaction_keeps_the_last_committed_record_of_each_key_at_its_offset(log: Changelog) -> None:
    skip_unless_it_compacts_at_once(log)
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (None, b"no key"), (b"b", None), (None, b"no key"))
    assert log.compact(A) == 2
    assert pairs(log) == [(2, b"a", b"2"), (3, None, b"no key"), (4, b"b", None), (5, None, b"no key")]
    assert log.compact(A) == 0
    assert (log.start_offset(A), log.end_offset(A)) == (0, 6)
    put(log, (b"c", b"1"))
    assert pairs(log)[-1] == (6, b"c", b"1")


def test_compaction_keeps_what_was_committed_behind_an_aborted_transaction(log: Changelog) -> None:
    skip_unless_it_compacts_at_once(log)
    with log.producer("p") as producer:
        producer.begin()
        producer.send(A, b"aborted", b"1")
        for _ in range(MANY):
            producer.send(B, b"aborted", b"1")
        producer.abort()
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", b"2"))
    _, *last = pairs(log)
    log.compact(A)
    assert pairs(log) == last


def test_truncation_goes_by_offsets_where_compaction_has_removed_records(log: Changelog) -> None:
    skip_unless_it_compacts_at_once(log)
    put(log, *((b"%d" % number, b"old") for number in range(10)))
    put(log, *((b"%d" % number, b"new") for number in range(0, 10, 2)))
    assert (log.compact(A), log.truncate(A, 6)) == (5, 3)
    assert [offset for offset, _, _ in pairs(log, from_offset=6)] == [7, 9, 10, 11, 12, 13, 14]


def test_compaction_never_lets_an_open_or_aborted_record_replace_a_committed_one(log: Changelog) -> None:
    skip_unless_it_compacts_at_once(log)
    put(log, (b"0", b"committed"))
    with log.producer("aborts") as aborts, log.producer("open") as still_open:
        aborts.begin()
        still_open.begin()
        for _ in range(MANY):
            aborts.send(A, b"0", b"aborted")
        aborts.abort()
        for _ in range(MANY):
            still_open.send(A, b"0", b"open")
        num_removed = log.compact(A)
        assert num_removed == log.end_offset(A) - 1 > 0
        assert pairs(log) == [(0, b"0", b"committed")]
        still_open.abort()
    log.compact(A)
    assert pairs(log) == [(0, b"0", b"committed")]


def test_the_lag_is_0_after_the_last_record_although_offsets_without_records_follow(log: Changelog) -> None:
    put(log, (b"a", b"1"), (b"b", b"2"))
    with log.producer("p") as producer:
        producer.begin()
        producer.send(A, b"c", b"3")
        last = producer.commit()[A]
        producer.begin()
        for _ in range(MANY):
            producer.send(A, b"c", b"aborted")
        await_sent(log, producer, last + 1 + marks(log) + MANY)
        producer.abort()
    assert pairs(log)[-1] == (last, b"c", b"3")
    end = log.end_offset(A)
    assert end >= last + MANY - PENDING_RECORDS_MAX
    assert [log.lag(A, following) for following in (last + 1, end, end + 1)] == [0, 0, 0]
    assert [log.lag(A, following) for following in (0, 1, last)] == [end, end - 1, end - last]
    put(log, (b"d", b"4"))
    assert log.lag(A, last + 1) > 0
    assert next(iter(log.read(A, end))).key == b"d"
    assert log.lag(A, log.end_offset(A) - 1) == 1
    assert [key for _, key, _ in pairs(log, from_offset=last + 1)] == [b"d"]
    assert log.lag(A, log.end_offset(A)) == 0


def test_the_lag_counts_offsets_that_are_truncated_and_those_of_no_open_transaction(log: Changelog) -> None:
    put(log, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    log.truncate(A, 3)
    assert log.lag(A, 1) == 2
    with log.producer("p") as producer:
        producer.begin()
        producer.send(A, b"d", b"4")
        assert log.lag(A, 3) == 0
        producer.commit()
        assert log.lag(A, 3) > 0


def test_truncation_moves_the_start_and_older_offsets_are_refused(log: Changelog) -> None:
    put(log, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    assert log.truncate(A, 2) == 2
    assert (log.start_offset(A), log.end_offset(A)) == (2, 3)
    assert pairs(log, from_offset=2) == [(2, b"c", b"3")]
    for offset in (0, 1):
        with pytest.raises(OffsetOutOfRangeError):
            log.read(A, offset)
    for offset in (1, 4):
        with pytest.raises(ValueError):
            log.truncate(A, offset)
    assert log.truncate(A, 3) == 1
    assert pairs(log, from_offset=3) == []


def test_truncation_stops_at_an_open_transaction(log: Changelog) -> None:
    put(log, (b"a", b"1"))
    with log.producer("p") as producer:
        producer.begin()
        for _ in range(MANY):
            producer.send(A, b"k", b"v")
        with pytest.raises(ValueError):
            log.truncate(A, 2)
        assert log.truncate(A, 1) == 1
        assert producer.commit() == {A: MANY}
    assert len(pairs(log, from_offset=1)) == MANY


def test_reading_and_truncation_may_begin_at_each_offset_of_a_large_append(log: Changelog) -> None:
    count = 2_500
    put(log, *((b"%d" % number, b"v") for number in range(count)))
    for offset in (1, 999, 1_000, 1_001, 2_499, 2_500):
        assert [record.offset for record in log.read(A, offset)] == list(range(offset, count))
    for offset, num_removed in ((1, 1), (1_500, 1_499), (1_501, 1), (2_499, 998), (2_500, 1)):
        assert log.truncate(A, offset) == num_removed
        assert [record.offset for record in log.read(A, offset)] == list(range(offset, count))


def test_unknown_topics_and_partitions_are_refused(log: Changelog) -> None:
    with log.producer() as producer:
        for partition in (TopicPartition("nowhere", 0), TopicPartition("a", 1), TopicPartition("a", -1)):
            with pytest.raises(ChangelogError):
                producer.send(partition, b"k", b"v")
            for ask in (log.read, log.start_offset, log.end_offset, log.compact):
                with pytest.raises(ChangelogError):
                    ask(partition)
        assert producer.flush() == {}


def test_what_is_no_partition_and_no_offset_is_a_type_error(log: Changelog) -> None:
    bad: Any
    for bad in (5, "a", None, ("a",)):
        for ask in (log.read, log.start_offset, log.end_offset, log.compact):
            with pytest.raises(TypeError):
                ask(bad)
    for bad in ("0", None, 0.0):
        with pytest.raises(TypeError):
            log.read(A, bad)
        with pytest.raises(TypeError):
            log.truncate(A, bad)


def test_a_topic_s_name_is_text_and_its_partitions_are_a_number(log: Changelog) -> None:
    wrong: list[tuple[Any, Any]] = [(5, 1), (None, 1), (b"c", 1), ("c", "1"), ("c", None), ("c", True)]
    for topic, partitions in wrong:
        with pytest.raises(TypeError):
            log.create_topic(topic, partitions)
    with pytest.raises(ValueError):
        log.create_topic("lone \ud800")
    assert log.topics() == {"a": 1, "b": 2}


def test_a_topic_is_made_once_and_keeps_its_partitions(log: Changelog) -> None:
    log.create_topic("b", 2)
    assert log.topics() == {"a": 1, "b": 2}
    with pytest.raises(ChangelogError):
        log.create_topic("b", 3)
    for name, partitions in (("", 1), ("c", 0)):
        with pytest.raises(ValueError):
            log.create_topic(name, partitions)
    assert log.topics() == {"a": 1, "b": 2}


def test_after_close_everything_raises_and_closing_again_does_not(log: Changelog) -> None:
    put(log, *((b"%d" % number, b"v") for number in range(3_000)))
    producer = log.producer("p")
    producer.close()
    producer.close()
    with pytest.raises(StoreClosedError):
        producer.begin()
    log.close()
    log.close()
    for call in (
        log.topics,
        lambda: log.read(A),
        lambda: log.end_offset(A),
        lambda: log.committed_offsets("g"),
        lambda: log.committed_offsets("g", [A]),
        lambda: log.create_topic("c"),
        lambda: log.producer("p"),
        log.producer,
    ):
        with pytest.raises(StoreClosedError):
            call()
