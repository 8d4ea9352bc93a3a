"""Changelog records become what a store keeps. Source: KIP-258, ``RecordConverter``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Protocol

from stores.records.timestamps import TIME


class LoggedRecord(Protocol):
    """What a converter reads of a changelog record (``stores.changelog.interface.Record``)."""

    @property
    def key(self) -> bytes | None:
        """Never None in a store's changelog."""

    @property
    def value(self) -> bytes | None:
        """None for a tombstone."""

    @property
    def timestamp_ms(self) -> int:
        """Since the Unix epoch; -1 where it is unknown."""


class RecordConverter(ABC):
    """Converts the records of one store's changelog, in their order, during one restore."""

    @abstractmethod
    def convert(self, record: LoggedRecord) -> Iterable[tuple[bytes, bytes | None]]:
        """The pairs that the store keeps for ``record``, none or more; None deletes. A record without a key is none."""

    def marks(self) -> Mapping[str, bytes | None]:
        """The marks of the store after the records so far, to be kept with their pairs."""
        return {}


class PlainConverter(RecordConverter):
    """The store keeps what its changelog has."""

    def convert(self, record: LoggedRecord) -> Iterable[tuple[bytes, bytes | None]]:
        return () if record.key is None else ((record.key, record.value),)


class TimestampedConverter(RecordConverter):
    """The store keeps the record's time, eight bytes big-endian, before the value. A tombstone stays one."""

    def convert(self, record: LoggedRecord) -> Iterable[tuple[bytes, bytes | None]]:
        key, value = record.key, record.value
        if key is None:
            return ()
        return ((key, None if value is None else TIME.pack(record.timestamp_ms) + value),)
