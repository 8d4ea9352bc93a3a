"""Conversion of changelog records of any format to the pairs that the store keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from stores.changelog.interface import Headers, Record
from stores.errors import ChangelogError, StoreIncompatibleError
from stores.interface import KeyValueStore, TopicPartition
from stores.records.record_kind import PlainConverter, RecordConverter, RecordKind, UnfitRecordError
from stores.settings import Upgrade

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
            if not content.isdigit() or len(content) > _DIGITS_MAX:
                raise UnfitRecordError(
                    f"a changelog record has the format {content[:40]!r}, which is not a number of a format"
                )
            return int(content)
    return 0


class Conversion(RecordConverter):
    """A converter of records for ``store``, of ``records`` (None: bytes) in the format of ``upgrade`` (None: 0)."""

    def __init__(self, store: KeyValueStore, records: RecordKind | None, upgrade: Upgrade | None) -> None:
        self.plain = records is None and upgrade is None
        """True if a record without headers is kept unchanged."""
        self.key_bytes_max = store.max_key_bytes
        self._kind = PlainConverter() if records is None else records.converter(store)
        self._upgrade = upgrade
        self._version = 0 if upgrade is None else upgrade.to_version

    def convert(self, record: Record) -> Iterable[tuple[bytes, bytes | None]]:  # type: ignore[override]
        if is_replaced(record.headers):
            return ()
        version = version_of(record.headers) if record.headers else 0
        if version == self._version:
            return self._kind.convert(record)
        if version > self._version or self._upgrade is None:
            raise StoreIncompatibleError(
                f"changelog record {record.offset} has format {version}, and the configuration of the store is for "
                f"format {self._version}: use the configuration with the upgrade to format {version}"
            )
        return self._upgraded(record, self._upgrade, version)

    def _upgraded(self, record: Record, upgrade: Upgrade, version: int) -> Iterable[tuple[bytes, bytes | None]]:
        for key, value in upgrade.convert(record, version):
            yield from self._kind.convert(record._replace(key=key, value=value, headers=()))

    def fitting(self, partition: TopicPartition, record: Record) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the pairs of a record that the store keeps; a removal of a key that no store has is left out.

        Raises: ChangelogError for a record of ``partition`` that no store can have.
        """
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
