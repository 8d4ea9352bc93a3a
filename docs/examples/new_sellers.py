"""Find people who open auctions within the ten seconds in which they register: query 8 of Nexmark.

``txstores worker new_sellers:app --config worker.properties``. Both inputs are keyed by the person, so a task has both
sides of the join, each in a window store. The side that comes last finds the other. ``python new_sellers.py`` shows it.
"""

from __future__ import annotations

from stores.changelog import Record
from stores.records import INT64, STR, Window
from stores.tasks import TaskContext
from stores.testing import AppDriver
from stores.worker import Application, Processor, Topic

SIZE_MS, GRACE_MS, DAY_MS = 10_000, 5_000, 86_400_000
PEOPLE = Topic("people", key=STR, value=STR)
"""The name of each person who registers."""
AUCTIONS = Topic("auctions", key=STR, value=STR)
"""Each auction that is opened, by its seller."""
NEW_SELLERS = Topic("new-sellers", key=STR, value=INT64)
"""The number of auctions so far of a person who is new in the window, by the person's name."""
NAMES = Window(STR, STR, SIZE_MS, retention_ms=DAY_MS, name="names")
OPENED = Window(STR, INT64, SIZE_MS, retention_ms=DAY_MS, name="opened")


def join(record: Record[str, str], context: TaskContext) -> None:
    """Keep a person or count an auction in its window, and forward the pair if the window has both."""
    if record.key is None or record.value is None:
        return
    names, opened = context.store(NAMES), context.store(OPENED)
    start_ms = record.timestamp_ms // SIZE_MS * SIZE_MS
    if context.partition.topic == PEOPLE.name:
        name: str | None = names.update(
            record.key, record.timestamp_ms, lambda _: record.value or "", grace_ms=GRACE_MS
        )
        number = opened.fetch_one(record.key, start_ms)
    else:
        name = names.fetch_one(record.key, start_ms)
        number = opened.update(record.key, record.timestamp_ms, lambda before: (before or 0) + 1, grace_ms=GRACE_MS)
    if name is not None and number is not None:
        context.forward(NEW_SELLERS, name, number)


app = Application(
    "new-sellers",
    [Processor([PEOPLE, AUCTIONS], join, [NAMES, OPENED])],
    topics={PEOPLE: 4, AUCTIONS: 4, NEW_SELLERS: 4},
)

if __name__ == "__main__":
    with AppDriver(app, partitions=2) as driver:
        driver.pipe(AUCTIONS, "p7", "a lamp", 1_000)
        driver.pipe(PEOPLE, "p7", "Ann", 2_000)
        driver.pipe(AUCTIONS, "p7", "a chair", 9_000)
        driver.pipe(PEOPLE, "p8", "Bob", 9_000)
        driver.pipe(AUCTIONS, "p8", "a pen", 10_000)
        print([(each.key, each.value) for each in driver.read(NEW_SELLERS)])
