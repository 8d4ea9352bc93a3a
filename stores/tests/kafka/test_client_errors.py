"""The client's errors by what the caller can do next. No broker needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaError

import stores
from stores.changelog.kafka import client
from stores.changelog.kafka.client import (
    DECISIONS,
    ClientSettings,
    Decision,
    decision_of,
    is_fenced,
    is_refused,
    may_pass,
    translated,
)
from stores.errors import ChangelogError, ChangelogTimeoutError, ProducerFencedError

UNANSWERED = (
    "_TIMED_OUT",
    "_MSG_TIMED_OUT",
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    "FENCED_LEADER_EPOCH",
    # No partition leader is found.
    "_NOENT",
    "INVALID_TXN_STATE",
    "UNKNOWN",
    "UNKNOWN_TOPIC_OR_PART",
    "_STATE",
    "_FATAL",
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "_RESOLVE",
    "_WAIT_COORD",
    "_UNKNOWN_PARTITION",
    "_PURGE_QUEUE",
    "_PURGE_INFLIGHT",
    "REQUEST_TIMED_OUT",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "NOT_COORDINATOR",
    "NOT_LEADER_FOR_PARTITION",
    "CONCURRENT_TRANSACTIONS",
    "UNSTABLE_OFFSET_COMMIT",
    "NOT_ENOUGH_REPLICAS",
)
FENCED = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "FENCED_INSTANCE_ID")
REFUSED = (
    "_AUTHENTICATION",
    "_SSL",
    "SASL_AUTHENTICATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
)
NEITHER = ("MSG_SIZE_TOO_LARGE", "INVALID_MSG", "INVALID_CONFIG", "_INVALID_ARG", "_BAD_MSG", "_PARTITION_EOF")
UNKNOWN_CODE = 9_999


def error(name: str, text: str = "", /, **traits: bool) -> KafkaError:
    return KafkaError(getattr(KafkaError, name), text or name, **traits)


def shown(given: KafkaError) -> ChangelogError:
    return translated(given, "reading a-0", ClientSettings({"bootstrap.servers": "here:1", "sasl.password": "secret"}))


def test_every_code_of_the_client_has_one_decision_and_every_decision_is_for_a_code_of_it() -> None:
    codes = {name for name in dir(KafkaError) if not name.startswith("__") and type(getattr(KafkaError, name)) is int}
    assert len(codes) >= 188
    assert codes - DECISIONS.keys() == set()
    assert DECISIONS.keys() - codes == set()
    # A name that were in two lists would be in the table once.
    assert sum(len(names.split()) for names in client._NAMES.values()) == len(DECISIONS)
    assert all(decision_of(error(name)) is decision for name, decision in DECISIONS.items())


def test_the_page_has_the_decision_for_every_code() -> None:
    text = Path(stores.__file__).parents[1].joinpath("docs", "kafka.md").read_text(encoding="utf-8")
    section = text.partition("### Every code of the client")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("|")][2:]
    on_page = [(name, row[0].strip()) for row in rows for name in row[2].strip(" `").split()]
    assert sorted(on_page) == sorted((name, str(decision)) for name, decision in DECISIONS.items())


@pytest.mark.parametrize(
    ("traits", "decision"),
    [
        ({}, Decision.DEFECT),
        ({"retriable": True}, Decision.RETRY),
        ({"txn_requires_abort": True}, Decision.NEW_PRODUCER),
        ({"fatal": True}, Decision.NEW_PRODUCER),
    ],
)
def test_an_unknown_error_code_is_decided_by_the_traits_of_the_error(
    traits: dict[str, bool], decision: Decision
) -> None:
    assert decision_of(KafkaError(UNKNOWN_CODE, "new", **traits)) is decision


def test_a_producer_that_has_failed_for_good_is_replaced_unless_it_is_fenced() -> None:
    assert decision_of(error("_TIMED_OUT", fatal=True)) is Decision.NEW_PRODUCER
    assert decision_of(error("_FENCED", fatal=True)) is Decision.FENCED
    assert decision_of(error("MSG_SIZE_TOO_LARGE", txn_requires_abort=True)) is Decision.MISTAKE


@pytest.mark.parametrize("name", UNANSWERED)
def test_an_error_without_an_answer_is_a_timeout_that_may_pass(name: str) -> None:
    assert (may_pass(error(name)), is_fenced(error(name)), is_refused(error(name))) == (True, False, False)
    assert type(shown(error(name))) is ChangelogTimeoutError


def test_a_topic_that_no_broker_takes_yet_is_asked_for_again_and_one_with_too_many_replicas_is_a_mistake() -> None:
    """The texts are those of Kafka 4.1."""
    count = "Unable to replicate the partition 1 time(s): "
    fenced = error("INVALID_REPLICATION_FACTOR", f"{count}All brokers are currently fenced.")
    assert (decision_of(fenced), type(shown(fenced))) == (Decision.RETRY, ChangelogTimeoutError)
    too_many = error(
        "INVALID_REPLICATION_FACTOR",
        f"{count}The target replication factor of 3 cannot be reached because only 1 broker(s) are registered.",
    )
    assert (decision_of(too_many), type(shown(too_many))) == (Decision.MISTAKE, ChangelogError)


@pytest.mark.parametrize("name", FENCED)
def test_the_error_of_an_older_producer_says_that_another_instance_owns_the_task(name: str) -> None:
    assert (is_fenced(error(name)), may_pass(error(name))) == (True, False)
    assert type(shown(error(name))) is ProducerFencedError


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_final_and_no_timeout(name: str) -> None:
    assert (is_refused(error(name)), may_pass(error(name))) == (True, False)
    assert type(shown(error(name))) is ChangelogError


@pytest.mark.parametrize("name", NEITHER)
def test_any_other_error_is_final_and_no_refusal(name: str) -> None:
    one = error(name)
    assert (is_fenced(one), may_pass(one), is_refused(one)) == (False, False, False)
    assert type(shown(one)) is ChangelogError


def test_an_error_that_the_client_calls_retriable_may_pass() -> None:
    assert may_pass(error("INVALID_MSG", retriable=True))


def test_a_connection_that_ends_with_a_reason_of_tls_is_a_refusal() -> None:
    one = error("_TRANSPORT", "Disconnected: error:0A000416:SSL routines::sslv3 alert certificate unknown")
    assert is_refused(one)
    assert type(shown(one)) is ChangelogError


@pytest.mark.parametrize("name", [UNANSWERED[0], FENCED[0], REFUSED[0], NEITHER[0]])
def test_each_error_names_the_operation_and_shows_no_secret(name: str) -> None:
    text = str(shown(error(name, "it is secret")))
    assert text.startswith("reading a-0: ")
    assert "secret" not in text
