"""Report each visit to a site once, when it is over: ``txstores worker sessions:app --config worker.properties``.

Clicks of a user with less than half an hour between them are a visit. Clicks may come five minutes late and in any
order: one may join two visits. ``python sessions.py`` shows it with a few clicks. Needs the extra ``msgspec``.
"""

from __future__ import annotations

from dataclasses import dataclass

from stores.changelog import Record
from stores.records import INT64, STR, Session, Windowed
from stores.records.serdes import MsgspecJson
from stores.tasks import TaskContext
from stores.testing import AppDriver
from stores.worker import Application, Processor, Topic

MINUTE_MS = 60_000
GAP_MS, GRACE_MS = 30 * MINUTE_MS, 5 * MINUTE_MS


@dataclass(frozen=True)
class Visit:
    """A visit that is over."""

    start_ms: int
    end_ms: int
    pages: int


CLICKS = Topic("clicks", key=STR, value=STR)
"""The page of each click, by user."""
VISITS = Topic("visits", key=STR, value=MsgspecJson(Visit))
LATE = Topic("late-clicks", key=STR, value=STR)
"""Clicks that came after their visit was reported."""


def report(session: Windowed[str], pages: int, context: TaskContext) -> None:
    """Forward a visit that is over."""
    context.forward(VISITS, session.key, Visit(session.start_ms, session.end_ms, pages))


KEPT_MS = 120 * MINUTE_MS
OPEN = Session(STR, INT64, KEPT_MS, gap_ms=GAP_MS, grace_ms=GRACE_MS, on_close=report, name="open")


def click(record: Record[str, str], context: TaskContext) -> None:
    """Add a click to the visit that it belongs to, unless that is over."""
    if record.key is None:
        return
    if context.store(OPEN).merge(record.key, record.timestamp_ms, GAP_MS, lambda pages: sum(pages) + 1) is None:
        context.forward(LATE, record.key, record.value)


app = Application("visits", Processor([CLICKS], click, [OPEN]), topics={CLICKS: 4, VISITS: 4, LATE: 1})


if __name__ == "__main__":
    with AppDriver(app) as driver:
        for minute in (0, 35, 50, 30, 20, 100, 47, 140):
            driver.pipe(CLICKS, "ann", f"page at {minute}", minute * MINUTE_MS)
        for each in driver.read(VISITS):
            print(each.key, each.value)
        print("late:", [late.value for late in driver.read(LATE)])
