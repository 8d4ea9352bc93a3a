"""Queries of Nexmark as functions over stores, of one record or of many, each with one output per input.

They have no DSL's operators: a join keeps each side in a store, a ranking is a short list, a window is a key.
Aggregates over all keys (q4, q5, q7) are those of a partition; a second function over their outputs would add them up.

Source: Tucker et al., "NEXMark", 2002; the numbers from 8 on are those of Apache Beam and of nexmark-flink.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any, ClassVar, Protocol

from harness.workloads.batches import BatchContext, FoldedStores, keyed_columns, merged_many
from harness.workloads.nexmark import AUCTION, BID, PERSON, NexmarkEvents
from harness.workloads.workload import WorkloadContext, keyed
from stores.changelog.interface import Record
from stores.records import INT64, JSON, STR, KeyValue, RecordKind, Session, Window
from stores.tasks import Batch

_BY_AUCTION = {AUCTION: 1, BID: 1}
_BY_SELLER = {PERSON: 1, AUCTION: 3}
_BIDS_BY_AUCTION, _BIDS_BY_BIDDER = {BID: 1}, {BID: 2}
WINDOW_MS, HOP_MS, DAY_MS = 10_000, 2_000, 86_400_000
_KEPT_MS = 400 * DAY_MS
"""The retention of windows and sessions, so that all of them can be compared at the end."""
_ALL = "all"
"""The key of what is about all keys of a partition."""


_json = json.JSONEncoder(separators=(",", ":")).encode


class QueryStores(Protocol):
    """The method of a task or of a batch that a query uses."""

    def store(self, name: str) -> Any: ...


class NexmarkQuery(NexmarkEvents, ABC):
    """A query of Nexmark: it takes the fields of an event, and has one output for each."""

    records: ClassVar[Mapping[str, RecordKind]]
    output_topic: ClassVar[str] = "nexmark-out"

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the workload."""

    @property
    def store_names(self) -> tuple[str, ...]:
        return tuple(self.records)

    def process(self, record: Record, context: WorkloadContext) -> None:
        """Apply one event, and forward what it changes: the new values as JSON, or ``null``."""
        key, value = keyed(record)
        result = self.apply(value.decode().split(","), record.timestamp_ms, context)
        context.forward(self.output_topic, key, _json(result).encode(), record.timestamp_ms)

    def process_batch(self, batch: Batch[bytes, bytes], context: BatchContext) -> None:
        """Do the same for many records."""
        keys, values = keyed_columns(batch)
        results = self.apply_all([value.decode().split(",") for value in values], batch.timestamps_ms, context)
        outputs = [b"null" if result is None else _json(result).encode() for result in results]
        context.forward_many(self.output_topic, keys, outputs, batch.timestamps_ms)

    @abstractmethod
    def apply(self, fields: list[str], time_ms: int, context: QueryStores) -> Any:
        """Apply an event, given its fields, to the stores. Return what changes for a reader, None for nothing."""

    def apply_all(self, rows: Sequence[list[str]], times_ms: Sequence[int], context: BatchContext) -> list[Any]:
        """Apply events in order. Return the result of each."""
        stores = FoldedStores(self.records, context)
        self.read_ahead(rows, times_ms, stores)
        results = [self.apply(fields, time_ms, stores) for fields, time_ms in zip(rows, times_ms, strict=True)]
        stores.write()
        return results

    def read_ahead(self, rows: Sequence[list[str]], times_ms: Sequence[int], stores: FoldedStores) -> None:
        """Read what events need in one call for each store. By default ``apply`` reads each key by itself."""


def _windows(keys: Sequence[str], times_ms: Sequence[int], size_ms: int) -> list[tuple[str, int]]:
    """Return the window of each key and time, as a window store finds it."""
    return [(key, time_ms // size_ms * size_ms) for key, time_ms in zip(keys, times_ms, strict=True)]


@dataclass(frozen=True)
class LocalItems(NexmarkQuery):
    """q3: who sells in category 10, in Oregon, Idaho or California. A join of people and auctions by the seller.

    Both sides are kept: an auction may come before its seller.
    """

    name: str = "nexmark_q3"
    key_fields = _BY_SELLER
    records: ClassVar = {"people": KeyValue(STR, JSON), "auctions": KeyValue(STR, JSON)}

    def apply(self, fields: list[str], time_ms: int, context: QueryStores) -> Any:
        people, auctions = context.store("people"), context.store("auctions")
        if fields[0] == PERSON:
            _, person, name, city, state, *_ = fields
            if state not in ("OR", "ID", "CA"):
                return None
            people.put(person, [name, city, state])
            return [[name, city, state, auction] for auction in auctions.get(person) or ()] or None
        _, auction, category, seller, *_ = fields
        if category != "10":
            return None
        auctions.put(seller, [*(auctions.get(seller) or ()), auction])
        known = people.get(seller)
        return [[*known, auction]] if known else None

    def read_ahead(self, rows: Sequence[list[str]], times_ms: Sequence[int], stores: FoldedStores) -> None:
        sellers = [fields[_BY_SELLER[fields[0]]] for fields in rows]
        for name in self.store_names:
            stores.store(name).read_ahead(sellers)


@dataclass(frozen=True)
class AveragePrice(NexmarkQuery):
    """q4: the mean of the highest bids of auctions, by category. A bid counts while its auction lasts.

    A category keeps the sum and the number of highest bids, and a higher bid replaces the one before in it.
    """

    name: str = "nexmark_q4"
    key_fields = _BY_AUCTION
    records: ClassVar = {"auctions": KeyValue(STR, JSON), "categories": KeyValue(STR, JSON)}

    def apply(self, fields: list[str], time_ms: int, context: QueryStores) -> Any:
        auctions = context.store("auctions")
        if fields[0] == AUCTION:
            _, auction, category, _, expires_ms, *_ = fields
            auctions.put(auction, [category, time_ms, int(expires_ms), None])
            return None
        _, auction, _, price, *_ = fields
        opened = auctions.get(auction)
        if opened is None:
            return None
        category, begin_ms, expires_ms, best = opened
        if not begin_ms <= time_ms <= expires_ms or (best is not None and int(price) <= best):
            return None
        auctions.put(auction, [category, begin_ms, expires_ms, int(price)])
        categories = context.store("categories")
        total, number = categories.get(category) or (0, 0)
        total, number = total + int(price) - (best or 0), number + (best is None)
        categories.put(category, [total, number])
        return [category, total // number]

    def read_ahead(self, rows: Sequence[list[str]], times_ms: Sequence[int], stores: FoldedStores) -> None:
        stores.store("auctions").read_ahead(fields[1] for fields in rows)


@dataclass(frozen=True)
class HotItems(NexmarkQuery):
    """q5: the auctions with most bids, in windows of ten seconds that begin every two."""

    name: str = "nexmark_q5"
    key_fields = _BIDS_BY_AUCTION
    records: ClassVar = {
        "bids": Window(STR, INT64, size_ms=WINDOW_MS, retention_ms=_KEPT_MS),
        "hottest": Window(STR, JSON, size_ms=WINDOW_MS, retention_ms=_KEPT_MS),
    }

    def apply(self, fields: list[str], time_ms: int, context: QueryStores) -> Any:
        bids, hottest, auction = context.store("bids"), context.store("hottest"), fields[1]
        changed = []
        last_ms = time_ms // HOP_MS * HOP_MS
        for start_ms in range(last_ms - WINDOW_MS + HOP_MS, last_ms + 1, HOP_MS):
            number = (bids.fetch_one(auction, start_ms) or 0) + 1
            bids.put(auction, number, start_ms)
            most, auctions = hottest.fetch_one(_ALL, start_ms) or (0, [])
            if number >= most:
                hot = [number, [auction] if number > most else sorted([*auctions, auction])]
                hottest.put(_ALL, hot, start_ms)
                changed.append([start_ms, *hot])
        return changed or None


@dataclass(frozen=True)
class HighestBid(NexmarkQuery):
    """q7: the highest bid of each ten seconds; the first one of several."""

    name: str = "nexmark_q7"
    key_fields = _BIDS_BY_AUCTION
    records: ClassVar = {"highest": Window(STR, JSON, size_ms=WINDOW_MS, retention_ms=_KEPT_MS)}

    def apply(self, fields: list[str], time_ms: int, context: QueryStores) -> Any:
        _, auction, bidder, price, *_ = fields
        highest, start_ms = context.store("highest"), time_ms // WINDOW_MS * WINDOW_MS
        before = highest.fetch_one(_ALL, start_ms)
        if before and before[0] >= int(price):
            return None
        bid = [int(price), auction, bidder]
        highest.put(_ALL, bid, start_ms)
        return bid


@dataclass(frozen=True)
class NewSellers(NexmarkQuery):
    """q8: people who open auctions within the ten seconds in which they register. A join by person and window."""

    name: str = "nexmark_q8"
    key_fields = _BY_SELLER
    records: ClassVar = {
        "people": Window(STR, STR, size_ms=WINDOW_MS, retention_ms=_KEPT_MS),
        "sellers": Window(STR, INT64, size_ms=WINDOW_MS, retention_ms=_KEPT_MS),
    }

    def apply(self, fields: list[str], time_ms: int, context: QueryStores) -> Any:
        people, sellers = context.store("people"), context.store("sellers")
        start_ms = time_ms // WINDOW_MS * WINDOW_MS
        if fields[0] == PERSON:
            _, person, name, *_ = fields
            people.put(person, name, start_ms)
            opened = sellers.fetch_one(person, start_ms)
            return [person, name, opened] if opened else None
        seller = fields[3]
        opened = sellers.update(seller, time_ms, lambda number: (number or 0) + 1)
        name = people.fetch_one(seller, start_ms)
        return [seller, name, opened] if name else None

    def read_ahead(self, rows: Sequence[list[str]], times_ms: Sequence[int], stores: FoldedStores) -> None:
        sellers = _windows([fields[_BY_SELLER[fields[0]]] for fields in rows], times_ms, WINDOW_MS)
        for name in self.store_names:
            stores.store(name).read_ahead(sellers)


@dataclass(frozen=True)
class UserSessions(NexmarkQuery):
    """q11: the bids of each bidder in sessions, which end after ten seconds without one."""

    name: str = "nexmark_q11"
    key_fields = _BIDS_BY_BIDDER
    records: ClassVar = {"sessions": Session(STR, INT64, retention_ms=_KEPT_MS)}

    def apply(self, fields: list[str], time_ms: int, context: QueryStores) -> Any:
        sessions, bidder = context.store("sessions"), fields[2]
        merged = sessions.merge(bidder, time_ms, WINDOW_MS, lambda bids: sum(bids) + 1)
        return merged and [merged[0].start_ms, merged[0].end_ms, merged[1]]

    def apply_all(self, rows: Sequence[list[str]], times_ms: Sequence[int], context: BatchContext) -> list[Any]:
        bidders = [fields[2] for fields in rows]
        merged = merged_many(context.store("sessions"), bidders, times_ms, [1] * len(rows), WINDOW_MS, add)
        return [[session.start_ms, session.end_ms, bids] for session, bids in merged]


@dataclass(frozen=True)
class AuctionStatistics(NexmarkQuery):
    """q17: the bids of each auction and day: all, below 10,000, below 1,000,000, from there on; least, most, sum."""

    name: str = "nexmark_q17"
    key_fields = _BIDS_BY_AUCTION
    records: ClassVar = {"days": Window(STR, JSON, size_ms=DAY_MS, retention_ms=_KEPT_MS)}

    def apply(self, fields: list[str], time_ms: int, context: QueryStores) -> Any:
        auction, price = fields[1], int(fields[3])

        def add(day: list[int] | None) -> list[int]:
            bids, cheap, middle, dear, least, most, total = day or (0, 0, 0, 0, price, price, 0)
            rank = [price < 10_000, 10_000 <= price < 1_000_000, price >= 1_000_000]
            return [
                bids + 1,
                cheap + rank[0],
                middle + rank[1],
                dear + rank[2],
                min(least, price),
                max(most, price),
                total + price,
            ]

        return context.store("days").update(auction, time_ms, add)

    def read_ahead(self, rows: Sequence[list[str]], times_ms: Sequence[int], stores: FoldedStores) -> None:
        stores.store("days").read_ahead(_windows([fields[1] for fields in rows], times_ms, DAY_MS))


@dataclass(frozen=True)
class LastBid(NexmarkQuery):
    """q18: the last bid of each bidder for each auction: the earlier ones are duplicates."""

    name: str = "nexmark_q18"
    key_fields = _BIDS_BY_BIDDER
    records: ClassVar = {"bids": KeyValue(STR, JSON)}

    def apply(self, fields: list[str], time_ms: int, context: QueryStores) -> Any:
        _, auction, bidder, price, channel, *_ = fields
        bid = [int(price), channel, time_ms]
        context.store("bids").put(f"{bidder},{auction}", bid)
        return bid


@dataclass(frozen=True)
class TopBids(NexmarkQuery):
    """q19: the ten highest bids for each auction; of equal ones the first."""

    name: str = "nexmark_q19"
    key_fields = _BIDS_BY_AUCTION
    records: ClassVar = {"top": KeyValue(STR, JSON)}
    _most = 10

    def apply(self, fields: list[str], time_ms: int, context: QueryStores) -> Any:
        _, auction, bidder, price, *_ = fields
        store, bid = context.store("top"), [int(price), bidder]
        top = store.get(auction) or []
        place = next((place for place, (other, _) in enumerate(top) if other < bid[0]), len(top))
        if place == self._most:
            return None
        top = [*top[:place], bid, *top[place:]][: self._most]
        store.put(auction, top)
        return [place + 1, *bid]

    def read_ahead(self, rows: Sequence[list[str]], times_ms: Sequence[int], stores: FoldedStores) -> None:
        stores.store("top").read_ahead(fields[1] for fields in rows)


QUERIES: tuple[NexmarkQuery, ...] = (
    LocalItems(),
    AveragePrice(),
    HotItems(),
    HighestBid(),
    NewSellers(),
    UserSessions(),
    AuctionStatistics(),
    LastBid(),
    TopBids(),
)
