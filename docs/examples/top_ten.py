"""Rank the ten pages with the most clicks of each minute: ``txstores worker top_ten:app --config worker.properties``.

Each task counts its pages, and forwards the clicks of each when the minute is over. A second sub-topology ranks them.
``python top_ten.py`` shows it with a few clicks. Needs the extra ``msgspec``.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import NamedTuple

from stores.changelog import Record
from stores.records import INT64, STR, TimestampedKeyValue, Window, Windowed
from stores.records.serdes import MsgspecJson
from stores.tasks import TaskContext
from stores.testing import AppDriver
from stores.worker import Application, Processor, Topic

MINUTE_MS, GRACE_MS, DAY_MS = 60_000, 10_000, 86_400_000


class Rank(NamedTuple):
    """A page with its clicks in a minute."""

    page: str
    clicks: int


CLICKS = Topic("clicks", key=STR, value=STR)
"""The user of each click, by page."""
COUNTED = Topic("counted", key=INT64, value=MsgspecJson(Rank))
"""The clicks of each page, by the start of the minute."""
TOP_TEN = Topic("top-ten", key=INT64, value=MsgspecJson(list[Rank]))
"""The ten pages, by the start of the minute: the last record of a minute is the ranking."""


def over(window: Windowed[str], clicks: int, context: TaskContext) -> None:
    """Forward the clicks of a page in a minute that is over."""
    context.forward(COUNTED, window.start_ms, Rank(window.key, clicks))


HITS = Window(STR, INT64, MINUTE_MS, retention_ms=DAY_MS, grace_ms=GRACE_MS, on_close=over, name="hits")
RANKS = TimestampedKeyValue(key=INT64, value=MsgspecJson(list[Rank]), ttl_ms=DAY_MS, name="ranks")


def count(record: Record[str, str], context: TaskContext) -> None:
    """Count a click on a page in its minute, unless that is over."""
    if record.key is not None:
        context.store(HITS).update(record.key, record.timestamp_ms, lambda clicks: (clicks or 0) + 1)


def rank(record: Record[int, Rank], context: TaskContext) -> None:
    """Rank a page among the ten of its minute."""
    if record.key is None or record.value is None:
        return
    known = context.store(RANKS).get(record.key)
    before = [] if known is None else known.value
    ranking = nsmallest(10, [*before, record.value], key=lambda rank: (-rank.clicks, rank.page))
    if ranking != before:
        context.store(RANKS).put(record.key, ranking, record.key)
        context.forward(TOP_TEN, record.key, ranking)


processors = [Processor([CLICKS], count, [HITS]), Processor([COUNTED], rank, [RANKS])]
app = Application("top-ten", processors, topics={CLICKS: 4, COUNTED: 4, TOP_TEN: 4})

if __name__ == "__main__":
    pages = ["home", "shop", "home", "help", "home", "shop"] * 20
    with AppDriver(app, partitions=2) as driver:
        for second, page in [*enumerate(pages), (200, "home"), (200, "shop")]:
            driver.pipe(CLICKS, page, "ann", second * 1_000)
        last = {each.key: each.value for each in driver.read(TOP_TEN)}
    print(last[0])
