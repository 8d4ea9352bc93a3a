"""The events of Nexmark: people who register, open auctions, and bid.

Of 50 events one is a person, three are auctions and 46 are bids. An auction may be of a seller who registers a little
later, and a bid for an auction that is opened a little later. Half of the bids are for one auction of the last hundred,
three quarters of the bids and auctions are of one person of the last hundred.

The value of an event is text with commas: ``P,person,name,city,state``, ``A,auction,category,seller,expires_ms`` or
``B,auction,bidder,price,channel``, and then text that brings it to the published mean size.

Source: Tucker, Tufte, Papadimos and Maier, "NEXMark: A Benchmark for Queries over Data Streams", 2002; the proportions,
the skew and the sizes are those of Apache Beam, ``NexmarkConfiguration`` and ``GeneratorConfig``, by default.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import ClassVar

from harness.workloads.workload import Event

START_MS = 1_700_000_000_000
PERSON, AUCTION, BID = "P", "A", "B"
_KINDS = PERSON + 3 * AUCTION + 46 * BID
"""The kinds of 50 events in their order."""
_CYCLE, _AUCTIONS_IN_CYCLE = len(_KINDS), _KINDS.count(AUCTION)
_SIZES = {PERSON: 200, AUCTION: 500, BID: 100}
"""The mean bytes of a value."""
_FIRST_ID, _FIRST_CATEGORY, _NUM_CATEGORIES = 1_000, 10, 5
_ACTIVE_PEOPLE, _AUCTIONS_IN_FLIGHT, _ID_LEAD = 1_000, 100, 10
_HOT_AUCTIONS, _HOT_SELLERS, _HOT_BIDDERS = 2, 4, 4
"""One in so many is not for the hot auction, or of the hot person."""
_HOT_EVERY = 100
_CHUNK_CYCLES = 200
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent")
_FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class NexmarkEvents:
    """An ``EventSource`` of the events that a query reads, keyed by one of their fields, in order of time."""

    events_per_s: int = 1_000
    """The rate of all events in event time, read or not."""

    key_fields: ClassVar[dict[str, int]] = {}
    """The kinds of events that the query reads, each with the field that is its key."""

    @property
    def share(self) -> float:
        """The part of all events that the query reads."""
        return sum(map(_KINDS.count, self.key_fields)) / _CYCLE

    def events(self, seed: int, count: int, first: int = 0) -> Iterator[Event]:
        """Yield ``count`` events from number ``first`` on, of those that the query reads."""
        places = [place for place, kind in enumerate(_KINDS) if kind in self.key_fields]
        in_chunk = _CHUNK_CYCLES * len(places)
        number, end = first, first + count
        while number < end:
            chunk, skipped = divmod(number, in_chunk)
            yield from islice(self._chunk(seed, chunk, places), skipped, skipped + end - number)
            number = (chunk + 1) * in_chunk

    def _chunk(self, seed: int, chunk: int, places: list[int]) -> Iterator[Event]:
        # Each chunk has its own random sources, so that events from the middle on need no earlier ones. So has each
        # kind, so that the same bids are made for queries that read auctions and for those that do not.
        randoms = {kind: Random(f"nexmark {seed} {chunk} {kind}") for kind in self.key_fields}
        for cycle in range(chunk * _CHUNK_CYCLES, (chunk + 1) * _CHUNK_CYCLES):
            for place in places:
                kind = _KINDS[place]
                fields = self._fields(kind, randoms[kind], cycle * _CYCLE + place)
                text = ",".join(map(str, fields))
                key = str(fields[self.key_fields[kind]])
                value = f"{text},{_padding(randoms[kind], _SIZES[kind] - len(text))}"
                yield Event(key.encode(), value.encode(), self._time_ms(cycle * _CYCLE + place))

    def _time_ms(self, number: int) -> int:
        return START_MS + number * 1_000 // self.events_per_s

    def _fields(self, kind: str, random: Random, number: int) -> tuple[str | int, ...]:
        if kind == PERSON:
            name = f"{random.choice(_FIRST_NAMES)} {random.choice(_LAST_NAMES)}"
            return kind, _last_person(number), name, random.choice(_CITIES), random.choice(_STATES)
        if kind == AUCTION:
            seller = _hot(_last_person(number)) if random.randrange(_HOT_SELLERS) else _person(random, number)
            horizon_ms = _AUCTIONS_IN_FLIGHT * _CYCLE * 1_000 // (_AUCTIONS_IN_CYCLE * self.events_per_s)
            expires_ms = self._time_ms(number) + 1 + random.randrange(max(1, 2 * horizon_ms))
            return kind, _last_auction(number), _FIRST_CATEGORY + random.randrange(_NUM_CATEGORIES), seller, expires_ms
        auction = _hot(_last_auction(number)) if random.randrange(_HOT_AUCTIONS) else _auction(random, number)
        bidder = _hot(_last_person(number)) + 1 if random.randrange(_HOT_BIDDERS) else _person(random, number)
        return kind, auction, bidder, round(100 * 10 ** (6 * random.random())), random.choice(_CHANNELS)


def _last_person(number: int) -> int:
    """Return the newest person at event ``number``, which is that person's own event or a later one."""
    return _FIRST_ID + number // _CYCLE


def _last_auction(number: int) -> int:
    """Return the newest auction at event ``number``. Before the first one it is the one to come."""
    cycle, place = divmod(number, _CYCLE)
    return _FIRST_ID + max(0, _AUCTIONS_IN_CYCLE * cycle + min(place, _AUCTIONS_IN_CYCLE) - 1)


def _hot(last_id: int) -> int:
    return _FIRST_ID + (last_id - _FIRST_ID) // _HOT_EVERY * _HOT_EVERY


def _person(random: Random, number: int) -> int:
    people = _last_person(number) - _FIRST_ID + 1
    active = min(people, _ACTIVE_PEOPLE)
    return _FIRST_ID + people - active + random.randrange(active + _ID_LEAD)


def _auction(random: Random, number: int) -> int:
    last = _last_auction(number)
    oldest = max(_FIRST_ID, last - _AUCTIONS_IN_FLIGHT)
    return oldest + random.randrange(last - oldest + 1 + _ID_LEAD)


def _padding(random: Random, size: int) -> str:
    """Return letters of about ``size``, 20 % more or less."""
    length = max(0, round(size * (0.8 + 0.4 * random.random())))
    first = random.randrange(len(_LETTERS))
    return (_LETTERS[first:] + _LETTERS * (length // len(_LETTERS) + 1))[:length]
