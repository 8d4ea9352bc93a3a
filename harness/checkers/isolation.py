"""Whether what a reader saw beside a writer was a state that the store had meanwhile, and never an older one again.

The writer keeps a list of versions for each isolation level: a version begins before the store is asked for it, and is
there once the store has said so. A reader may be shown any version between the last one that was there when it asked
and the last one that had begun when it was answered. Source: KIP-892, "Interactive Queries"; Herlihy and Wing,
"Linearizability" (1990).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

State = Mapping[bytes, bytes]
Pair = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Query:
    """One question: ``get``, ``get_many``, ``range`` (open ends are None) or ``prefix``; scans may be reversed."""

    kind: str
    keys: tuple[bytes, ...] = ()
    start: bytes | None = None
    end: bytes | None = None
    reverse: bool = False

    def answer(self, state: State) -> object:
        """What a store in this state answers."""
        if self.kind == "get":
            return state.get(self.keys[0])
        if self.kind == "get_many":
            return [state.get(key) for key in self.keys]
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
        asked = b", ".join(self.keys).decode("latin-1") or f"{self.start!r} to {self.end!r}"
        return f"{'reverse ' if self.reverse else ''}{self.kind} of {asked}"


class Version(NamedTuple):
    """A state, and the input position that a store in it may tell at most."""

    state: State
    position: int


class Versions:
    """The versions of one isolation level, in order. One thread adds to them, any may look."""

    def __init__(self) -> None:
        self.all = [Version({}, -1)]
        self.there = 0
        """Number of the last version that the store has said is there."""

    @property
    def begun(self) -> int:
        """Number of the last version that the store may be in."""
        return len(self.all) - 1

    def begin(self, state: State, position: int) -> None:
        """The store is about to be asked for this."""
        self.all.append(Version(dict(state), position))

    def end(self) -> None:
        """The store has done all that it was asked for."""
        self.there = self.begun


@dataclass(frozen=True, slots=True)
class Window:
    """The versions that an answer may show: numbers, both included, and the position that it must have reached."""

    first: int
    last: int
    bound: int = -1


def shown(versions: Versions, query: Query, answer: object, window: Window) -> int | None:
    """Number of the first version in the window that the answer shows, None where it shows none of them."""
    for number in range(window.first, window.last + 1):
        version = versions.all[number]
        if version.position >= window.bound and query.answer(version.state) == answer:
            return number
    return None


def explained(versions: Versions, query: Query, answer: object, window: Window) -> str:
    """Why an answer that ``shown`` found no version for is wrong."""
    said = f"{query} at versions {window.first} to {window.last}"
    known = [number for number, version in enumerate(versions.all) if query.answer(version.state) == answer]
    if not known:
        return (
            f"{said}: no version ever answers that, {_differs(query.answer(versions.all[window.last].state), answer)}"
        )
    nearest = min(known, key=lambda number: abs(number - window.first))
    if any(window.first <= number <= window.last for number in known):
        return f"{said}: it shows version {nearest}, which is behind the position {window.bound} that was asked for"
    back = "goes back to" if nearest < window.first else "shows"
    return f"{said}: it {back} version {nearest}"


def refusal(versions: Versions, window: Window, behind: int) -> str:
    """What is wrong with being told to be ``behind`` the window's bound; empty where nothing is."""
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
