"""A check of reads beside a writer: each shows a state that the store had meanwhile, and never returns to an older one.

The writer keeps a list of versions for each isolation level. A version begins before the call to the store, and is
there once the call has returned. A read may show any version from the last one that was there when it began, to the
last one that had begun when it returned. Source: KIP-892, "Interactive Queries"; Herlihy and Wing, "Linearizability"
(1990).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

State = Mapping[bytes, bytes]
Pair = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """One read: ``get``, ``get_many``, ``range`` (open ends are None), ``prefix``, or ``pairs`` of ``keys`` in their
    order. Scans may be reversed."""

    kind: str
    keys: tuple[bytes, ...] = ()
    start: bytes | None = None
    end: bytes | None = None
    reverse: bool = False

    def answer(self, state: State) -> object:
        """Return the result of this read for a store in ``state``."""
        if self.kind == "get":
            return state.get(self.keys[0])
        if self.kind == "get_many":
            return [state.get(key) for key in self.keys]
        if self.kind == "pairs":
            return [(key, state[key]) for key in self.keys[:: -1 if self.reverse else 1] if key in state]
        if self.kind == "prefix":
            (prefix,) = self.keys
            pairs = [pair for pair in state.items() if pair[0].startswith(prefix)]
        else:
            low, high = self.start, self.end
            pairs = [
                pair for pair in state.items() if (low is None or low <= pair[0]) and (high is None or pair[0] <= high)
            ]
        return sorted(pairs, reverse=self.reverse)

    def __str__(self) -> str:
        keys = b", ".join(self.keys).decode("latin-1") or f"{self.start!r} to {self.end!r}"
        return f"{'reverse ' if self.reverse else ''}{self.kind} of {keys}"


@dataclass(frozen=True, slots=True)
class Several:
    """Reads of one snapshot: all their answers are of one version."""

    queries: tuple[ReadQuery, ...]

    def answer(self, state: State) -> list[object]:
        """Return the result of each read for a store in ``state``."""
        return [query.answer(state) for query in self.queries]

    def __str__(self) -> str:
        return f"snapshot with {', '.join(map(str, self.queries))}"


class Version(NamedTuple):
    """A state, and the highest input position that a store in this state may report."""

    state: State
    position: int


class Versions:
    """The versions of one isolation level, in order. One thread adds to them, any thread may read them."""

    def __init__(self) -> None:
        self.all = [Version({}, -1)]
        self.there = 0
        """The number of the last version for which the store's call has returned."""

    @property
    def begun(self) -> int:
        """The number of the last version that the store may be in."""
        return len(self.all) - 1

    def begin(self, state: State, position: int) -> None:
        """Add a version: the store is about to be called for it."""
        self.all.append(Version(dict(state), position))

    def end(self) -> None:
        """Record that the store's calls have returned."""
        self.there = self.begun


@dataclass(frozen=True, slots=True)
class VersionWindow:
    """The versions that a read may show: first and last number, included, and the least position."""

    first: int
    last: int
    bound: int = -1


def shown(versions: Versions, query: ReadQuery | Several, answer: object, window: VersionWindow) -> int | None:
    """Return the number of the first version in the window that ``answer`` shows, or None."""
    for number in range(window.first, window.last + 1):
        version = versions.all[number]
        if version.position >= window.bound and query.answer(version.state) == answer:
            return number
    return None


def explained(versions: Versions, query: ReadQuery | Several, answer: object, window: VersionWindow) -> str:
    """Return the reason why an answer for which ``shown`` found no version is wrong."""
    place = f"{query} at versions {window.first} to {window.last}"
    matching = [number for number, version in enumerate(versions.all) if query.answer(version.state) == answer]
    if not matching:
        return (
            f"{place}: no version ever answers that, {_differs(query.answer(versions.all[window.last].state), answer)}"
        )
    nearest = min(matching, key=lambda number: abs(number - window.first))
    if any(window.first <= number <= window.last for number in matching):
        return f"{place}: it shows version {nearest}, which is behind the position {window.bound} that was asked for"
    back = "goes back to" if nearest < window.first else "shows"
    return f"{place}: it {back} version {nearest}"


def refusal(versions: Versions, window: VersionWindow, behind: int) -> str:
    """Return the reason why an error "``behind`` the window's bound" is wrong; empty if it is right."""
    reached = window.bound - behind
    positions = [versions.all[number].position for number in range(window.first, window.last + 1)]
    if behind > 0 and min(positions) <= reached <= max(positions):
        return ""
    return (
        f"told to be {behind} behind position {window.bound} at versions {window.first} to {window.last}, "
        f"whose positions are {min(positions)} to {max(positions)}"
    )


def _differs(expected: object, answer: object) -> str:
    if isinstance(expected, list) and isinstance(answer, list):
        wrong = [item for item in answer if item not in expected] + [item for item in expected if item not in answer]
        return f"{len(wrong)} of which are not as in the last of them, first {wrong[:1] or 'the order'}"
    return f"{answer!r} instead of {expected!r}"
