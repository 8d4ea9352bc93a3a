"""The queries that readers make: of a store of bytes, and of each kind of typed store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from harness.checkers.isolation import Query
from harness.experiments.readers.writer import KEYS
from harness.typed_maps import KINDS, place, view_as_map
from stores.interface import KeyValueView

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

    query: Query
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


def _query(kind: str, choose: Random) -> Query:
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
            Query("pairs", keys, reverse=reverse),
            lambda view: view_as_map(kind, view).of_key(key, first_ms, last_ms, reverse=reverse),
        )
    keys = tuple(sorted((key for key in KEYS if first_ms <= place(key) <= last_ms), key=lambda key: (place(key), key)))
    return Question(
        Query("pairs", keys, reverse=reverse),
        lambda view: view_as_map(kind, view).of_times(first_ms, last_ms, reverse=reverse),
    )


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
