"""A finished run: the figures, the failures and the pages of all experiments, and the first page of its report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.answer.choice import Choice, busy_notice, choices
from harness.answer.first_screen import default_advice, to_take
from harness.experiment import RATIO, Failure, Rows
from harness.experiments.crash.report import crash_count
from harness.experiments.opening.report import READY_AFTER_A_KILL, largest_state
from harness.experiments.registry import experiments, kinds
from harness.experiments.throughput.report import reference
from harness.report import text
from harness.report.coverage import COVERAGE_KINDS, sentence_of, summary_of
from harness.report.coverage_page import coverage_page, coverage_sentences
from harness.report.decision import INDIFFERENCE
from harness.report.environment import MACHINE_FILE, origin
from harness.report.figures import REPEATS_MIN, Figure, Figures, with_interval
from harness.report.page import BROWSER_PAGE, Page, TextTable, anchor, images
from harness.report.ratios import ratio_sentence, ratio_table, ratios
from harness.report.rows import FACTS_FILE, read_all, read_facts
from harness.report.text import MEANING
from stores.errors import ConfigError

FIRST = ("coverage", "crashes", "io-faults", "throughput", "stores", "latency", "opening", "memory")
"""The pages that come before all others, in order."""
_FACTS = {"profile", "seed", "started"}
_ENVIRONMENT = {"cpu", "memory_bytes", "disk", "kernel", "python", "java", "libraries", "packages", "backends"}
"""The facts of a run, and the parts of its environment, that the pages use."""


@dataclass(frozen=True)
class FinishedRun:
    """A run that came to its end: its settings, its machine, and its rows by kind."""

    folder: Path
    facts: Mapping[str, Any]
    environment: Mapping[str, Any]
    rows: Rows


def finished_run(folder: Path) -> FinishedRun:
    """Read a run. Raises: ConfigError if the folder is not that of a run, or the run has no end."""
    facts = read_facts(folder)
    environment = facts.pop("environment", None)
    if environment is None:
        raise ConfigError(f"the run in {folder} was given up before its end: there is nothing to report")
    lacking = _FACTS - facts.keys()
    lacking |= (_ENVIRONMENT - environment.keys()) if isinstance(environment, dict) else {"environment"}
    if lacking:
        raise ConfigError(
            f"{folder / FACTS_FILE} lacks {', '.join(sorted(lacking))}: it is damaged, or of another version "
            "of the harness, which can report the run"
        )
    return FinishedRun(folder, facts, environment, read_all(folder, kinds()))


def left_out_of(facts: Mapping[str, Any]) -> str:
    """Return a sentence for the first page about all that a run left out, from its facts; "" for nothing."""
    return summary_of(facts, {name: each.words or each.title for name, each in experiments().items()})


def problems_of(facts: Mapping[str, Any]) -> str:
    """Return sentences for the first page about an interruption, and what a run could not measure; "" for neither."""
    problems = facts.get("problems") or ()
    sentences = [
        f"**This run was interrupted** after {facts['seconds']:,} s." if facts.get("interrupted") else "",
        f"**{len(problems):,} of its measurements failed:** {'; '.join(problems)}." if problems else "",
    ]
    return " ".join(filter(None, sentences))


def events_of(facts: Mapping[str, Any]) -> str:
    """Return a sentence for the first page about the user's own events: the file, its rows, and those left out."""
    notes = facts.get("events") or ()
    return f"Your own events: {'; '.join(notes)}." if notes else ""


def all_figures(rows: Rows) -> dict[str, list[Figure]]:
    """Return the figures of every kind, by kind; an empty list for a kind that was not measured."""
    own = {kind: figures for each in experiments().values() for kind, figures in each.figures(rows).items()}
    return {
        **own,
        RATIO: ratios(rows.get(RATIO, ())),
        **{kind: [*map(dict, rows.get(kind, ()))] for kind in COVERAGE_KINDS},
    }


def all_failures(figures: Figures, rows: Rows) -> list[Failure]:
    """Return each result that fails the run, of every experiment."""
    return [failure for each in experiments().values() for failure in each.failures(figures, rows)]


def all_pages(figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> list[Page]:
    """Return the page of every experiment that has one, also of those that were not measured.

    The pages that a reader looks for first come first.
    """
    made = ((each.name, each.page(figures, rows, facts)) for each in experiments().values())
    pages = [_completed(page, facts, name) for name, page in made if page is not None]
    pages.append(coverage_page(figures))
    return sorted(pages, key=lambda page: FIRST.index(page.name) if page.name in FIRST else len(FIRST))


def _completed(page: Page, facts: Mapping[str, Any], name: str) -> Page:
    """Return a page that also says what the run left out of it."""
    if not (left_out := sentence_of(facts, name)):
        return page
    return replace(page, shows=(*page.shows, left_out), absent=f"{page.absent}: {left_out}")


HOW_PICKED = (
    "A pick kept every promise at that level in this run. No other backend that can do it is better by more than 10 %, "
    "with a confidence of 99 %, by the ratios of both within the rounds that measured them, at one speed of the "
    "processor. Of several such backends it is the one with the best median. Medians are as measured, so one that is "
    "not picked may have a better one. *No difference* names those that are neither better nor worse by more than 10 "
    "%: choose among them by other needs. *Not distinguished yet* names those that may be as good as the pick, or "
    "worse. *No pick yet* names those of which one may be better than the others by more than 10 %. Further rounds "
    "would show which."
)
_READING = """\
Figures are compared within one durability level only. They are medians. An interval contains the true median with a
probability of 95 %, or of 93.75 % for five repeats, the most that five can give. Without an interval a figure was
measured fewer than five times.
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
    picks = choices(figures, backends)
    notice = busy_notice(figures)
    sections = {
        "What was proven": [
            "".join(f"* {sentence}\n" for sentence in proven(figures, pages)),
            _folded(unproven(pages, facts)),
        ],
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
    links = [(page.title, page.file) for page in pages if page.body] + [("the machine", MACHINE_FILE)]
    measured = ", ".join(f"[{title}]({file})" for title, file in links)
    return "\n".join(
        [
            "# Which backend, and why\n",
            *([f"**{notice}**\n"] if notice else []),
            f"{to_take(picks)}\n",
            f"{default_advice(picks)}\n",
            f"{origin(facts, environment)}\n",
            *(f"{note}\n" for note in [events_of(facts), problems_of(facts)] if note),
            f"The same with plots that show values, filters and the history of runs: [index.html]({BROWSER_PAGE}).\n",
            f"Contents: {contents}. One page each: {measured}.\n",
            choice_table(picks).markdown(),
            f"{HOW_PICKED} What the levels mean:\n",
            MEANING,
            *(f"{sentence}\n" for sentence in [level_sentence(figures, environment)] if sentence),
            *(part for title, parts in filled.items() for part in (f"## {title}\n", *parts)),
        ]
    )


def level_sentence(figures: Figures, environment: Mapping[str, Any]) -> str:
    """Return what one fsync takes, and for which backends DISK is as fast as CHANGELOG; "" without such a figure."""
    sync_s = environment.get("fsync_s")
    if sync_s is None:
        return ""
    rates = {}
    for level in ("CHANGELOG", "DISK"):
        at = reference(figures["throughput"], level)
        of_level = [figure for figure in figures["throughput"] if at is not None and at.holds(figure)]
        rates[level] = {figure["backend"]: figure["records_per_s"] for figure in of_level}
    low, high = rates["CHANGELOG"], rates["DISK"]
    alike = [name for name in sorted(low.keys() & high.keys()) if high[name] > (1 - INDIFFERENCE) * low[name]]
    cost = f"One fsync takes {text.duration(sync_s)} on the disk of this run (median)."
    if not alike:
        return cost
    return (
        f"{cost} The levels CHANGELOG and DISK cannot be told apart by speed here for {', '.join(alike)}: DISK is less "
        "than 10 % slower."
    )


def proven(figures: Figures, pages: Sequence[Page]) -> list[str]:
    """Return what all runs have tried together, and a sentence for each kind of check, with a link to its rows.

    Failed checks are bold.
    """
    checked = [finding.sentence(page.file) for page in pages for finding in page.findings if finding.number]
    sentences = [*coverage_sentences(figures), *checked, ratio_sentence(figures, _RATIOS)]
    return [sentence for sentence in sentences if sentence]


def unproven(pages: Sequence[Page], facts: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each kind of check that the run has not made, and one about all that it left out."""
    absent = [finding.sentence(page.file) for page in pages for finding in page.findings if not finding.number]
    return [sentence for sentence in (*absent, left_out_of(facts)) if sentence]


def _folded(sentences: Sequence[str]) -> str:
    """Return one line for what was left out, with the sentences folded below it; "" if there are none."""
    if not sentences:
        return ""
    summary = "Left out of this run, or not in it"
    whole = "".join(f"* {sentence}\n" for sentence in sentences)
    return f"<details>\n<summary>{summary}</summary>\n\n{whole}\n</details>\n"


def _plots(page: Page, drawn: Collection[str]) -> list[str]:
    plots = images(page.plots, drawn)
    return [f"[{page.title}]({page.file}):\n", *plots] if plots else []


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
    openings = {figure["backend"]: figure for figure in largest_state(figures["opening"], durability)}
    crashed = {figure["backend"] for figure in figures["crash"] if figure["durability"] == durability}
    names = sorted({*rates, *openings, *crashed})
    with_unit = with_interval if intervals else _median
    rows = []
    for name in sorted(names, key=lambda name: -(rates.get(name, {}).get("records_per_s") or 0)):
        figure = rates.get(name, {})
        facts = backends.get(name, {})
        rows.append(
            [
                name,
                _kept(facts),
                with_unit(figure, "records_per_s", text.count),
                with_unit(figure, "commit_p99_us", text.latency),
                with_unit(openings.get(name, {}), "ready_s", text.duration),
                with_unit(figure, "peak_memory_bytes", text.size),
                with_unit(figure, "bytes_on_disk", text.size),
                crash_count(figures, name, durability),
            ]
        )
    size = next((figure["records"] for figure in openings.values()), 0)
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
