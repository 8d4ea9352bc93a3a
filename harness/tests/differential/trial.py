"""A trial: a topology, and the input that its seed draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

COUNT, WINDOWS, SESSIONS, JOIN, LETTERS = "count", "windows", "sessions", "join", "dead-letters"
TOPOLOGIES = (COUNT, WINDOWS, SESSIONS, JOIN, LETTERS)
PARTITIONS = 3
SIZE_MS, GRACE_MS, GAP_MS = 10_000, 5_000, 3_000
"""Windows and sessions. The grace is no multiple of the size, so that it shows by which times windows close."""
RETENTION_MS = 86_400_000
START_MS = 1_700_000_000_000
BACKENDS = ("rocksdb-indexed-batch", "rocksdb-dual-store", "lmdb-native", "lmdb-indexed-batch", "sqlite-native")
UNREADABLE, RAISING = b"\xff\xfe", b"x17"
"""Values for dead letters: no UTF-8, and no number."""
_KEYS = [f"k{number}".encode() for number in range(12)]
_STEP_MS = 200
_CHUNK_MAX = 30
_TABLES = 4
KILLS, RECORDS = 5, 2_000
"""The size of a trial."""


class Input(NamedTuple):
    """A record of an input topic, ``input`` or ``table``."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...] = ()


class Step(NamedTuple):
    """Records of one transaction, which is aborted or not. ``waits``: both have committed all records before it."""

    records: tuple[Input, ...]
    aborted: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """A topology, with about as many records, whose tasks are killed ``kills`` times on each side."""

    topology: str
    seed: int
    kills: int = KILLS
    records: int = RECORDS

    @property
    def name(self) -> str:
        """The first part of the names of topics and applications."""
        return f"{self.topology}-{self.seed}"

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the input topics."""
        return ("table", "input") if self.topology == JOIN else ("input",)

    def random(self, use: str) -> Random:
        """Return the random numbers for one use."""
        return Random(f"{self.topology} {self.seed} {use}")

    def settings(self) -> dict[str, Any]:
        """Return the settings of both sides: the backend and the scope of transactions are of ours alone."""
        random = self.random("settings")
        return {
            "backend": random.choice(BACKENDS),
            "scope": random.choice(["task", "thread"]),
            "commit_interval_ms": random.choice([50, 100, 300]),
        }

    def steps(self) -> list[Step]:
        """Return the input. A table is whole before the records that are joined with it, and then changed."""
        random = self.random("input")
        if self.topology != JOIN:
            return list(_steps(self._inputs(random), random))
        steps: list[Step] = []
        for number in range(_TABLES):
            for inputs in (_table(random, number), self._inputs(random, self.records // _TABLES, number)):
                first, *rest = _steps(inputs, random)
                steps += [first._replace(waits=bool(steps)), *rest]
        return steps

    def _inputs(self, random: Random, count: int | None = None, part: int = 0) -> Iterator[Input]:
        """Yield records whose times go on by ``_STEP_MS``, on the average. One in five is earlier than others."""
        count = self.records if count is None else count
        now_ms = START_MS + part * count * _STEP_MS
        for number in range(count):
            now_ms += round(random.expovariate(1 / _STEP_MS))
            back_ms = random.choices([0, 8_000, 40_000], [78, 17, 5])[0]
            time_ms = max(START_MS, now_ms - round(random.uniform(0, back_ms)))
            key = None if random.random() < 0.01 else random.choice(_KEYS)
            value = None if random.random() < 0.02 else b"%d" % number
            headers: tuple[tuple[str, bytes], ...] = ()
            if self.topology == LETTERS:
                value = random.choices([value, UNREADABLE, RAISING], [92, 4, 4])[0]
                headers = (("origin", b"%d" % number),)
            yield Input("input", _partition(key, random), key, value, time_ms, headers)


def _table(random: Random, part: int) -> Iterator[Input]:
    """Yield some records for each key, also out of order, of which a few delete it."""
    for number in range(4 * len(_KEYS)):
        key = random.choice(_KEYS)
        value = None if random.random() < 0.15 else b"t%d-%d" % (part, number)
        yield Input("table", _partition(key, random), key, value, START_MS + random.randrange(60_000))


def _partition(key: bytes | None, random: Random) -> int:
    return random.randrange(PARTITIONS) if key is None else crc32(key) % PARTITIONS


def _steps(inputs: Iterator[Input], random: Random) -> Iterator[Step]:
    """Yield the records in transactions; after some comes another one, with other records, that is aborted."""
    rest = list(inputs)
    while rest:
        size = random.randint(1, _CHUNK_MAX)
        records, rest = tuple(rest[:size]), rest[size:]
        yield Step(records)
        if random.random() < 0.1:
            yield Step(tuple(each._replace(value=b"-1") for each in records), aborted=True)


def committed_inputs(steps: list[Step]) -> list[Input]:
    """Return the records that readers see, in their order."""
    return [record for step in steps if not step.aborted for record in step.records]
