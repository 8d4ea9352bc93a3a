"""Report each visit to a site once, when it is over: ``txstores worker sessions:app --config worker.properties``.

Clicks of a user with less than half an hour between them are a visit. Clicks may come five minutes late and in any
order: one may join two visits. ``python sessions.py`` shows it with a few clicks. Needs the extra ``msgspec``.
"""

from __future__ import annotations

from dataclasses import dataclass

from stores.changelog import Record
from stores.records import INT64, STR, Session
from stores.records.serdes import MsgspecJson
from stores.tasks import PunctuationType, TaskContext
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
OPEN = Session(key=STR, value=INT64, retention_ms=365 * 1_440 * MINUTE_MS, name="open")
"""Visits are removed when they are reported. Only after a year without any click they would be lost before."""


def click(record: Record[str, str], context: TaskContext) -> None:
    """Add a click to the visit that it belongs to."""
    if record.key is None:
        return
    visit = context.store(OPEN).merge(
        record.key, record.timestamp_ms, GAP_MS, lambda pages: sum(pages) + 1, grace_ms=GRACE_MS
    )
    if visit is None:
        context.forward(LATE, record.key, record.value)


def init(context: TaskContext) -> None:
    """Report the visits that are over, each minute of the clicks."""

    def report(now_ms: int) -> None:
        visits = context.store(OPEN)
        with visits.find_sessions_range(None, None, 0, now_ms) as sessions:
            for session, pages in sessions:
                if session.end_ms + GAP_MS + GRACE_MS < now_ms:
                    context.forward(VISITS, session.key, Visit(session.start_ms, session.end_ms, pages), now_ms)
                    visits.remove(session)

    context.schedule(MINUTE_MS, PunctuationType.STREAM_TIME, report)


app = Application("visits", Processor([CLICKS], click, [OPEN], init), topics={CLICKS: 4, VISITS: 4, LATE: 1})


if __name__ == "__main__":
    with AppDriver(app) as driver:
        for minute in (0, 35, 50, 30, 20, 100, 47, 140):
            driver.pipe(CLICKS, "ann", f"page at {minute}", minute * MINUTE_MS)
        for each in driver.read(VISITS):
            print(each.key, each.value)
        print("late:", [late.value for late in driver.read(LATE)])
