"""The page as one file: template, style, scripts, chart library and data put together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple

from harness.report.web.library import charts, library

_FILES = files(__package__)
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
        data=_json({**data, "charts": charts()}),
        library=_script(library()),
        scripts=_script("\n".join(_text(name) for name in _SCRIPTS)),
    )


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
