"""Find the auctions with most bids, in windows of ten seconds that begin every two: query 5 of Nexmark.

``txstores worker hot_items:app --config worker.properties``. Each task counts the bids of its auctions, and forwards
each count when the window is over. A second sub-topology keeps the highest ones. ``python hot_items.py`` shows it.
Needs the extra ``msgspec``.
"""

from __future__ import annotations

from typing import NamedTuple

from stores.changelog import Record
from stores.records import INT64, STR, TimestampedKeyValue, Window, Windowed
from stores.records.serdes import MsgspecJson
from stores.tasks import TaskContext
from stores.testing import AppDriver
from stores.worker import Application, Processor, Topic

SIZE_MS, HOP_MS, GRACE_MS, DAY_MS = 10_000, 2_000, 5_000, 86_400_000


class Hot(NamedTuple):
    """A number of bids, and the auctions that have so many in a window."""

    bids: int
    auctions: list[str]


BIDS = Topic("bids", key=STR, value=INT64)
"""The price of each bid, by auction."""
COUNTED = Topic("counted", key=INT64, value=MsgspecJson(Hot))
"""The bids of each auction, by the start of the window."""
HOTTEST = Topic("hottest", key=INT64, value=MsgspecJson(Hot))
"""The auctions with most bids, by the start of the window: the last record of a window is the answer."""


def over(window: Windowed[str], bids: int, context: TaskContext) -> None:
    """Forward the bids of an auction in a window that is over."""
    context.forward(COUNTED, window.start_ms, Hot(bids, [window.key]))


COUNTS = Window(STR, INT64, SIZE_MS, retention_ms=DAY_MS, grace_ms=GRACE_MS, on_close=over, name="counts")
HIGHEST = TimestampedKeyValue(key=INT64, value=MsgspecJson(Hot), ttl_ms=DAY_MS, name="highest")


def count(record: Record[str, int], context: TaskContext) -> None:
    """Count a bid in each window that has its time."""
    if record.key is None:
        return
    counts, last_ms = context.store(COUNTS), record.timestamp_ms // HOP_MS * HOP_MS
    for start_ms in range(max(0, last_ms - SIZE_MS + HOP_MS), last_ms + 1, HOP_MS):
        counts.put(record.key, (counts.fetch_one(record.key, start_ms) or 0) + 1, start_ms)


def compare(record: Record[int, Hot], context: TaskContext) -> None:
    """Compare an auction with the hottest ones of its window."""
    if record.key is None or record.value is None:
        return
    known = context.store(HIGHEST).get(record.key)
    most, auctions = (0, []) if known is None else known.value
    if record.value.bids >= most:
        more = record.value.bids > most
        hot = record.value if more else Hot(most, sorted({*auctions, *record.value.auctions}))
        context.store(HIGHEST).put(record.key, hot, record.key)
        context.forward(HOTTEST, record.key, hot)


processors = [Processor([BIDS], count, [COUNTS]), Processor([COUNTED], compare, [HIGHEST])]
app = Application("hot-items", processors, topics={BIDS: 4, COUNTED: 4, HOTTEST: 4})

if __name__ == "__main__":
    auctions = ["car", "hat", "car", "pen", "hat", "pen", "pen"]
    with AppDriver(app, partitions=2) as driver:
        for second, auction in [*enumerate(auctions, 10), (99, "car"), (99, "pen")]:
            driver.pipe(BIDS, auction, 100, second * 1_000)
        for start_ms, hot in sorted({each.key: each.value for each in driver.read(HOTTEST)}.items()):
            print(start_ms, hot)
