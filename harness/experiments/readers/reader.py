"""A reader of a trial: it makes random queries, keeps some scans open while the writer works, and checks answers."""

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
from harness.experiments.readers.writer import INPUT, KEYS
from harness.typed_maps import KINDS, PLAIN, PairScan, place, view_as_map
from stores.errors import NotUpToBoundError
from stores.interface import (
    IsolationLevel,
    KeyValueIterator,
    KeyValueSnapshot,
    KeyValueStore,
    KeyValueView,
    PositionBound,
)

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
    asked = random.choice(_TYPED_QUERIES + _TIMED_QUERIES.get(kind, ()))
    if asked in ("of_key", "of_times"):
        return _timed(kind, asked, random)
    typed = _query(asked, random)
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
        asked = question(self.sight.kind, choose)
        query = asked.query
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
            answer = asked.ask(view)
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
                asked = question(self.sight.kind, self._random)
                answer = asked.ask(snapshot)
                queries.append(asked.query)
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
        found = shown(self.sight.versions, query, answer, window)
        if found is None:
            self.anomaly = explained(self.sight.versions, query, answer, window)
        elif remember:
            self._seen = found
