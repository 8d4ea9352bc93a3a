"""The writer and the readers of a trial, each for a thread of its own.

The writer makes random operations on a store, and adds each to the history before. A reader makes random queries, keeps
some scans open while the writer works, and checks answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from random import Random
from threading import Event
from typing import Any

from harness.checkers.isolation import ReadQuery, Several, Versions, VersionWindow, explained, refusal, shown
from harness.typed_maps import KINDS, PLAIN, PairScan, place, view_as_map
from stores.errors import NotUpToBoundError
from stores.interface import (
    IsolationLevel,
    KeyValueIterator,
    KeyValueSnapshot,
    KeyValueStore,
    KeyValueView,
    PositionBound,
    TopicPartition,
)

INPUT = TopicPartition("input", 0)
CHANGELOG = TopicPartition("changelog", 0)
KEYS = [bytes([first, second]) for first in b"\x00aA\xfe\xff" for second in b"\x00\x10a\x80\xff"] + [
    b"w%02d" % number for number in range(40)
]
"""Keys at the ends of the bytes' range, where order and prefixes are hardest, and enough for a commit in parts."""
_WEIGHTS = {"put": 55, "delete": 10, "delete_range": 6, "put_all": 8, "commit": 12, "rollback": 4, "pause": 5}


class ReadersWriter:
    """Writes to ``store`` in the thread that opened it; ``position`` counts its operations like input records.

    Keys and values are written to ``written``: ``store`` itself, or a typed store over it, as a map.
    """

    def __init__(
        self, store: KeyValueStore, written: Any, committed: Versions, uncommitted: Versions, random: Random
    ) -> None:
        self._written = written
        self._store, self._committed, self._uncommitted, self._random = store, committed, uncommitted, random
        self._state: dict[bytes, bytes] = {}
        self._kept: dict[bytes, bytes] = {}
        self._position = self._kept_position = -1
        self.operations = self.commits = 0

    def step(self) -> None:
        """Make one operation."""
        self.operations += 1
        kind = self._random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        getattr(self, f"_{kind}")()

    def _put(self) -> None:
        key, value = self._random.choice(KEYS), b"%d" % self.operations
        self._state[key] = value
        self._begin()
        self._written.put(key, value)
        self._end()

    def _delete(self) -> None:
        key = self._random.choice(KEYS)
        self._state.pop(key, None)
        self._begin()
        self._written.delete(key)
        self._end()

    def _delete_range(self) -> None:
        start, end = sorted(self._random.choices(KEYS, k=2))
        low, high = self._random.choice([(start, end)] * 8 + [(None, end), (start, None), (None, None)])
        reached = self._position
        for key in sorted(self._state):
            if (low is None or low <= key) and (high is None or key <= high):
                del self._state[key]
                self._begin_removal(reached)
        self._begin()
        self._written.delete_range(low, high)
        self._end()

    def _begin_removal(self, position: int) -> None:
        """Do nothing: a plain store deletes a range in one step."""

    def _put_all(self) -> None:
        """Begin a version for each pair, because readers of uncommitted data may see each of them."""
        keys = self._random.choices(KEYS, k=self._random.choice([2, 10, 80]))
        pairs = [(key, b"%d-%d" % (self.operations, at)) for at, key in enumerate(keys)]
        reached = self._position
        for key, value in pairs[:-1]:
            self._state[key] = value
            self._uncommitted.begin(self._state, reached)
        self._state.update(pairs[-1:])
        self._begin()
        self._written.put_all(pairs)
        self._end()

    def _commit(self) -> None:
        self.commits += 1
        if self._committed is not self._uncommitted:
            self._committed.begin(self._state, self._position)
        self._store.commit({CHANGELOG: self.commits})
        self._committed.end()
        self._kept, self._kept_position = dict(self._state), self._position

    def _rollback(self) -> None:
        # A store without isolation keeps its writes; its position is reset all the same.
        if self._store.transactional:
            self._state = dict(self._kept)
        self._position = self._kept_position
        self._uncommitted.begin(self._state, self._position)
        self._store.rollback()
        self._uncommitted.end()

    def _pause(self) -> None:
        """Give the readers time to finish their queries."""
        time.sleep(self._random.choice([0.0, 1e-3]))

    def _begin(self) -> None:
        self._position = self.operations
        self._uncommitted.begin(self._state, self._position)

    def _end(self) -> None:
        self._store.advance_position(INPUT, self._position)
        self._uncommitted.end()


class TypedWriter(ReadersWriter):
    """Writes to a typed store, and commits the store below it. A range is deleted key by key."""

    def _begin_removal(self, position: int) -> None:
        self._uncommitted.begin(self._state, position)


_QUERIES = ("get", "get_many", "range", "range", "all", "prefix")
_TYPED_QUERIES = ("get", "range", "range", "all")
"""Queries that every kind of typed store answers from one snapshot."""
_TIMED_QUERIES = {"window": ("of_key", "of_key", "of_times"), "session": ("of_key", "of_key")}
"""Queries that only some kinds answer."""
_PREFIXES = sorted({key[:1] for key in KEYS} | {b"", b"w1", b"\xff\xff"})
_TIMES = sorted({place(key) + beside for key in KEYS for beside in (-1, 0, 1)})
"""Times at the places of keys and beside them, where bounds are hardest."""


@dataclass(frozen=True, slots=True)
class Question:
    """A query of a map, and the function that asks it of a view of a store."""

    query: ReadQuery
    ask: Callable[[KeyValueView], Any]


def question(kind: str, random: Random) -> Question:
    """Return a random query for a store of ``kind``, one of ``harness.typed_maps.KINDS``."""
    if not kind:
        query = _query(random.choice(_QUERIES), random)
        return Question(query, lambda view: _answer(view, query))
    query_kind = random.choice(_TYPED_QUERIES + _TIMED_QUERIES.get(kind, ()))
    if query_kind in ("of_key", "of_times"):
        return _timed(kind, query_kind, random)
    typed = _query(query_kind, random)
    return Question(typed, lambda view: _typed_answer(kind, view, typed))


def _query(kind: str, choose: Random) -> ReadQuery:
    reverse = choose.random() < 0.5
    if kind == "get":
        return ReadQuery("get", (choose.choice(KEYS),))
    if kind == "get_many":
        return ReadQuery("get_many", tuple(choose.choices(KEYS, k=6)))
    if kind == "prefix":
        return ReadQuery("prefix", (choose.choice(_PREFIXES),), reverse=reverse)
    if kind == "all":
        return ReadQuery("range", reverse=reverse)
    start, end = sorted(choose.choices(KEYS, k=2))
    return ReadQuery("range", (), choose.choice((start, None)), choose.choice((end, None)), reverse)


def _timed(kind: str, asked: str, choose: Random) -> Question:
    key, reverse = choose.choice(KEYS), choose.random() < 0.5
    near = [place(key) + beside for beside in range(-len(key) - 1, 2)]
    first_ms, last_ms = choose.choices([*near, *choose.choices(_TIMES, k=3)], k=2)
    if kind == "window" or choose.random() < 0.5:
        # A session may also contain the time between an earliest end and a latest start.
        first_ms, last_ms = sorted((first_ms, last_ms))
    if asked == "of_key":
        keys: tuple[bytes, ...] = (key,) if KINDS[kind].lies_in(key, first_ms, last_ms) else ()
        return Question(
            ReadQuery("pairs", keys, reverse=reverse),
            lambda view: view_as_map(kind, view).of_key(key, first_ms, last_ms, reverse=reverse),
        )
    keys = tuple(sorted((key for key in KEYS if first_ms <= place(key) <= last_ms), key=lambda key: (place(key), key)))
    return Question(
        ReadQuery("pairs", keys, reverse=reverse),
        lambda view: view_as_map(kind, view).of_times(first_ms, last_ms, reverse=reverse),
    )


def _typed_answer(kind: str, view: KeyValueView, query: ReadQuery) -> object:
    typed = view_as_map(kind, view)
    return (
        typed.get(query.keys[0]) if query.kind == "get" else typed.range(query.start, query.end, reverse=query.reverse)
    )


def _answer(view: KeyValueView, query: ReadQuery) -> object:
    if query.kind == "get":
        return view.get(query.keys[0])
    if query.kind == "get_many":
        return view.get_many(query.keys)
    if query.kind == "prefix":
        return view.reverse_prefix_scan(query.keys[0]) if query.reverse else view.prefix_scan(query.keys[0])
    if query.start is None and query.end is None:
        return view.reverse_all() if query.reverse else view.all()
    return view.reverse_range(query.start, query.end) if query.reverse else view.range(query.start, query.end)


_HELD_AT_MOST = 3
_PINS = 0.15
"""The share of queries of committed data that are asked of a snapshot."""
_RESTS = 0.3
"""The share of answers after which a reader pauses."""


@dataclass(frozen=True, slots=True)
class Sight:
    """The parameters of a reader: a store, a level, and the history of that level."""

    store: KeyValueStore
    level: IsolationLevel
    versions: Versions
    kind: str = PLAIN
    """One of ``harness.typed_maps.KINDS``; for a typed kind, ``store`` is the store below it."""


class Reader:
    """Reads until ``over`` is set, or an answer is wrong: then it describes the ``anomaly`` and sets ``over``."""

    def __init__(self, sight: Sight, random: Random, over: Event) -> None:
        self.sight, self._random, self._over = sight, random, over
        self._seen = 0
        """The first version that the last answer may have shown. No later answer may show an earlier one."""
        self._held: list[tuple[KeyValueIterator | PairScan, list[tuple[bytes, bytes]], ReadQuery, VersionWindow]] = []
        self.answers = 0
        self.anomaly = ""

    def read(self) -> None:
        """Read until the trial ends, then complete the open scans."""
        try:
            while not self._over.is_set() and not self.anomaly:
                self._ask()
                if self._random.random() < _RESTS:
                    # Without pauses, the writer would hardly run among so many readers.
                    time.sleep(self._random.random() * 2e-3)
            while self._held and not self.anomaly:
                self._drain(*self._held.pop())
        except Exception as error:
            self.anomaly = self.anomaly or f"{type(error).__name__}: {error}"
        finally:
            for scan, *_ in self._held:
                scan.close()
            if self.anomaly:
                self._over.set()

    def _ask(self) -> None:
        versions, choose = self.sight.versions, self._random
        next_question = question(self.sight.kind, choose)
        query = next_question.query
        bound = versions.all[versions.there].position + choose.randrange(3) if choose.random() < 0.2 else -1
        there = versions.there
        first = max(there, self._seen)
        view = self.sight.store.read_only(self.sight.level, PositionBound({INPUT: bound}) if bound >= 0 else None)
        promises = self.sight.level is IsolationLevel.READ_COMMITTED and self.sight.store.transactional
        reached = view.position().get(INPUT, -1) if promises else -1
        pins = self.sight.level is IsolationLevel.READ_COMMITTED and choose.random() < _PINS
        try:
            if pins:
                snapshot = view.snapshot()
                self._ask_snapshot(snapshot, VersionWindow(first, versions.begun, max(bound, reached)))
                return
            answer = next_question.ask(view)
        except NotUpToBoundError as error:
            self.answers += 1
            # A position advances after its data, so it may still be that of the version before.
            self.anomaly = refusal(versions, VersionWindow(there, versions.begun, bound), error.behind[INPUT])
            return
        # A reported position is a promise: later reads must show at least its data.
        window = VersionWindow(first, versions.begun, max(bound, reached))
        if not isinstance(answer, KeyValueIterator | PairScan):
            self._check(query, answer, window, remember=True)
        elif choose.random() < 0.3 and len(self._held) < _HELD_AT_MOST:
            self._held.append((answer, list(islice(answer, choose.randrange(4))), query, window))
        else:
            with answer as scan:
                self._check(query, list(scan), window, remember=True)
        if self._held and choose.random() < 0.1:
            self._drain(*self._held.pop(0))

    def _ask_snapshot(self, snapshot: KeyValueSnapshot, window: VersionWindow) -> None:
        """Ask some queries of ``snapshot``, with pauses in which the writer may commit. All must show one version."""
        queries, answers = [], []
        with closing(snapshot):
            for _ in range(self._random.randrange(2, 5)):
                next_question = question(self.sight.kind, self._random)
                answer = next_question.ask(snapshot)
                queries.append(next_question.query)
                answers.append(list(answer) if isinstance(answer, KeyValueIterator | PairScan) else answer)
                time.sleep(self._random.random() * 1e-3)
        self._check(Several(tuple(queries)), answers, window, remember=True)

    def _drain(
        self,
        scan: KeyValueIterator | PairScan,
        begun: list[tuple[bytes, bytes]],
        query: ReadQuery,
        window: VersionWindow,
    ) -> None:
        with scan:
            self._check(query, [*begun, *scan], window, remember=False)

    def _check(self, query: ReadQuery | Several, answer: object, window: VersionWindow, *, remember: bool) -> None:
        self.answers += 1
        version = shown(self.sight.versions, query, answer, window)
        if version is None:
            self.anomaly = explained(self.sight.versions, query, answer, window)
        elif remember:
            self._seen = version
