"""The client's errors, by what the caller can do next: try again, abort, or stop."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException

from stores.errors import ChangelogError, ChangelogTimeoutError, ProducerFencedError

# The client's type stubs do not name its error codes.
_FENCED = frozenset(
    code
    for name in ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "FENCED_INSTANCE_ID")
    if (code := getattr(KafkaError, name)) is not None
)
_UNANSWERED = frozenset(
    getattr(KafkaError, name)
    for name in (
        "_TIMED_OUT",
        "_TIMED_OUT_QUEUE",
        "_MSG_TIMED_OUT",
        "_TRANSPORT",
        "_ALL_BROKERS_DOWN",
        "_DESTROY_BROKER",
        "_RESOLVE",
        "_WAIT_COORD",
        "_WAIT_CACHE",
        # Of a partition that exists: the client has lost its leader, as after a restart of the broker.
        "_UNKNOWN_PARTITION",
        "_RETRY",
        "_IN_PROGRESS",
        "_PURGE_INFLIGHT",
        "_PURGE_QUEUE",
        "REQUEST_TIMED_OUT",
        "NETWORK_EXCEPTION",
        "COORDINATOR_NOT_AVAILABLE",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "NOT_COORDINATOR",
        "NOT_LEADER_FOR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "CONCURRENT_TRANSACTIONS",
        "UNSTABLE_OFFSET_COMMIT",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "BROKER_NOT_AVAILABLE",
    )
)
"""Errors that say only that no answer came: the broker may come back."""
_REFUSED = frozenset(
    getattr(KafkaError, name)
    for name in (
        "_AUTHENTICATION",
        "_SSL",
        "SASL_AUTHENTICATION_FAILED",
        "UNSUPPORTED_SASL_MECHANISM",
        "TOPIC_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    )
)

_TRANSPORT = getattr(KafkaError, "_TRANSPORT")  # noqa: B009
_TLS = "SSL routines"
"""A broker that refuses a client's certificate closes the connection; OpenSSL's reason begins with this then."""

Scrub = Callable[[str], str]
"""Takes the values of secrets out of a message."""


def error_of(exception: KafkaException) -> KafkaError:
    """Return the client's error that the exception carries."""
    error: KafkaError = exception.args[0]
    return error


def is_fenced(error: KafkaError) -> bool:
    """Return True if a newer producer of the same transactional ID has fenced this one."""
    return error.code() in _FENCED


def is_unanswered(error: KafkaError) -> bool:
    """Return True if the request may succeed when it is sent again."""
    return bool(error.retriable()) or error.code() in _UNANSWERED


def is_refused(error: KafkaError) -> bool:
    """Return True if the broker knows the client and does not let it: credentials, certificates or permissions."""
    return error.code() in _REFUSED or (error.code() == _TRANSPORT and _TLS in str(error.str()))


def translated(error: KafkaError, doing: str, servers: str, scrub: Scrub) -> ChangelogError:
    """Return our error for the client's: ``doing`` says what was tried, as in "reading a-0"."""
    text = scrub(str(error.str() or error.name()))
    if is_fenced(error):
        return ProducerFencedError(
            f"{doing}: a newer producer has the same transactional ID. Stop this instance, because another one owns "
            f"the task now ({text})"
        )
    if is_refused(error):
        return ChangelogError(
            f"{doing}: Kafka at {servers} refuses it. Check credentials, certificates and permissions ({text})"
        )
    if is_unanswered(error):
        return ChangelogTimeoutError(f"{doing}: Kafka at {servers} did not answer in time ({text})")
    return ChangelogError(f"{doing}: Kafka at {servers} reports {text} ({error.name()})")
