"""A producer takes a new epoch after a transaction in which a request may have been lost. No broker.

Source: KIP-890; KIP-360. What a late request does at a broker: ``harness/tests/test_late_requests.py``.
"""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from stores.changelog.interface import Committed
from stores.changelog.kafka import writer
from stores.changelog.kafka.client import ClientSettings, served
from stores.changelog.kafka.cluster import Cluster
from stores.changelog.kafka.group_member import KafkaGroupMember
from stores.changelog.kafka.group_offsets import GroupOffsets
from stores.changelog.kafka.producer import KafkaProducer
from stores.changelog.kafka.writer import KafkaWriter
from stores.errors import (
    ChangelogError,
    ChangelogTimeoutError,
    CommitInDoubtError,
    ConfigError,
    ProducerFencedError,
)
from stores.tests.kafka.fake_cluster import IN, OUT, FakeCluster, calls, fill, producer_over

FENCED = KafkaError(getattr(KafkaError, "_FENCED"), "fenced", fatal=True)  # noqa: B009
TIMED_OUT = KafkaError(KafkaError._TIMED_OUT)
FAILED = KafkaError(KafkaError._STATE, "failed for good", fatal=True)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def test_offsets_are_noted_once_their_transaction_has_committed(cluster: FakeCluster) -> None:
    noted: list[tuple[str, object]] = []
    groups: Any = SimpleNamespace(
        is_fenced=lambda group: False,
        metadata=lambda group, partitions: None,
        ended=lambda offsets: noted.append((cluster.made[0].calls[-1], offsets)),
    )
    producer = KafkaProducer(KafkaWriter(cluster, groups, "p"), "p")
    fill(producer, 7)
    producer.commit()
    fill(producer, 8)
    producer.abort()
    fill(producer)
    producer.commit()
    assert noted == [("commit_transaction", {"g": Committed({IN: 7}, {})})]


def test_the_answer_to_input_offsets_has_time_for_the_pause_of_a_quota_as_far_as_the_call_has(
    cluster: FakeCluster,
) -> None:
    producer = producer_over(cluster)
    own: Any = producer._writer
    own._coordinator_s, own._timeout_s = 10.0, 10_000.0
    fill(producer, 7)
    cluster.made[0].pauses_s = [5_000.0]
    producer.commit()
    assert 5_000 < cluster.made[0].offsets_within_s <= 5_010
    fill(producer, 8)
    cluster.made[0].pauses_s = [20_000.0]
    producer.commit()
    assert cluster.made[0].offsets_within_s == 10_000


@pytest.mark.parametrize("sign", ["FAIL", "REQTMOUT"])
def test_a_transaction_after_a_commit_that_lost_a_request_is_refused_and_the_next_one_has_a_new_epoch(
    cluster: FakeCluster, sign: str
) -> None:
    producer = producer_over(cluster)
    fill(producer)
    cluster.made[0].losses = {"commit_transaction": sign}
    producer.commit()
    producer.begin()
    producer.send(OUT, b"k", b"v")
    for _ in range(2):
        with pytest.raises(ChangelogTimeoutError):
            producer.commit()
    producer.abort()
    assert calls(cluster.made[0]) == ["init_transactions", "begin_transaction", "commit_transaction"]
    for _ in range(2):
        fill(producer)
        producer.commit()
    assert [calls(client).count("init_transactions") for client in cluster.made] == [1, 1]
    assert calls(cluster.made[1]).count("commit_transaction") == 2


@pytest.mark.parametrize("call", ["begin_transaction", "flush", "send_offsets", "commit_transaction"])
def test_a_request_that_was_lost_at_any_step_of_a_transaction_counts(cluster: FakeCluster, call: str) -> None:
    producer = producer_over(cluster)
    cluster.made[0].losses = {call: "FAIL"}
    fill(producer, 7)
    producer.send_offsets("g", {IN: 7})
    producer.commit()
    producer.begin()
    producer.send(OUT, b"k", b"v")
    with pytest.raises(ChangelogTimeoutError):
        producer.commit()


def test_a_connection_that_is_lost_between_transactions_changes_nothing(cluster: FakeCluster) -> None:
    producer = producer_over(cluster)
    fill(producer)
    producer.commit()
    for _ in range(2):
        cluster.made[0]._logged.append("FAIL")
        fill(producer)
        producer.commit()
    assert len(cluster.made) == 1


def test_other_messages_of_the_client_change_nothing(cluster: FakeCluster) -> None:
    producer = producer_over(cluster)
    cluster.made[0].losses = {"flush": "WAKEUP", "commit_transaction": "GETPID"}
    for _ in range(2):
        fill(producer)
        producer.commit()
    assert len(cluster.made) == 1


def test_an_abort_that_lost_a_request_takes_a_new_epoch_at_once(cluster: FakeCluster) -> None:
    producer = producer_over(cluster)
    fill(producer)
    cluster.made[0].losses = {"abort_transaction": "FAIL"}
    producer.abort()
    assert [calls(client).count("init_transactions") for client in cluster.made] == [1, 1]
    fill(producer)
    producer.commit()
    assert len(cluster.made) == 2


def test_an_abort_of_which_nothing_was_lost_keeps_the_client(cluster: FakeCluster) -> None:
    producer = producer_over(cluster)
    fill(producer)
    producer.abort()
    fill(producer)
    producer.commit()
    assert len(cluster.made) == 1


@pytest.mark.parametrize("call", ["begin_transaction", "send_offsets", "commit_transaction"])
def test_after_an_error_of_the_client_the_abort_takes_a_new_epoch(cluster: FakeCluster, call: str) -> None:
    producer = producer_over(cluster)
    error = KafkaError(KafkaError._STATE, "refused", txn_requires_abort=True)
    cluster.made[0].errors = {call: error}
    producer.begin()
    producer.send(OUT, b"k", b"v")
    producer.send_offsets("g", {IN: 7})
    with pytest.raises(ChangelogError):
        producer.commit()
    producer.abort()
    assert len(cluster.made) == 2 or call == "begin_transaction"
    fill(producer)
    producer.commit()


def test_records_that_were_not_acknowledged_make_the_abort_take_a_new_epoch(cluster: FakeCluster) -> None:
    producer = producer_over(cluster)
    fill(producer)
    cluster.made[0].__dict__["flush"] = lambda timeout: 3
    with pytest.raises(ChangelogTimeoutError):
        producer.commit()
    producer.abort()
    assert len(cluster.made) == 2


def test_an_abort_that_failed_for_good_is_left_to_another_client(cluster: FakeCluster) -> None:
    producer = producer_over(cluster)
    fill(producer)
    cluster.made[0].errors = {"abort_transaction": KafkaError(KafkaError.INVALID_MSG, "defect", fatal=True)}
    producer.abort()
    fill(producer)
    producer.commit()
    assert len(cluster.made) == 2


def test_an_abort_that_timed_out_is_left_to_another_client(cluster: FakeCluster) -> None:
    producer = producer_over(cluster)
    fill(producer)
    cluster.made[0].errors = {"abort_transaction": TIMED_OUT}
    with pytest.raises(ChangelogTimeoutError):
        producer.abort()
    producer.abort()
    assert calls(cluster.made[0]).count("abort_transaction") == 1
    fill(producer)
    producer.commit()
    assert len(cluster.made) == 2


def test_a_new_epoch_that_the_brokers_do_not_give_in_time_is_asked_for_again_by_the_same_client(
    cluster: FakeCluster,
) -> None:
    producer = producer_over(cluster)
    fill(producer)
    cluster.made[0].losses = {"abort_transaction": "FAIL"}
    cluster.next_errors = {"init_transactions": TIMED_OUT}
    for _ in range(2):
        with pytest.raises(ChangelogTimeoutError):
            producer.abort()
        cluster.made[1].errors = {"init_transactions": TIMED_OUT}
    cluster.made[1].errors = {}
    producer.abort()
    fill(producer)
    producer.commit()
    assert len(cluster.made) == 2
    assert calls(cluster.made[1]).count("init_transactions") == 3


def test_a_producer_that_closes_takes_no_new_epoch(cluster: FakeCluster) -> None:
    producer = producer_over(cluster)
    fill(producer)
    cluster.made[0].losses = {"abort_transaction": "FAIL"}
    producer.close()
    assert "abort_transaction" in calls(cluster.made[0])
    assert len(cluster.made) == 1


def test_a_fenced_producer_takes_no_new_epoch_which_would_fence_its_successor(cluster: FakeCluster) -> None:
    """It asks with the offsets of its last commit, under its old epoch."""
    producer = producer_over(cluster)
    fill(producer, 7)
    producer.commit()
    fill(producer)
    cluster.made[0].losses = {"abort_transaction": "FAIL"}
    cluster.made[0].errors = {"send_offsets": FENCED}
    with pytest.raises(ProducerFencedError):
        producer.abort()
    assert cluster.made[0].offsets == [7]
    assert len(cluster.made) == 1


def test_a_producer_that_is_fenced_in_the_abort_of_its_question_takes_no_new_epoch(cluster: FakeCluster) -> None:
    producer = producer_over(cluster)
    fill(producer, 7)
    cluster.made[0].losses = {"commit_transaction": "FAIL"}
    producer.commit()
    producer.begin()
    cluster.made[0].errors = {"abort_transaction": FENCED}
    with pytest.raises(ProducerFencedError):
        producer.abort()
    assert len(cluster.made) == 1


def interrupted(*_: object) -> int:
    raise SystemError("a result with an exception set") from KafkaException(FENCED)


@pytest.mark.parametrize("call", ["flush", "commit_transaction"])
def test_a_fatal_error_that_a_line_of_the_log_interrupts_is_that_error(cluster: FakeCluster, call: str) -> None:
    producer = producer_over(cluster)
    fill(producer)
    setattr(cluster.made[0], call, interrupted)
    with pytest.raises(ProducerFencedError):
        producer.commit()


def test_an_abort_whose_fatal_error_a_line_of_the_log_interrupts_has_nothing_to_end(cluster: FakeCluster) -> None:
    producer = producer_over(cluster)
    fill(producer)
    setattr(cluster.made[0], "abort_transaction", interrupted)  # noqa: B010
    producer.abort()
    assert len(cluster.made) == 1


def test_an_error_of_python_in_a_call_of_the_client_is_no_answer() -> None:
    def fail() -> None:
        raise SystemError from ValueError()

    with pytest.raises(SystemError):
        served(fail)
    assert served(max, 1, 2) == 2


def test_a_producer_that_is_fenced_at_its_begin_takes_no_new_epoch(cluster: FakeCluster) -> None:
    producer = producer_over(cluster)
    producer.begin()
    producer.send(OUT, b"k", b"v")
    cluster.made[0].errors = {"begin_transaction": FENCED}
    with pytest.raises(ProducerFencedError):
        producer.commit()
    producer.abort()
    assert len(cluster.made) == 1


def test_a_producer_that_is_fenced_in_an_abort_takes_no_new_epoch(cluster: FakeCluster) -> None:
    producer = producer_over(cluster)
    fill(producer, 7)
    cluster.made[0].losses = {"begin_transaction": "FAIL"}
    cluster.made[0].errors = {"abort_transaction": FENCED}
    producer.abort()
    assert len(cluster.made) == 1


def test_the_request_for_the_epoch_is_repeated_if_no_broker_answers(cluster: FakeCluster) -> None:
    producer = producer_over(cluster)
    fill(producer, 7)
    cluster.made[0].losses = {"commit_transaction": "FAIL"}
    producer.commit()
    producer.begin()
    cluster.made[0].errors = {"send_offsets": TIMED_OUT}
    with pytest.raises(ChangelogTimeoutError):
        producer.abort()
    assert len(cluster.made) == 1
    before = len(calls(cluster.made[0]))
    producer.abort()
    expected = ["abort_transaction", "begin_transaction", "send_offsets", "abort_transaction"]
    assert calls(cluster.made[0])[before:] == expected
    assert len(cluster.made) == 2


def test_a_producer_whose_group_fences_asks_nothing(cluster: FakeCluster) -> None:
    """Its ID is its own. The task of the offsets may be another worker's by now."""
    producer = producer_over(cluster, fencing=True)
    fill(producer, 7)
    cluster.made[0].losses = {"commit_transaction": "FAIL"}
    producer.commit()
    producer.begin()
    producer.abort()
    assert calls(cluster.made[0]).count("send_offsets") == 1
    assert len(cluster.made) == 2


def test_an_end_of_a_transaction_without_an_answer_is_in_doubt(cluster: FakeCluster) -> None:
    """As failed it would be processed again, and Kafka may have it."""
    for error in (TIMED_OUT, KafkaError(KafkaError._TRANSPORT), KafkaError(KafkaError.REQUEST_TIMED_OUT), FAILED):
        producer = producer_over(cluster)
        fill(producer)
        cluster.made[-1].errors = {"commit_transaction": error}
        with pytest.raises(CommitInDoubtError):
            producer.commit()
        producer.close()
        assert "abort_transaction" not in cluster.made[-1].calls


@pytest.mark.parametrize("transactional_id", ["p", None])
def test_each_producer_is_idempotent(transactional_id: str | None) -> None:
    """The client itself refuses a setting that an idempotent producer can't have, and takes it without."""
    cluster = FakeCluster()
    cluster.settings = ClientSettings({"bootstrap.servers": "127.0.0.1:1", "max.in.flight": 6})
    groups: Any = None
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(FakeCluster, "client", Cluster.client)
        cluster.client(confluent_kafka.Producer, {})
        with pytest.raises(ConfigError, match=r"max\.in\.flight"):
            KafkaWriter(cluster, groups, transactional_id)


def test_metadata_of_no_generation_are_given_to_no_transaction() -> None:
    """A client that its group has removed has them, and the coordinator accepts them from anyone."""
    fencing = GroupOffsets(FakeCluster())
    member: Any = object.__new__(KafkaGroupMember)
    member._group, member._topics, member._begun, member._fencing = "g", {IN.topic}, {IN}, fencing
    none = bytes(fencing.outside_metadata("g"))
    consumer = confluent_kafka.Consumer({"bootstrap.servers": "none", "group.id": "g", "log_level": 0})
    try:
        for metadata in (None, none, consumer.consumer_group_metadata()):
            member._metadata = metadata
            with pytest.raises(ChangelogTimeoutError):
                member.metadata([IN])
    finally:
        consumer.close()
    member._metadata = none.replace(struct.pack("<i", -1), struct.pack("<i", 5), 1)
    assert member.metadata([IN]) == member._metadata != none


def test_a_record_that_was_not_delivered_makes_the_abort_take_a_new_epoch(cluster: FakeCluster) -> None:
    producer = producer_over(cluster)
    fill(producer)
    producer._writer._failed.append((OUT, KafkaError(KafkaError.INVALID_MSG)))
    with pytest.raises(ChangelogError):
        producer.commit()
    producer.abort()
    assert len(cluster.made) == 2


def test_a_group_that_has_begun_another_generation_makes_the_abort_take_a_new_epoch(cluster: FakeCluster) -> None:
    producer = producer_over(cluster)
    fill(producer, 7)
    cluster.made[0].errors = {"send_offsets": KafkaError(KafkaError.ILLEGAL_GENERATION)}
    with pytest.raises(ChangelogTimeoutError):
        producer.commit()
    producer.abort()
    assert len(cluster.made) == 2


def test_a_commit_without_offsets_keeps_those_of_an_earlier_one_to_ask_with(cluster: FakeCluster) -> None:
    producer = producer_over(cluster)
    for offset in (7, None):
        fill(producer, offset)
        producer.commit()
    fill(producer)
    cluster.made[0].losses = {"abort_transaction": "FAIL"}
    cluster.made[0].errors = {"send_offsets": FENCED}
    with pytest.raises(ProducerFencedError):
        producer.abort()
    assert cluster.made[0].offsets == [7]


def test_a_question_for_the_epoch_that_hangs_is_left_to_a_new_client(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = producer_over(cluster)
    fill(producer, 7)
    cluster.made[0].losses = {"commit_transaction": "FAIL"}
    producer.commit()
    monkeypatch.setattr(writer, "returns_in_time", lambda call, timeout_s, serve: False)
    producer.abort()
    assert len(cluster.made) == 2


def test_records_that_were_not_acknowledged_in_time_are_not_sent_after_an_abort(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were given to the client before: the last append has none of its own."""
    groups: Any = SimpleNamespace()
    producer = KafkaProducer(KafkaWriter(cluster, groups, None), None)
    producer.send(OUT, b"k", b"v")
    producer._append(ends=False)
    [client] = cluster.made
    monkeypatch.setattr(client, "flush", lambda timeout: 1)
    with pytest.raises(CommitInDoubtError):
        producer._append(ends=True)
    producer.abort()
    assert "purge" in client.calls
