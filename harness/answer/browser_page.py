"""The page for browsers: the answers, checks, tables and plots of the report in one file, which needs no network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from harness.answer import first_screen
from harness.answer.choice import Choice, busy_notice, choices
from harness.answer.frontier import landscapes
from harness.answer.history import HISTORY_FILE, Line, others, timelines, updates
from harness.answer.lost_cells import WORSE, loss_table, lost_cells
from harness.answer.results import (
    HOW_PICKED,
    choice_table,
    events_of,
    left_out_of,
    level_sentence,
    problems_of,
    summary_table,
)
from harness.report import text
from harness.report.charts import LOOKS
from harness.report.coverage_page import coverage_sentences
from harness.report.drawing import KeyEntry, backend_mark
from harness.report.environment import machine_kind, machine_page, origin
from harness.report.figures import Figures
from harness.report.markup import inline, to_html
from harness.report.page import HOW, Page, PageFinding
from harness.report.ratios import missed_table, ratio_finding, ratio_sentence, ratio_table
from harness.report.text import LEVELS, MEANING
from harness.report.web_page import Section, assemble, chart_html, key_html

_TITLE = "Which backend, and why"
_READING = f"""\
Figures are medians, in brackets with the interval that contains the true median with a probability of 95 % (93.75 %
for five repeats). {HOW_PICKED} Figures are compared within one durability level only.
"""
_NEVER_PROVEN = (
    "Power loss is simulated from recordings of what a process did to its files. No machine was switched off.",
    "Figures are those of one machine. On others the ratios are more alike than the numbers.",
    "A check that found nothing in the trials of this run proves nothing about trials that were not made.",
)
_CORRECT_US = """\
Is a figure wrong? Open an issue of this project with the output of `make bench` on your machine: the table that it
prints, and the folder of the run that it names. A figure that turns out to be wrong is measured again, and *What
changed* then names it. All figures are in [figures.jsonl](figures.jsonl) beside this page, one on each line.
"""


def browser_page(
    figures: Figures,
    pages: Sequence[Page],
    facts: Mapping[str, Any],
    environment: Mapping[str, Any],
    history: Sequence[Line],
) -> str:
    """Return the page as HTML. ``history`` has the whole runs, also this one if it is whole."""
    backends = environment["backends"]
    picks = choices(figures, backends)
    names = [page.name for page in pages if page.body]
    points = landscapes(figures, backends)
    packed: list[str] = []
    sections = [
        Section("answer", "The answer", _answer(picks, names, level_sentence(figures, environment))),
        Section("losses", "Where it loses", _losses(figures, backends, names, packed)),
        Section("proven", "What was proven", _proven(figures, pages, names)),
        Section("not-proven", "What was not proven", _not_proven(picks, figures, pages, facts, names), folded=True),
        Section("side-by-side", "All backends side by side", _side_by_side(figures, backends, names, packed)),
        Section("plots", "Plots", _plots(pages, backends), folded=True),
        *([Section("history", "What changed", _updates(history, environment), folded=True)] if history else []),
        Section("ratios", "Ratios", _ratios(figures, names, packed), folded=True),
        Section("tables", "All tables", _tables(pages, names, packed), folded=True),
        Section("machine", "The machine", _machine(facts, environment), folded=True),
        Section("correct", "How to correct us", to_html(_CORRECT_US, ())),
    ]
    answer = (first_screen.to_take(picks), first_screen.default_advice(picks))
    sentences = (*answer, first_screen.compared(figures, points, environment), first_screen.proven(figures, pages))
    first = (
        f"{first_screen.lead(sentences, names)}"
        f'<div class="first">{first_screen.picture(points)}{first_screen.picker(points)}</div>{_matrix(pages)}'
    )
    data = {
        "backends": sorted(backends),
        "origin": _short_origin(facts, environment),
        "looks": list(LOOKS),
        "picker": first_screen.picker_data(points, picks),
    }
    return assemble(_TITLE, _head(figures, facts, environment), first, sections, data, packed)


def _head(figures: Figures, facts: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    sentences = (busy_notice(figures), events_of(facts), problems_of(facts))
    notes = [note for note in sentences if note]
    parts = [f'<p class="origin">{inline(origin(facts, environment))}</p>']
    return "\n".join([*parts, *(f'<p class="note">{inline(note)}</p>' for note in notes)])


def _short_origin(facts: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    commit = facts.get("commit") or ""
    return f"{f'Commit {commit[:7]}, ' if commit else ''}{facts['started']}, {machine_kind(environment)}"


def _answer(found: Sequence[Choice], names: Sequence[str], levels: str) -> str:
    picks_table = choice_table(found)
    # Backends without a difference have a line each; a column of notes without a note is left out.
    rows = [[*row[:3], *(cell.replace("; ", "<br>") for cell in row[3:])] for row in picks_table.rows]
    width = len(picks_table.head) if any(row[-1] for row in rows) else len(picks_table.head) - 1
    table = text.table(picks_table.head[:width], [row[:width] for row in rows])
    return (
        f'<div class="answer cards">{to_html(table, names, "answer")}</div>\n{to_html(_READING, names)}'
        f"<h3>What a durability level means</h3>\n{to_html(MEANING, names, 'levels')}"
        f"{to_html(levels, names)}"
    )


def _proven(figures: Figures, pages: Sequence[Page], names: Sequence[str]) -> str:
    findings = [(finding, page) for page in pages for finding in page.findings if finding.number]
    items = [_item(finding, f"{page.name}.md", names) for finding, page in findings]
    ratio = ratio_finding(figures)
    covered = [f"<li>{inline(words, names)}</li>" for words in coverage_sentences(figures)]
    return _list([*covered, *items, *([_item(ratio._replace(section="Ratios"), "", names)] if ratio.number else [])])


def _item(finding: PageFinding, file: str, names: Sequence[str]) -> str:
    short = "" if finding.good == finding.number else ' class="short"'
    return f"<li{short}>{inline(finding.sentence(file), names)}</li>"


def _not_proven(
    found: Sequence[Choice],
    figures: Figures,
    pages: Sequence[Page],
    facts: Mapping[str, Any],
    names: Sequence[str],
) -> str:
    undecided = [
        f"{escape(choice.need)} ({choice.durability}): {inline(choice.answer)}."
        for choice in found
        if not choice.backend
    ]
    unchecked = [inline(finding.sentence(), names) for page in pages for finding in page.findings if not finding.number]
    absent = [f"{escape(page.title)}: {inline(page.absent.rstrip('.'))}." for page in pages if not page.body]
    cut = [inline(left_out_of(facts))] if left_out_of(facts) else []
    lines = [*undecided, *unchecked, *absent, *map(escape, _NEVER_PROVEN), *cut]
    return _list([f'<li class="none">{line}</li>' for line in lines])


def _list(items: Sequence[str]) -> str:
    return '<ul class="counts">\n' + "\n".join(items) + "\n</ul>"


def _side_by_side(
    figures: Figures, backends: Mapping[str, Mapping[str, Any]], names: Sequence[str], packed: list[str]
) -> str:
    tables = [(level, summary_table(figures, backends, level)) for level in LEVELS]
    return "\n".join(
        to_html(table.markdown(), names, level.lower(), packed=packed) for level, table in tables if table.rows
    )


def _losses(
    figures: Figures, backends: Mapping[str, Mapping[str, Any]], names: Sequence[str], packed: list[str]
) -> str:
    missed = [row for row in figures["ratio"] if row["met"] is False]
    lost = lost_cells(figures, backends)
    parts = [
        "Two tables: the thresholds on ratios that were missed, and the cells in which a backend is more than "
        f"{WORSE:g} times worse than the best one of its level.\n",
        missed_table(figures).markdown() if missed else "No threshold that the run decides was missed.\n",
        loss_table(lost).folded() if lost else "No cell has such a backend.\n",
    ]
    return f'<div class="cards">{to_html(chr(10).join(parts), names, "losses", packed=packed)}</div>'


def _matrix(pages: Sequence[Page]) -> str:
    charts = [chart for page in pages if page.body for chart in page.plots if chart.kind == "matrix"]
    words = (
        "<p class='soft'>A column is a step at which a process was killed, or another fault. Its name and its trials "
        "are shown at the pointer, on the arrow keys and in the table.</p>"
    )
    return "".join(chart_html(chart, words, deep=2) for chart in charts)


def _plots(pages: Sequence[Page], backends: Iterable[str]) -> str:
    looks = key_html([KeyEntry(backend_mark(name), name) for name in sorted(backends)])
    parts = [
        '<form id="filters" class="filters" aria-label="What the plots show"></form>',
        f'<div id="looks">{looks}</div>',
        '<p class="soft">The arrow keys read the values of a plot that has the focus.</p>',
    ]
    for page in pages:
        own = [chart for chart in page.plots if chart.kind != "matrix" and chart.filled()]
        if page.body and own:
            parts.append(f'<h3>{escape(page.title)}</h3>\n<p class="soft">{inline(page.shows[0])}</p>')
            parts += map(chart_html, own)
    return "\n".join(parts)


def _updates(history: Sequence[Line], environment: Mapping[str, Any]) -> str:
    """Return what each whole run changed, and the figures of those on machines of this kind."""
    dated = "".join(f"* {update.words}\n" for update in updates(history))
    past = [chart_html(chart, deep=3) for chart in timelines(history, environment) if chart.filled()]
    words = (
        "Each whole run is compared with the one before it on a machine of the same kind. A figure has changed if the "
        "intervals of both runs have nothing in common.\n"
    )
    charted = (
        "The plots show the runs on machines of this kind, the oldest at the left, under their commits. A star marks a "
        "commit with local changes. The filters of the plots hold here too.\n"
    )
    if elsewhere := others(history, environment):
        charted += f" {elsewhere} runs on other kinds of machines are in {HISTORY_FILE} alone.\n"
    return "\n".join([to_html(f"{words}\n{dated}\n{charted if past else ''}", ()), *past])


def _machine(facts: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    return to_html(machine_page(facts, environment).partition("\n")[2], (), "machine")


def _ratios(figures: Figures, names: Sequence[str], packed: list[str]) -> str:
    return to_html(f"{ratio_sentence(figures)}\n\n{ratio_table(figures).folded(0)}", names, "ratios", packed=packed)


def _tables(pages: Sequence[Page], names: Sequence[str], packed: list[str]) -> str:
    parts = []
    for page in pages:
        if page.body:
            body = "\n".join(part for part in page.body if part)
            source = f"{' '.join(page.shows)}\n\n{body}\n\n## {HOW}\n\n{page.method}"
            content = to_html(source, names, page.name, deeper=2, is_folded=True, packed=packed)
            parts.append(
                f'<details id="{page.name}"><summary><h3>{escape(page.title)}</h3></summary>\n{content}</details>'
            )
    return f'<div class="pages">{"".join(parts)}</div>'
