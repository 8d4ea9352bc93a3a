"""Transactions: all of one or nothing, over partitions, producers and threads. Source: KIP-98."""

from __future__ import annotations

import threading

import pytest

from stores import failpoints
from stores.changelog.interface import Changelog
from stores.changelog.kafka import KafkaChangelog
from stores.changelog.producer import AFTER_COMMIT, BEFORE_COMMIT, PENDING_RECORDS_MAX
from stores.errors import ChangelogError, ProducerFencedError
from stores.interface import TopicPartition
from stores.tests.changelog.records import MANY, A, B, await_sent, marks, pairs, put

INPUT = TopicPartition("b", 0)


class Crash(Exception):
    """Raised at a failpoint, where a process would have died."""


def die() -> None:
    raise Crash


def test_a_commit_spans_partitions_and_input_offsets(log: Changelog) -> None:
    """Source: KIP-98, sendOffsetsToTransaction; KIP-129."""
    with log.producer("p") as producer:
        producer.begin()
        producer.send(A, b"k", b"1")
        producer.send(B, b"k", b"2")
        producer.send_offsets("group", {INPUT: 7})
        assert (pairs(log, A), pairs(log, B), log.committed_offsets("group")) == ([], [], {})
        assert producer.commit() == {A: 0, B: 0}
    assert pairs(log, A) == [(0, b"k", b"1")]
    assert pairs(log, B) == [(0, b"k", b"2")]
    assert log.committed_offsets("group") == {INPUT: 7}
    assert log.committed_offsets("other") == {}


def test_the_committed_offsets_of_some_partitions_are_those_of_the_group_there(log: Changelog) -> None:
    with log.producer("p") as producer:
        producer.begin()
        producer.send_offsets("group", {INPUT: 7, A: 3})
        producer.commit()
    assert log.committed_offsets("group") == {INPUT: 7, A: 3}
    assert log.committed_offsets("group", [A, B]) == {A: 3}
    assert log.committed_offsets("group", []) == {}


def test_stream_times_are_committed_with_the_offsets_and_aborted_with_them(log: Changelog) -> None:
    with log.producer("p") as producer:
        producer.begin()
        producer.send_offsets("group", {INPUT: 7, A: 3}, {INPUT: 1_000})
        producer.commit()
        assert log.committed("group", [INPUT, A]) == log.committed("group") == ({INPUT: 7, A: 3}, {INPUT: 1_000})
        producer.begin()
        producer.send_offsets("group", {INPUT: 9, A: 4}, {INPUT: 2_000, A: 5})
        producer.abort()
        producer.begin()
        producer.send_offsets("group", {INPUT: 8}, {INPUT: 1_500})
        for wrong, error in (({INPUT: -1}, ValueError), ({INPUT: "1"}, TypeError)):
            with pytest.raises(error):
                producer.send_offsets("group", {INPUT: 9}, wrong)  # type: ignore[arg-type]
        producer.commit()
    assert log.committed("group", [INPUT, A]) == log.committed("group") == ({INPUT: 8, A: 3}, {INPUT: 1_500})
    with log.producer() as plain:
        plain.send_offsets("group", {INPUT: 9}, {INPUT: 3_000})
    assert log.committed("group", [INPUT]) == ({INPUT: 9}, {INPUT: 3_000})


def test_input_offsets_of_a_topic_elsewhere_are_committed_unless_the_log_has_to_know_it(log: Changelog) -> None:
    elsewhere = TopicPartition("elsewhere", 3)
    with log.producer("p") as producer:
        producer.begin()
        producer.send_offsets("group", {elsewhere: 7})
        if isinstance(log, KafkaChangelog):
            with pytest.raises(ChangelogError):
                producer.commit()
            producer.abort()
        else:
            producer.commit()
            assert log.committed_offsets("group") == {elsewhere: 7}


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
        num_sent = await_sent(log, producer, MANY)
        producer.abort()
        producer.begin()
        producer.send(A, b"k", b"committed")
        last = producer.commit()[A]
    assert pairs(log) == [(last, b"k", b"committed")]
    assert last == num_sent + marks(log) >= MANY - PENDING_RECORDS_MAX
    assert log.end_offset(A) == last + 1 + marks(log)


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
        await_sent(log, long, 1 + MANY)
        short.begin()
        short.send(A, b"k", b"short")
        short_last = short.commit()[A]
        assert log.end_offset(A) == 1
        assert pairs(log) == [(0, b"k", b"before")]
        assert log.end_offset(B) == 0
        long.abort()
        assert log.end_offset(A) == short_last + 1 + 2 * marks(log)
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
    offsets = [offset for offset, _, _ in records]
    assert offsets == sorted(set(offsets))
    assert (len(offsets), offsets[0]) == (3 * MANY, 0)
    assert offsets[-1] <= 3 * MANY - 1 + 2 * marks(log)
    assert sorted(key or b"" for _, key, _ in records) == sorted(
        b"%d" % number for number in range(MANY) for _ in range(3)
    )


def test_a_commit_that_dies_before_its_end_changes_nothing_and_can_be_tried_again(log: Changelog) -> None:
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


def test_producers_and_readers_on_several_threads_see_whole_transactions_in_order(log: Changelog) -> None:
    """Each transaction is 10 records of one value; a reader that sees one of them sees all."""
    torn: list[int] = []
    end = threading.Event()

    def produce(name: bytes) -> None:
        with log.producer(name.decode()) as producer:
            for number in range(40):
                producer.begin()
                for _ in range(10):
                    producer.send(A, name, b"%d" % number)
                producer.commit()

    def consume() -> None:
        while not end.is_set():
            torn.extend([count for count in [len(pairs(log))] if count % 10])

    writers = [threading.Thread(target=produce, args=(name,)) for name in (b"p", b"q")]
    reader = threading.Thread(target=consume)
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    end.set()
    reader.join()
    assert torn == []
    for name in (b"p", b"q"):
        values = [int(value or b"") for _, key, value in pairs(log) if key == name]
        assert values == sorted(values)
        assert len(values) == 400


OTHER = TopicPartition("other", 0)


@pytest.mark.parametrize("log", ["memory", "sqlite"], indirect=True)
def test_open_transactions_of_a_partition_are_ended_and_no_others(log: Changelog) -> None:
    log.create_topic("other")
    log.create_topic("clean")
    owner = log.producer("owner")
    owner.begin()
    for _ in range(MANY):
        owner.send(A, b"k", b"aborted")
    owner.abort()
    dead = []
    for name, at in (("one", A), ("two", A), ("three", B), ("living", OTHER)):
        producer = log.producer(name)
        producer.begin()
        for _ in range(MANY):
            producer.send(at, b"k", b"open")
        dead.append(producer)
    living = dead.pop()
    for partition in (TopicPartition("clean", 0), A, B):
        log.await_decided(partition)
    assert [log.end_offset(each) for each in (A, B)] == [log.written_end(each) for each in (A, B)]
    assert log.end_offset(OTHER) == 0
    for producer in dead:
        with pytest.raises(ProducerFencedError):
            producer.commit()
    living.commit()
    owner.begin()
    owner.send(A, b"k", b"v")
    owner.commit()
