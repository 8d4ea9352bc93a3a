"""Brokers answer the end of a transaction before they write its markers: a later read in the same process waits.

Source: KIP-98, "EndTxnRequest".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stores.changelog.kafka import KafkaChangelog, cluster
from stores.changelog.kafka.cluster import EndedTransactions
from stores.changelog.kafka.testing.broker import Broker
from stores.tests.changelog.records import A, await_sent, pairs, put
from stores.tests.kafka.fresh import fresh_changelog

LATE = 3
"""The questions that are answered as before a marker."""


@contextmanager
def late(log: KafkaChangelog, monkeypatch: pytest.MonkeyPatch, stable_end: int) -> Iterator[list[int]]:
    """Let the last stable offset seem to be ``stable_end`` for some questions; yield the number of those left."""
    left, asked = [LATE], log._cluster._stable_bounds

    def stable_bounds(*arguments: object) -> tuple[int, int]:
        if left[0]:
            left[0] -= 1
            return 0, stable_end
        return asked(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(log._cluster, "_stable_bounds", stable_bounds)
        patch.setattr(cluster, "VISIBLE_S", 0.0)
        yield left


@pytest.fixture
def log(broker: Broker) -> Iterator[KafkaChangelog]:
    with fresh_changelog(broker) as changelog:
        changelog.create_topic("a")
        yield changelog


@pytest.mark.kafka
@pytest.mark.parametrize("commits", [True, False])
def test_a_late_marker_is_awaited_although_others_have_written_since(
    log: KafkaChangelog, broker: Broker, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    put(log, (b"0", b"before"))
    with log.producer("p") as producer:
        producer.begin()
        for number in range(1_001):
            producer.send(A, b"%d" % number, b"v")
        sent = await_sent(log, producer, 1 + 1_001)
        if commits:
            sent = producer.commit()[A] + 1
        else:
            producer.abort()
    with KafkaChangelog({"bootstrap.servers": broker.address}) as other:
        put(other, (b"0", b"later"))
    with late(log, monkeypatch, stable_end=1) as left:
        assert log.end_offset(A) == sent + 2
        assert left == [0]


@pytest.mark.kafka
def test_the_later_one_of_two_ends_is_awaited_whichever_was_first(
    log: KafkaChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with log.producer("first") as first, log.producer("second") as second:
        second.begin()
        for _ in range(501):
            second.send(A, b"k", b"aborted")
        sent = await_sent(log, second, 501)
        first.begin()
        first.send(A, b"k", b"v")
        assert first.commit() == {A: sent}
        second.abort()
    with late(log, monkeypatch, stable_end=sent):
        assert pairs(log) == [(sent, b"k", b"v")]


@pytest.mark.kafka
def test_an_open_transaction_of_another_process_is_awaited_once(
    log: KafkaChangelog, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with KafkaChangelog({"bootstrap.servers": broker.address}) as other, other.producer("other") as theirs:
        theirs.begin()
        for _ in range(501):
            theirs.send(A, b"k", b"theirs")
        await_sent(other, theirs, 501)
        with log.producer("own") as own:
            own.begin()
            own.send(A, b"k", b"own")
            last = own.commit()[A]
        assert log.end_offset(A) == 0
        monkeypatch.setattr(cluster, "VISIBLE_S", float("inf"))
        assert log.end_offset(A) == 0
        theirs.abort()
        assert other.end_offset(A) == log.end_offset(A)
    assert [(offset, value) for offset, _, value in pairs(log)] == [(last, b"own")]


def test_records_without_a_transaction_wait_for_no_marker() -> None:
    ended = EndedTransactions()
    ended.add(None, 3, 4)
    assert not ended.hold_back(3)
    assert [ended.are_before(end) for end in (3, 4, 5)] == [False, False, True]
    assert [ended.are_written(end) for end in (4, 5)] == [False, True]


def test_the_marker_of_a_transaction_is_written_before_the_next_one_of_its_producer_begins() -> None:
    ended = EndedTransactions()
    ended.add("p", 3, 4)
    ended.add("q", 5, 6)
    assert [ended.hold_back(offset) for offset in (3, 5, 6)] == [True, True, False]
    ended.add("p", 8, 8)
    assert [ended.hold_back(offset) for offset in (3, 5, 8)] == [False, True, True]
