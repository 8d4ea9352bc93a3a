"""One producer's way into Kafka: records in batches of the client, input offsets, and the commit.

The client sends in the background. A commit waits once: for all its records, then for the end of its transaction.
Source: KIP-98, KIP-447, KIP-588; librdkafka, "Transactional producer".
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import repeat
from operator import length_hint
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from stores.changelog.interface import Committed
from stores.changelog.kafka.client import (
    Decision,
    LostRequests,
    decision_of,
    error_of,
    is_fenced,
    may_pass,
    returns_in_time,
    served,
)
from stores.changelog.kafka.cluster import CLIENT_LOG, Cluster
from stores.changelog.kafka.group_offsets import COORDINATOR_S, GroupOffsets, as_theirs, by_group
from stores.changelog.kafka.reader import batch_too_large, check_sizes, sent_headers
from stores.changelog.kafka.shared_client import ATTEMPT_S
from stores.changelog.producer import (
    AFTER_COMMIT,
    BEFORE_COMMIT,
    FIELDS_PER_RECORD,
    AppendRequest,
    LogWriter,
    Pending,
)
from stores.errors import ChangelogError, ChangelogTimeoutError, CommitInDoubtError, ProducerFencedError
from stores.failpoints import reach
from stores.interface import TopicPartition

_TRANSACTION = 1
"""The number of the open transaction: a producer of Kafka has one at a time."""

CONNECTING_ANSWERS = 2
"""The answers that give a client a lasting connection: the first may be from a bootstrap address, which it replaces.
Without a connection it waits 0.5 s. Source: librdkafka, ``rd_kafka_txn_coord_query``."""

_REPORT_S = 5.0
_TOO_LARGE = getattr(KafkaError, "MSG_SIZE_TOO_LARGE")  # noqa: B009
_END = "EndTxn"
"""In the client's text for an answer of the brokers to the request to commit, which they may have begun. Source:
librdkafka, ``rd_kafka_txn_handle_EndTxn``."""
_TRANSACTION_TIMEOUT = "transaction.timeout.ms"
_NOT_OF_THE_GENERATION = frozenset(
    getattr(KafkaError, name) for name in ("ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID")
)
"""The coordinator's answers to the metadata of an earlier generation, or of a member that it has removed (KIP-447)."""
_Delivered = Callable[[KafkaError | None, Any], None]
_exhaust = deque[object](maxlen=0).extend


class KafkaWriter(LogWriter):
    """The client of one producer. For one thread.

    After an error before the commit, ``append`` can be called again with the same request, and goes on where it was.

    A request of a transaction may reach the broker after it, if the client gave up waiting for the answer. The broker
    would take it for one of the next transaction: an ``EndTxn`` would commit a part of that. So after such a
    transaction ``append`` refuses the next one until ``abort_open`` has taken a new producer epoch, which fences what
    is still on its way. The refusal also lets a task return to its last commit: another instance may have taken it
    over in the meantime. Source: KIP-890; librdkafka, issue 5423.
    """

    def __init__(
        self,
        cluster: Cluster,
        groups: GroupOffsets,
        transactional_id: str | None,
        transaction_timeout_s: float | None = None,
    ) -> None:
        """Connect; with an ID, wait until the older producer's transaction is decided.

        ``transaction_timeout_s`` is the default of ``transaction.timeout.ms``; None for the client's own. Raises: as
        ``Cluster.asked``.
        """
        self._cluster, self._groups, self._timeout_s = cluster, groups, cluster.timeout_s
        self._is_transactional = transactional_id is not None
        self._own: dict[str, Any] = {"enable.idempotence": True}
        if transactional_id is not None:
            self._own["transactional.id"] = transactional_id
        if transaction_timeout_s is not None:
            default_ms = round(transaction_timeout_s * 1000)
            self._own[_TRANSACTION_TIMEOUT] = cluster.settings.value(_TRANSACTION_TIMEOUT, default_ms)
        self._coordinator_s = min(cluster.timeout_s, COORDINATOR_S)
        self._doing = f"the producer {transactional_id!r}" if transactional_id else "a producer without an ID"
        self._fatal: KafkaError | None = None
        self._lost: LostRequests
        self._reports = _Reports(self)
        self._client = self._connected()
        self._stuck = False
        """True if the client can't end the open transaction, as a call of it does not return: another one does."""
        self._late = False
        """True if a request of an ended transaction may still be on its way: the next one needs a new epoch."""
        self._renewing = False
        """True while another client takes over."""
        self._committed: dict[str, Committed] = {}
        """The input offsets of the last commit with their times, by group."""
        self._begun = False
        self._taken: dict[TopicPartition, int] = {}
        """The number of fields of each pending list that the client has taken, if an append has failed."""
        self._first_offsets: dict[TopicPartition, int] = {}
        self._last_offsets: dict[TopicPartition, int] = {}
        """The offsets of the first and the last record of the open transaction, as far as they are known."""
        self._failed: list[tuple[TopicPartition, KafkaError]] = []
        if transactional_id is not None:
            try:
                self._take_over()
            except BaseException:
                # As long as the client lives, it goes on, and would fence the next producer of the ID.
                self.release()
                raise

    def _connected(self) -> Any:
        """Return a new client. From now on, ``_lost`` is about its requests."""
        self._lost = LostRequests(self._cluster.settings, CLIENT_LOG)
        self._reports.writer = None
        self._reports = _Reports(self)
        own = {**self._own, **self._lost.settings} if self._is_transactional else self._own
        return self._cluster.client(confluent_kafka.Producer, own, self._reports.failed)

    def check_partition(self, partition: TopicPartition) -> None:
        self._cluster.check_partition(partition)

    def append(self, request: AppendRequest) -> tuple[int | None, dict[TopicPartition, int]]:
        self._cluster.check_open()
        if self._stuck:
            raise self._no_answer()
        transactional = request.identity is not None
        if transactional and not self._begun and self._late:
            raise ChangelogTimeoutError(
                f"{self._doing}: it lost a connection in its last transaction, and a request may still be on its way. "
                "Abort the transaction: the next one has a new epoch, which fences that request"
            )
        try:
            if transactional and not self._begun:
                self._begin_transaction()
            for partition, pending in request.records.items():
                self._produce(partition, pending, request.num_bytes, transactional=transactional)
            if request.ends:
                self._end(request, transactional=transactional)
        except KafkaException as exception:
            raise self._failure_of(exception) from None
        except ChangelogTimeoutError:
            self._lost.any = True
            raise
        self._taken.clear()
        if not request.ends:
            return _TRANSACTION, {}
        if transactional:
            self._note_end()
        return None, self._ended()

    def abort(self, transaction: int) -> None:
        self.abort_open()

    def abort_open(self, *, is_last: bool = False) -> None:
        """Abort the open transaction, or drop the records that are not sent yet; take a new epoch if one is needed.

        After the last transaction none is needed. Raises: ChangelogTimeoutError if the brokers do not answer in time;
        call it again. ProducerFencedError if a newer producer has the ID, and a new epoch would fence it.
        """
        if self._begun and not self._stuck:
            # A fenced producer has nothing to end: the next one of the ID has, or is going to. Its calls all fail.
            with suppress(ProducerFencedError):
                self._abort()
        elif self._is_transactional:
            self._late |= self._lost.any
        elif self._taken or self._failed or self._lost.any:
            self._client.purge()
            self._serve(0)
            if self._fatal is not None:
                self._client, self._fatal = self._connected(), None
        if self._stuck or (self._late and not is_last):
            if not self._stuck and not self._renewing:
                self._check_epoch()
            self._renew()
            self._ended()
        self.forget()

    def forget(self) -> None:
        """Forget the open transaction, and tell the brokers nothing."""
        self._begun = self._lost.any = False
        for per_partition in (self._taken, self._first_offsets, self._last_offsets):
            per_partition.clear()
        self._failed.clear()

    def release(self) -> None:
        """Let the client go, with its threads. The writer can't be used after that. May be called more than once."""
        self.__dict__.pop("_client", None)

    def _ended(self) -> dict[TopicPartition, int]:
        """Say where the open transaction has ended; return the last offset of each partition."""
        last_offsets = self._last_offsets
        self._cluster.ended(self._own.get("transactional.id"), self._first_offsets, last_offsets)
        self._first_offsets, self._last_offsets = {}, {}
        return last_offsets

    def _begin_transaction(self) -> None:
        # All requests of earlier transactions are answered, or have led to a new epoch: what was lost since is none.
        self._serve(0)
        self._lost.any = False
        self._client.begin_transaction()
        self._begun = True

    def _note_end(self) -> None:
        """Note that the open transaction has ended, and whether one of its requests may still be on its way."""
        self._begun = False
        self._serve(0)
        self._late |= self._lost.any

    def _abort(self) -> None:
        try:
            abort = partial(served, self._client.abort_transaction)
            self._cluster.asked(f"{self._doing} aborts", abort, producing=True)
        except ProducerFencedError:
            raise
        except ChangelogError as error:
            self._stuck = True
            if isinstance(error, ChangelogTimeoutError):
                raise
            return  # It has failed for good.
        self._note_end()
        self._ended()

    def _produce(self, partition: TopicPartition, pending: Pending, num_bytes: int, *, transactional: bool) -> None:
        """Give the client the records that it has not taken yet. All keys and values have at most ``num_bytes``."""
        topic, number = partition
        rest: list[Any] = pending[self._taken.get(partition, 0) :]
        keys, values, times_ms, headers = (rest[field::FIELDS_PER_RECORD] for field in range(FIELDS_PER_RECORD))
        bytes_max = self._cluster.record_bytes_max(topic)
        some_have_headers = any(headers)
        if num_bytes > bytes_max or some_have_headers:
            check_sizes(partition, keys, values, headers, bytes_max)
        all_headers: list[Any] = headers
        if some_have_headers or not all(times_ms):
            all_headers = [sent_headers(*each) or None for each in zip(times_ms, headers, strict=True)]
        # In a transaction any record that is not delivered fails the commit: the first and the last are asked after.
        reports: list[_Delivered | None] = [None if transactional else self._reports.delivered] * len(keys)
        reports[:1] = reports[-1:] = [self._reports.delivered] if keys else []
        at, client = 0, self._client
        while at < len(keys):
            keys_left, callbacks = iter(keys[at:]), reports[at:]
            records = values[at:], keys_left, repeat(number), callbacks, callbacks, times_ms[at:], all_headers[at:]
            try:
                # Without bytecode for each record: a third of the time.
                _exhaust(map(client.produce, repeat(topic), *records))
                at = len(keys)
            except BufferError:
                at = len(keys) - length_hint(keys_left) - 1
                self._await_room()
            except BaseException:
                at = len(keys) - length_hint(keys_left) - 1
                raise
            finally:
                self._taken[partition] = len(pending) - FIELDS_PER_RECORD * (len(keys) - at)
        served(client.poll, 0)

    def _await_room(self) -> None:
        """Wait until the client has delivered a part of its queue."""
        num_records, deadline = len(self._client), time.monotonic() + self._timeout_s
        while len(self._client) >= num_records:
            served(self._client.poll, 0.05)
            if time.monotonic() > deadline:
                raise ChangelogTimeoutError(f"{self._doing}: the brokers take no records in time")

    def _end(self, request: AppendRequest, *, transactional: bool) -> None:
        offsets = by_group(request.group_offsets, request.group_times_ms)
        for of_group in offsets.values():
            for partition in of_group.offsets:
                # The client would ask for an unknown one until its time is up.
                self._cluster.check_partition(partition)
        if transactional:
            for group, of_group in offsets.items():
                self._send_offsets(group, of_group)
        self._flush(transactional=transactional)
        if not transactional:
            for group, of_group in offsets.items():
                self._groups.commit(group, *of_group)
            return
        reach(BEFORE_COMMIT)
        self._commit()
        if offsets:
            self._committed = offsets
            self._groups.ended(offsets)
        reach(AFTER_COMMIT)

    def _send_offsets(self, group: str, committed: Committed) -> None:
        metadata, client = self._groups.metadata(group, committed.offsets), self._client
        self._serve(0)
        theirs, timeout_s = as_theirs(*committed), min(self._coordinator_s + self._lost.pause_s(), self._timeout_s)
        try:
            in_time = returns_in_time(
                lambda: client.send_offsets_to_transaction(theirs, metadata, timeout_s),
                timeout_s,
                serve=lambda: client.poll(0),
            )
        except KafkaException as exception:
            if error_of(exception).code() not in _NOT_OF_THE_GENERATION:
                raise
            raise ChangelogTimeoutError(
                f"{self._doing}: the group {group!r} has begun another generation, and does not take offsets of the "
                "earlier one. Abort the transaction"
            ) from None
        if not in_time:
            self._stuck = True
            raise self._no_answer()

    def _no_answer(self) -> ChangelogTimeoutError:
        return ChangelogTimeoutError(
            f"{self._doing}: the coordinator of the group did not answer in time. Abort the transaction"
        )

    def _check_epoch(self) -> None:
        """Check that no newer producer has the ID, as far as there are input offsets to ask with.

        The transaction in which they are sent is aborted. If a late request commits it, they are what they were.
        A group that fences by its generation needs no check: nobody else has the ID then.
        """
        group = next(iter(self._committed), None)
        if group is None or any(map(self._groups.is_fenced, self._committed)):
            return
        try:
            self._begin_transaction()
            self._send_offsets(group, self._committed[group])
        except KafkaException as exception:
            failure = self._failure_of(exception)
            unanswered = decision_of(error_of(exception)) is Decision.RETRY
            if unanswered or isinstance(failure, ProducerFencedError):
                raise failure from None
        except ChangelogTimeoutError:
            if not self._stuck:
                raise
        else:
            self._abort()

    def _renew(self) -> None:
        """Take a new epoch with another client of the same ID. The brokers abort what the earlier client left open.

        They fence that client, and its requests that are still on their way. If it is stuck, the end of its
        transaction was not requested before, so it can't be committed.
        """
        if not self._renewing or self._fatal is not None:
            self._client = self._connected()
            self._fatal, self._begun, self._renewing = None, False, True
        self._take_over()
        self._stuck = self._late = self._renewing = False

    def _take_over(self) -> None:
        attempt_s = ATTEMPT_S / 2

        def begin(left_s: float) -> None:
            nonlocal attempt_s
            attempt_s *= 2  # A broker may need longer for an answer.
            ends_at = time.monotonic() + left_s
            try:
                for _ in range(CONNECTING_ANSWERS):
                    self._client.list_topics(timeout=max(min(ends_at - time.monotonic(), attempt_s), 0))
            except KafkaException:
                self._client = self._connected()  # The one before may know no broker any more.
                raise
            try:
                self._client.init_transactions(max(ends_at - time.monotonic(), 0))
            except KafkaException as exception:
                if error_of(exception).fatal():
                    self._fatal = error_of(exception)
                raise

        self._cluster.asked(f"{self._doing} begins", begin, producing=True)

    def _flush(self, *, transactional: bool) -> None:
        num_unsent = served(self._client.flush, self._timeout_s)
        if num_unsent or self._failed:
            self._lost.any = True
        if self._failed:
            reason = self._delivery_failure()
            if transactional:
                raise reason
            raise CommitInDoubtError(f"some records may not be in the changelog: {reason}")
        if num_unsent and transactional:
            raise ChangelogTimeoutError(f"{self._doing}: {num_unsent} records were not acknowledged in time")
        if num_unsent:
            raise CommitInDoubtError(f"{self._doing}: it is unknown whether {num_unsent} records are in the changelog")

    def _delivery_failure(self) -> ChangelogError:
        for partition, error in self._failed:
            if error.code() == _TOO_LARGE:
                return batch_too_large(partition, self._cluster.new_batch_bytes_max(partition.topic))
        partition, error = self._failed[0]
        return self._cluster.failure(error, f"a record of {partition.topic}-{partition.partition}")

    def _commit(self) -> None:
        try:
            served(self._client.commit_transaction, self._timeout_s)
        except KafkaException as exception:
            self._lost.any = True
            error = error_of(exception)
            if is_fenced(error) or (error.txn_requires_abort() and _END not in str(error.str())):
                raise
            failure = self._cluster.failure(error, f"{self._doing} commits")
            if not may_pass(error) and not error.fatal() and not error.txn_requires_abort():
                raise failure from None
            raise CommitInDoubtError(
                f"it is unknown whether Kafka has the commit: open another producer of the same ID ({failure})"
            ) from None

    def _failure_of(self, exception: KafkaException) -> ChangelogError:
        """Return our error for one of the client, which may have given up waiting for an answer."""
        error = error_of(exception)
        if error.fatal():
            self._fatal = error
        elif error.code() == KafkaError._FATAL:
            error = self._reported() or error  # Later calls do not say which error it was.
        self._lost.any |= not is_fenced(error)
        return self._cluster.failure(error, self._doing)

    def _reported(self) -> KafkaError | None:
        """Return the client's fatal error. A call may fail for it a moment before the client reports it."""
        deadline = time.monotonic() + _REPORT_S
        while self._fatal is None and time.monotonic() < deadline:
            self._serve(0.05)
        return self._fatal

    def _serve(self, wait_s: float) -> None:
        """Let the client call back. It raises a fatal error here, in place of the callback for errors."""
        try:
            served(self._client.poll, wait_s)
        except KafkaException as exception:
            self._on_error(error_of(exception))

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = error

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        partition = TopicPartition(message.topic(), message.partition())
        if error is not None:
            self._failed.append((partition, error))
        else:
            self._last_offsets[partition] = message.offset()
            self._first_offsets.setdefault(partition, message.offset())


class _Reports:
    """The reports of one client to ``writer``, which is None from the moment when that has another client.

    A client whose call does not return is served on. Its reports are about no transaction of the writer's then.
    """

    def __init__(self, writer: KafkaWriter) -> None:
        self.writer: KafkaWriter | None = writer

    def failed(self, error: KafkaError) -> None:
        if self.writer is not None:
            self.writer._on_error(error)

    def delivered(self, error: KafkaError | None, message: Any) -> None:
        if self.writer is not None:
            self.writer._delivered(error, message)
