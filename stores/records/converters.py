"""Conversion of changelog records to the pairs that a store keeps. Source: KIP-258, ``RecordConverter``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Protocol

from stores.errors import StoreIncompatibleError
from stores.records.timestamps import TIME


class LoggedRecord(Protocol):
    """The part of a changelog record that a converter reads (``stores.changelog.interface.Record``)."""

    @property
    def key(self) -> bytes | None:
        """Never None in a store's changelog."""

    @property
    def value(self) -> bytes | None:
        """None for a tombstone."""

    @property
    def timestamp_ms(self) -> int:
        """The time since the Unix epoch; -1 if unknown."""


class UnfitRecordError(StoreIncompatibleError):
    """A record that is not of a store of the converter's kind."""


class RecordConverter(ABC):
    """Converts the records of one store's changelog, in their order, during one restore."""

    @abstractmethod
    def convert(self, record: LoggedRecord) -> Iterable[tuple[bytes, bytes | None]]:
        """Return the pairs that the store keeps for ``record``, zero or more; None deletes. Without a key: no pair.

        Raises: UnfitRecordError.
        """

    def marks(self) -> Mapping[str, bytes | None]:
        """Return the marks of the store after the records so far, which are stored with their pairs."""
        return {}


class PlainConverter(RecordConverter):
    """A converter for a store that keeps the same pairs as its changelog."""

    def convert(self, record: LoggedRecord) -> Iterable[tuple[bytes, bytes | None]]:
        return () if record.key is None else ((record.key, record.value),)


class TimestampedConverter(RecordConverter):
    """A converter that puts the record's time, eight bytes big-endian, before the value. A tombstone stays one."""

    def convert(self, record: LoggedRecord) -> Iterable[tuple[bytes, bytes | None]]:
        key, value = record.key, record.value
        if key is None:
            return ()
        return ((key, None if value is None else TIME.pack(record.timestamp_ms) + value),)
