"""A reader of a trial: random queries, some held open while the writer goes on; it judges each answer itself."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from random import Random
from threading import Event

from harness.checkers.isolation import Query, Versions, Window, explained, refusal, shown
from harness.readers.writer import INPUT, KEYS
from harness.typed_maps import PLAIN, Scan, view_as_map
from stores.errors import NotUpToBoundError
from stores.interface import IsolationLevel, KeyValueIterator, KeyValueStore, KeyValueView, PositionBound

_HELD_AT_MOST = 3
_QUERIES = ("get", "get_many", "range", "range", "all", "prefix")
_TYPED_QUERIES = ("get", "range", "range", "all")
"""What every kind of typed store answers as of one moment."""
_RESTS = 0.3
"""How often a reader rests after an answer."""
_PREFIXES = sorted({key[:1] for key in KEYS} | {b"", b"w1", b"\xff\xff"})


@dataclass(frozen=True, slots=True)
class Sight:
    """What a reader looks at: a store at a level, and the history of that level."""

    store: KeyValueStore
    level: IsolationLevel
    versions: Versions
    kind: str = PLAIN
    """Of ``harness.typed_maps.KINDS``; the store is the one below a typed one."""


class Reader:
    """Reads until it is over, or until it was answered wrongly: then ``anomaly`` says how, and it is over for all."""

    def __init__(self, sight: Sight, random: Random, over: Event) -> None:
        self.sight, self._random, self._over = sight, random, over
        self._seen = 0
        """The first version that the last answer may have shown: no later answer may show an earlier one."""
        self._held: list[tuple[KeyValueIterator | Scan, list[tuple[bytes, bytes]], Query, Window]] = []
        self.answers = 0
        self.anomaly = ""

    def read(self) -> None:
        """The whole of the reader's life."""
        try:
            while not self._over.is_set() and not self.anomaly:
                self._ask()
                if self._random.random() < _RESTS:
                    # Else the writer would hardly ever get a turn among so many.
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
        query = self._query()
        # A scan of a typed view asks for marks on its way, and a rollback may take the bound back meanwhile.
        is_bounded = choose.random() < 0.2 and not self.sight.kind
        bound = versions.all[versions.there].position + choose.randrange(3) if is_bounded else -1
        there = versions.there
        first = max(there, self._seen)
        view = self.sight.store.read_only(self.sight.level, PositionBound({INPUT: bound}) if bound >= 0 else None)
        promises = self.sight.level is IsolationLevel.READ_COMMITTED and self.sight.store.transactional
        reached = view.position().get(INPUT, -1) if promises else -1
        try:
            answer = _typed_answer(self.sight.kind, view, query) if self.sight.kind else _answer(view, query)
        except NotUpToBoundError as error:
            self.answers += 1
            # A position moves after the data that it stands for: it may still be that of the version before.
            self.anomaly = refusal(versions, Window(there, versions.begun, bound), error.behind[INPUT])
            return
        # A position that was told before is a promise on whatever is read afterwards.
        window = Window(first, versions.begun, max(bound, reached))
        if not isinstance(answer, KeyValueIterator | Scan):
            self._judge(query, answer, window, remember=True)
        elif choose.random() < 0.3 and len(self._held) < _HELD_AT_MOST:
            self._held.append((answer, list(islice(answer, choose.randrange(4))), query, window))
        else:
            with answer as scan:
                self._judge(query, list(scan), window, remember=True)
        if self._held and choose.random() < 0.1:
            self._drain(*self._held.pop(0))

    def _drain(
        self, scan: KeyValueIterator | Scan, begun: list[tuple[bytes, bytes]], query: Query, window: Window
    ) -> None:
        with scan:
            self._judge(query, [*begun, *scan], window, remember=False)

    def _judge(self, query: Query, answer: object, window: Window, *, remember: bool) -> None:
        self.answers += 1
        found = shown(self.sight.versions, query, answer, window)
        if found is None:
            self.anomaly = explained(self.sight.versions, query, answer, window)
        elif remember:
            self._seen = found

    def _query(self) -> Query:
        choose = self._random
        kind = choose.choice(_TYPED_QUERIES if self.sight.kind else _QUERIES)
        reverse = choose.random() < 0.5
        if kind == "get":
            return Query("get", (choose.choice(KEYS),))
        if kind == "get_many":
            return Query("get_many", tuple(choose.choices(KEYS, k=6)))
        if kind == "prefix":
            return Query("prefix", (choose.choice(_PREFIXES),), reverse=reverse)
        if kind == "all":
            return Query("range", reverse=reverse)
        start, end = sorted(choose.choices(KEYS, k=2))
        return Query("range", (), choose.choice((start, None)), choose.choice((end, None)), reverse)


def _typed_answer(kind: str, view: KeyValueView, query: Query) -> object:
    typed = view_as_map(kind, view)
    return (
        typed.get(query.keys[0]) if query.kind == "get" else typed.range(query.start, query.end, reverse=query.reverse)
    )


def _answer(view: KeyValueView, query: Query) -> object:
    if query.kind == "get":
        return view.get(query.keys[0])
    if query.kind == "get_many":
        return view.get_many(query.keys)
    if query.kind == "prefix":
        return view.reverse_prefix_scan(query.keys[0]) if query.reverse else view.prefix_scan(query.keys[0])
    if query.start is None and query.end is None:
        return view.reverse_all() if query.reverse else view.all()
    return view.reverse_range(query.start, query.end) if query.reverse else view.range(query.start, query.end)
