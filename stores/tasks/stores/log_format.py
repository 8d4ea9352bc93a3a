"""The formats of a changelog's records: their conversion to what the store keeps, and their rewriting.

A changelog is rewritten so that a restore finds no records of an earlier format. Before the task's first record, all
records are converted and logged again, in order and in one transaction. It also commits the offset of its first record:
a restore of a whole store begins there (``log_start``). Then the store is moved to the new end, and the records before
are dropped.

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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import Any, Final

from stores.changelog.interface import Changelog, Headers, Producer, Record, RecordColumns
from stores.errors import ChangelogError, ProducerFencedError, StoreIncompatibleError
from stores.failpoints import Part, declare
from stores.interface import KeyValueStore, TopicPartition
from stores.records.record_kind import PlainConverter, RecordConverter, RecordKind, UnfitRecordError
from stores.settings import Upgrade
from stores.tasks.stores.log_start import first_needed, send_needed_from

VERSION_HEADER = "stores.format"
"""The header of a changelog record that holds the number of its format; format 0 has none.

Source: KIP-258, first draft, "version number in the record header"."""
_DIGITS_MAX = 20


REPLACED: Final = ("stores.replaced", b"")
"""The header of a tombstone that only compaction reads: its key has no record of the present format."""


def is_replaced(headers: Headers) -> bool:
    """Return whether a record with these headers says nothing of its store."""
    return REPLACED in headers


def version_headers(version: int) -> Headers:
    """Return the headers of a record of the format ``version``."""
    return ((VERSION_HEADER, b"%d" % version),) if version else ()


def version_of(headers: Headers) -> int:
    """Return the format of a record with these headers. Raises: UnfitRecordError if it is no number."""
    for name, content in headers:
        if name == VERSION_HEADER:
            if content is None or not content.isdigit() or len(content) > _DIGITS_MAX:
                raise UnfitRecordError(
                    f"a changelog record has the format {content and content[:40]!r}, which is not a number of a format"
                )
            return int(content)
    return 0


def user_headers(headers: Headers) -> Headers:
    """Return headers without those that the library adds to changelog records."""
    return tuple([header for header in headers if header[0] != VERSION_HEADER]) if headers else headers


class Conversion(RecordConverter):
    """A converter of records for ``store``, of ``records`` (None: bytes) in the format of ``upgrade`` (None: 0)."""

    def __init__(self, store: KeyValueStore, records: RecordKind | None, upgrade: Upgrade | None) -> None:
        self.key_bytes_max = store.max_key_bytes
        self._kind = PlainConverter() if records is None else records.converter(store)
        self.plain = upgrade is None and isinstance(self._kind, PlainConverter)
        """True if a record without headers is kept unchanged."""
        self._upgrade = upgrade
        self._version = 0 if upgrade is None else upgrade.to_version

    def convert(self, record: Record) -> Iterable[tuple[bytes, bytes | None]]:  # type: ignore[override]
        if is_replaced(record.headers):
            return ()
        version = version_of(record.headers) if record.headers else 0
        if version == self._version:
            return self._kind.convert(record._replace(headers=user_headers(record.headers)) if version else record)
        if version > self._version or self._upgrade is None:
            raise StoreIncompatibleError(
                f"changelog record {record.offset} has format {version}, and the configuration of the store is for "
                f"format {self._version}: use the configuration with the upgrade to format {version}"
            )
        return self._upgraded(record, self._upgrade, version)

    def _upgraded(self, record: Record, upgrade: Upgrade, version: int) -> Iterable[tuple[bytes, bytes | None]]:
        for key, value in upgrade.convert(record, version):
            yield from self._kind.convert(record._replace(key=key, value=value, headers=user_headers(record.headers)))

    def pairs(self, partition: TopicPartition, columns: RecordColumns) -> Iterable[tuple[bytes, bytes | None]]:
        """Return the pairs of records, in their order. Raises: as ``fitting``."""
        keys: Sequence[Any] = columns.keys
        if self.plain and columns.headers is None and None not in keys:
            sizes = list(map(len, keys))
            if min(sizes) and max(sizes) <= self.key_bytes_max:
                return zip(keys, columns.values, strict=True)
        keyed = (record for record in columns.records() if record.key is not None)
        return chain.from_iterable(self.fitting(partition, record) for record in keyed)

    def fitting(self, partition: TopicPartition, record: Record) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the pairs of a record, but no removal of a key that no store can have. Raises: ChangelogError."""
        most = self.key_bytes_max
        try:
            for key, value in self.convert(record):
                if 0 < len(key) <= most:
                    yield key, value
                elif value is not None:
                    raise UnfitRecordError(f"its key has {len(key)} bytes, and the store takes 1 to {most}")
        except UnfitRecordError as error:
            raise self.unfit(partition, record, str(error)) from error

    def unfit(self, partition: TopicPartition, record: Record, reason: str) -> ChangelogError:
        """Return the error for a record of ``partition`` that the store can't have."""
        topic, number = partition
        return ChangelogError(
            f"record {record.offset} of the changelog {topic}-{number} can't be restored: {reason}. Choose a "
            "configuration that takes it, or delete its key with the application that logged it, and restore once the "
            "topic is compacted"
        )

    def marks(self) -> Mapping[str, bytes | None]:
        return self._kind.marks()

    def written(self) -> None:
        self._kind.written()


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


def rewrite(
    changelog: Changelog, partition: TopicPartition, upgrade: Upgrade, transactional_id: str, restored_to: int | None
) -> int | None:
    """Log all records again in one transaction, if some are older; return the last offset.

    ``transactional_id`` is that of the task: the next instance of the task fences this one. The store has all records
    before ``restored_to``. Raises: ProducerFencedError if there are more; StoreError.
    """
    if not has_older(changelog, partition, upgrade.to_version):
        return None
    # Asked before anything is written.
    keeps_old = not changelog.can_truncate(partition.topic)
    with closing(changelog.producer(transactional_id, TRANSACTION_S)) as producer:
        end = changelog.end_offset(partition)
        if end != restored_to:
            raise ProducerFencedError(
                f"the changelog {partition.topic}-{partition.partition} is not rewritten: another instance of the task "
                f"has written to it since this one was restored up to offset {restored_to}. Stop one of them",
                transactional_id,
            )
        producer.begin()
        if keeps_old:
            _replace(changelog, partition, upgrade, producer)
        headers = version_headers(upgrade.to_version)
        for record, pairs in _converted(changelog, partition, upgrade):
            for key, value in pairs:
                producer.send(partition, key, value, record.timestamp_ms, (*headers, *user_headers(record.headers)))
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
