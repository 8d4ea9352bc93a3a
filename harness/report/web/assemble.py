"""The page as one file: template, style, scripts, chart library and data put together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple

from harness.report.charts import specifications

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
