"""Report cards that spend too much within ten minutes: ``txstores worker fraud:app --config worker.properties``.

The state of a card is its recent payments. It expires once it is too old for any payment that may still come late.
``python fraud.py`` shows it with a few payments. Needs the extra ``msgspec``.
"""

from __future__ import annotations

from typing import NamedTuple

from stores.changelog import Record
from stores.records import INT64, STR, TimestampedKeyValue
from stores.records.serdes import MsgspecJson
from stores.tasks import DeadLetterTopic, TaskContext
from stores.testing import AppDriver
from stores.worker import Application, Processor, Topic

MINUTE_MS = 60_000
WITHIN_MS, LATE_MS, LIMIT_CENTS = 10 * MINUTE_MS, 5 * MINUTE_MS, 100_000


class Payment(NamedTuple):
    """A payment as the state of its card has it."""

    at_ms: int
    cents: int


PAYMENTS = Topic("payments", key=STR, value=INT64)
"""The cents of each payment, by card."""
ALARMS = Topic("alarms", key=STR, value=INT64)
"""The cents that a card has spent within the time."""
RECENT = TimestampedKeyValue(key=STR, value=MsgspecJson(list[Payment]), ttl_ms=WITHIN_MS + LATE_MS, name="recent")


def check(record: Record[str, int], context: TaskContext) -> None:
    """Add a payment to the recent ones of its card, and report the card if they are too much."""
    if record.key is None or record.value is None:
        raise ValueError("a payment has a card and an amount")
    payment = Payment(record.timestamp_ms, record.value)

    def with_payment(recent: list[Payment]) -> list[Payment]:
        known = [*recent, payment]
        needed_ms = max(each.at_ms for each in known) - WITHIN_MS - LATE_MS
        return [each for each in known if each.at_ms > needed_ms]

    recent = context.store(RECENT).update(record.key, with_payment, [], payment.at_ms)
    spent = sum(each.cents for each in recent if payment.at_ms - WITHIN_MS < each.at_ms <= payment.at_ms)
    if spent > LIMIT_CENTS:
        context.forward(ALARMS, record.key, spent)


FAILED = DeadLetterTopic("payments-failed")
checking = Processor([PAYMENTS], check, [RECENT], on_error=FAILED)
app = Application("fraud", checking, topics={PAYMENTS: 4, ALARMS: 4, FAILED.topic: 1})


if __name__ == "__main__":
    sample = [(0, "ann", 600), (1, "bob", 900), (4, "ann", 300), (9, "ann", 200), (7, "bob", 200), (23, "eve", 10)]
    with AppDriver(app) as driver:
        for minute, card, euros in sample:
            driver.pipe(PAYMENTS, card, euros * 100, minute * MINUTE_MS)
        for alarm in driver.read(ALARMS):
            print(f"{alarm.key} has spent {alarm.value} cents by minute {alarm.timestamp_ms // MINUTE_MS}")
        print("state is left of", [card for card, _ in driver.store(RECENT).all()])
