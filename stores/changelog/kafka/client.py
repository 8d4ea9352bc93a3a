"""The client of Kafka: its settings, its messages, and a decision for each of its errors, by what a caller can do next.

Settings are passed on as they are, without those that the changelog itself decides. ``DECISIONS`` is the whole list of
errors, which docs/kafka.md has as well. ``returns_in_time`` is for calls without an error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from stores.errors import ChangelogError, ChangelogTimeoutError, ConfigError, ProducerFencedError


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
_REPLICATION = getattr(KafkaError, "INVALID_REPLICATION_FACTOR")  # noqa: B009
_FENCED_BROKERS = "brokers are currently fenced"
"""The controller's reason while no broker takes partitions: at its start, or after a pause. Source: Kafka,
``StripedReplicaPlacer``."""
_TLS = "SSL routines"
"""A broker that refuses a client's certificate closes the connection; OpenSSL's reason begins with this then."""


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
    if error.code() == _REPLICATION and _FENCED_BROKERS in str(error.str()):
        return Decision.RETRY
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


def translated(error: KafkaError, doing: str, settings: ClientSettings) -> ChangelogError:
    """Return our error for the client's, without secrets: ``doing`` says what was tried, as in "reading a-0"."""
    text, servers = settings.without_secrets(str(error.str() or error.name())), settings.servers
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


def served(call: Callable[..., Any], *arguments: object) -> Any:
    """Return what a call of the client returns that lets it call back. Raises: the exception of the call.

    The client raises a fatal error where it would call back. If a call goes on after that and calls back for a line of
    the log, Python raises a SystemError about the callback, whose cause is the client's error.
    """
    try:
        return call(*arguments)
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise


def _serve_until_end(call: threading.Thread, serve: Callable[[], object]) -> None:
    while call.is_alive():
        with suppress(Exception):
            serve()
        call.join(SERVED_EVERY_S)


OWN: Mapping[str, str] = {
    "transactional.id": "the task gives it",
    "enable.idempotence": "it is always on",
    "acks": "it is always all",
    "group.id": "the task gives it",
    "group.instance.id": "the member of a group gives it: it is a property of a worker",
    "partitioner": "the task chooses the partition of an output: it is a property of a worker and of tasks",
    "isolation.level": "it is always read_committed",
    "enable.auto.commit": "offsets are committed with the records",
    "enable.auto.offset.store": "offsets are committed with the records",
    "enable.partition.eof": "a restore ends by it",
    "auto.offset.reset": "it is a setting of tasks: TaskSettings(auto_offset_reset=...), or a property of a worker",
    "delivery.report.only.error": "a commit needs the offsets of records",
    "error_cb": "errors are raised",
    "on_delivery": "a commit waits for its records",
    "logger": "the client's messages go to the logger stores.changelog.kafka.client",
}
"""The settings that a caller can't give, and why."""

_SECRET_WORDS = ("password", "secret", "token", "jaas", "key.pem", "oauthbearer.config", "oauthbearer.assertion")
_HIDDEN = "(hidden)"

_FREQUENT = """
    bootstrap.servers client.id security.protocol sasl.mechanism sasl.mechanisms sasl.username sasl.password
    sasl.oauthbearer.config sasl.oauthbearer.client.id sasl.oauthbearer.client.secret ssl.ca.location ssl.ca.pem
    ssl.certificate.location ssl.certificate.pem ssl.key.location ssl.key.password ssl.key.pem ssl.keystore.location
    ssl.keystore.password ssl.endpoint.identification.algorithm enable.ssl.certificate.verification
    socket.timeout.ms socket.keepalive.enable metadata.max.age.ms reconnect.backoff.ms reconnect.backoff.max.ms
    retry.backoff.ms message.max.bytes batch.size batch.num.messages linger.ms compression.type compression.level
    queue.buffering.max.messages queue.buffering.max.kbytes transaction.timeout.ms message.timeout.ms
    delivery.timeout.ms request.timeout.ms fetch.max.bytes fetch.queue.backoff.ms fetch.wait.max.ms
    max.partition.fetch.bytes queued.max.messages.kbytes queued.min.messages session.timeout.ms
    group.protocol group.remote.assignor statistics.interval.ms debug
"""
KNOWN = tuple(_FREQUENT.split())
"""Frequent settings of the client, from which the nearest to a misspelt one is named. Source: librdkafka's
CONFIGURATION.md."""


PROTOCOL, REMOTE_ASSIGNOR = "group.protocol", "group.remote.assignor"
_OF_MEMBERS = frozenset((PROTOCOL, REMOTE_ASSIGNOR))
"""The settings that only the members of a group take from the caller: other clients are in no group."""
UNSENT, READ_AHEAD = "queue.buffering.max.kbytes", "queued.max.messages.kbytes"
_OF_PRODUCERS = frozenset((UNSENT, "queue.buffering.max.messages", "transaction.timeout.ms", "linger.ms"))
_OF_CONSUMERS = frozenset((READ_AHEAD, "queued.min.messages", "session.timeout.ms", "max.poll.interval.ms"))
"""Settings of one kind of clients. The client logs a warning for each that another kind gets."""


class ClientSettings:
    """The settings that all clients of one changelog share. Its ``repr`` has names only, and no values of secrets."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Take the caller's settings. Raises: ConfigError, TypeError."""
        if not isinstance(settings, Mapping):
            raise TypeError(f"settings are a mapping of names to values, not {type(settings).__name__}")
        for name in settings:
            if not isinstance(name, str):
                raise TypeError(f"the name of a setting is a str, not {type(name).__name__}")
            if name in OWN:
                raise ConfigError(f"the setting {name} can't be given: {OWN[name]}")
        servers = settings.get("bootstrap.servers", "")
        if not isinstance(servers, str) or not servers.strip():
            raise ConfigError(
                "the setting bootstrap.servers is missing, or no text: it has the addresses of Kafka's brokers, as in "
                "'one:9092,two:9092'"
            )
        self._settings, self.servers = dict(settings), servers

    def value(self, name: str, default: Any) -> Any:
        """Return the caller's value of a setting, or the default."""
        return self._settings.get(name, default)

    def with_own(self, own: Mapping[str, Any], *, consumes: bool = True) -> dict[str, Any]:
        """Return the settings of one client: those of the caller's that it takes, and ``own``."""
        others = _OF_MEMBERS | (_OF_PRODUCERS if consumes else _OF_CONSUMERS)
        return {**{name: value for name, value in self._settings.items() if name not in others}, **own}

    def without_secrets(self, text: str) -> str:
        """Return a message of the client without the value of any secret that may be in it."""
        for name, value in self._settings.items():
            if _is_secret(name) and isinstance(value, str) and value:
                text = text.replace(value, _HIDDEN)
        return text

    def __repr__(self) -> str:
        printable = {name: _HIDDEN if _is_secret(name) else value for name, value in sorted(self._settings.items())}
        return f"ClientSettings({printable})"


def _is_secret(name: str) -> bool:
    return any(word in name for word in _SECRET_WORDS)


_SIGNS = frozenset(("FAIL", "REQTMOUT"))
_DEBUG, _LEVEL, _THROTTLED = "debug", "log_level", "throttle_cb"
_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)
"""Python's level for each of the client's. Source: confluent-kafka, ``log_cb``."""
_INFO = 6
"""The client's own default."""


class LostRequests:
    """The ``logger`` of one producer's client, which knows when a request may have been lost on its way to the brokers.

    A request that gets no answer may still be on its way, and reach the broker within the next transaction (KIP-890).
    The client sends it again, and its caller does not learn it. But the client's debug context ``broker`` writes a line
    whenever it gives up a connection, and one whenever it gives up waiting for an answer. It writes them before it
    sends a request again, into the queue that ``poll`` serves: so a poll after the end of a transaction brings all
    lines that are about its requests.

    ``any`` is True if a request may have been lost since it was last set to False. Other lines are passed on to ``log``
    as the caller's settings ask. Source: librdkafka, ``rd_kafka_broker_set_error`` (FAIL) and
    ``rd_kafka_broker_timeout_scan`` (REQTMOUT).

    A request that the client sends after it has reached a quota is not lost: the broker reads it after ``pause_s``.
    """

    def __init__(self, settings: ClientSettings, log: logging.Logger) -> None:
        contexts = settings.value(_DEBUG, "") or ""
        level = int(settings.value(_LEVEL, _INFO))
        self._log, self._least = log, logging.DEBUG if contexts else _LEVELS[level]
        self.settings: Mapping[str, Any] = {
            _DEBUG: f"{contexts},broker" if contexts else "broker",
            "logger": self,
            _THROTTLED: self._throttled,
        }
        """The settings that the client needs for it."""
        self.any = False
        self._caller: Callable[[Any], object] | None = settings.value(_THROTTLED, None)
        self._read_at_s = 0.0

    def pause_s(self) -> float:
        """Return the time for which a broker reads no request of the client. ``poll`` brings it. Source: KIP-219."""
        return max(self._read_at_s - time.monotonic(), 0.0)

    def _throttled(self, event: Any) -> None:
        self._read_at_s = max(self._read_at_s, time.monotonic() + float(event.throttle_time))
        if self._caller is not None:
            self._caller(event)

    def log(self, level: int, text: str, facility: str, client: str, message: str) -> None:
        """Take a message of the client, which calls this from ``poll``."""
        if facility in _SIGNS:
            self.any = True
        if level >= self._least:
            self._log.log(level, text, facility, client, message)
