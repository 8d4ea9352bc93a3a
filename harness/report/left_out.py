"""The parts that a run left out because its time was over, in numbers and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from harness.report import text

FACT = "left_out"
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
    cut = facts.get(FACT) or {}
    return left_out_sentence(cut[experiment]) if experiment in cut else ""


def summary_of(facts: Mapping[str, Any], titles: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a sentence for the first page about all that a run left out, from its facts; "" for nothing.

    ``titles`` are the experiments in a reader's words.
    """
    cut: Extents = facts.get(FACT) or {}
    if not cut:
        return ""
    parts = (
        f"{text.exact(tried)} of {text.exact(planned)} {unit} of *{titles.get(name, name)}*"
        for name, extent in cut.items()
        for unit, (tried, planned) in extent.items()
    )
    return f"**This run is not complete.** It tried {', '.join(parts)} within its budget, and left out the others."
