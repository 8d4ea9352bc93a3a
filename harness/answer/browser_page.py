"""The page for browsers: the answers, checks, tables and plots of the report in one file, which needs no network."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from html import escape, unescape
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from harness.answer.choice import Choice, busy_notice, choices
from harness.answer.history import HISTORY_FILE, Line, others, timelines
from harness.answer.results import HOW_PICKED, choice_table, left_out_of, problems_of, summary_table
from harness.report import text
from harness.report.charts import COLOURS, Chart, specifications
from harness.report.environment import machine_page, origin
from harness.report.figures import Figures
from harness.report.page import FIRST_PAGE, HOW, Page, PageFinding, anchor
from harness.report.ratios import ratio_finding, ratio_sentence, ratio_table
from harness.report.text import LEVELS, MEANING

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
    past = [chart for chart in timelines(history, environment) if chart.data(backends)]
    plots = [(page, [chart for chart in page.plots if chart.data(backends)]) for page in pages if page.body]
    sections = [
        Section("answer", "The answer", _answer(picks, names)),
        Section("proven", "What was proven", _proven(figures, pages, names)),
        Section("not-proven", "What was not proven", _not_proven(picks, figures, pages, facts, names)),
        Section("side-by-side", "All backends side by side", _side_by_side(figures, backends, names)),
        Section("plots", "Plots", _plots([each for each in plots if each[1]])),
        *([Section("history", "History", _history(past, others(history, environment)))] if past else []),
        Section("ratios", "Ratios", _ratios(figures, names)),
        Section("tables", "All tables", _tables(pages, names)),
        Section("machine", "The machine", to_html(machine_page(facts, environment).partition("\n")[2], names)),
    ]
    charts = [chart for _, of_page in plots for chart in of_page] + past
    data = {
        "backends": sorted(backends),
        "colours": COLOURS,
        "plots": [chart.data(backends) for chart in charts],
    }
    return assemble(_TITLE, _head(picks, figures, facts, environment), sections, data)


def _head(found: Sequence[Choice], figures: Figures, facts: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    sentences = (busy_notice(figures), problems_of(facts), left_out_of(facts))
    notes = [note for note in sentences if note]
    parts = [f'<p class="origin">{inline(origin(facts, environment))}</p>']
    return "\n".join([*parts, *(f'<p class="note">{inline(note)}</p>' for note in notes)])


def _answer(found: Sequence[Choice], names: Sequence[str]) -> str:
    picks_table = choice_table(found)
    # Backends without a difference have a line each; a column of notes without a note is left out.
    rows = [[*row[:3], *(cell.replace("; ", "<br>") for cell in row[3:])] for row in picks_table.rows]
    width = len(picks_table.head) if any(row[-1] for row in rows) else len(picks_table.head) - 1
    table = text.table(picks_table.head[:width], [row[:width] for row in rows])
    return (
        f'<div class="answer">{to_html(table, names)}</div>\n{to_html(_READING, names)}'
        f"<h3>What a durability level means</h3>\n{to_html(MEANING, names)}"
    )


def _proven(figures: Figures, pages: Sequence[Page], names: Sequence[str]) -> str:
    findings = [(finding, page) for page in pages for finding in page.findings if finding.number]
    items = [_item(finding, f"{page.name}.md", names) for finding, page in findings]
    ratio = ratio_finding(figures)
    return _list([*items, *([_item(ratio._replace(section="Ratios"), "", names)] if ratio.number else [])])


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
    lines = [*cut, *undecided, *unchecked, *absent, *map(escape, _NEVER_PROVEN)]
    return _list([f'<li class="none">{line}</li>' for line in lines])


def _list(items: Sequence[str]) -> str:
    return '<ul class="counts">\n' + "\n".join(items) + "\n</ul>"


def _side_by_side(figures: Figures, backends: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> str:
    tables = (summary_table(figures, backends, level) for level in LEVELS)
    return "\n".join(to_html(table.markdown(), names) for table in tables if table.rows)


def _plots(plots: Sequence[tuple[Page, Sequence[Chart]]]) -> str:
    parts = ['<form id="filters" class="filters" aria-label="What the plots show"></form>']
    for page, own in sorted(plots, key=lambda each: any(chart.kind == "matrix" for chart in each[1])):
        parts.append(f'<h3>{escape(page.title)}</h3>\n<p class="soft">{inline(page.shows[0])}</p>')
        parts += [_place(plot) for plot in own]
    return "\n".join(parts)


def _history(past: Sequence[Chart], elsewhere: int) -> str:
    words = (
        "Whole runs on machines of this kind, the oldest at the left, under their commits. A star marks a commit with "
        "local changes. The filters of the plots hold here too."
    )
    if elsewhere:
        words += f" {elsewhere} runs on other kinds of machines are in {HISTORY_FILE} alone."
    return "\n".join([f'<p class="soft">{words}</p>', *map(_place, past)])


def _place(chart: Chart) -> str:
    return f'<div class="plot"><h4>{escape(chart.title)}</h4><div id="plot-{chart.name}"></div></div>'


def _ratios(figures: Figures, names: Sequence[str]) -> str:
    return to_html(f"{ratio_sentence(figures)}\n\n{ratio_table(figures).folded(0)}", names)


def _tables(pages: Sequence[Page], names: Sequence[str]) -> str:
    parts = []
    for page in pages:
        if page.body:
            body = "\n".join(part for part in page.body if part)
            source = f"{' '.join(page.shows)}\n\n{body}\n\n## {HOW}\n\n{page.method}"
            content = to_html(source, names, page.name, deeper=2)
            parts.append(f'<details id="{page.name}"><summary>{escape(page.title)}</summary>\n{content}</details>')
    return f'<div class="pages">{"".join(parts)}</div>'


_FILES = files("harness.report.web")
_SCRIPTS = ("theme.js", "tables.js", "drawing.js", "filters.js", "plots.js")
"""In the order in which they run."""


class Section(NamedTuple):
    """A part of the page: its identifier, its title and its HTML."""

    name: str
    title: str
    html: str


def assemble(title: str, head: str, sections: Sequence[Section], data: Mapping[str, Any]) -> str:
    """Return the page. ``head`` is HTML below the title. ``data`` is for the scripts: the plots, and how they look."""
    links = "\n".join(f'<li><a href="#{each.name}">{escape(each.title)}</a></li>' for each in sections)
    parts = "\n".join(_section(each) for each in sections)
    return Template(_text("page.html")).substitute(
        title=escape(title),
        head=head,
        links=links,
        sections=parts,
        style=_text("page.css"),
        data=_json({**data, "charts": specifications()}),
        library=_script(library()),
        scripts=_script("\n".join(_text(name) for name in _SCRIPTS)),
    )


@cache
def library() -> str:
    """Return the script that defines ``window.vegaEmbed``, about 900 kB. It takes some seconds once in a process.

    It is Vega-Embed with Vega and Vega-Lite, from the package vl-convert-python; nothing is fetched.
    """
    import vl_convert

    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return script


def _section(section: Section) -> str:
    title = f'<h2 id="{section.name}-title">{escape(section.title)}</h2>'
    return f'<section id="{section.name}" aria-labelledby="{section.name}-title">\n{title}\n{section.html}\n</section>'


def _text(name: str) -> str:
    return (_FILES / name).read_text("utf-8")


def _json(data: Mapping[str, Any]) -> str:
    # Within a script element "<" could begin the end of it.
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _script(script: str) -> str:
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


_INTERVAL = re.compile(r"(?<!>)(\([^<()]+ to [^<()]+\))(?:<br>|(?=</td>))")
_PAGE_LINK = re.compile(r"([\w-]+)\.md(?:#(.+))?$")
_TAG = re.compile(r"</?(?:details|summary|code|br)>")
"""The HTML that a report has in its Markdown. None of them has attributes."""


def to_html(source: str, pages: Collection[str], name: str = "", deeper: int = 0) -> str:
    """Return Markdown as HTML. Links to the ``pages`` of a report, given by name, become links within one page.

    ``name`` is the page that the text is of, and begins the identifiers of its titles; "" is the first page. Titles
    are ``deeper`` by so many levels. Each table is in a box that scrolls by itself. Other HTML than that of a report
    is shown as text: names and messages of errors may look like it.
    """
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    tokens = parser.parse(source)
    for place, token in enumerate(tokens):
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{int(token.tag[1]) + deeper}"
        if token.type == "heading_open":
            token.attrSet("id", identifier(name, anchor(tokens[place + 1].content)))
        for part in (token, *(token.children or ())):
            if part.type in ("html_block", "html_inline"):
                part.content = _harmless(part.content)
            _relink(part, pages, name)
    rendered: str = parser.renderer.render(_boxed(tokens), parser.options, {})
    numbers = rendered.replace(' style="text-align:right"', ' class="r"')
    return _INTERVAL.sub(r'<span class="interval">\1</span>', numbers)


def inline(source: str, pages: Collection[str] = ()) -> str:
    """Return one line of Markdown as HTML, without a paragraph around it."""
    return to_html(source, pages).strip().removeprefix("<p>").removesuffix("</p>")


def identifier(name: str, section: str = "") -> str:
    """Return the identifier of a page, or of one of its sections, within the page for browsers."""
    return "-".join(filter(None, (name, section)))


def _harmless(content: str) -> str:
    """Return HTML with everything escaped but the tags of a report."""
    place, parts = 0, []
    for tag in _TAG.finditer(content):
        parts += [_escaped(content[place : tag.start()]), tag[0]]
        place = tag.end()
    return "".join([*parts, _escaped(content[place:])])


def _escaped(text: str) -> str:
    # A summary is escaped already.
    return escape(unescape(text), quote=False)


def _relink(token: Token, pages: Collection[str], name: str) -> None:
    href = token.attrGet("href") if token.type == "link_open" else None
    if not isinstance(href, str):
        return
    if href.startswith("#"):
        token.attrSet("href", f"#{identifier(name, href[1:])}")
    elif (link := _PAGE_LINK.match(href)) and (link[1] in pages or f"{link[1]}.md" == FIRST_PAGE):
        own = "" if f"{link[1]}.md" == FIRST_PAGE else link[1]
        token.attrSet("href", f"#{identifier(own, link[2] or '') or 'top'}")


def _boxed(tokens: Sequence[Token]) -> list[Token]:
    boxed = []
    for token in tokens:
        if token.type == "table_open":
            boxed.append(_html('<div class="scroll">\n'))
        boxed.append(token)
        if token.type == "table_close":
            boxed.append(_html("</div>\n"))
    return boxed


def _html(content: str) -> Token:
    attributes: dict[str, Any] = {"content": content}
    return Token("html_block", "", 0, **attributes)
