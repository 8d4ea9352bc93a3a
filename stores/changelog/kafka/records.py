"""Records as Kafka has them: their headers, the one timestamp that the client can't send, and their sizes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stores.changelog.interface import Headers
from stores.errors import ChangelogError
from stores.interface import TopicPartition

EPOCH = ("txstores-timestamp-ms", b"0")
"""The header of a record whose timestamp is 0: the client takes 0 for "now".

Source: librdkafka, ``rd_kafka_producev``."""


_LENGTHS_BYTES = 10
"""The most bytes of the two lengths of a header. Source: Kafka, "Record Header": two varints."""


def headers_bytes(headers: Headers) -> int:
    """Return the most bytes that these headers take in a record."""
    return sum(len(name.encode()) + len(content) + _LENGTHS_BYTES for name, content in headers)


def sent_headers(timestamp_ms: int, headers: Headers | None) -> list[tuple[str, Any]]:
    """Return the headers to send for a record with this timestamp."""
    return [*(headers or ()), EPOCH] if timestamp_ms == 0 else list(headers or ())


def read_headers(timestamp_ms: int, headers: list[tuple[str, bytes | None]]) -> tuple[int, Headers]:
    """Return the timestamp and the headers of a record, from those that it has in Kafka."""
    if headers[-1] == EPOCH:
        timestamp_ms, headers = 0, headers[:-1]
    return timestamp_ms, tuple((name, content or b"") for name, content in headers)


def check_sizes(
    partition: TopicPartition,
    keys: Iterable[bytes | None],
    values: Iterable[bytes | None],
    headers: Iterable[Headers | None],
    bytes_max: int,
) -> None:
    """Check that no record has more than ``bytes_max`` of key, value and headers. Raises: ChangelogError."""
    for key, value, of_record in zip(keys, values, headers, strict=True):
        record_bytes = len(key or b"") + len(value or b"") + headers_bytes(of_record or ())
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
