"""Producers: which of them may write, what they may send, and which errors they get."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from stores.changelog.interface import Changelog
from stores.changelog.producer import (
    PENDING_BYTES_MAX,
    PENDING_RECORDS_MAX,
    AppendRequest,
    BufferedProducer,
    LogWriter,
    ProducerIdentity,
)
from stores.errors import ChangelogError, ProducerFencedError, StoreClosedError
from stores.interface import TopicPartition
from stores.tests.changelog.records import MANY, A, B, await_sent, marks, pairs, send_many


def test_a_new_producer_aborts_the_open_transaction_of_the_older_one(log: Changelog) -> None:
    """Source: KIP-98, initTransactions."""
    old = log.producer("p")
    old.begin()
    for number in range(MANY):
        old.send(A, b"%d" % number, b"old")
    num_sent = await_sent(log, old, MANY)
    with log.producer("p") as new:
        assert log.end_offset(A) == num_sent + marks(log) >= 2 * PENDING_RECORDS_MAX
        assert pairs(log) == []
        new.begin()
        new.send(A, b"k", b"new")
        last = new.commit()[A]
    assert pairs(log) == [(last, b"k", b"new")]
    assert log.end_offset(A) == last + 1 + marks(log)


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


@pytest.mark.parametrize(("transactional_id", "call"), [(None, "flush"), ("p", "commit")])
@pytest.mark.parametrize("count", [1, MANY])
def test_a_block_that_drops_records_says_so(
    log: Changelog, transactional_id: str | None, call: str, count: int
) -> None:
    with pytest.warns(RuntimeWarning, match=rf"{call}\(\)"), log.producer(transactional_id) as producer:
        if transactional_id:
            producer.begin()
        for number in range(count):
            producer.send(A, b"%d" % number, b"v")


def test_a_block_that_drops_offsets_of_a_group_says_so(log: Changelog) -> None:
    with pytest.warns(RuntimeWarning, match=r"commit\(\)"), log.producer("p") as producer:
        producer.begin()
        producer.send_offsets("g", {A: 1})
    assert log.committed_offsets("g") == {}


@pytest.mark.filterwarnings("error")
def test_a_block_that_an_exception_leaves_drops_its_records_without_a_warning(log: Changelog) -> None:
    with pytest.raises(KeyError), log.producer() as producer:
        producer.send(A, b"k", b"v")
        raise KeyError
    with log.producer("p") as producer:
        producer.begin()
        producer.send(A, b"k", b"v")
        producer.abort()
    assert pairs(log) == []


@pytest.mark.filterwarnings("error")
def test_a_block_whose_warning_is_an_error_closes_its_producer(log: Changelog) -> None:
    with pytest.raises(RuntimeWarning), log.producer("p") as producer:
        producer.begin()
        producer.send(A, b"k", b"v")
    with pytest.raises(StoreClosedError):
        producer.begin()


def test_a_flush_returns_the_last_offsets_of_all_that_was_sent_since_the_last_one(log: Changelog) -> None:
    with log.producer() as producer:
        producer.send(B, b"k", b"v")
        for number in range(MANY):
            producer.send(A, b"%d" % number, b"v")
        assert producer.flush() == {A: MANY - 1, B: 0}


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
            (b"k", b"v", 0, {"name": b"text"}),
            (b"k", b"v", 0, (("n", b"text", 1),)),
            (b"k", b"v", 0, 5),
        ):
            with pytest.raises(TypeError, match=r"bytes|number"):
                producer.send(A, key, value, timestamp_ms, headers)  # type: ignore[arg-type]
        for timestamp_ms in (-2, 2**63):
            with pytest.raises(ValueError):
                producer.send(A, b"k", b"v", timestamp_ms)
        with pytest.raises(ValueError):
            producer.send(A, b"k", b"v", 0, (("\ud800", b""),))
        for offset in (-1, 2**63):
            with pytest.raises(ValueError):
                producer.send_offsets("g", {A: offset})
        for group, offsets in ((5, {A: 1}), ("g", 5), ("g", {5: 1}), ("g", {("a", 0, 0): 1}), ("g", {A: "1"})):
            with pytest.raises(TypeError, match=r"is a|belongs|are a mapping"):
                producer.send_offsets(group, offsets)  # type: ignore[arg-type]
        for partition in (5, "a", (0, "a")):
            with pytest.raises(TypeError):
                producer.send(partition, b"k", b"v")  # type: ignore[arg-type]
        assert producer.flush() == {}
    for transactional_id, error in ((5, TypeError), ("", ValueError)):
        with pytest.raises(error):
            log.producer(transactional_id)  # type: ignore[arg-type]
    assert pairs(log) == []


@pytest.mark.parametrize("wrong", [(b"k", 5, 1), ("k", b"v", 1), (b"k", b"v", -2), (b"k", b"v", 1.0)])
@pytest.mark.parametrize("kind", [list, dict.fromkeys, iter])
def test_many_records_are_sent_up_to_the_first_wrong_one(
    log: Changelog, kind: Callable[[list[Any]], Any], wrong: Any
) -> None:
    records: list[Any] = [(b"%d" % number, b"v", number) for number in range(MANY)]
    records += [(None, b"no key", 1), (b"tombstone", None, -1), (b"", b"", 0)]
    with log.producer("p") as producer:
        producer.begin()
        with pytest.raises((TypeError, ValueError)):
            producer.send_all(A, kind([*records, wrong, (b"after", b"v", 1)]))
        producer.commit()
    assert [(record.key, record.value, record.timestamp_ms) for record in log.read(A)] == records


def test_records_that_are_made_while_they_are_sent_may_send_as_well(log: Changelog) -> None:
    with log.producer("p") as producer:
        producer.begin()

        def made() -> Iterator[tuple[bytes, bytes, int]]:
            for number in range(MANY):
                producer.send(A, b"inner", b"v")
                yield b"%d" % number, b"v", -1

        producer.send_all(A, made())
        producer.commit()
    keys = [record.key for record in log.read(A)]
    assert keys[::2] == [b"inner"] * MANY
    assert keys[1::2] == [b"%d" % number for number in range(MANY)]


Sent = list[tuple[bytes | None, bytes | None, int]]


def one_by_one(producer: BufferedProducer, partition: TopicPartition, records: Sent) -> None:
    for record in records:
        producer.send(partition, *record)


def by_columns(producer: BufferedProducer, partition: TopicPartition, records: Sent) -> None:
    producer.send_columns(partition, *zip(*records, strict=True))


WAYS: dict[str, Callable[[BufferedProducer, TopicPartition, Sent], None]] = {
    "one by one": one_by_one,
    "a list": BufferedProducer.send_all,
    "columns": by_columns,
}


class Appends(LogWriter):
    """A log that keeps the requests of its producer."""

    def __init__(self) -> None:
        self.requests: list[AppendRequest] = []

    def check_partition(self, partition: TopicPartition) -> None:
        pass

    def append(self, request: AppendRequest) -> tuple[int | None, dict[TopicPartition, int]]:
        self.requests.append(request)
        return 1, {}

    def abort(self, transaction: int) -> None:
        pass


@pytest.mark.parametrize("value_bytes", [0, 1_000, PENDING_BYTES_MAX // 3, PENDING_BYTES_MAX + 1])
@pytest.mark.parametrize("ways", [*([way] for way in WAYS), [*WAYS]])
def test_a_producer_holds_back_no_more_records_and_bytes_than_its_bounds_however_they_are_sent(
    ways: list[str], value_bytes: int
) -> None:
    """A record that is larger than the bound is held alone."""
    random, log, sent = Random(7), Appends(), {A: Sent(), B: Sent()}
    producer = BufferedProducer(log, ProducerIdentity("p", 1))
    producer.begin()
    of_a_part = 7_000 if value_bytes <= 1_000 else 3
    for number in range(9):
        partition = random.choice([A, B])
        part: Sent = [
            (random.choice([None, b"%d" % each]), random.choice([None, bytes(value_bytes)]), random.choice([-1, each]))
            for each in range(of_a_part)
        ]
        WAYS[ways[number % len(ways)]](producer, partition, part)
        sent[partition] += part
        assert producer._pending_records <= PENDING_RECORDS_MAX
    producer.commit()
    read = {A: Sent(), B: Sent()}
    for request in log.requests:
        held = [(partition, fields[at : at + 4]) for partition, fields in request.records.items()
                for at in range(0, len(fields), 4)]  # fmt: skip
        for partition, (key, value, time_ms, headers) in held:
            assert headers is None
            read[partition].append((key, value, time_ms))
        num_bytes = sum(len(key or b"") + len(value or b"") for _, (key, value, *_) in held)
        assert request.num_bytes == num_bytes
        assert len(held) <= PENDING_RECORDS_MAX
        assert num_bytes <= PENDING_BYTES_MAX or len(held) == 1
    assert read == sent


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        (([b"k", "k"], [b"v", b"v"], [1, 1]), TypeError),
        (([b"k", b"k"], [b"v", 5], [1, 1]), TypeError),
        (([b"k", b"k"], [b"v", b"v"], [1, 1.0]), TypeError),
        (([b"k", b"k"], [b"v", b"v"], [1, -2]), ValueError),
        (([b"k", b"k"], [b"v", b"v"], [2**63, 1]), ValueError),
        (([b"k"], [b"v", b"v"], [1, 1]), ValueError),
        (([b"k", b"k"], [b"v"], [1, 1]), ValueError),
        (([b"k", b"k"], [b"v", b"v"], [1]), ValueError),
    ],
)
def test_columns_with_a_record_that_is_refused_are_not_sent(
    log: Changelog, columns: Any, error: type[Exception]
) -> None:
    with log.producer("p") as producer:
        producer.begin()
        producer.send_columns(A, [b"before"], [b"v"], [1])
        with pytest.raises(error):
            producer.send_columns(A, *columns)
        producer.send_columns(A, [None], [None], [-1])
        producer.commit()
    assert [(record.key, record.value, record.timestamp_ms) for record in log.read(A)] == [
        (b"before", b"v", 1),
        (None, None, -1),
    ]
