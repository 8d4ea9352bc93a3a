"""Records and batches that are larger than their topic or their client allows."""

from __future__ import annotations

from collections.abc import Iterable

from stores.changelog.interface import Headers
from stores.changelog.kafka.record_headers import headers_bytes
from stores.errors import ChangelogError
from stores.interface import TopicPartition


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
