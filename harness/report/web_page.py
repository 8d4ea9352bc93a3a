"""A page for browsers of sections and charts: one file with its style and its scripts, which asks for nothing else."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple

from harness.report.charts import Chart, Panel
from harness.report.drawing import SHAPE_STYLE, SHAPES, KeyEntry, key_of, panel_svg, style

_FILES = files("harness.report.web")
_SCRIPTS = ("theme.js", "tables.js", "filters.js", "picker.js", "charts.js")
"""In the order in which they run."""
_COLUMNS_MAX = 16
PANELS_MAX = 9
"""A chart has no more panels on the page, whose size is limited; the tables have all figures."""


class Section(NamedTuple):
    """A part of the page: its identifier, its title and its HTML. A ``folded`` one is open on demand."""

    name: str
    title: str
    html: str
    folded: bool = False


def assemble(
    title: str, head: str, first: str, sections: Sequence[Section], data: Mapping[str, Any], packed: Sequence[str] = ()
) -> str:
    """Return the page. ``head`` is HTML below the title, and ``first`` that before the contents.

    ``data`` is what the scripts know: the backends, the run in words, and what the picker answers from.
    ``packed`` are the lines of long tables that ``to_html`` has left out.
    """
    links = "\n".join(f'<li><a href="#{each.name}">{escape(each.title)}</a></li>' for each in sections)
    parts = "\n".join(_section(each) for each in sections)
    return Template(_text("page.html")).substitute(
        title=escape(title),
        head=head,
        first=first,
        links=links,
        shapes=SHAPES,
        sections=parts,
        style="\n".join((_dense("page.css"), SHAPE_STYLE, _looks(), _alignments())),
        data=_json({**data, "tables": _packed(packed)}),
        scripts=_script("\n".join(map(_dense, _SCRIPTS))),
    )


def _packed(tables: Sequence[str]) -> str:
    """Return the lines of tables in one compressed text: packed at once they take a third less.

    There a line has a column, whose cells are more alike than those of a row.
    """
    columns = (zip(*(line.split("\t") for line in lines.split("\n")), strict=True) for lines in tables)
    text = "\0".join("\n".join(map("\t".join, each)) for each in columns)
    return b64encode(zlib.compress(text.encode(), 9)).decode()


def chart_html(chart: Chart, words: str = "", *, deep: int = 4) -> str:
    """Return a chart: its title, at a level of headings, ``words`` in HTML, its key and its panels."""
    filled = chart.filled()
    panels = "\n".join(_figure(chart, panel) for panel in filled[:PANELS_MAX])
    more = len(filled) - PANELS_MAX
    rest = f'<p class="soft">{more} more of these are in the tables alone.</p>' if more > 0 else ""
    return (
        f'<div class="plot" id="plot-{chart.name}" data-unit="{escape(chart.unit)}">'
        f"<h{deep}>{escape(chart.title)}</h{deep}>\n{words}{key_html(key_of(chart))}\n"
        f'<div class="panels">\n{panels}\n</div>{rest}'
        '<p class="soft none" hidden>The filters leave nothing of this plot.</p></div>'
    )


def key_html(entries: Sequence[KeyEntry]) -> str:
    """Return the explanations of marks as a list."""
    items = (
        f'<li data-look="{escape(words)}">'
        f'<svg viewBox="0 0 22 12" width="22" height="12" aria-hidden="true">{svg}</svg>{escape(words)}</li>'
        for svg, words in entries
    )
    return f'<ul class="key">{"".join(items)}</ul>'


def _figure(chart: Chart, panel: Panel) -> str:
    size = panel.records_per_commit
    facts = {"level": panel.level, "workload": panel.workload, "size": "" if size is None else str(size)}
    filtered = "".join(f' data-{name}="{escape(value)}"' for name, value in facts.items() if value)
    return (
        f'<figure class="panel"{filtered}><figcaption>{escape(panel.title)}</figcaption>'
        f"{panel_svg(chart, panel)}</figure>"
    )


def _section(section: Section) -> str:
    title = f'<h2 id="{section.name}-title">{escape(section.title)}</h2>'
    body = f"{title}\n{section.html}"
    if section.folded:
        body = f"<details><summary>{title}</summary>\n{section.html}\n</details>"
    return f'<section id="{section.name}" aria-labelledby="{section.name}-title">\n{body}\n</section>'


def _looks() -> str:
    """Return the colours of marks: those for dark paper where it is chosen, or where the system asks for it."""
    system = style(":root:not([data-theme]) ", dark=True)
    chosen = style(':root[data-theme="dark"] ', dark=True)
    return f"{style()}{chosen}@media (prefers-color-scheme:dark){{{system}}}"


def _alignments() -> str:
    """Return the rules that put the numbers of a table's columns at the right: ``r3`` is for the third."""
    places = range(1, _COLUMNS_MAX + 1)
    selectors = (f".r{place} :is(td,th):nth-child({place})" for place in places)
    return f"{','.join(selectors)}{{text-align:right}}"


def _text(name: str) -> str:
    return (_FILES / name).read_text("utf-8")


def _dense(name: str) -> str:
    """Return a file without what only its authors read: the indents, and the lines that are comments."""
    lines = (line.strip() for line in _text(name).splitlines())
    return "\n".join(line for line in lines if line and not (line.startswith("/*") and line.endswith("*/")))


def _json(data: Mapping[str, Any]) -> str:
    # Within a script element "<" could begin the end of it.
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _script(script: str) -> str:
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
