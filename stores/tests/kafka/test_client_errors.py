"""The client's errors by what the caller can do next. No broker needed."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from stores.changelog.kafka.client_errors import is_fenced, is_refused, is_unanswered, translated
from stores.errors import ChangelogError, ChangelogTimeoutError, ProducerFencedError

UNANSWERED = (
    "_TIMED_OUT",
    "_MSG_TIMED_OUT",
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
NEITHER = ("MSG_SIZE_TOO_LARGE", "INVALID_MSG", "_STATE", "_FATAL", "UNKNOWN_TOPIC_OR_PART", "INVALID_TXN_STATE")


def error(name: str, text: str = "", **traits: bool) -> KafkaError:
    return KafkaError(getattr(KafkaError, name), text or name, **traits)


def shown(given: KafkaError) -> ChangelogError:
    return translated(given, "reading a-0", "here:1", lambda text: text.replace("secret", "(hidden)"))


@pytest.mark.parametrize("name", UNANSWERED)
def test_an_error_without_an_answer_is_a_timeout_that_may_pass(name: str) -> None:
    assert (is_unanswered(error(name)), is_fenced(error(name)), is_refused(error(name))) == (True, False, False)
    assert type(shown(error(name))) is ChangelogTimeoutError


@pytest.mark.parametrize("name", FENCED)
def test_the_error_of_an_older_producer_says_that_another_instance_owns_the_task(name: str) -> None:
    assert (is_fenced(error(name)), is_unanswered(error(name))) == (True, False)
    assert type(shown(error(name))) is ProducerFencedError


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_does_not_pass_by_itself(name: str) -> None:
    assert (is_refused(error(name)), is_unanswered(error(name))) == (True, False)
    assert type(shown(error(name))) is ChangelogError


@pytest.mark.parametrize("name", NEITHER)
def test_any_other_error_does_not_pass_by_itself(name: str) -> None:
    given = error(name)
    assert (is_fenced(given), is_unanswered(given), is_refused(given)) == (False, False, False)
    assert type(shown(given)) is ChangelogError


def test_an_error_that_the_client_calls_retriable_may_pass() -> None:
    assert is_unanswered(error("INVALID_MSG", retriable=True))


def test_a_connection_that_ends_with_a_reason_of_tls_is_a_refusal() -> None:
    given = error("_TRANSPORT", "Disconnected: error:0A000416:SSL routines::sslv3 alert certificate unknown")
    assert is_refused(given)
    assert type(shown(given)) is ChangelogError


@pytest.mark.parametrize("name", [UNANSWERED[0], FENCED[0], REFUSED[0], NEITHER[0]])
def test_no_error_shows_a_secret_and_each_says_what_was_tried(name: str) -> None:
    text = str(shown(error(name, "it is secret")))
    assert text.startswith("reading a-0: ")
    assert "secret" not in text
