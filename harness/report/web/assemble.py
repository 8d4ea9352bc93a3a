"""The page as one file: template, style, scripts, chart library and data put together."""

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

from harness.report.charts import specifications
from harness.report.page import FIRST_PAGE, anchor

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
    elif (found := _PAGE_LINK.match(href)) and (found[1] in pages or f"{found[1]}.md" == FIRST_PAGE):
        own = "" if f"{found[1]}.md" == FIRST_PAGE else found[1]
        token.attrSet("href", f"#{identifier(own, found[2] or '') or 'top'}")


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
