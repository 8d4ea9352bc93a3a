"""The headers of records in Kafka, and the one timestamp that the client can't send."""

from __future__ import annotations

from typing import Any

from stores.changelog.interface import Headers

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
