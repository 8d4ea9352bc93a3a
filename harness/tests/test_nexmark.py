"""The events of Nexmark, and its queries on events by hand. ``test_workloads_expected`` has Spark SQL beside them."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from harness.experiments.nexmark_cores import FLINK_PER_CORE
from harness.experiments.throughput.report import NEXMARK
from harness.tests.fake_task import run
from harness.workloads.nexmark import START_MS, NexmarkEvents
from harness.workloads.nexmark_queries import DAY_MS, QUERIES
from harness.workloads.workload import Event


class AllEvents(NexmarkEvents):
    """Every event, with its number as a person, an auction or the auction of a bid as its key."""

    key_fields: ClassVar = {"P": 1, "A": 1, "B": 1}


def fields(events: list[Event], kind: str) -> list[list[str]]:
    return [event.value.decode().split(",") for event in events if event.value[:1] == kind.encode()]


def test_people_auctions_and_bids_come_in_their_proportions_and_with_their_skew() -> None:
    events = list(AllEvents().events(3, 50_000))
    people, auctions, bids = (fields(events, kind) for kind in "PAB")
    assert (len(people), len(auctions), len(bids)) == (1_000, 3_000, 46_000)
    assert [int(person[1]) for person in people] == list(range(1_000, 2_000))
    assert [int(auction[1]) for auction in auctions] == list(range(1_000, 4_000))
    assert sum(int(bid[1]) % 100 == 0 for bid in bids) / len(bids) == pytest.approx(0.5, abs=0.02)
    assert sum(int(bid[2]) % 100 == 1 for bid in bids) / len(bids) == pytest.approx(0.75, abs=0.02)
    assert sum(int(auction[3]) % 100 == 0 for auction in auctions) / len(auctions) == pytest.approx(0.75, abs=0.03)
    assert max(int(bid[1]) for bid in bids) <= 4_000 + 10
    assert {auction[2] for auction in auctions} == {"10", "11", "12", "13", "14"}
    sizes = [sum(len(event.value) for event in events if event.value[:1] == kind) for kind in (b"P", b"A", b"B")]
    assert [size // number for size, number in zip(sizes, (1_000, 3_000, 46_000), strict=True)] == [
        pytest.approx(mean, rel=0.05) for mean in (200, 500, 100)
    ]


def test_events_repeat_for_a_seed_wherever_they_begin_and_bids_are_the_same_for_every_query() -> None:
    for query in QUERIES:
        events = list(query.events(3, 3_000))
        assert events == [*query.events(3, 1_700), *query.events(3, 1_300, first=1_700)]
        assert events != list(query.events(4, 3_000))
        assert [event.timestamp_ms for event in events] == sorted(event.timestamp_ms for event in events)
    bids = [
        {event.value for event in list(query.events(3, 5_000)) if event.value[:1] == b"B"}
        for query in QUERIES
        if "B" in query.key_fields
    ]
    assert len(set.intersection(*bids)) > 4_000


def person(number: int, name: str, state: str, at_ms: int = 0) -> Event:
    return Event(b"%d" % number, f"P,{number},{name},Kent,{state},xyz".encode(), START_MS + at_ms)


def auction(number: int, category: int, seller: int, at_ms: int = 0, expires_ms: int = 0) -> Event:
    return Event(b"k", f"A,{number},{category},{seller},{START_MS + expires_ms},xyz".encode(), START_MS + at_ms)


def bid(number: int, bidder: int, price: int, at_ms: int = 0) -> Event:
    return Event(b"k", f"B,{number},{bidder},{price},Apple,xyz".encode(), START_MS + at_ms)


def window(key: str, from_ms: int, length_ms: int = 10_000) -> bytes:
    return f"{key}@{START_MS + from_ms}-{START_MS + from_ms + length_ms}".encode()


_DAY = START_MS // DAY_MS * DAY_MS - START_MS
CASES: dict[str, tuple[list[Event], dict[str, dict[bytes, bytes]], list[str]]] = {
    "nexmark_q3": (
        [
            auction(1, 10, 7),
            person(7, "Ann", "OR"),
            auction(2, 11, 7),
            auction(3, 10, 7),
            person(8, "Bob", "WA"),
            auction(4, 10, 8),
        ],
        {"people": {b"7": b'["Ann","Kent","OR"]'}, "auctions": {b"7": b'["1","3"]', b"8": b'["4"]'}},
        ["null", '[["Ann","Kent","OR","1"]]', "null", '[["Ann","Kent","OR","3"]]', "null", "null"],
    ),
    "nexmark_q4": (
        [
            bid(1, 5, 900),
            auction(1, 10, 7, 10, 20),
            bid(1, 5, 100, 10),
            bid(1, 6, 90, 11),
            bid(1, 6, 300, 20),
            bid(1, 6, 500, 21),
            auction(2, 10, 7, 30, 40),
            bid(2, 6, 101, 30),
        ],
        {
            "auctions": {
                b"1": b'["10",%d,%d,300]' % (START_MS + 10, START_MS + 20),
                b"2": b'["10",%d,%d,101]' % (START_MS + 30, START_MS + 40),
            },
            "categories": {b"10": b"[401,2]"},
        },
        ["null", "null", '["10",100]', "null", '["10",300]', "null", "null", '["10",200]'],
    ),
    "nexmark_q5": (
        [bid(1, 5, 1, 8_000), bid(2, 5, 1, 9_000), bid(2, 5, 1, 10_000)],
        {
            "bids": {
                **{window("1", from_ms): b"1" for from_ms in range(0, 10_000, 2_000)},
                window("2", 0): b"1",
                **{window("2", from_ms): b"2" for from_ms in range(2_000, 10_000, 2_000)},
                window("2", 10_000): b"1",
            },
            "hottest": {
                window("all", 0): b'[1,["1","2"]]',
                **{window("all", from_ms): b'[2,["2"]]' for from_ms in range(2_000, 10_000, 2_000)},
                window("all", 10_000): b'[1,["2"]]',
            },
        },
        [],
    ),
    "nexmark_q7": (
        [bid(1, 5, 10), bid(2, 5, 30), bid(3, 6, 30, 9_999), bid(4, 6, 20, 10_000)],
        {"highest": {window("all", 0): b'[30,"2","5"]', window("all", 10_000): b'[20,"4","6"]'}},
        ['[10,"1","5"]', '[30,"2","5"]', "null", '[20,"4","6"]'],
    ),
    "nexmark_q8": (
        [auction(1, 10, 7), person(7, "Ann", "WA", 9_999), auction(2, 10, 7, 9_999), auction(3, 10, 7, 10_000)],
        {"people": {window("7", 0): b'"Ann"'}, "sellers": {window("7", 0): b"2", window("7", 10_000): b"1"}},
        ["null", '["7","Ann",1]', '["7","Ann",2]', "null"],
    ),
    "nexmark_q11": (
        [bid(1, 5, 10), bid(2, 5, 10, 10_000), bid(1, 6, 10, 10_000), bid(1, 5, 10, 20_001)],
        {
            "sessions": {
                window("5", 0): b"2",
                window("5", 20_001, 0): b"1",
                window("6", 10_000, 0): b"1",
            }
        },
        [],
    ),
    "nexmark_q17": (
        [bid(1, 5, 9_999), bid(1, 5, 10_000), bid(1, 5, 1_000_000), bid(2, 5, 7), bid(1, 5, 3, DAY_MS)],
        {
            "days": {
                window("1", _DAY, DAY_MS): b"[3,1,1,1,9999,1000000,1019999]",
                window("1", _DAY + DAY_MS, DAY_MS): b"[1,1,0,0,3,3,3]",
                window("2", _DAY, DAY_MS): b"[1,1,0,0,7,7,7]",
            }
        },
        [],
    ),
    "nexmark_q18": (
        [bid(1, 5, 10), bid(2, 5, 30), bid(1, 5, 20, 3)],
        {"bids": {b"5,1": b'[20,"Apple",%d]' % (START_MS + 3), b"5,2": b'[30,"Apple",%d]' % START_MS}},
        [],
    ),
    "nexmark_q19": (
        [*(bid(1, number, 10 * number) for number in range(1, 12)), bid(1, 99, 20), bid(1, 98, 50)],
        {"top": {b"1": b"[%s]" % b",".join(b'[%d,"%d"]' % pair for pair in (
            *((10 * number, number) for number in range(11, 4, -1)), (50, 98), (40, 4), (30, 3),
        ))}},
        [*(f'[1,{10 * number},"{number}"]' for number in range(1, 12)), "null", '[8,50,"98"]'],
    ),
}  # fmt: skip
"""For each query some events, the state after them, and the outputs if they say more than the state."""


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
def test_a_query_keeps_and_forwards_what_it_is_defined_to(query: Any) -> None:
    events, states, outputs = CASES[query.name]
    task = run(query, events)
    assert task.states == states
    forwarded = [value.decode() for _, _, value, _ in task.outputs if value is not None]
    assert forwarded == outputs or not outputs


def figure(workload: str) -> dict[str, Any]:
    return {
        "workload": workload,
        "durability": "CHANGELOG",
        "backend": "lmdb-indexed-batch",
        "records_per_commit": 1_000,
        "repeats": 3,
        "records_per_s": 90_000.0,
        "cpu_us_per_record": 10.0,
    }


def test_the_report_says_how_many_of_all_events_a_core_takes_and_what_is_published_of_flink() -> None:
    workloads = ("nexmark_q11_batches", "nexmark_q11", "nexmark_q3", "count")
    (table,) = NEXMARK.tables({"throughput": list(map(figure, workloads))})
    assert [[row[0], row[2]] for row in table.rows] == [["q3", "records"], ["q11", "records"], ["q11", "batches"]]
    # 10 us for each read event, of which there are 4 in 50 and 46 in 50.
    q3, *q11 = (row[-2:] for row in table.rows)
    assert [q3, *q11] == [["1,250,000", "152,000"], ["109,000", "39,700"], ["109,000", "39,700"]]
    assert {query.name for query in QUERIES} == FLINK_PER_CORE.keys()
