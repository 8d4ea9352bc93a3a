"""Join orders with payments within ten minutes, both ways: ``txstores worker join:app --config worker.properties``.

Both may come five minutes late and in any order. A record without a partner is reported when none can come any more.
``python join.py`` shows it with a few of them.
"""

from __future__ import annotations

from stores.changelog import Record
from stores.records import INT64, STR, KeyValue, Window
from stores.tasks import PunctuationType, TaskContext
from stores.testing import AppDriver
from stores.worker import Application, Processor, Topic

MINUTE_MS = 60_000
WITHIN_MS, GRACE_MS = 10 * MINUTE_MS, 5 * MINUTE_MS
KEPT_MS = 2 * WITHIN_MS + GRACE_MS
ORDERS = Topic("orders", key=STR, value=INT64)
"""The cents of each order, by its number."""
PAYMENTS = Topic("payments", key=STR, value=INT64)
"""The cents of each payment, by the number of the order."""
OPEN = Topic("open", key=STR, value=INT64)
"""The cents that an order lacks after a payment of it."""
ALONE = Topic("alone", key=STR, value=STR)
"""Records without a partner, and those that came too late, by the number of the order."""
SEEN = {
    each.name: Window(STR, INT64, WITHIN_MS, KEPT_MS, retain_duplicates=True, name=f"seen-{each.name}")
    for each in (ORDERS, PAYMENTS)
}
WAITING = KeyValue(key=STR, value=INT64, name="waiting")
"""The number of records without a partner by time, topic and order: text in the order of the times."""


def join(record: Record[str, int], context: TaskContext) -> None:
    """Join a record with all those of the other topic that fit, or let it wait for one."""
    topic, at_ms = context.partition.topic, record.timestamp_ms
    if record.key is None or record.value is None:
        return
    if at_ms < context.stream_time_ms - GRACE_MS:
        context.forward(ALONE, record.key, f"late in {topic}")
        return
    other = PAYMENTS.name if topic == ORDERS.name else ORDERS.name
    context.store(SEEN[topic]).put(record.key, record.value, at_ms)
    with context.store(SEEN[other]).fetch(record.key, at_ms - WITHIN_MS, at_ms + WITHIN_MS) as found:
        partners = list(found)
    waiting = context.store(WAITING)
    for partner_ms, cents in partners:
        waiting.delete(f"{partner_ms:013} {other} {record.key}")
        lacks = record.value - cents if topic == ORDERS.name else cents - record.value
        context.forward(OPEN, record.key, lacks, max(at_ms, partner_ms))
    if not partners:
        waiting.update(f"{at_ms:013} {topic} {record.key}", lambda number: number + 1, 0)


def init(context: TaskContext) -> None:
    """Report the records that no partner can come for any more, each minute of the input."""

    def report(now_ms: int) -> None:
        with context.store(WAITING).range(None, f"{max(now_ms - WITHIN_MS - GRACE_MS, 0):013}") as overdue:
            for key, number in overdue:
                _, topic, order = key.split(" ", 2)
                context.forward(ALONE, order, f"{number} in {topic}", now_ms)
                context.store(WAITING).delete(key)

    context.schedule(MINUTE_MS, PunctuationType.STREAM_TIME, report)


joining = Processor([ORDERS, PAYMENTS], join, [*SEEN.values(), WAITING], init)
app = Application("join", joining, topics={ORDERS: 4, PAYMENTS: 4, OPEN: 4, ALONE: 4})

if __name__ == "__main__":
    sample = [("o1", ORDERS, 0), ("o1", PAYMENTS, 9), ("o2", PAYMENTS, 8), ("o2", ORDERS, 5), ("o3", ORDERS, 10)]
    with AppDriver(app) as driver:
        for number, kind, minute in [*sample, ("o4", PAYMENTS, 30), ("o3", PAYMENTS, 12)]:
            driver.pipe(kind, number, 100, minute * MINUTE_MS)
        print("joined:", [each.key for each in driver.read(OPEN)])
        print("alone:", [(each.key, each.value) for each in driver.read(ALONE)])
