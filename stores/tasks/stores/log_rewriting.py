"""Rewriting a changelog in the present format, so that it has no records of an earlier one.

Before the task's first record, all records are converted and logged again, in order and in one transaction. Then the
store is moved to the new end, and the records before it are dropped. A kill before the transaction's commit changes
nothing. After a kill behind it the changelog has everything twice, which restores to the same state. The next opening
repeats the rewrite.

The formats of a changelog rise with its offsets, since a task refuses records of a later format than its own. So its
first record shows whether there is anything to do.

Source: KIP-258, "Rejected Alternatives": a changelog may never overwrite a record of an older format by itself.
"""

from __future__ import annotations

from typing import NamedTuple

from stores.changelog.interface import Changelog, Producer
from stores.errors import StoreIncompatibleError
from stores.failpoints import declare
from stores.interface import TopicPartition
from stores.settings.upgrade import Upgrade
from stores.tasks.stores.conversion import version_headers, version_of

LOGGED = declare("rewrite.logged", "the changelog has everything twice, last in the present format")
FOLLOWED = declare("rewrite.followed", "the store is at the changelog's new end, what was before it is still there")
FAILPOINTS = (LOGGED, FOLLOWED)
"""The failpoints of rewriting a changelog, in this order."""


class Rewritten(NamedTuple):
    """``last_offset`` is the changelog's new end; nothing before ``first_offset`` is needed any more."""

    first_offset: int
    last_offset: int


def has_older(changelog: Changelog, partition: TopicPartition, version: int) -> bool:
    """Return whether the changelog has records of an earlier format than ``version``. It reads one record."""
    first = next(iter(changelog.read(partition, changelog.start_offset(partition))), None)
    return first is not None and version_of(first.headers) < version


def rewrite(changelog: Changelog, partition: TopicPartition, upgrade: Upgrade, producer: Producer) -> Rewritten | None:
    """Log all records again in the format of ``upgrade``, in one transaction of ``producer``.

    Return None if no record resulted. Raises: ChangelogError; StoreIncompatibleError; the errors of the upgrade's
    function.
    """
    headers = version_headers(upgrade.to_version)
    end = changelog.end_offset(partition)
    producer.begin()
    for record in changelog.read(partition, changelog.start_offset(partition)):
        if record.key is None:
            continue
        version = version_of(record.headers)
        if version > upgrade.to_version:
            raise StoreIncompatibleError(
                f"changelog record {record.offset} has format {version}, and the configuration of the store is for "
                f"format {upgrade.to_version}: use the configuration with the upgrade to format {version}"
            )
        pairs = [(record.key, record.value)] if version == upgrade.to_version else upgrade.convert(record, version)
        for key, value in pairs:
            producer.send(partition, key, value, record.timestamp_ms, headers)
    last_offset = producer.commit().get(partition)
    return None if last_offset is None else Rewritten(end, last_offset)
