"""Rank the ten pages with the most clicks of each minute: ``txstores worker top_ten:app --config worker.properties``.

Each task counts its pages, and forwards its own ten when the minute is over. A second sub-topology ranks them all.
``python top_ten.py`` shows it with a few clicks. Needs the extra ``msgspec``.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from itertools import groupby

from stores.changelog import Record
from stores.records import INT64, STR, TimestampedKeyValue, Window
from stores.records.serdes import MsgspecJson
from stores.tasks import PunctuationType, TaskContext
from stores.testing import AppDriver
from stores.worker import Application, Processor, Topic

MINUTE_MS, GRACE_MS, DAY_MS = 60_000, 10_000, 86_400_000
Ranks = list[tuple[str, int]]
"""Pages with their clicks, the most clicks first."""
CLICKS = Topic("clicks", key=STR, value=STR)
"""The user of each click, by page."""
PARTS = Topic("parts", key=INT64, value=MsgspecJson(Ranks))
"""The ten pages of each task, by the start of the minute."""
TOP_TEN = Topic("top-ten", key=INT64, value=MsgspecJson(Ranks))
"""The ten pages of all tasks, by the start of the minute: the last record of a minute is the ranking."""
HITS = Window(key=STR, value=INT64, size_ms=MINUTE_MS, retention_ms=365 * DAY_MS, name="hits")
"""Minutes are removed when they are forwarded. Only after a year without any click they would be lost before."""
RANKS = TimestampedKeyValue(key=INT64, value=MsgspecJson(Ranks), ttl_ms=DAY_MS, name="ranks")


def ten(ranks: Iterable[tuple[str, int]]) -> Ranks:
    """Return the ten with the most clicks, in that order."""
    return nsmallest(10, ranks, key=lambda rank: (-rank[1], rank[0]))


def count(record: Record[str, str], context: TaskContext) -> None:
    """Count a click on a page in its minute, unless that is over."""
    if record.key is not None:
        context.store(HITS).update(record.key, record.timestamp_ms, lambda hits: (hits or 0) + 1, grace_ms=GRACE_MS)


def init(context: TaskContext) -> None:
    """Forward the ten pages of each minute that is over, each minute of the clicks."""

    def report(now_ms: int) -> None:
        hits = context.store(HITS)
        with hits.fetch_all(0, now_ms // MINUTE_MS * MINUTE_MS - MINUTE_MS - GRACE_MS) as over:
            for start_ms, windows in groupby(over, key=lambda each: each[0].start_ms):
                counted = [(window.key, clicks) for window, clicks in windows]
                context.forward(PARTS, start_ms, ten(counted), start_ms)
                for page, _ in counted:
                    hits.put(page, None, start_ms)

    context.schedule(MINUTE_MS, PunctuationType.STREAM_TIME, report)


def rank(record: Record[int, Ranks], context: TaskContext) -> None:
    """Rank the ten pages of a task among those of the others."""
    if record.key is None or record.value is None:
        return
    part = record.value
    ranking = context.store(RANKS).update(record.key, lambda ranks: ten([*ranks, *part]), [], record.key)
    context.forward(TOP_TEN, record.key, ranking)


processors = [Processor([CLICKS], count, [HITS], init), Processor([PARTS], rank, [RANKS])]
app = Application("top-ten", processors, topics={CLICKS: 4, PARTS: 4, TOP_TEN: 4})

if __name__ == "__main__":
    pages = ["home", "shop", "home", "help", "home", "shop"] * 20
    with AppDriver(app, partitions=2) as driver:
        for second, page in [*enumerate(pages), (200, "home"), (200, "shop")]:
            driver.pipe(CLICKS, page, "ann", second * 1_000)
        print({each.key: each.value for each in driver.read(TOP_TEN)})
