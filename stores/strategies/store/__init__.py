"""A store: the contract's checks, offsets and position, iterators, readers and restore, over a staging.

The staging (``stores.strategies.staging``) defines how a write is staged, how it is read back, and what a commit does.
A store is one object, so that a put or a lookup is one call: ``reads`` has its attributes and reads, ``transactions``
its writes, marks and commits. ``timestamps`` has the writes and lookups of values with timestamps, ``views`` the
readers and snapshots that it gives out.
"""

from __future__ import annotations

from typing import final

from stores.contract.arguments import check_type
from stores.interface import IsolationLevel, KeyValueView, PositionBound
from stores.strategies.store.timestamps import StoreTimestamps
from stores.strategies.store.transactions import StoreTransactions
from stores.strategies.store.views import BoundedReader, StoreReader


@final
class Store(StoreTransactions):
    """A store over a staging, which has the engine."""

    @property
    def timestamps(self) -> StoreTimestamps:
        return StoreTimestamps(self)

    def read_only(
        self, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> KeyValueView:
        self.access.check_open()
        level = self._traits.isolation_level if isolation_level is None else IsolationLevel(isolation_level)
        if bound is None:
            return StoreReader(self, level)
        check_type(bound, PositionBound, "a bound is a PositionBound")
        return BoundedReader(self, level, bound)
