"""Conversion of changelog records of any format to the pairs that the store keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from stores.changelog.interface import Headers, Record
from stores.errors import StoreIncompatibleError
from stores.interface import KeyValueStore
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

    def marks(self) -> Mapping[str, bytes | None]:
        return self._kind.marks()
