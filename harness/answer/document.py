"""The first page of a report: which backend to pick and why, what was proven, all backends side by side, the plots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from harness.answer.choice import Choice, busy_notice, choices
from harness.answer.results import MACHINE_FILE, left_out_of, origin, problems_of
from harness.experiments.crash.report import crash_count
from harness.experiments.opening.report import READY_AFTER_A_KILL, largest_state
from harness.experiments.throughput.figures import reference
from harness.report import text
from harness.report.figures import REPEATS_MIN, Figures, with_interval
from harness.report.page import BROWSER_PAGE, Page, TextTable, anchor, images
from harness.report.ratios import ratio_sentence, ratio_table
from harness.report.text import MEANING

_READING = """\
Figures are compared within one durability level only. They are medians. An interval contains the true median with a
probability of 95 %, or of 93.75 % for five repeats, the most that five can give. Without an interval a figure was
measured fewer than five times, and no pick rests on it.
"""
_RATIOS = "Ratios"


def first_page(
    figures: Figures,
    pages: Sequence[Page],
    facts: Mapping[str, Any],
    environment: Mapping[str, Any],
    drawn: Collection[str],
) -> str:
    """Return the page. ``facts`` are the settings of the run, ``drawn`` the files of plots beside the report."""
    backends = environment["backends"]
    found = choices(figures, backends)
    notice = busy_notice(found, figures)
    sections = {
        "What was proven": ["".join(f"* {sentence}\n" for sentence in proven(figures, pages))],
        "All backends side by side": [summary_table(figures, backends).markdown()],
        _RATIOS: [
            f"{ratio_sentence(figures)}\n",
            ratio_table(figures).folded(0),
        ],
        "Plots": [part for page in pages for part in _plots(page, drawn)],
        "Pages": [_READING, _page_table(pages)],
    }
    filled = {title: parts for title, parts in sections.items() if parts}
    contents = ", ".join(f"[{title}](#{anchor(title)})" for title in filled)
    measured = ", ".join(f"[{page.title}]({page.file})" for page in pages if page.body)
    return "\n".join(
        [
            "# Which backend, and why\n",
            *([f"**{notice}**\n"] if notice else []),
            f"{origin(facts, environment)}\n",
            *(f"{note}\n" for note in (problems_of(facts), left_out_of(facts)) if note),
            f"The same with plots that show values, filters and the history of runs: [index.html]({BROWSER_PAGE}).\n",
            f"Contents: {contents}. One page each: {measured}, [the machine]({MACHINE_FILE}).\n",
            choice_table(found).markdown(),
            "Each pick has the best median among the backends that can do it and kept every promise at that level in "
            "this run, and its interval overlaps with no other. *No difference* names all backends that the run cannot "
            "distinguish. What the levels mean:\n",
            MEANING,
            *(part for title, parts in filled.items() for part in (f"## {title}\n", *parts)),
        ]
    )


def proven(figures: Figures, pages: Sequence[Page]) -> list[str]:
    """Return a sentence for each kind of check, with a link to its rows; failed checks are bold."""
    checked = [finding.sentence(page.file) for page in pages for finding in page.findings]
    return [*checked, ratio_sentence(figures, _RATIOS)]


def _plots(page: Page, drawn: Collection[str]) -> list[str]:
    shown = images(page.plots, drawn)
    return [f"[{page.title}]({page.file}):\n", *shown] if shown else []


def _page_table(pages: Sequence[Page]) -> str:
    """Return a line for each page: a link to it and what it shows, or the reason why it is missing."""
    rows = [
        (f"[{page.title}]({page.file})", page.shows[0]) if page.body else (page.title, f"{page.absent}")
        for page in pages
    ]
    rows.append((f"[The machine]({MACHINE_FILE})", "The machine and the versions of engines and packages of this run."))
    return text.table(("page", "what it shows"), rows)


def choice_table(found: Sequence[Choice]) -> TextTable:
    """Return the picks: need, level, backend or why there is none, figures, the next best, and a note."""
    rows = [
        [
            choice.need,
            choice.durability,
            choice.answer,
            choice.figure,
            choice.next_best,
            choice.remark,
        ]
        for choice in found
    ]
    return TextTable(
        "Worked out from the figures below; in brackets, the interval of the median",
        ("need", "level", "pick", "why: median and interval", "next best", "note"),
        rows,
    )


def summary_table(
    figures: Figures,
    backends: Mapping[str, Mapping[str, Any]],
    durability: str = "CHANGELOG",
    *,
    intervals: bool = True,
) -> TextTable:
    """Return one line per backend at one level: the table of README, without ``intervals``, and of the terminal."""
    at = reference(figures["throughput"], durability)
    rates = {figure["backend"]: figure for figure in figures["throughput"] if at is not None and at.holds(figure)}
    opened = {figure["backend"]: figure for figure in largest_state(figures["opening"], durability)}
    names = sorted({*rates, *(figure["backend"] for figure in figures["crash"] if figure["durability"] == durability)})
    shown = with_interval if intervals else _median
    rows = []
    for name in sorted(names, key=lambda name: -(rates.get(name, {}).get("records_per_s") or 0)):
        figure = rates.get(name, {})
        facts = backends.get(name, {})
        rows.append(
            [
                name,
                _kept(facts),
                shown(figure, "records_per_s", text.count),
                shown(figure, "commit_p99_us", text.latency),
                shown(opened.get(name, {}), "ready_s", text.duration),
                shown(figure, "peak_memory_bytes", text.size),
                shown(figure, "bytes_on_disk", text.size),
                crash_count(figures, name, durability),
            ]
        )
    size = next((figure["records"] for figure in opened.values()), 0)
    times = _times([figure["repeats"] for figure in rates.values()], intervals=intervals)
    what = f", {at.text}{times}" if at is not None else ""
    head = (
        "backend",
        "after a crash",
        "records/s",
        "commit, p99",
        f"{READY_AFTER_A_KILL}{f', {size:,} records' if size else ''}",
        "peak memory",
        "on disk",
        "crash trials as expected",
    )
    return TextTable(f"Level {durability}{what}", head, rows, range(2, 8))


def _median(figure: Mapping[str, Any], name: str, unit: Callable[[float | None], str]) -> str:
    return unit(figure.get(name))


def _times(repeats: Sequence[int], *, intervals: bool) -> str:
    """Return the numbers of repeats of a table's lines, from the fewest to the most, and if any has an interval."""
    if not repeats:
        return ""
    fewest, most = min(repeats), max(repeats)
    from_ = "" if fewest >= REPEATS_MIN else f" from {REPEATS_MIN} on"
    what = f", with intervals of medians{from_}" if most >= REPEATS_MIN else ""
    what = what if intervals else ", medians"
    return f", n = {fewest}{what}" if fewest == most else f", n = {fewest} to {most}{what}"


def _kept(facts: Mapping[str, Any]) -> str:
    if not facts:
        return text.NONE
    if not facts["persistent"]:
        return "nothing left: rebuilt whole"
    return "whole; the tail is replayed" if facts["transactional"] else "wiped and rebuilt whole"
