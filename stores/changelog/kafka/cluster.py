"""The Kafka cluster as a changelog sees it: topics, and the bounds of partitions."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import confluent_kafka
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from stores.changelog.arguments import checked_partition
from stores.changelog.kafka.client import (
    KNOWN,
    ClientSettings,
    Decision,
    decision_of,
    error_of,
    is_refused,
    is_refused_connection,
    may_pass,
    translated,
)
from stores.changelog.kafka.ended_transactions import EndedTransactions
from stores.changelog.kafka.shared_client import ATTEMPT_S, SharedClient
from stores.errors import ChangelogError, ChangelogTimeoutError, ConfigError, StoreClosedError, nearest
from stores.interface import TopicPartition

_Answer = TypeVar("_Answer")

_log = logging.getLogger(__name__)
CLIENT_LOG = logging.getLogger("stores.changelog.kafka.client")
_UNREACHABLE = frozenset(getattr(KafkaError, name) for name in ("_TRANSPORT", "_RESOLVE", "_TIMED_OUT"))
_LOSSES_S = 5.0
"""The least time between two reports of a broker that can't be reached, while others answer."""
_PAUSE_S = 0.05
"""The pause between two attempts."""
_SLICE_S = 1.0
"""The time of one attempt to reach a broker: between two, a refusal of credentials is detected."""
VISIBLE_S = 1.0
"""The time to wait for the transactions of others that keep the last stable offset before an own commit."""

CLIENT_BYTES_MAX = 1_000_000
"""Source: librdkafka's CONFIGURATION.md, default of ``message.max.bytes``."""
RECORD_OVERHEAD_BYTES = 128
"""More than a batch of one record has besides key, value and headers.

Source: Kafka, "Record Batch": 61 bytes, and up to 60 for the record.
"""

READER = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}


class Cluster:
    """Questions to the brokers, each answered within ``timeout_s``. For any thread.

    Raises, all methods: ChangelogTimeoutError, ChangelogError, and StoreClosedError after ``close``.
    """

    def __init__(
        self, settings: ClientSettings, timeout_s: float, while_connecting: Callable[[], None] | None = None
    ) -> None:
        """Connect. ``while_connecting`` is called each second until a broker answers, and may raise an exception.

        Raises: ConfigError for an invalid setting, ChangelogError if the brokers refuse the client.
        """
        self.settings, self.timeout_s = settings, timeout_s
        self._lock = threading.Lock()
        self._closed = False
        self._partitions: dict[str, int] = {}
        self._record_bytes_max: dict[str, int] = {}
        self._ended: dict[TopicPartition, EndedTransactions] = {}
        self._own: set[TopicPartition] = set()
        """The partitions that are read up to the last commit here, whatever transactions others have in them."""
        self._keeping: set[TopicPartition] = set()
        """The partitions whose brokers have refused to delete records."""
        self._refusal: KafkaError | None = None
        """The last refusal of a connection since the last answer."""
        self._has_lost, self._lost_at = False, float("-inf")
        """True if a broker could not be reached since the last answer; the time of the last report of that."""
        self._accepted = False
        """True once the brokers have let the client in."""
        self._admin = SharedClient(lambda: self.client(AdminClient, {}))
        self._asking = SharedClient(
            lambda: self.client(confluent_kafka.Consumer, {"group.id": "txstores-reader", **READER})
        )
        try:
            self._reach(while_connecting)
        except BaseException:
            self.close()
            raise

    def client(
        self,
        kind: Callable[[dict[str, Any]], _Answer],
        own: Mapping[str, Any],
        on_error: Callable[[KafkaError], None] | None = None,
    ) -> _Answer:
        """Return a client of this kind with the shared settings and its own. Raises: ConfigError.

        ``on_error`` gets the errors that it reports besides those of calls. ``own`` may have a ``logger`` of its own.
        """

        def heard(error: KafkaError) -> None:
            self._on_error(error)
            if on_error is not None:
                on_error(error)

        consumes = kind is confluent_kafka.Consumer
        settings = self.settings.with_own({"logger": CLIENT_LOG, **own, "error_cb": heard}, consumes=consumes)
        try:
            return kind(settings)
        except KafkaException as error:
            text = self.settings.without_secrets(error_of(error).str())
            name = text.partition('"')[2].partition('"')[0]
            near = nearest(name, KNOWN, 0.6) if "No such configuration" in text else ""
            refused = ConfigError(f"the Kafka client does not take its settings: {text}{near}")
        except (TypeError, ValueError) as error:
            refused = ConfigError(
                f"the Kafka client does not take its settings: {self.settings.without_secrets(str(error))}"
            )
        raise refused

    def asked(self, doing: str, ask: Callable[[float], _Answer], *, producing: bool = False) -> _Answer:
        """Return what ``ask`` answers, which gets the seconds left; ask again until the time is up.

        With ``producing``, an error that only a new producer may pass is raised at once.
        """
        deadline = time.monotonic() + self.timeout_s
        while True:
            self.check_open()
            try:
                answer = ask(max(deadline - time.monotonic(), _PAUSE_S))
            except KafkaException as exception:
                error = error_of(exception)
                again = self._may_pass(error) and not (producing and decision_of(error) is Decision.NEW_PRODUCER)
                if not again or time.monotonic() >= deadline:
                    raise self.failure(error, doing) from None
            else:
                self._answered()
                return answer
            time.sleep(_PAUSE_S)

    def failure(self, error: KafkaError, doing: str) -> ChangelogError:
        """Return our error for the client's, without secrets.

        A connection that is refused after others were accepted may pass: the client also says so of one that breaks
        before it is set up, as where a broker pauses.
        """
        refusal = self._refusal if may_pass(error) else None
        failure = translated(refusal or error, doing, self.settings)
        if is_refused(refusal or error) and self._may_pass(refusal or error):
            return ChangelogTimeoutError(str(failure))
        return failure

    def _may_pass(self, error: KafkaError) -> bool:
        return may_pass(error) or (self._accepted and is_refused_connection(error))

    def answers(self, timeout_s: float) -> bool:
        """Return True if a broker answers the client for administration within this time, and knows of brokers."""
        try:
            with self._admin.used() as admin:
                return bool(admin.list_topics(timeout=timeout_s).brokers)
        except KafkaException:
            return False

    def topics(self) -> dict[str, int]:
        """Return the number of partitions by topic, without Kafka's own topics."""
        metadata = self._administered("asking for the topics", lambda admin, left_s: admin.list_topics(timeout=left_s))
        return {
            name: len(topic.partitions)
            for name, topic in sorted(metadata.topics.items())
            if not name.startswith("__") and topic.error is None
        }

    def create(self, new: Any) -> bool:
        """Create a topic; return False if it exists. The cluster knows it when this returns."""

        def ask(admin: AdminClient, left_s: float) -> bool:
            try:
                admin.create_topics([new], request_timeout=left_s)[new.topic].result()
            except KafkaException as error:
                if error_of(error).code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    return False
                raise
            return True

        is_new = self._administered(f"creating the topic {new.topic!r}", ask)
        self.await_topic(new.topic)
        return is_new

    def await_topic(self, topic: str) -> int:
        """Return the number of partitions of an existing topic, once a broker knows it. Others may learn it later."""
        deadline = time.monotonic() + self.timeout_s
        while (count := self.topics().get(topic)) is None:
            if time.monotonic() > deadline:
                raise ChangelogTimeoutError(f"the brokers do not know the new topic {topic!r} in time")
            time.sleep(_PAUSE_S)
        self._partitions = {**self._partitions, topic: count}
        return count

    def topic_id(self, topic: str) -> str:
        """Return the ID of a topic. Source: KIP-516."""
        described = self._administered(
            f"asking for the ID of topic {topic!r}",
            lambda admin, left_s: admin.describe_topics(TopicCollection([topic]), request_timeout=left_s)[
                topic
            ].result(),
        )
        return str(described.topic_id)

    def topic_settings(self, topic: str) -> dict[str, str]:
        """Return the settings of a topic, by Kafka's names."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries: dict[str, Any] = self._administered(
            f"asking for the settings of topic {topic!r}",
            lambda admin, left_s: admin.describe_configs([resource], request_timeout=left_s)[resource].result(),
        )
        return {name: str(entry.value) for name, entry in entries.items()}

    def alter_topic(self, topic: str, changes: Mapping[str, str]) -> None:
        """Change some settings of a topic, together."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in changes.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self._administered(
            f"changing the settings of topic {topic!r}",
            lambda admin, left_s: admin.incremental_alter_configs([resource], request_timeout=left_s)[
                resource
            ].result(),
        )

    def record_bytes_max(self, topic: str) -> int:
        """Return the most bytes of key, value and headers of a record, for this client and the topic.

        If the client may not see the topic's settings, the limit of the client alone is known.
        """
        limit = self._record_bytes_max.get(topic)
        if limit is None:
            limit = int(self.settings.value("message.max.bytes", CLIENT_BYTES_MAX))
            try:
                limit = min(limit, int(self.topic_settings(topic)["max.message.bytes"]))
            except ChangelogTimeoutError:
                raise
            except ChangelogError:
                CLIENT_LOG.info("the settings of topic %r can't be read: its limit of bytes is unknown", topic)
            limit = self._record_bytes_max[topic] = limit - RECORD_OVERHEAD_BYTES
        return limit

    def new_batch_bytes_max(self, topic: str) -> int:
        """Return the most bytes that a batch of the topic may have now: its setting may have changed."""
        self._record_bytes_max.pop(topic, None)
        return self.record_bytes_max(topic) + RECORD_OVERHEAD_BYTES

    def check_partition(self, partition: TopicPartition) -> None:
        """Check that the partition exists. Raises: TypeError; ChangelogError if it doesn't."""
        self.check_open()
        topic, number = checked_partition(partition)
        count = self._partitions.get(topic, 0)
        if not 0 <= number < count:
            self._partitions = self.topics()
            count = self._partitions.get(topic, 0)
        if not count:
            raise ChangelogError(f"Kafka at {self.settings.servers} has no topic {topic!r}: create it")
        if not 0 <= number < count:
            raise ChangelogError(f"topic {topic!r} has the partitions 0 to {count - 1}, not {number}")

    def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        """Return the first offset, and the last stable offset. The latter is after what this process has ended."""
        self.check_partition(partition)
        theirs = confluent_kafka.TopicPartition(partition.topic, partition.partition)
        doing = f"asking for the offsets of {partition.topic}-{partition.partition}"
        bounds = self._stable_bounds(theirs, doing)
        transactions = self._ended.get(partition)
        if transactions is None:
            return bounds
        began = time.monotonic()
        while not self._forgotten(partition, transactions, bounds[1]):
            waited_s = time.monotonic() - began
            # Where others have open transactions, the last stable offset may stay before this commit.
            if partition not in self._own and not transactions.hold_back(bounds[1]):
                if waited_s > VISIBLE_S and transactions.are_before(self.written_end(partition)):
                    transactions.others_were_awaited = True
                if transactions.others_were_awaited:
                    break
            if waited_s > self.timeout_s:
                raise ChangelogTimeoutError(
                    f"{doing}: the end of a transaction of this process does not become visible in time"
                )
            time.sleep(_PAUSE_S / 10)
            bounds = self._stable_bounds(theirs, doing)
        return bounds

    def written_end(self, partition: TopicPartition) -> int:
        """Return the offset after the last record, of whatever transaction."""
        self.check_partition(partition)
        theirs = confluent_kafka.TopicPartition(partition.topic, partition.partition)

        def ask(admin: AdminClient, left_s: float) -> int:
            latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
            [future] = admin.list_offsets(
                {theirs: latest}, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=left_s
            ).values()
            return int(future.result().offset)

        return self._administered(f"asking for the end of {partition.topic}-{partition.partition}", ask)

    def await_decided(self, partition: TopicPartition) -> None:
        """Wait until each transaction that now has records in the partition is committed or aborted.

        The brokers abort that of a killed producer after its ``transaction.timeout.ms``. From now on ``bounds`` of the
        partition waits for later ones, too: a process that was stopped may still send records, and not commit them.
        """
        deadline = time.monotonic() + self.timeout_s
        self.check_partition(partition)
        self._own.add(partition)
        theirs = confluent_kafka.TopicPartition(partition.topic, partition.partition)
        doing = f"waiting for the end of the open transactions in {partition.topic}-{partition.partition}"
        written_end = self.written_end(partition)
        while self._stable_bounds(theirs, doing)[1] < written_end:
            if time.monotonic() > deadline:
                raise ChangelogTimeoutError(
                    f"{doing}: they are still open. The brokers abort that of a killed worker after its "
                    "transaction.timeout.ms. If it stays open for longer, abort it with kafka-transactions.sh (KIP-664)"
                )
            time.sleep(_PAUSE_S)

    def ended(
        self,
        transactional_id: str | None,
        first_offsets: Mapping[TopicPartition, int],
        last_offsets: Mapping[TopicPartition, int],
    ) -> None:
        """Remember a commit or abort of this process: each partition's last stable offset moves a moment after it."""
        with self._lock:
            for partition, last_offset in last_offsets.items():
                transactions = self._ended.setdefault(partition, EndedTransactions())
                transactions.add(transactional_id, first_offsets.get(partition), last_offset)

    def forget(self, topic: str) -> None:
        """Forget what this process has ended in a topic that was deleted: nothing of it becomes visible any more."""
        with self._lock:
            for partition in [each for each in self._ended if each.topic == topic]:
                del self._ended[partition]

    def truncate(self, partition: TopicPartition, before_offset: int) -> None:
        """Delete the records before an offset."""
        self._administered(
            f"truncating {partition.topic}-{partition.partition}",
            lambda admin, left_s: _deletion(admin, partition, before_offset, left_s).result(),
        )

    def drop_before(self, partition: TopicPartition, before_offset: int) -> None:
        """Ask the brokers to delete the records before an offset, without waiting. A refusal is logged once.

        What a request without an answer leaves there, the next one deletes.
        """
        with self._admin.used() as admin:
            deletion = _deletion(admin, partition, before_offset, self.timeout_s)
        deletion.add_done_callback(lambda done: self._tell_kept(partition, done.exception()))

    def _tell_kept(self, partition: TopicPartition, exception: BaseException | None) -> None:
        if exception is None or partition in self._keeping:
            return
        if isinstance(exception, KafkaException) and may_pass(error_of(exception)):
            return
        self._keeping.add(partition)
        CLIENT_LOG.warning(
            "the brokers do not delete the expired records of %s-%d, which keeps growing: %s. Give the client the "
            "permission DELETE for the topic, whose cleanup.policy is to be compact,delete",
            *partition,
            self.settings.without_secrets(str(exception)),
        )

    def check_open(self) -> None:
        """Raises: StoreClosedError after ``close``."""
        if self._closed:
            raise StoreClosedError("the changelog is closed: open another one")

    def close(self) -> None:
        """Release the clients. May be called more than once."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._admin.end()
        self._asking.end().close()

    def _forgotten(self, partition: TopicPartition, ended: EndedTransactions, stable_end: int) -> bool:
        """Forget what has ended here, and return True, if it is before the last stable offset."""
        with self._lock:
            are_visible = ended.are_before(stable_end)
            if are_visible:
                self._ended.pop(partition, None)
        return are_visible

    def _stable_bounds(self, theirs: confluent_kafka.TopicPartition, doing: str) -> tuple[int, int]:
        """Return the first offset, and the last stable offset.

        A client whose broker has died may ask it until the call's time is up, although another one leads the partition.
        """
        attempt_s = ATTEMPT_S / 2

        def ask(left_s: float) -> tuple[int, int]:
            nonlocal attempt_s
            attempt_s *= 2  # A broker may need longer for an answer.
            with self._asking.used() as client:
                start, end = client.get_watermark_offsets(theirs, timeout=min(left_s, attempt_s))
            return int(start), int(end)

        return self.asked(doing, ask)

    def _administered(self, doing: str, ask: Callable[[AdminClient, float], _Answer]) -> _Answer:
        """As ``asked``, for calls of the client for administration: look for the brokers again after each attempt.

        A broker that was paused is no controller for a moment. A client that has heard that waits for one until the
        call's time is up, and does not ask again. Source: librdkafka, ``rd_kafka_broker_controller_async``.
        """
        attempt_s = ATTEMPT_S / 2

        def attempt(left_s: float) -> _Answer:
            nonlocal attempt_s
            with self._admin.used() as admin:
                if attempt_s >= ATTEMPT_S:
                    admin.list_topics(timeout=min(left_s, attempt_s))
                attempt_s *= 2  # A broker may need longer for an answer.
                return ask(admin, min(left_s, attempt_s))

        return self.asked(doing, attempt)

    def _reach(self, while_connecting: Callable[[], None] | None) -> None:
        deadline = time.monotonic() + self.timeout_s
        while True:
            if while_connecting is not None:
                while_connecting()
            try:
                with self._admin.used() as admin:
                    admin.list_topics(timeout=min(_SLICE_S, self.timeout_s))
                self._accepted = True
                self._answered()
                return
            except KafkaException as exception:
                admin.poll(0)
                error = self._refusal or error_of(exception)
                if is_refused(error) or not may_pass(error) or time.monotonic() >= deadline:
                    raise self.failure(error, "connecting") from None

    def _on_error(self, error: KafkaError) -> None:
        # Called on a thread that waits for the client. Other errors are those of the call that fails.
        if is_refused(error):
            self._refusal = error
        elif error.code() in _UNREACHABLE:
            self._report_loss(error)

    def _report_loss(self, error: KafkaError) -> None:
        """Log the first broker that can't be reached since the last answer, but not again and again."""
        now = time.monotonic()
        if not self._has_lost and now >= self._lost_at + _LOSSES_S:
            self._has_lost, self._lost_at = True, now
            _log.warning(
                "a broker of Kafka at %s can't be reached, and is asked again: %s",
                self.settings.servers,
                self.settings.without_secrets(str(error.str())),
            )

    def _answered(self) -> None:
        self._refusal = None
        if self._has_lost:
            self._has_lost = False
            _log.warning("Kafka at %s answers", self.settings.servers)


def _deletion(admin: AdminClient, partition: TopicPartition, before_offset: int, timeout_s: float) -> Future[Any]:
    theirs = confluent_kafka.TopicPartition(partition.topic, partition.partition, before_offset)
    [future] = admin.delete_records([theirs], request_timeout=timeout_s).values()
    return future
