"""The first page of a report: which backend to pick and why, what was proven, all backends side by side, the plots."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from harness.answer.choice import busy_notice, choices
from harness.answer.machine import MACHINE_FILE, origin
from harness.answer.results import left_out_of, problems_of
from harness.answer.summary import choice_table, summary_table
from harness.report import text
from harness.report.figures import Figures
from harness.report.levels import MEANING
from harness.report.page import BROWSER_PAGE, Page, anchor, images
from harness.report.ratios import ratio_sentence, ratio_table

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
