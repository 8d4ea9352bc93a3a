"""Inputs of the applications among the examples, drawn by a seed, and their outputs as computed without them.

Records come late, and out of order, by as much as an application allows. A last record for each partition, days later,
ends what is open before it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, NamedTuple

from stores.changelog import Record
from stores.changelog.partitioners import of_murmur2
from stores.records import INT64

PARTITIONS = 4
MINUTE_MS = 60_000
BEGIN_MS = 1_700_000_000_000 // MINUTE_MS * MINUTE_MS
Outcome = dict[str, list[Any]]
"""The outputs of each topic as keys and values, sorted."""
Read = Callable[[Sequence[Record]], list[Any]]


class Sent(NamedTuple):
    """A record of an input."""

    topic: str
    key: str
    value: bytes
    time_ms: int


class Example(NamedTuple):
    """An application: its module, its number of tasks, and its input and outputs."""

    program: str
    tasks: int
    draw: Callable[[Random], list[Sent]]
    expected: Callable[[list[Sent]], Outcome]
    topics: dict[str, Read]
    """The outputs that are compared, each with the function that reads its records."""


def arriving(drawn: Random, late_ms: int, records: Iterable[Sent]) -> list[Sent]:
    """Return ``records`` in the order in which they arrive, each up to ``late_ms`` late."""
    return sorted(records, key=lambda each: each.time_ms + drawn.randrange(late_ms))


def last_ones(topic: str, value: bytes, time_ms: int) -> list[Sent]:
    """Return a record with that time for each partition."""
    keys: dict[int, str] = {}
    for number in range(10_000):
        keys.setdefault(of_murmur2(b"last-%d" % number, PARTITIONS), f"last-{number}")
    return [Sent(topic, key, value, time_ms) for key in keys.values()]


def is_last(each: Sent) -> bool:
    return each.key.startswith("last-")


def by_key(records: Iterable[Sent]) -> dict[str, list[Sent]]:
    """Return the records of each key, in their order."""
    found: dict[str, list[Sent]] = defaultdict(list)
    for each in records:
        found[each.key].append(each)
    return found


def draw_payments(drawn: Random) -> list[Sent]:
    times = (BEGIN_MS + drawn.randrange(180 * MINUTE_MS) for _ in range(2_000))
    payments = (
        Sent("payments", f"card-{drawn.randrange(40)}", INT64.serialize(drawn.randrange(100, 40_000)), time_ms)
        for time_ms in times
    )
    return arriving(drawn, 5 * MINUTE_MS, payments)


def alarms(sent: list[Sent]) -> Outcome:
    """Add up, at each payment, those of its card that have come, within the ten minutes up to its time."""
    found = []
    for card, payments in by_key(sent).items():
        for number, payment in enumerate(payments):
            spent = sum(
                INT64.deserialize(each.value)
                for each in payments[: number + 1]
                if payment.time_ms - 10 * MINUTE_MS < each.time_ms <= payment.time_ms
            )
            if spent > 100_000:
                found.append((card, spent))
    return {"alarms": sorted(found, key=str)}


def draw_clicks_of_users(drawn: Random) -> list[Sent]:
    """Draw clicks, and some of users without another one, which come too late for any visit."""
    clicks = [
        Sent("clicks", f"user-{drawn.randrange(30)}", b"page", BEGIN_MS + drawn.randrange(720 * MINUTE_MS))
        for _ in range(2_000)
    ]
    sent = arriving(drawn, 5 * MINUTE_MS, clicks)
    for number in range(20):
        place = drawn.randrange(len(sent) // 2, len(sent))
        sent.insert(place, Sent("clicks", f"late-{number}", b"page", BEGIN_MS + number))
    return sent + last_ones("clicks", b"page", BEGIN_MS + 2_000 * MINUTE_MS)


def visits(sent: list[Sent]) -> Outcome:
    """Divide the clicks of each user, in the order of their times, at gaps of more than half an hour."""
    found, late = [], []
    for user, clicks in by_key(sent).items():
        if user.startswith("late-"):
            late.append((user, "page"))
            continue
        times = sorted(each.time_ms for each in clicks)
        begins = [0, *(number for number in range(1, len(times)) if times[number] - times[number - 1] > 30 * MINUTE_MS)]
        if not is_last(clicks[0]):
            for begin, end in zip(begins, [*begins[1:], len(times)], strict=True):
                found.append((user, {"start_ms": times[begin], "end_ms": times[end - 1], "pages": end - begin}))
    return {"visits": sorted(found, key=str), "late-clicks": sorted(late, key=str)}


def draw_orders_of_products(drawn: Random) -> list[Sent]:
    products = [
        Sent("products", f"p{number}", json.dumps({"name": f"product {number}", "cents": 10 * number}).encode(), 0)
        for number in range(30)
    ]
    orders = (
        {"product": f"p{drawn.randrange(33)}", "quantity": drawn.randrange(1, 9)} for _ in range(1_000)
    )  # Some products are not in the catalogue.
    return products + [Sent("orders", f"o{number}", json.dumps(each).encode(), 0) for number, each in enumerate(orders)]


def priced(sent: list[Sent]) -> Outcome:
    found, failed = [], []
    for each in sent:
        if each.topic == "orders":
            order = json.loads(each.value)
            number = int(order["product"][1:])
            if number < 30:
                cents = 10 * number * order["quantity"]
                found.append((each.key, {"product": f"product {number}", "cents": cents}))
            else:
                failed.append((each.key, order))
    return {"priced": sorted(found, key=str), "orders-failed": sorted(failed, key=str)}


def draw_orders_and_payments(drawn: Random) -> list[Sent]:
    """Draw orders, of which some have one payment or two, before or after them; and some records that are too late."""
    records = []
    for number in range(600):
        time_ms = BEGIN_MS + drawn.randrange(60, 600) * MINUTE_MS + drawn.randrange(MINUTE_MS)
        records.append(Sent("orders", f"o{number}", INT64.serialize(drawn.randrange(1, 1_000)), time_ms))
        for _ in range(drawn.randrange(3)):
            paid_ms = time_ms + drawn.randrange(-20 * MINUTE_MS, 20 * MINUTE_MS)
            records.append(Sent("payments", f"o{number}", INT64.serialize(drawn.randrange(1, 1_000)), paid_ms))
    sent = arriving(drawn, 5 * MINUTE_MS, records)
    for number in range(20):
        place = drawn.randrange(len(sent) // 2, len(sent))
        sent.insert(place, Sent(drawn.choice(["orders", "payments"]), f"late-{number}", INT64.serialize(1), BEGIN_MS))
    return sent + last_ones("orders", INT64.serialize(1), BEGIN_MS + 2_000 * MINUTE_MS)


def joined(sent: list[Sent]) -> Outcome:
    """Compare each order with each payment of it, whatever their order."""
    lacks, alone = [], Counter[tuple[str, str, int]]()
    for key, records in by_key(sent).items():
        sides = {topic: [each for each in records if each.topic == topic] for topic in ("orders", "payments")}
        for topic, other in (("orders", "payments"), ("payments", "orders")):
            for each in sides[topic]:
                partners = [one for one in sides[other] if abs(one.time_ms - each.time_ms) <= 10 * MINUTE_MS]
                if topic == "orders":
                    cents = INT64.deserialize(each.value)
                    lacks += [(key, cents - INT64.deserialize(one.value)) for one in partners]
                if not partners and not is_last(each):
                    alone[key, topic, each.time_ms] += 1
    values = [
        (key, f"late in {topic}" if key.startswith("late-") else f"{number} in {topic}")
        for (key, topic, _), number in alone.items()
    ]
    return {"open": sorted(lacks, key=str), "alone": sorted(values, key=str)}


def draw_rates_and_payments(drawn: Random) -> list[Sent]:
    """Draw rates of some currencies, and payments from before the first of them on."""
    records = []
    for number in range(6):
        for minute in sorted(drawn.sample(range(30, 600), 60)):
            time_ms = BEGIN_MS + minute * MINUTE_MS + drawn.randrange(MINUTE_MS)
            records.append(Sent("rates", f"c{number}", INT64.serialize(drawn.randrange(50, 200)), time_ms))
        for _ in range(200):
            time_ms = BEGIN_MS + drawn.randrange(600 * MINUTE_MS)
            records.append(Sent("payments", f"c{number}", INT64.serialize(drawn.randrange(1, 1_000)), time_ms))
    return arriving(drawn, 5 * MINUTE_MS, records) + last_ones("payments", INT64.serialize(1), BEGIN_MS + 10**9)


def converted(sent: list[Sent]) -> Outcome:
    """Take the last rate up to the time of each payment, whatever came first."""
    found, unpriced = [], []
    for currency, records in by_key(sent).items():
        rates = {each.time_ms: INT64.deserialize(each.value) for each in records if each.topic == "rates"}
        for each in records:
            if each.topic == "payments" and not is_last(each):
                units, times = INT64.deserialize(each.value), [time_ms for time_ms in rates if time_ms <= each.time_ms]
                if times:
                    found.append((currency, units * rates[max(times)] // 100))
                else:
                    unpriced.append((currency, units))
    return {"converted": sorted(found, key=str), "unpriced": sorted(unpriced, key=str)}


def draw_clicks_on_pages(drawn: Random) -> list[Sent]:
    clicks = (
        Sent("clicks", f"page-{int(drawn.paretovariate(0.7))}"[:8], b"ann", BEGIN_MS + drawn.randrange(8 * MINUTE_MS))
        for _ in range(3_000)
    )
    return arriving(drawn, 10_000, clicks) + last_ones("clicks", b"ann", BEGIN_MS + 5_000 * MINUTE_MS)


def rankings(sent: list[Sent]) -> Outcome:
    """Rank the pages of each minute. One that were counted twice would be in a ranking twice."""
    minutes: dict[int, Counter[str]] = defaultdict(Counter)
    for each in sent:
        if not is_last(each):
            minutes[each.time_ms // MINUTE_MS * MINUTE_MS][each.key] += 1
    ranked = []
    for start_ms, counted in sorted(minutes.items()):
        order = sorted((-clicks, page) for page, clicks in counted.items())
        ranked.append((start_ms, [[page, -clicks] for clicks, page in order[:10]]))
    return {"top-ten": ranked}


def draw_bids(drawn: Random) -> list[Sent]:
    bids = (
        Sent("bids", f"item-{int(drawn.paretovariate(0.7))}"[:8], INT64.serialize(drawn.randrange(1, 1_000)), time_ms)
        for time_ms in (BEGIN_MS + drawn.randrange(60_000) for _ in range(2_000))
    )
    return arriving(drawn, 5_000, bids) + last_ones("bids", INT64.serialize(1), BEGIN_MS + 5_000 * MINUTE_MS)


def hottest(sent: list[Sent]) -> Outcome:
    """Count the bids of each window in one go over all of them."""
    bids = [each for each in sent if not is_last(each)]
    windows = []
    for start_ms in range(BEGIN_MS - 8_000, BEGIN_MS + 60_000, 2_000):
        counted = Counter(each.key for each in bids if start_ms <= each.time_ms < start_ms + 10_000)
        if counted:
            most = max(counted.values())
            windows.append((start_ms, [most, sorted(key for key, number in counted.items() if number == most)]))
    return {"hottest": windows}


def draw_people_and_auctions(drawn: Random) -> list[Sent]:
    """Draw people and the auctions of some of them, before and after, within the window and not."""
    records = []
    for number in range(400):
        time_ms = BEGIN_MS + drawn.randrange(120_000)
        records.append(Sent("people", f"p{number}", b"name %d" % number, time_ms))
        for _ in range(drawn.randrange(4)):
            opened_ms = max(BEGIN_MS, time_ms + drawn.randrange(-10_000, 15_000))
            records.append(Sent("auctions", f"p{number}", b"item", opened_ms))
    return arriving(drawn, 5_000, records)


def new_sellers(sent: list[Sent]) -> Outcome:
    """Count the auctions of each person within the window of the person, whatever came first."""
    totals = []
    for records in by_key(sent).values():
        [person] = [each for each in records if each.topic == "people"]
        number = sum(each.time_ms // 10_000 == person.time_ms // 10_000 for each in records) - 1
        totals += [(person.value.decode(), number)] if number else []
    return {"new-sellers": sorted(totals)}


def values_by(deserialize: Callable[[bytes], Any]) -> Read:
    """Return a function that reads the key and the value of each record."""

    def read(records: Sequence[Record]) -> list[Any]:
        pairs = [((each.key or b"").decode(), deserialize(each.value or b"")) for each in records]
        return sorted(pairs, key=str)

    return read


def last_rankings(records: Sequence[Record]) -> list[Any]:
    """Return the last record of each minute."""
    last = {INT64.deserialize(each.key or b""): json.loads(each.value or b"") for each in records}
    return sorted(last.items())


def last_numbers(records: Sequence[Record]) -> list[Any]:
    """Return the last number of each key."""
    return sorted({(each.key or b"").decode(): INT64.deserialize(each.value or b"") for each in records}.items())


as_number, as_json, as_text = values_by(INT64.deserialize), values_by(json.loads), values_by(bytes.decode)
EXAMPLES = (
    Example("fraud", 4, draw_payments, alarms, {"alarms": as_number}),
    Example("sessions", 4, draw_clicks_of_users, visits, {"visits": as_json, "late-clicks": as_text}),
    Example("enrichment", 4, draw_orders_of_products, priced, {"priced": as_json, "orders-failed": as_json}),
    Example("join", 4, draw_orders_and_payments, joined, {"open": as_number, "alone": as_text}),
    Example("conversion", 4, draw_rates_and_payments, converted, {"converted": as_number, "unpriced": as_number}),
    Example("new_sellers", 4, draw_people_and_auctions, new_sellers, {"new-sellers": last_numbers}),
    Example("hot_items", 8, draw_bids, hottest, {"hottest": last_rankings}),
    Example("top_ten", 8, draw_clicks_on_pages, rankings, {"top-ten": last_rankings}),
)
