"""A reader of a trial: it makes random queries, keeps some scans open while the writer works, and checks answers."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from random import Random
from threading import Event

from harness.checkers.isolation import Query, Several, Versions, Window, explained, refusal, shown
from harness.experiments.readers.questions import question
from harness.experiments.readers.writer import INPUT
from harness.typed_maps import PLAIN, Scan
from stores.errors import NotUpToBoundError
from stores.interface import IsolationLevel, KeyValueIterator, KeyValueSnapshot, KeyValueStore, PositionBound

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
        self._held: list[tuple[KeyValueIterator | Scan, list[tuple[bytes, bytes]], Query, Window]] = []
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
                self._ask_snapshot(snapshot, Window(first, versions.begun, max(bound, reached)))
                return
            answer = asked.ask(view)
        except NotUpToBoundError as error:
            self.answers += 1
            # A position advances after its data, so it may still be that of the version before.
            self.anomaly = refusal(versions, Window(there, versions.begun, bound), error.behind[INPUT])
            return
        # A reported position is a promise: later reads must show at least its data.
        window = Window(first, versions.begun, max(bound, reached))
        if not isinstance(answer, KeyValueIterator | Scan):
            self._check(query, answer, window, remember=True)
        elif choose.random() < 0.3 and len(self._held) < _HELD_AT_MOST:
            self._held.append((answer, list(islice(answer, choose.randrange(4))), query, window))
        else:
            with answer as scan:
                self._check(query, list(scan), window, remember=True)
        if self._held and choose.random() < 0.1:
            self._drain(*self._held.pop(0))

    def _ask_snapshot(self, snapshot: KeyValueSnapshot, window: Window) -> None:
        """Ask some queries of ``snapshot``, with pauses in which the writer may commit. All must show one version."""
        queries, answers = [], []
        with closing(snapshot):
            for _ in range(self._random.randrange(2, 5)):
                asked = question(self.sight.kind, self._random)
                answer = asked.ask(snapshot)
                queries.append(asked.query)
                answers.append(list(answer) if isinstance(answer, KeyValueIterator | Scan) else answer)
                time.sleep(self._random.random() * 1e-3)
        self._check(Several(tuple(queries)), answers, window, remember=True)

    def _drain(
        self, scan: KeyValueIterator | Scan, begun: list[tuple[bytes, bytes]], query: Query, window: Window
    ) -> None:
        with scan:
            self._check(query, [*begun, *scan], window, remember=False)

    def _check(self, query: Query | Several, answer: object, window: Window, *, remember: bool) -> None:
        self.answers += 1
        found = shown(self.sight.versions, query, answer, window)
        if found is None:
            self.anomaly = explained(self.sight.versions, query, answer, window)
        elif remember:
            self._seen = found
