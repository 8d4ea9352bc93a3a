"""A member of a consumer group that is silent for too long: its partitions may have another owner by then."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import pytest

from stores.changelog.group import GroupMember
from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.broker import Broker
from stores.interface import TopicPartition
from stores.tests.kafka.fresh import remove_all

ALL = {TopicPartition("a", 0), TopicPartition("a", 1)}
SILENCE_MS = 1_000
POLLS_MAX = 1_200


class Listener:
    """Keeps the calls."""

    def __init__(self) -> None:
        self.held: set[TopicPartition] = set()
        self.calls: list[str] = []

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        self.held |= set(partitions)
        self.calls.append("assign")

    def revoke(self, partitions: Collection[TopicPartition]) -> None:
        self.held -= set(partitions)
        self.calls.append("revoke")

    def lose(self, partitions: Collection[TopicPartition]) -> None:
        self.held -= set(partitions)
        self.calls.append("lose")


def poll_until(member: GroupMember, happened: Callable[[], bool]) -> None:
    for _ in range(POLLS_MAX):
        member.poll(0.05)
        if happened():
            return
    raise AssertionError("it did not happen")


@pytest.mark.kafka
def test_a_member_that_was_silent_for_too_long_loses_its_partitions_without_a_commit_and_joins_again(
    broker: Broker,
) -> None:
    """Source: KIP-429, ``onPartitionsLost``; KIP-62, ``max.poll.interval.ms``."""
    remove_all(broker)
    settings = {
        "bootstrap.servers": broker.address,
        "max.poll.interval.ms": SILENCE_MS,
        "session.timeout.ms": SILENCE_MS,
        "heartbeat.interval.ms": 200,
    }
    listener = Listener()
    with KafkaChangelog(settings) as log:
        log.create_topic("a", len(ALL))
        with log.join_group("app", ["a"], listener, fingerprint="f", session_timeout_s=SILENCE_MS / 1000) as member:
            poll_until(member, lambda: listener.held == ALL)
            before = len(listener.calls)
            time.sleep(3 * SILENCE_MS / 1000)
            poll_until(member, lambda: len(listener.calls) > before)
            assert listener.calls[before] == "lose"
            poll_until(member, lambda: listener.held == ALL)
    assert listener.calls[-1] == "revoke"
