"""Descriptions of small windows and sessions, and a staging that keeps what it logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stores import KeyValueStore
from stores.contract.arguments import Headers
from stores.records import INT64, STR, Session, Window
from stores.records.values import RecordStaging, StagedWrite, StoreStaging

Opened = Callable[[], KeyValueStore]
WINDOW: dict[str, Any] = {"size_ms": 5, "retention_ms": 30, "segment_ms": 10}
SESSION: dict[str, Any] = {"retention_ms": 30, "segment_ms": 10}


def window(**given: Any) -> Window[str, Any]:
    return Window(STR, INT64, **{**WINDOW, **given})


def session(**given: Any) -> Session[str, Any]:
    return Session(STR, INT64, **{**SESSION, **given})


@dataclass(frozen=True)
class Logged:
    """A changelog record."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()


class LoggingStaging(RecordStaging):
    """Keeps what is logged in a list."""

    def __init__(self, store: KeyValueStore, log: list[Logged]) -> None:
        self.store, self.log = store, log

    @property
    def timestamp_ms(self) -> int:
        return 7

    def put(
        self, key: bytes, kept: bytes | None, log_key: bytes, log_value: bytes | None, timestamp_ms: int | None
    ) -> None:
        self.store.put(key, kept)
        self.log.append(Logged(log_key, log_value, 7 if timestamp_ms is None else timestamp_ms))

    def put_all(self, writes: Sequence[StagedWrite], marks: Mapping[str, bytes | None] | None = None) -> None:
        StoreStaging(self.store).put_all(writes, marks)
        self.log += [
            Logged(write.log_key, write.log_value, 7 if write.timestamp_ms is None else write.timestamp_ms)
            for write in writes
            if write.log_key is not None
        ]

    def delete_range(self, start: bytes | None, end: bytes | None, *, logged: bool = True) -> None:
        assert not logged, "windows are not deleted by ranges of keys"
        self.store.delete_range(start, end)
