"""Rewriting a changelog in the present format, so that a restore finds no records of an earlier one.

Before the task's first record, all records are converted and logged again, in order and in one transaction. It also
commits the offset of its first record: a restore of a whole store begins there (``log_start``). Then the store is moved
to the new end, and the records before are dropped.

A log that drops no records, such as a topic of Kafka with the policy ``compact``, removes them by compaction: the new
record of a key replaces the old one. A key without a new record gets a tombstone, which only compaction reads. The
tombstones come first, because a key of theirs may have a new record all the same.

A kill before the transaction's commit changes nothing. After one behind it the next opening does the rest, and logs
nothing again.

The formats of a changelog rise with its offsets, since a task refuses records of a later format than its own. So the
first record that a restore reads shows whether there is anything to do.

Source: KIP-258, "Rejected Alternatives": a changelog may never overwrite a record of an older format by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Final

from stores.changelog.interface import Changelog, Producer, Record
from stores.errors import StoreIncompatibleError
from stores.failpoints import Part, declare
from stores.interface import TopicPartition
from stores.settings import Upgrade
from stores.tasks.stores.conversion import REPLACED, is_replaced, version_headers, version_of
from stores.tasks.stores.log_start import first_needed, send_needed_from

LOGGED = declare(
    "rewrite.logged", "the changelog has everything twice, and a restore begins behind the first copy", part=Part.CHANGE
)
FOLLOWED = declare(
    "rewrite.followed", "the store is at the changelog's new end, what was before it is still there", part=Part.CHANGE
)
FAILPOINTS = (LOGGED, FOLLOWED)
"""The failpoints of rewriting a changelog, in this order."""

TRANSACTION_S: Final = 900.0
"""The time that a rewriting may take over Kafka. Source: Kafka, default of ``transaction.max.timeout.ms``."""


def has_older(changelog: Changelog, partition: TopicPartition, version: int) -> bool:
    """Return whether a restore finds records of an earlier format than ``version``. It reads one record."""
    first = next(iter(changelog.read(partition, first_needed(changelog, partition))), None)
    return first is not None and version_of(first.headers) < version


def rewrite(changelog: Changelog, partition: TopicPartition, upgrade: Upgrade, transactional_id: str) -> int | None:
    """Log all records again in the format of ``upgrade``, in one transaction, if there are older ones.

    Return the offset of the last one; None if nothing was logged. Raises: ChangelogError; StoreIncompatibleError; the
    errors of the upgrade's function. Nothing has changed then.
    """
    if not has_older(changelog, partition, upgrade.to_version):
        return None
    # Asked before anything is written.
    keeps_old = not changelog.can_truncate(partition.topic)
    with closing(changelog.producer(transactional_id, TRANSACTION_S)) as producer:
        # The last process may have requested the end of its transaction. The producer has waited for that.
        if not has_older(changelog, partition, upgrade.to_version):
            return None
        end = changelog.end_offset(partition)
        producer.begin()
        if keeps_old:
            _replace(changelog, partition, upgrade, producer)
        headers = version_headers(upgrade.to_version)
        for record, pairs in _converted(changelog, partition, upgrade):
            for key, value in pairs:
                producer.send(partition, key, value, record.timestamp_ms, headers)
        send_needed_from(producer, partition, end)
        return producer.commit().get(partition)


def _replace(changelog: Changelog, partition: TopicPartition, upgrade: Upgrade, producer: Producer) -> None:
    """Send a tombstone for each old record whose key may get no new one."""
    headers = (*version_headers(upgrade.to_version), REPLACED)
    for record, pairs in _converted(changelog, partition, upgrade):
        if all(key != record.key for key, _ in pairs):
            producer.send(partition, record.key, None, record.timestamp_ms, headers)


def _converted(
    changelog: Changelog, partition: TopicPartition, upgrade: Upgrade
) -> Iterator[tuple[Record, list[tuple[bytes, bytes | None]]]]:
    """Yield each record that a restore reads, and its pairs in the format of ``upgrade``."""
    for record in changelog.read(partition, first_needed(changelog, partition)):
        if record.key is None or is_replaced(record.headers):
            continue
        version = version_of(record.headers)
        if version > upgrade.to_version:
            raise StoreIncompatibleError(
                f"changelog record {record.offset} has format {version}, and the configuration of the store is for "
                f"format {upgrade.to_version}: use the configuration with the upgrade to format {version}"
            )
        yield (
            record,
            [(record.key, record.value)] if version == upgrade.to_version else [*upgrade.convert(record, version)],
        )
