"""Ratios of two speeds of one run, with the threshold that some of them have. Any experiment may have such rows.

A threshold is reached if the whole interval of the ratio is, and missed if none of it is. A ratio is level with it if
the interval contains the threshold, and nothing that differs from it by 10 % or more. For a user that makes no
difference. Otherwise the run does not decide, as with fewer than three repeats. Where CPU time was measured, the ratio
of CPU times decides: other work on the machine changes it little. The ratio by the clock is for people. A row may have
a ``reason``: why its threshold was missed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from harness.report import text
from harness.report.decision import INDIFFERENCE
from harness.report.figures import Figure, Figures, columns, in_order, ratio_ends
from harness.report.listing import Column, Listing
from harness.report.page import PageFinding, TextTable
from harness.report.rows import Row

_BAND = f"{INDIFFERENCE * 100:.0f} %"
_NUMBER = re.compile(r"(\d[\d,]*)")


def ratio_of(repeats: Sequence[float], busy: int = 0, cpu_repeats: Sequence[float] = ()) -> dict[str, Any]:
    """Return the columns of a row with the ratio of each repeat: their median, and its interval if there are three.

    The two sides of a repeat were measured one right after the other. ``busy`` is the number of repeats during which
    the machine was busy with other work. ``cpu_repeats`` are the ratios of CPU times; without them the clock decides.
    """
    of_repeats = {**_with_ends("ratio", repeats), **_with_ends("cpu_ratio", cpu_repeats)}
    return {**of_repeats, "repeats": len(repeats), "busy": busy}


def _with_ends(name: str, repeats: Sequence[float]) -> dict[str, float | None]:
    ends, (low, high) = ratio_ends(repeats), columns(name)
    middle = median(repeats) if repeats else None
    return {name: middle, low: ends.low if ends else None, high: ends.high if ends else None}


def is_clear(row: Row) -> bool:
    """Return True if a ratio needs no further repeat: it has no threshold, lies far from it, or is level with it.

    That is so if an interval twice as wide would say the same. A run looks at its ratios again and
    again: if it ended each of them as soon as the interval is beside the threshold, more than one in twenty would end
    on the wrong side.
    """
    threshold = row["at_least"]
    low, high = (row.get(end) for end in columns(_deciding(row)))
    if threshold is None:
        return True
    if low is None or high is None:
        return False
    more = (high / low) ** 0.5
    if low <= threshold <= high:
        return _is_level(low / more, high * more, threshold)
    return bool(low / more > threshold or high * more < threshold)


def _is_level(low: float, high: float, threshold: float) -> bool:
    return low > threshold * (1 - INDIFFERENCE) and high < threshold * (1 + INDIFFERENCE)


def _deciding(row: Row) -> str:
    """Return the column of the ratio that decides: that of CPU times, if there is one."""
    return "ratio" if row["cpu_ratio"] is None else "cpu_ratio"


def ratios(rows: Iterable[Row]) -> list[Figure]:
    """Return the ratios in order of claims and subjects.

    ``met`` is True if the threshold is reached, False if it is missed, else None. ``level`` is True if the ratio is
    level with it. ``verdict`` says that in words, and why a run does not decide.
    """
    figures = ({"reason": None, **_with_ends("cpu_ratio", ()), **row, "kind": "ratio"} for row in rows)
    judged = ({**row, **dict(zip(("met", "level", "verdict"), _judged(row), strict=True))} for row in figures)
    ordered = in_order(judged, "durability", "records_per_commit", "subject", "yardstick")
    return sorted(ordered, key=lambda figure: _by_numbers(figure["claim"]))


def _by_numbers(claim: str) -> list[str | int]:
    """Return a key by which claims are ordered as people do: 100 records come before 1,000."""
    parts = _NUMBER.split(claim)
    return [int(part.replace(",", "")) if number % 2 else part for number, part in enumerate(parts)]


def _judged(row: Row) -> tuple[bool | None, bool, str]:
    threshold, repeats = row["at_least"], row.get("repeats") or 1
    name = _deciding(row)
    measure = "time" if name == "ratio" else "CPU time"
    low, high = (row.get(end) for end in columns(name))
    if threshold is None:
        return None, False, text.NONE
    if low is None or high is None:
        return None, False, "measured once" if repeats == 1 else f"measured {repeats} times only"
    if low >= threshold:
        return True, False, f"yes, by {measure}"
    if high < threshold:
        return False, False, _missed(row, name, measure)
    if _is_level(low, high, threshold):
        return None, True, f"level: within {_BAND} of it, by {measure}"
    return None, False, "undecided"


def _missed(row: Row, name: str, measure: str) -> str:
    """Return what a missed threshold means for a user, in a sentence."""
    times = f"the same work takes {1 / row[name]:.2f} times the {measure} of {row['yardstick']}"
    return f"**no**: {times}; {1 / row['at_least']:.2f} times were promised"


def ratio_finding(figures: Figures) -> PageFinding:
    """Return how many ratios reach their threshold, of those that the run decides."""
    results = [figure["met"] for figure in figures["ratio"] if figure["met"] is not None]
    return PageFinding("ratios with a threshold", len(results), results.count(True), "reached it")


def ratio_sentence(figures: Figures, section: str = "") -> str:
    """Return how many ratios reach their threshold, and what ``undecided_sentence`` says. ``section`` is a link."""
    finding, undecided = ratio_finding(figures)._replace(section=section), undecided_sentence(figures)
    return " ".join([finding.sentence(), undecided] if finding.number else [undecided or finding.sentence()]).rstrip()


def undecided_sentence(figures: Figures) -> str:
    """Return how many ratios are level with their threshold, and how many are not decided, and why; "" for none."""
    neither = [figure for figure in figures["ratio"] if figure["at_least"] is not None and figure["met"] is None]
    level = sum(figure["level"] for figure in neither)
    are = "1 ratio is level with its" if level == 1 else f"{text.exact(level)} ratios are level with their"
    sentences = [f"{are} threshold (within {_BAND} of it)."] if level else []
    if why := Counter(figure["verdict"] for figure in neither if not figure["level"]):
        parts = ", ".join(f"{_WHY.get(reason, reason)}: {count}" for reason, count in why.most_common())
        sentences.append(f"{text.exact(why.total())} ratios with a threshold are not decided ({parts}).")
    return " ".join(sentences)


_WHY = {"undecided": "threshold within the interval"}
"""Verdicts in the words of that sentence, which says already that nothing is decided."""
_RATIOS = Listing(
    "Ratios within this run, medians of repeats; more than 1 is faster than the yardstick",
    "ratio_figure",
    (
        Column("claim"),
        Column("level", f"coalesce(nullif(durability, ''), '{text.NONE}')"),
        Column("records per commit", "records_per_commit", text.exact),
        Column("backend", "subject"),
        Column("against", "yardstick"),
        Column("ratio", "ratio", text.ratio, interval=True),
        Column("of CPU times", "cpu_ratio", text.ratio, interval=True),
        Column("at least", "at_least", lambda least: text.NONE if least is None else f"{least:g}"),
        Column("reached", "verdict || iif(met = 0 and reason <> '', ' (' || reason || ')', '')", right=False),
    ),
    notable="met = 0",
)


def missed_table(figures: Figures) -> TextTable:
    """Return the ratios that miss their threshold, with the reason where there is one."""
    table = ratio_table(figures)
    rows = [table.rows[place] for place in table.notable]
    return table._replace(caption=f"Thresholds that were missed. {table.caption}", rows=rows, notable=())


def ratio_table(figures: Figures) -> TextTable:
    """Return each ratio with its threshold and its result. Those that miss their threshold are notable."""
    return _RATIOS.table(figures)
