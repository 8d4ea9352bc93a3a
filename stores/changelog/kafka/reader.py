"""A reader of one partition: committed records up to an offset, read ahead by a client; and their form in Kafka."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from stores.changelog.interface import Headers, RecordColumns, joined
from stores.changelog.kafka.client import READ_AHEAD, Decision, decision_of, may_pass
from stores.changelog.kafka.cluster import READER, Cluster
from stores.changelog.kafka.shared_client import ATTEMPT_S
from stores.errors import ChangelogError, ChangelogTimeoutError, OffsetOutOfRangeError
from stores.interface import TopicPartition

PIECE = 500
"""The most messages of one call of the client: many for the cost of a call, few for the caches of a processor."""
_WAIT_S = 0.5
REFILL = "fetch.queue.backoff.ms"
REFILL_MS = 20
"""The time after which the client asks whether its full queue has room again. By default it is a second. A task
processes all that is in the queue in less, and would wait for the rest. Source: librdkafka's CONFIGURATION.md."""
READ_AHEAD_KIB = 16_384
"""The most that the client reads ahead. The client's default is 64 MiB, and each partition has a client."""
FETCH_WAIT = "fetch.wait.max.ms"
END_WAIT_MS = 10
"""The time for which brokers hold back the answer that nothing follows. A restore waits for that answer: markers of
transactions may be all that is left. The client's default is 500 ms."""

_Message: Any = confluent_kafka.Message
_FIELDS = (_Message.offset, _Message.key, _Message.value)
_second = itemgetter(1)
_NONE = RecordColumns([], [], [], [])


class KafkaPartitionReader:
    """A client that reads one partition from ``from_offset`` on. For one thread at a time.

    With ``rests`` it asks the brokers for nothing between a read that has reached its end and the next ``move``. That
    is for the changelogs of stores: the client would read ahead what the task itself writes. It is also for reads whose
    caller waits for the end, such as those of global stores.
    """

    def __init__(self, cluster: Cluster, partition: TopicPartition, from_offset: int, rests: bool = False) -> None:
        self._cluster, self._partition, self._rests = cluster, partition, rests
        self._resting = False
        self._client = self._connected()
        self._ahead = _NONE
        """The records that were read and are not delivered yet."""
        self._reached_end = 0
        """The end of the partition that the client has reported: what is before it is in ``_ahead``, or delivered."""
        self._refusal: KafkaError | None = None
        """The error that the client has reported after the records in ``_ahead``."""
        self._next_offset = from_offset
        self.after_records = from_offset
        """The offset after the last delivered record, or of the last ``move``."""
        self._begin()

    def move(self, offset: int) -> None:
        """Continue at ``offset``, unless that is where the reader is: there is no record before its next one."""
        if self._resting or not self.after_records <= offset <= self._next_offset:
            self._next_offset = self.after_records = offset
            self._begin()

    def rest(self) -> None:
        """Ask for nothing until the next ``move``, if the reader ``rests``."""
        if self._rests and not self._resting:
            self._resting, self._ahead = True, _NONE
            self._client.unassign()

    def _connected(self) -> confluent_kafka.Consumer:
        """Return a new client, which reads nothing yet."""
        rests = {FETCH_WAIT: END_WAIT_MS} if self._rests else {}
        defaults = {REFILL: REFILL_MS, READ_AHEAD: READ_AHEAD_KIB, **rests}
        limits = {name: self._cluster.settings.value(name, default) for name, default in defaults.items()}
        own = {"group.id": "txstores-reader", **READER, **limits}
        return self._cluster.client(confluent_kafka.Consumer, own)

    def _begin(self) -> None:
        self._resting = False
        self._ahead, self._reached_end, self._refusal = _NONE, 0, None
        self._client.assign([self._theirs(self._next_offset)])

    def _theirs(self, offset: int) -> confluent_kafka.TopicPartition:
        return confluent_kafka.TopicPartition(self._partition.topic, self._partition.partition, offset)

    def pieces(self, end: int) -> Iterator[RecordColumns]:
        """Return the committed records before ``end``, which is not beyond the last stable offset, some at a time.

        It ends at the first record from ``end`` on, or where the client says that it has reached ``end``: control
        records, aborted records and gaps may be all that is left. A caller that stops within a piece gives the rest of
        it back. Raises: ChangelogTimeoutError if nothing comes for the cluster's timeout; OffsetOutOfRangeError;
        ChangelogError.
        """
        while self._next_offset < end:
            ahead = self._ahead
            offsets = ahead.offsets
            if not offsets:
                if self._next_offset < self._reached_end:
                    self._next_offset = self._reached_end
                else:
                    self._fetch()
                continue
            count = len(offsets) if offsets[-1] < end else bisect_left(offsets, end)
            self._ahead = ahead.part(count)
            if count:
                self._next_offset = self.after_records = offsets[count - 1] + 1
                yield ahead.part(0, count)
            if count < len(offsets):
                # These stay for the next read; there is nothing before them.
                self._next_offset = offsets[count]
        self.rest()

    def has_arrived(self, offset: int) -> bool:
        """Return False if the client waits at ``offset`` for records, and has got none."""
        if self._resting or self._refusal is not None or not self.after_records <= offset <= self._next_offset:
            return True
        if not self._ahead.offsets:
            self._take(self._client.consume(PIECE, 0))
        return bool(self._ahead.offsets) or self._refusal is not None

    def give_back(self, rest: RecordColumns) -> None:
        """Take back the end of the last piece. The first record of a piece is not given back."""
        self._ahead = joined([rest, self._ahead])
        self.after_records = self._next_offset = rest.offsets[0]

    def close(self) -> None:
        """Release the client."""
        self._client.close()

    @property
    def _name(self) -> str:
        return f"{self._partition.topic}-{self._partition.partition}"

    def _fetch(self) -> None:
        """Wait until the client has something, and take it. There is something: this is not called at the end.

        A client that stays silent may have lost the brokers for good (``shared_client``). It is asked for the offsets
        of the partition, for longer each time, and replaced if it does not know them.
        """
        if self._refusal is not None:
            raise self._refused(self._refusal)
        messages = self._client.consume(PIECE, 0)
        silent_s = ATTEMPT_S
        silent_at = time.monotonic() + silent_s
        deadline = time.monotonic() + self._cluster.timeout_s
        while not messages:
            message = self._client.poll(_WAIT_S)
            if message is not None:
                messages = [message]
            elif time.monotonic() > deadline:
                raise ChangelogTimeoutError(f"reading {self._name}: Kafka sends nothing in time")
            elif time.monotonic() > silent_at:
                if not self._answers(min(silent_s, deadline - time.monotonic())):
                    lost, self._client = self._client, self._connected()
                    lost.close()
                    self._begin()
                silent_s *= 2
                silent_at = time.monotonic() + silent_s
        self._take(messages)

    def _answers(self, timeout_s: float) -> bool:
        """Return True if the client knows the offsets of the partition within this time."""
        try:
            self._client.get_watermark_offsets(self._theirs(0), timeout=max(timeout_s, _WAIT_S))
        except KafkaException:
            return False
        return True

    def _take(self, messages: list[Any]) -> None:
        """Take what the client has given, while nothing is ahead."""
        if any(map(_Message.error, messages)):
            messages = self._without_errors(messages)
        headers: list[Headers] | None = None
        if self._have_headers(messages):
            of_each = list(map(self._time_and_headers, messages))
            times_ms = [time_ms for time_ms, _ in of_each]
            headers = [each for _, each in of_each]
        else:
            times_ms = list(map(_second, map(_Message.timestamp, messages)))
        offsets, keys, values = (list(map(field, messages)) for field in _FIELDS)
        self._ahead = RecordColumns(offsets, keys, values, times_ms, headers)

    def _without_errors(self, messages: list[Any]) -> list[Any]:
        """Return the messages that are records, up to the first error that has to be raised after them."""
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._reached_end = max(self._reached_end, message.offset())
            elif not may_pass(error):
                self._refusal = error
                break
        return records

    def _have_headers(self, messages: list[Any]) -> bool:
        try:
            return any(map(_Message.headers, messages))
        except (ValueError, SystemError):
            return True

    def _time_and_headers(self, message: Any) -> tuple[int, Headers]:
        try:
            headers = message.headers()
        except (ValueError, SystemError) as error:
            # The client decodes the names of headers as UTF-8.
            raise ChangelogError(
                f"record {message.offset()} of {self._name} has a header whose name is not UTF-8: remove the record "
                "from the topic"
            ) from error
        return read_headers(message.timestamp()[1], headers or [])

    def _refused(self, error: KafkaError) -> ChangelogError:
        if decision_of(error) is Decision.OUT_OF_RANGE:
            return OffsetOutOfRangeError(f"{self._name} no longer has offset {self._next_offset}")
        return self._cluster.failure(error, f"reading {self._name}")


EPOCH = ("txstores-timestamp-ms", b"0")
"""The header of a record whose timestamp is 0: the client takes 0 for "now". Source: librdkafka,
``rd_kafka_producev``."""

_LENGTHS_BYTES = 10
"""The most bytes of the two lengths of a header. Source: Kafka, "Record Header": two varints."""


def sent_headers(timestamp_ms: int, headers: Headers | None) -> list[tuple[str, Any]]:
    """Return the headers to send for a record with this timestamp."""
    return [*(headers or ()), EPOCH] if timestamp_ms == 0 else list(headers or ())


def read_headers(timestamp_ms: int, headers: list[tuple[str, bytes | None]]) -> tuple[int, Headers]:
    """Return the timestamp and the headers of a record, from those that it has in Kafka."""
    if headers[-1:] == [EPOCH]:
        timestamp_ms, headers = 0, headers[:-1]
    return timestamp_ms, tuple(headers)


def check_sizes(
    partition: TopicPartition,
    keys: Iterable[bytes | None],
    values: Iterable[bytes | None],
    headers: Iterable[Headers | None],
    bytes_max: int,
) -> None:
    """Check that no record has more than ``bytes_max`` of key, value and headers. Raises: ChangelogError."""
    for key, value, of_record in zip(keys, values, headers, strict=True):
        record_bytes = len(key or b"") + len(value or b"")
        record_bytes += sum(
            len(name.encode()) + len(content or b"") + _LENGTHS_BYTES for name, content in of_record or ()
        )
        if record_bytes > bytes_max:
            raise ChangelogError(
                f"a record of {record_bytes} bytes is too large for {partition.topic}-{partition.partition}, which "
                f"takes {bytes_max} bytes of key, value and headers. Raise max.message.bytes of the topic and "
                "message.max.bytes of the client, or send smaller records"
            )


def batch_too_large(partition: TopicPartition, bytes_max: int) -> ChangelogError:
    """Return the error for a batch of records that the topic refuses."""
    return ChangelogError(
        f"a batch of records is too large for {partition.topic}-{partition.partition}, whose max.message.bytes is "
        f"{bytes_max}. Raise it, or set batch.size of the client to at most that"
    )
