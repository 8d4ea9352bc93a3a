"""The context that a function gets with the rows of one partition of one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stores.errors import ConfigError
from stores.interface import KeyValueStore
from stores.records.staging import StoreStaging
from stores.records.values import SURROGATE_MS
from stores.spark.timers import Timers


class RecordTime:
    """The time of the record that a record-wise function processes; that of typed stores by default."""

    ms: int = SURROGATE_MS


class TimedStaging(StoreStaging):
    """The staging of a typed store over ``store``. A write without a time has that of the current record."""

    def __init__(self, store: KeyValueStore, time: RecordTime) -> None:
        super().__init__(store)
        self._time = time

    @property
    def timestamp_ms(self) -> int:
        return self._time.ms


@dataclass(frozen=True)
class Context:
    """The stores of a partition, its timers, and the batch. Valid while the function runs."""

    partition: int
    """The partition, from 0."""
    version: int
    """The version that this batch makes. The same batch computed again has the same one."""
    batch_id: int | None
    """The ID of the batch in its streaming query, from 0, None in a batch job."""
    query: str | None
    """The ID of the streaming query, None in a batch job."""
    stores: Mapping[str, Any]
    """The stores by name: typed as in their configuration, or of bytes."""
    times: KeyValueStore | None = field(default=None, repr=False)
    watermark: Callable[[], int] | None = field(default=None, repr=False)
    record_time: RecordTime = field(default_factory=RecordTime, repr=False)

    def store(self, name: str) -> Any:
        """Return a store. Raises: ConfigError if there is none of that name."""
        try:
            return self.stores[name]
        except KeyError:
            raise ConfigError(f"there is no store {name!r}: the stores are {', '.join(sorted(self.stores))}") from None

    @property
    def timers(self) -> Timers:
        """The timers of the partition. Raises: ConfigError if ``stateful`` was called without ``on_timer``."""
        if self.times is None:
            raise ConfigError("this query has no timers: give stateful() an on_timer function")
        return Timers(self.times)

    @property
    def watermark_ms(self) -> int:
        """The query's watermark in this batch, in milliseconds since the Unix epoch. Each attempt sees the same one.

        It is 0 before Spark has one, and -1 in a batch job, which has none. Raises: ConfigError if ``stateful`` was
        called without ``checkpoint``; as ``watermark_of``.
        """
        if self.batch_id is None:
            return -1
        if self.watermark is None:
            raise ConfigError("the watermark is in the query's checkpoint: give stateful() its folder as checkpoint")
        return self.watermark()
