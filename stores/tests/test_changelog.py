"""What every changelog promises, on each of the embedded ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stores import failpoints
from stores.changelog.interface import Changelog, Producer, Record
from stores.changelog.memory import MemoryChangelog
from stores.changelog.producer import AFTER_COMMIT, BEFORE_COMMIT, PENDING_RECORDS_MAX
from stores.changelog.sqlite import SqliteChangelog
from stores.errors import ChangelogError, OffsetOutOfRangeError, ProducerFencedError, StoreClosedError
from stores.interface import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
MANY = 2 * PENDING_RECORDS_MAX + 5


class Crash(Exception):
    """Raised at a failpoint, where a process would have died."""


@pytest.fixture(params=["memory", "sqlite"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Changelog]:
    changelog: Changelog = MemoryChangelog() if request.param == "memory" else SqliteChangelog(tmp_path / "log.sqlite")
    with changelog:
        changelog.create_topic("a")
        changelog.create_topic("b", 2)
        yield changelog
    failpoints.disarm()


def put(log: Changelog, *pairs: tuple[bytes | None, bytes | None], partition: TopicPartition = A) -> None:
    with log.producer() as producer:
        for key, value in pairs:
            producer.send(partition, key, value)
        producer.flush()


def send_many(producer: Producer, count: int) -> None:
    for number in range(count):
        producer.send(A, b"%d" % number, b"v")


def pairs(
    log: Changelog, partition: TopicPartition = A, from_offset: int = 0
) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in log.read(partition, from_offset)]


def test_what_is_committed_is_read_back_with_keys_values_tombstones_timestamps_and_headers(log: Changelog) -> None:
    headers = (("trace", b"\x00\xff"), ("trace", b""))
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


def test_a_commit_spans_partitions_and_input_offsets(log: Changelog) -> None:
    """Source: KIP-98, sendOffsetsToTransaction; KIP-129."""
    with log.producer("p") as producer:
        producer.begin()
        producer.send(A, b"k", b"1")
        producer.send(B, b"k", b"2")
        producer.send_offsets("group", {TopicPartition("elsewhere", 3): 7})
        assert (pairs(log, A), pairs(log, B), log.committed_offsets("group")) == ([], [], {})
        assert producer.commit() == {A: 0, B: 0}
    assert pairs(log, A) == [(0, b"k", b"1")]
    assert pairs(log, B) == [(0, b"k", b"2")]
    assert log.committed_offsets("group") == {TopicPartition("elsewhere", 3): 7}
    assert log.committed_offsets("other") == {}


def test_an_abort_discards_records_and_input_offsets(log: Changelog) -> None:
    with log.producer("p") as producer:
        producer.begin()
        producer.send(A, b"k", b"1")
        producer.send_offsets("group", {B: 7})
        producer.abort()
        producer.abort()
        producer.begin()
        producer.send(A, b"k", b"2")
        producer.commit()
    assert [value for _, _, value in pairs(log)] == [b"2"]
    assert log.committed_offsets("group") == {}


def test_an_aborted_record_is_never_read_however_long_its_transaction(log: Changelog) -> None:
    """Source: KIP-98, read_committed consumers."""
    with log.producer("p") as producer:
        producer.begin()
        for number in range(MANY):
            producer.send(A, b"%d" % number, b"aborted")
        producer.abort()
        producer.begin()
        producer.send(A, b"k", b"committed")
        last = producer.commit()[A]
    assert pairs(log) == [(last, b"k", b"committed")]
    assert last >= MANY - PENDING_RECORDS_MAX
    assert log.end_offset(A) == last + 1


def test_a_long_transaction_shows_nothing_until_its_commit_and_then_all_of_it(log: Changelog) -> None:
    with log.producer("p") as producer:
        producer.begin()
        for number in range(MANY):
            producer.send(A, b"%d" % number, b"v")
        assert pairs(log) == []
        assert producer.commit() == {A: MANY - 1}
    assert [key for _, key, _ in pairs(log)] == [b"%d" % number for number in range(MANY)]


def test_the_end_is_the_first_offset_of_the_oldest_open_transaction(log: Changelog) -> None:
    """Source: KIP-98, last stable offset."""
    put(log, (b"k", b"before"))
    with log.producer("long") as long, log.producer("short") as short:
        long.begin()
        for number in range(MANY):
            long.send(A, b"%d" % number, b"long")
        short.begin()
        short.send(A, b"k", b"short")
        short_last = short.commit()[A]
        assert log.end_offset(A) == 1
        assert pairs(log) == [(0, b"k", b"before")]
        assert log.end_offset(B) == 0
        long.abort()
        assert log.end_offset(A) == short_last + 1
        assert pairs(log) == [(0, b"k", b"before"), (short_last, b"k", b"short")]


def test_transactions_of_several_producers_interleave_in_one_partition(log: Changelog) -> None:
    producers = [log.producer(f"p{number}") for number in range(3)]
    for producer in producers:
        producer.begin()
    for number in range(MANY):
        for producer in producers:
            producer.send(A, b"%d" % number, b"v")
    for producer in producers:
        producer.commit()
    records = pairs(log)
    assert [offset for offset, _, _ in records] == list(range(3 * MANY))
    assert sorted(key or b"" for _, key, _ in records) == sorted(
        b"%d" % number for number in range(MANY) for _ in range(3)
    )


def test_a_new_producer_aborts_what_the_older_one_left_open(log: Changelog) -> None:
    """Source: KIP-98, initTransactions."""
    old = log.producer("p")
    old.begin()
    for number in range(MANY):
        old.send(A, b"%d" % number, b"old")
    with log.producer("p") as new:
        assert log.end_offset(A) == 2 * PENDING_RECORDS_MAX
        assert pairs(log) == []
        new.begin()
        new.send(A, b"k", b"new")
        last = new.commit()[A]
    assert pairs(log) == [(last, b"k", b"new")]
    assert log.end_offset(A) == last + 1


def test_a_zombie_is_fenced_and_changes_nothing(log: Changelog) -> None:
    old = log.producer("p")
    old.begin()
    old.send(A, b"k", b"zombie")
    old.send_offsets("group", {B: 1})
    new = log.producer("p")
    with pytest.raises(ProducerFencedError):
        old.commit()
    with pytest.raises(ProducerFencedError):
        send_many(old, MANY)
    old.abort()
    old.begin()
    with pytest.raises(ProducerFencedError):
        old.commit()
    old.close()
    assert pairs(log) == []
    assert log.committed_offsets("group") == {}
    new.begin()
    new.send(A, b"k", b"new")
    new.commit()
    assert [value for _, _, value in pairs(log)] == [b"new"]


def test_another_transactional_id_is_not_fenced(log: Changelog) -> None:
    first = log.producer("p")
    first.begin()
    first.send(A, b"k", b"v")
    log.producer("q")
    assert first.commit() == {A: 0}


def test_without_a_transactional_id_records_are_visible_at_flush_and_offsets_at_once(log: Changelog) -> None:
    with log.producer() as producer:
        producer.send(A, b"k", b"v")
        producer.send_offsets("group", {B: 4})
        assert pairs(log) == []
        assert log.committed_offsets("group") == {B: 4}
        assert producer.flush() == {A: 0}
        assert pairs(log) == [(0, b"k", b"v")]
        assert producer.flush() == {}
        producer.send(A, b"k", b"never flushed")
    assert pairs(log) == [(0, b"k", b"v")]


def test_a_flush_tells_the_last_offsets_of_all_that_was_sent_since_the_last_one(log: Changelog) -> None:
    with log.producer() as producer:
        producer.send(B, b"k", b"v")
        for number in range(MANY):
            producer.send(A, b"%d" % number, b"v")
        assert producer.flush() == {A: MANY - 1, B: 0}


def test_a_commit_that_dies_before_its_end_changes_nothing_and_can_be_tried_again(log: Changelog) -> None:
    def die() -> None:
        raise Crash

    failpoints.arm(BEFORE_COMMIT, die)
    with log.producer("p") as producer:
        producer.begin()
        for number in range(MANY):
            producer.send(A, b"%d" % number, b"v")
        producer.send_offsets("group", {B: 4})
        with pytest.raises(Crash):
            producer.commit()
        assert (pairs(log), log.end_offset(A), log.committed_offsets("group")) == ([], 0, {})
        failpoints.disarm(BEFORE_COMMIT)
        assert producer.commit() == {A: MANY - 1}
    assert len(pairs(log)) == MANY
    assert log.committed_offsets("group") == {B: 4}


def test_a_commit_that_dies_after_its_end_is_found_whole_by_the_next_producer(log: Changelog) -> None:
    def die() -> None:
        raise Crash

    failpoints.arm(AFTER_COMMIT, die)
    producer = log.producer("p")
    producer.begin()
    for number in range(MANY):
        producer.send(A, b"%d" % number, b"v")
    producer.send_offsets("group", {B: 4})
    with pytest.raises(Crash):
        producer.commit()
    failpoints.disarm(AFTER_COMMIT)
    log.producer("p")
    assert len(pairs(log)) == MANY
    assert log.committed_offsets("group") == {B: 4}


def test_reading_begins_at_the_offset_asked_for_and_may_begin_at_the_end(log: Changelog) -> None:
    put(log, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    assert pairs(log, from_offset=1) == [(1, b"b", b"2"), (2, b"c", b"3")]
    assert pairs(log, from_offset=3) == []


@pytest.mark.parametrize("offset", [-1, 4])
def test_reading_beyond_the_log_is_refused_at_the_call(log: Changelog, offset: int) -> None:
    put(log, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    with pytest.raises(OffsetOutOfRangeError):
        log.read(A, offset)


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


def test_compaction_keeps_the_last_committed_record_of_each_key_at_its_offset(log: Changelog) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (None, b"no key"), (b"b", None), (None, b"no key"))
    assert log.compact(A) == 2
    assert pairs(log) == [(2, b"a", b"2"), (3, None, b"no key"), (4, b"b", None), (5, None, b"no key")]
    assert log.compact(A) == 0
    assert (log.start_offset(A), log.end_offset(A)) == (0, 6)
    put(log, (b"c", b"1"))
    assert pairs(log)[-1] == (6, b"c", b"1")


def test_compaction_never_lets_an_open_or_aborted_record_replace_a_committed_one(log: Changelog) -> None:
    put(log, (b"0", b"committed"))
    with log.producer("aborts") as aborts, log.producer("open") as still_open:
        aborts.begin()
        still_open.begin()
        for _ in range(MANY):
            aborts.send(A, b"0", b"aborted")
        aborts.abort()
        for _ in range(MANY):
            still_open.send(A, b"0", b"open")
        removed = log.compact(A)
        assert removed == log.end_offset(A) - 1 > 0
        assert pairs(log) == [(0, b"0", b"committed")]
        still_open.abort()
    log.compact(A)
    assert pairs(log) == [(0, b"0", b"committed")]


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


def test_unknown_topics_and_partitions_are_refused(log: Changelog) -> None:
    with log.producer() as producer:
        for partition in (TopicPartition("nowhere", 0), TopicPartition("a", 1), TopicPartition("a", -1)):
            with pytest.raises(ChangelogError):
                producer.send(partition, b"k", b"v")
            for ask in (log.read, log.start_offset, log.end_offset, log.compact):
                with pytest.raises(ChangelogError):
                    ask(partition)
        assert producer.flush() == {}


def test_a_topic_is_made_once_and_keeps_its_partitions(log: Changelog) -> None:
    log.create_topic("b", 2)
    assert log.topics() == {"a": 1, "b": 2}
    with pytest.raises(ChangelogError):
        log.create_topic("b", 3)
    for name, partitions in (("", 1), ("c", 0)):
        with pytest.raises(ValueError):
            log.create_topic(name, partitions)
    assert log.topics() == {"a": 1, "b": 2}


def test_calls_out_of_order_are_refused(log: Changelog) -> None:
    with log.producer("p") as producer, log.producer() as plain:
        for call in (
            lambda: producer.send(A, b"k", b"v"),
            producer.commit,
            lambda: producer.send_offsets("g", {A: 1}),
            producer.flush,
            plain.begin,
            plain.commit,
        ):
            with pytest.raises(ChangelogError):
                call()
        producer.begin()
        with pytest.raises(ChangelogError):
            producer.begin()
        assert producer.commit() == {}


def test_wrong_types_and_values_are_refused_and_nothing_of_them_is_sent(log: Changelog) -> None:
    with log.producer() as producer:
        for key, value, timestamp_ms, headers in (
            ("k", b"v", 0, ()),
            (b"k", "v", 0, ()),
            (bytearray(b"k"), b"v", 0, ()),
            (b"k", b"v", 1.5, ()),
            (b"k", b"v", 0, (("n", "text"),)),
        ):
            with pytest.raises(TypeError):
                producer.send(A, key, value, timestamp_ms, headers)  # type: ignore[arg-type]
        for timestamp_ms in (-2, 2**63):
            with pytest.raises(ValueError):
                producer.send(A, b"k", b"v", timestamp_ms)
        for offset in (-1, 2**63):
            with pytest.raises(ValueError):
                producer.send_offsets("g", {A: offset})
        assert producer.flush() == {}
    assert pairs(log) == []


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
        lambda: log.create_topic("c"),
        lambda: log.producer("p"),
        log.producer,
    ):
        with pytest.raises(StoreClosedError):
            call()


def test_producers_and_readers_on_several_threads_see_whole_transactions_in_order(log: Changelog) -> None:
    """Each transaction is 10 records of one value; a reader that sees one of them sees all."""
    torn: list[int] = []
    done = threading.Event()

    def produce(name: bytes) -> None:
        with log.producer(name.decode()) as producer:
            for number in range(40):
                producer.begin()
                for _ in range(10):
                    producer.send(A, name, b"%d" % number)
                producer.commit()

    def consume() -> None:
        while not done.is_set():
            torn.extend([count for count in [len(pairs(log))] if count % 10])

    writers = [threading.Thread(target=produce, args=(name,)) for name in (b"p", b"q")]
    reader = threading.Thread(target=consume)
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert torn == []
    for name in (b"p", b"q"):
        values = [int(value or b"") for _, key, value in pairs(log) if key == name]
        assert values == sorted(values)
        assert len(values) == 400
