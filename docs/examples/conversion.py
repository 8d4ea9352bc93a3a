"""Convert payments at the rate of their time: ``txstores worker conversion:app --config worker.properties``.

Rates and payments may come five minutes late and in any order, so each payment waits that long for its rate (KIP-923).
A late rate takes its place in the history of its currency, and payments of before keep theirs. ``python conversion.py``
shows it with a few of them.
"""

from __future__ import annotations

from stores.changelog import Record
from stores.records import INT64, STR, KeyValue, Versioned
from stores.tasks import PunctuationType, TaskContext
from stores.testing import AppDriver
from stores.worker import Application, Processor, Topic

MINUTE_MS = 60_000
GRACE_MS, HISTORY_MS = 5 * MINUTE_MS, 60 * MINUTE_MS
RATES = Topic("rates", key=STR, value=INT64)
"""The cents for 100 units of each currency, from the time of the record on."""
PAYMENTS = Topic("payments", key=STR, value=INT64)
"""The units of each payment, by currency."""
CONVERTED = Topic("converted", key=STR, value=INT64)
"""The cents of each payment, by currency."""
UNPRICED = Topic("unpriced", key=STR, value=INT64)
"""The units of payments from before the first rate of their currency."""
HISTORY = Versioned(key=STR, value=INT64, history_retention_ms=HISTORY_MS, name="history")
WAITING = KeyValue(key=STR, value=INT64, name="waiting")
"""Payments by time, offset and currency: text in the order of the times."""


def take(record: Record[str, int], context: TaskContext) -> None:
    """Keep a rate from its time on, and a payment until its rate is known."""
    if record.key is None:
        return
    if context.partition.topic == RATES.name:
        context.store(HISTORY).put(record.key, record.value, record.timestamp_ms)
    elif record.value is not None:
        context.store(WAITING).put(f"{record.timestamp_ms:013} {record.offset:019} {record.key}", record.value)


def init(context: TaskContext) -> None:
    """Convert the payments that no earlier rate can come for any more, each minute of the input."""

    def convert(now_ms: int) -> None:
        with context.store(WAITING).range(None, f"{max(now_ms - GRACE_MS, 0):013}") as due:
            for place, units in due:
                at_ms, _, currency = place.split(" ", 2)
                rate = context.store(HISTORY).get(currency, int(at_ms))
                if rate is None:
                    context.forward(UNPRICED, currency, units, int(at_ms))
                else:
                    context.forward(CONVERTED, currency, units * rate.value // 100, int(at_ms))
                context.store(WAITING).delete(place)

    context.schedule(MINUTE_MS, PunctuationType.STREAM_TIME, convert)


app = Application(
    "conversion",
    Processor([RATES, PAYMENTS], take, [HISTORY, WAITING], init),
    topics={RATES: 4, PAYMENTS: 4, CONVERTED: 4, UNPRICED: 4},
)

if __name__ == "__main__":
    sample = [(RATES, 110, 10), (PAYMENTS, 200, 14), (PAYMENTS, 200, 9), (RATES, 130, 16), (PAYMENTS, 200, 17)]
    with AppDriver(app) as driver:
        for topic, number, minute in [*sample, (RATES, 120, 13), (PAYMENTS, 1, 30)]:
            driver.pipe(topic, "usd", number, minute * MINUTE_MS)
        print("converted:", [(each.value, each.timestamp_ms // MINUTE_MS) for each in driver.read(CONVERTED)])
        print("unpriced:", [(each.value, each.timestamp_ms // MINUTE_MS) for each in driver.read(UNPRICED)])
