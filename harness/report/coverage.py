"""The points that the runs of the profile night have tried together.

A point is a place of one fault: an I/O operation of a recording, or a cell of the crash matrix. The definition stands
for the meaning of the points' numbers. If it changes, the old points are dropped: nobody has tried the new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from harness.report import text

COVERAGE = "coverage"
"""The fact of a run that has the points tried and the points there are, by experiment, with its own points."""


class Covered(NamedTuple):
    """The points of one fault in one subject that a run has tried, of ``points`` in all."""

    experiment: str
    subject: str
    fault: str
    definition: str
    points: int
    tried: frozenset[int]


@dataclass
class Coverage:
    """All that was tried, and the number of runs that have begun."""

    runs: int = 0
    entries: dict[tuple[str, str, str], tuple[Covered, str]] = field(default_factory=dict)
    """The points by experiment, subject and fault, and the time of the last run that tried some."""

    def tried(self, experiment: str, subject: str, fault: str, definition: str) -> frozenset[int]:
        """Return the points that were tried under the same definition."""
        entry = self.entries.get((experiment, subject, fault))
        return entry[0].tried if entry is not None and entry[0].definition == definition else frozenset()

    def known(self, experiment: str, subject: str, fault: str) -> Covered | None:
        """Return the points that were tried; None if there are none."""
        entry = self.entries.get((experiment, subject, fault))
        return entry[0] if entry is not None else None

    def add(self, found: Iterable[Covered], when: str) -> None:
        """Add what a run has tried. Points of another definition are dropped."""
        for each in found:
            key = each[:3]
            before = self.tried(*key, each.definition)
            self.entries[key] = each._replace(tried=before | each.tried), when if each.tried else self._when(key)

    def totals(self) -> dict[str, tuple[int, int]]:
        """Return the number of points that were tried, and of those there are, by experiment."""
        sums: dict[str, tuple[int, int]] = {}
        for each, _ in self.entries.values():
            tried, points = sums.get(each.experiment, (0, 0))
            sums[each.experiment] = tried + len(each.tried), points + each.points
        return sums

    def _when(self, key: tuple[str, str, str]) -> str:
        entry = self.entries.get(key)
        return entry[1] if entry is not None else ""


def coverage_sentence(facts: Mapping[str, Any], experiment: str) -> str:
    """Return a sentence about the points of an experiment that nights have tried, from a run's facts; "" for none."""
    covered = (facts.get(COVERAGE) or {}).get(experiment)
    if not covered:
        return ""
    tried, points = covered
    return f"All runs of the profile night together have tried {text.exact(tried)} of {text.exact(points)} points."


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ``0-7,9``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def numbers(ranges_: str) -> frozenset[int]:
    """Return the numbers that ``ranges`` has made a text of. Raises: ValueError."""
    all_numbers: set[int] = set()
    for part in filter(None, ranges_.split(",")):
        first, _, last = part.partition("-")
        all_numbers |= set(range(int(first), int(last or first) + 1))
    return frozenset(all_numbers)


LEFT_OUT = "left_out"
"""The fact of a run that has this, by experiment: the units of which less was tried than planned, with both numbers."""
Extents = Mapping[str, Mapping[str, Sequence[int]]]
"""The numbers that were tried and planned, by experiment and unit: ``{"crash": {"trials": (52, 594)}}``."""


def left_out(extents: Extents) -> Extents:
    """Return the part of ``extents`` of which less was tried than planned."""
    cut = {
        name: {unit: (tried, planned) for unit, (tried, planned) in extent.items() if tried < planned}
        for name, extent in extents.items()
    }
    return {name: units for name, units in cut.items() if units}


def left_out_sentence(extent: Mapping[str, Sequence[int]]) -> str:
    """Return a sentence such as "1,204 of 27,275 points tried within the budget." """
    parts = [f"{text.exact(tried)} of {text.exact(planned)} {unit}" for unit, (tried, planned) in extent.items()]
    return f"{' and '.join(parts)} tried within the budget; the others were left out."


def sentence_of(facts: Mapping[str, Any], experiment: str) -> str:
    """Return what a run left out of an experiment, from its facts; "" for nothing."""
    cut = facts.get(LEFT_OUT) or {}
    return left_out_sentence(cut[experiment]) if experiment in cut else ""


def summary_of(facts: Mapping[str, Any], titles: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a sentence for the first page about all that a run left out, from its facts; "" for nothing.

    ``titles`` are the experiments in a reader's words.
    """
    cut: Extents = facts.get(LEFT_OUT) or {}
    if not cut:
        return ""
    parts = (
        f"{text.exact(tried)} of {text.exact(planned)} {unit} of *{titles.get(name, name)}*"
        for name, extent in cut.items()
        for unit, (tried, planned) in extent.items()
    )
    return f"**This run is not complete.** It tried {', '.join(parts)} within its budget, and left out the others."
