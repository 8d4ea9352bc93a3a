"""The client's errors: one decision for each code that the client has, by what the caller can do next.

``DECISIONS`` is the whole list. docs/kafka.md has the same table. ``returns_in_time`` is for calls without an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from types import MappingProxyType

from confluent_kafka import KafkaError, KafkaException

from stores.errors import ChangelogError, ChangelogTimeoutError, ProducerFencedError


class Decision(StrEnum):
    """The effect of an error of the client."""

    RETRY = "retry"
    """The call is tried again with the same client, and the task continues from its last commit."""
    NEW_PRODUCER = "new producer"
    """As ``RETRY``, but with a new producer, which aborts the transaction of the old one: that may have lost the
    sequence of its records, or what the brokers know of its transaction."""
    FENCED = "fenced"
    """This instance of the task ends: another one has its transactional ID, or its name in the group."""
    OUT_OF_RANGE = "out of range"
    """The offset is gone. A store is restored from what is left; an input follows ``auto.offset.reset``."""
    REFUSED = "refused"
    """The task ends: the brokers do not let the client in. Once they have, a connection that fails is retried."""
    MISTAKE = "mistake"
    """The task ends: a setting, a topic or a record is to be corrected."""
    DEFECT = "defect"
    """The task ends: brokers, client and library do not understand each other, or data are damaged."""
    EVENT = "event"
    """No error: an event that is handled where it comes."""


_NAMES: Mapping[Decision, str] = MappingProxyType(
    {
        Decision.RETRY: """
            _TIMED_OUT _TIMED_OUT_QUEUE _TRANSPORT _ALL_BROKERS_DOWN _DESTROY_BROKER _RESOLVE _NODE_UPDATE _ISR_INSUFF
            _WAIT_COORD _WAIT_CACHE _UNKNOWN_PARTITION _UNKNOWN_BROKER _RETRY _IN_PROGRESS _PREV_IN_PROGRESS _INTR
            _PARTIAL _OUTDATED _NOENT _QUEUE_FULL _NO_OFFSET _ASSIGNMENT_LOST
            REQUEST_TIMED_OUT NETWORK_EXCEPTION REBOOTSTRAP_REQUIRED THROTTLING_QUOTA_EXCEEDED KAFKA_STORAGE_ERROR
            BROKER_NOT_AVAILABLE LEADER_NOT_AVAILABLE PREFERRED_LEADER_NOT_AVAILABLE ELIGIBLE_LEADERS_NOT_AVAILABLE
            NOT_LEADER_FOR_PARTITION REPLICA_NOT_AVAILABLE OFFSET_NOT_AVAILABLE FENCED_LEADER_EPOCH
            UNKNOWN_LEADER_EPOCH REASSIGNMENT_IN_PROGRESS UNKNOWN_TOPIC_OR_PART UNKNOWN_TOPIC_ID INCONSISTENT_TOPIC_ID
            NOT_CONTROLLER STALE_CTRL_EPOCH STALE_BROKER_EPOCH UNKNOWN_CONTROLLER_ID OPERATION_NOT_ATTEMPTED
            COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS NOT_COORDINATOR
            NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND CONCURRENT_TRANSACTIONS UNSTABLE_OFFSET_COMMIT
            REBALANCE_IN_PROGRESS ILLEGAL_GENERATION UNKNOWN_MEMBER_ID MEMBER_ID_REQUIRED FENCED_MEMBER_EPOCH
            STALE_MEMBER_EPOCH UNRELEASED_INSTANCE_ID GROUP_ID_NOT_FOUND NON_EMPTY_GROUP
            FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH
        """,
        Decision.NEW_PRODUCER: """
            _STATE _CONFLICT _FATAL _FAIL _DESTROY _INCONSISTENT _GAPLESS_GUARANTEE _MSG_TIMED_OUT _PURGE_QUEUE
            _PURGE_INFLIGHT UNKNOWN
            OUT_OF_ORDER_SEQUENCE_NUMBER DUPLICATE_SEQUENCE_NUMBER UNKNOWN_PRODUCER_ID INVALID_PRODUCER_ID_MAPPING
            INVALID_TXN_STATE TRANSACTION_ABORTABLE TRANSACTION_COORDINATOR_FENCED
        """,
        Decision.FENCED: "_FENCED PRODUCER_FENCED INVALID_PRODUCER_EPOCH FENCED_INSTANCE_ID",
        Decision.OUT_OF_RANGE: "_AUTO_OFFSET_RESET _LOG_TRUNCATION OFFSET_OUT_OF_RANGE",
        Decision.REFUSED: """
            _AUTHENTICATION _SSL SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM ILLEGAL_SASL_STATE
            SECURITY_DISABLED TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED
            TRANSACTIONAL_ID_AUTHORIZATION_FAILED DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_NOT_FOUND
            DELEGATION_TOKEN_OWNER_MISMATCH DELEGATION_TOKEN_REQUEST_NOT_ALLOWED DELEGATION_TOKEN_AUTHORIZATION_FAILED
            DELEGATION_TOKEN_EXPIRED INVALID_PRINCIPAL_TYPE UNACCEPTABLE_CREDENTIAL PRINCIPAL_DESERIALIZATION_FAILURE
        """,
        Decision.MISTAKE: """
            _INVALID_ARG _INVALID_TYPE _NOT_CONFIGURED _UNKNOWN_TOPIC _UNKNOWN_GROUP _UNKNOWN_PROTOCOL
            _UNSUPPORTED_FEATURE _INVALID_DIFFERENT_RECORD
            TOPIC_EXCEPTION MSG_SIZE_TOO_LARGE RECORD_LIST_TOO_LARGE INVALID_MSG_SIZE INVALID_TIMESTAMP INVALID_RECORD
            OFFSET_METADATA_TOO_LARGE INVALID_COMMIT_OFFSET_SIZE INVALID_REQUIRED_ACKS INVALID_GROUP_ID
            INVALID_SESSION_TIMEOUT INCONSISTENT_GROUP_PROTOCOL GROUP_MAX_SIZE_REACHED UNSUPPORTED_ASSIGNOR
            INVALID_REGULAR_EXPRESSION GROUP_SUBSCRIBED_TO_TOPIC INVALID_TRANSACTION_TIMEOUT INVALID_PARTITIONS
            INVALID_REPLICATION_FACTOR INVALID_REPLICA_ASSIGNMENT INVALID_CONFIG POLICY_VIOLATION
            UNSUPPORTED_VERSION UNSUPPORTED_FOR_MESSAGE_FORMAT UNSUPPORTED_COMPRESSION_TYPE LISTENER_NOT_FOUND
            TOPIC_DELETION_DISABLED RESOURCE_NOT_FOUND DUPLICATE_RESOURCE
        """,
        Decision.DEFECT: """
            _BAD_MSG _BAD_COMPRESSION _CRIT_SYS_RESOURCE _FS _NOT_IMPLEMENTED _READ_ONLY _UNDERFLOW
            _EXISTING_SUBSCRIPTION _APPLICATION _KEY_SERIALIZATION _VALUE_SERIALIZATION _KEY_DESERIALIZATION
            _VALUE_DESERIALIZATION
            INVALID_MSG INVALID_REQUEST LOG_DIR_NOT_FOUND INCONSISTENT_VOTER_SET INVALID_UPDATE_VERSION
            FEATURE_UPDATE_FAILED MISMATCHED_ENDPOINT_TYPE UNSUPPORTED_ENDPOINT_TYPE UNKNOWN_SUBSCRIPTION_ID
            TELEMETRY_TOO_LARGE INVALID_REGISTRATION INVALID_RECORD_STATE SHARE_SESSION_NOT_FOUND
            INVALID_SHARE_SESSION_EPOCH SHARE_SESSION_LIMIT_REACHED FENCED_STATE_EPOCH INVALID_VOTER_KEY
            DUPLICATE_VOTER VOTER_NOT_FOUND STREAMS_INVALID_TOPOLOGY STREAMS_INVALID_TOPOLOGY_EPOCH
            STREAMS_TOPOLOGY_FENCED
        """,
        Decision.EVENT: """
            NO_ERROR _PARTITION_EOF _ASSIGN_PARTITIONS _REVOKE_PARTITIONS _MAX_POLL_EXCEEDED _NOOP
            TOPIC_ALREADY_EXISTS ELECTION_NOT_NEEDED NO_REASSIGNMENT_IN_PROGRESS
        """,
    }
)
DECISIONS: Mapping[str, Decision] = MappingProxyType(
    {name: decision for decision, names in _NAMES.items() for name in names.split()}
)
"""The decision for each code, by the client's name of it.

Source: librdkafka 2.16, rdkafka.h; Java's clients, ``RetriableException``; Kafka Streams, ``TaskCorruptedException``.
"""
# An older client has fewer codes, and the client's type stubs do not name them.
_BY_CODE = {getattr(KafkaError, name): decision for name, decision in DECISIONS.items() if hasattr(KafkaError, name)}
_TRANSPORT = getattr(KafkaError, "_TRANSPORT")  # noqa: B009
_CONNECTING = frozenset(
    getattr(KafkaError, name) for name in ("_AUTHENTICATION", "_SSL", "_TRANSPORT", "SASL_AUTHENTICATION_FAILED")
)
_TLS = "SSL routines"
"""A broker that refuses a client's certificate closes the connection; OpenSSL's reason begins with this then."""

Scrub = Callable[[str], str]
"""Takes the values of secrets out of a message."""


def error_of(exception: KafkaException) -> KafkaError:
    """Return the client's error that the exception carries."""
    error: KafkaError = exception.args[0]
    return error


def decision_of(error: KafkaError) -> Decision:
    """Return the decision for an error: that for its code, with the traits that the client gives to the error.

    A producer that the client calls failed for good is replaced. An error that the client calls retriable is retried.
    A code of a newer client is a defect, unless the client says of the error what can be done.
    """
    decision = _BY_CODE.get(error.code())
    if error.code() == _TRANSPORT and _TLS in str(error.str()):
        return Decision.REFUSED
    if decision is None and (error.fatal() or error.txn_requires_abort()):
        return Decision.NEW_PRODUCER
    if decision is Decision.RETRY and error.fatal():
        return Decision.NEW_PRODUCER
    if decision in (None, Decision.DEFECT) and error.retriable():
        return Decision.RETRY
    return decision or Decision.DEFECT


def is_fenced(error: KafkaError) -> bool:
    """Return True if a newer producer of the same transactional ID has fenced this one."""
    return decision_of(error) is Decision.FENCED


def may_pass(error: KafkaError) -> bool:
    """Return True if the request may succeed when it is sent again, perhaps by a new producer."""
    return decision_of(error) in (Decision.RETRY, Decision.NEW_PRODUCER)


def is_refused(error: KafkaError) -> bool:
    """Return True if the broker knows the client and does not let it: credentials, certificates or permissions."""
    return decision_of(error) is Decision.REFUSED


def is_refused_connection(error: KafkaError) -> bool:
    """Return True if a connection is refused. The client also says so of one that breaks before it is set up.

    Source: librdkafka, ``rd_kafka_broker_handle_SaslHandshake``.
    """
    return is_refused(error) and error.code() in _CONNECTING


def translated(error: KafkaError, doing: str, servers: str, scrub: Scrub) -> ChangelogError:
    """Return our error for the client's: ``doing`` says what was tried, as in "reading a-0"."""
    text = scrub(str(error.str() or error.name()))
    decision = decision_of(error)
    if decision is Decision.FENCED:
        return ProducerFencedError(
            f"{doing}: a newer producer has the same transactional ID. Stop this instance, because another one owns "
            f"the task now ({text})"
        )
    if decision is Decision.REFUSED:
        return ChangelogError(
            f"{doing}: Kafka at {servers} refuses it. Check credentials, certificates and permissions ({text})"
        )
    if decision is Decision.RETRY:
        return ChangelogTimeoutError(f"{doing}: Kafka at {servers} did not answer in time ({text})")
    if decision is Decision.NEW_PRODUCER:
        return ChangelogTimeoutError(f"{doing}: Kafka at {servers} did not complete it. Try again ({text})")
    return ChangelogError(f"{doing}: Kafka at {servers} reports {text} ({error.name()})")


GRACE_S = 1.0
"""The time for which the client is given the chance to report its own timeout."""


SERVED_EVERY_S = 0.5


def returns_in_time(call: Callable[[], object], timeout_s: float, serve: Callable[[], object] | None = None) -> bool:
    """Return True after ``call``, or False if it has not returned in time: then it stays in a thread of its own.

    ``send_offsets_to_transaction`` waits for the group's coordinator without looking at its timeout. If the
    coordinator's broker restarts meanwhile, the call may never return. A producer's client then logs a thousand lines
    in a second, for as long as the call waits. In a queue that nobody serves, they take memory, and each costs more
    time than the one before. So ``serve`` is called again and again, in another thread, until the call returns.

    These threads do not keep the process from ending. Raises: the exception of ``call``. Source: librdkafka, issues
    5456 and 5511.
    """
    raised: list[BaseException] = []
    abandoned = threading.Event()

    def run() -> None:
        try:
            call()
        except BaseException as error:
            # Kept, it would hold these frames, and so the client, until the next collection of all objects.
            if not abandoned.is_set():
                raised.append(error)

    thread = threading.Thread(target=run, name="kafka-call", daemon=True)
    thread.start()
    thread.join(timeout_s + GRACE_S)
    if thread.is_alive():
        abandoned.set()
        raised.clear()
        if serve is not None:
            threading.Thread(target=_serve_until_end, args=(thread, serve), name="kafka-served", daemon=True).start()
        return False
    if raised:
        raise raised[0]
    return True


def _serve_until_end(call: threading.Thread, serve: Callable[[], object]) -> None:
    while call.is_alive():
        with suppress(Exception):
            serve()
        call.join(SERVED_EVERY_S)
