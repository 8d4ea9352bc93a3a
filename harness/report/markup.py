"""HTML of a report's Markdown, for the page for browsers: links within the page, tables in boxes, long ones as data."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from html import escape, unescape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from harness.report.page import FIRST_PAGE, ROWS_SHOWN, anchor

_INTERVAL = re.compile(r"(?<!>)(\([^<()]+ to [^<()]+\))(?:<br>|$)")
_PAGE_LINK = re.compile(r"([\w-]+)\.md(?:#(.+))?$")
_TAG = re.compile(r"</?(?:details|summary|code|br)>")
"""The HTML that a report has in its Markdown. None of them has attributes."""
_DITTO = '"'
_PLAIN_MAX, _FOLDED_PLAIN_MAX = 2_000, 300
"""Lines of more characters are compressed: they are most of a page's size. The second is for a folded part."""
_LINES_FROM = 3
"""A folded table of more rows is lines of cells."""
_SCRIPTED = ("text", "code_inline", "strong_open", "strong_close", "softbreak")
"""The parts of a cell that a script makes."""
Cells = list[list[Token]]


def to_html(
    source: str,
    pages: Collection[str],
    name: str = "",
    deeper: int = 0,
    *,
    is_folded: bool = False,
    packed: list[str] | None = None,
) -> str:
    """Return Markdown as HTML. Links to the ``pages`` of a report, given by name, become links within one page.

    ``name`` is the page that the text is of, and begins the identifiers of its titles and tables; "" is the first page.
    Titles are ``deeper`` by so many levels. Each table is in a box that scrolls by itself. A table with more rows than
    a report shows is lines of cells with tabs between them, of which a script makes the table. So are shorter ones in a
    part of the page that ``is_folded``. A quotation mark stands for the cell above it. With a list ``packed``, many
    such lines are added to it, for ``assemble``, and HTML has the number of the table there.

    Other HTML than that of a report is shown as text: names and messages of errors may look like it.
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

    def rendered(cell: Token) -> str:
        return str(parser.renderer.render([cell], parser.options, {}))

    html: str = parser.renderer.render(
        _boxed(tokens, name, f"{name}.md" if name in pages else FIRST_PAGE, rendered, packed, is_folded=is_folded),
        parser.options,
        {},
    )
    return html


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


def _boxed(
    tokens: Sequence[Token],
    name: str,
    file: str,
    rendered: Callable[[Token], str],
    packed: list[str] | None,
    *,
    is_folded: bool,
) -> list[Token]:
    """Return the tokens with each table as a block of HTML. ``file`` is the page that has the tables as well."""
    boxed: list[Token] = []
    table: list[Token] | None = None
    number = 0
    for token in tokens:
        if token.type == "table_open":
            table = []
        elif token.type == "table_close" and table is not None:
            number += 1
            box = _table(table, identifier(name, f"table-{number}"), file, rendered, packed, is_folded=is_folded)
            boxed.append(_html(box))
            table = None
        elif table is None:
            boxed.append(token)
        else:
            table.append(token)
    return boxed


def _table(
    tokens: Sequence[Token],
    name: str,
    file: str,
    rendered: Callable[[Token], str],
    packed: list[str] | None,
    *,
    is_folded: bool,
) -> str:
    head, *rows = _lines(tokens)
    aligned = [token.attrGet("style") for token in tokens if token.type == "th_open"]
    right = " ".join(f"r{place}" for place, style in enumerate(aligned, 1) if style == "text-align:right")
    attributes = f'class="scroll {right}" id="{name}"'
    if len(rows) > ROWS_SHOWN or (is_folded and len(rows) > _LINES_FROM and _is_plain(rows)):
        most = _FOLDED_PLAIN_MAX if is_folded else _PLAIN_MAX
        return _long(_data([head, *rows]), len(rows), attributes, file, most, packed)
    # End tags of cells and rows can be left out.
    titles = "".join(f'<th scope="col">{rendered(cell)}' for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{_apart(rendered(cell))}' for cell in row)}" for row in rows)
    return f"<div {attributes}><table><thead><tr>{titles}<tbody>{body}</table></div>\n"


def _is_plain(rows: Cells) -> bool:
    """Return True if a script can make the cells from their text: it knows no links."""
    children = (child for row in rows for cell in row for child in cell.children or ())
    return all(child.type in _SCRIPTED for child in children)


def _long(lines: str, rows: int, attributes: str, file: str, plain_max: int, packed: list[str] | None) -> str:
    """Return the lines of a long table as they are, or their number in ``packed`` with a link to the page with them."""
    if packed is None or len(lines) <= plain_max:
        return f"<pre {attributes}>\n{escape(lines, quote=False)}</pre>\n"
    packed.append(lines)
    return (
        f'<div {attributes} data-packed="{len(packed) - 1}">{rows} rows, which a script unpacks: '
        f'see <a href="{file}">{file}</a>.</div>\n'
    )


def _lines(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Yield the cells of each line of a table, the head first."""
    line: list[Token] = []
    for token in tokens:
        if token.type == "inline":
            line.append(token)
        elif token.type == "tr_close":
            yield line
            line = []


def _apart(cell: str) -> str:
    return _INTERVAL.sub(r'<span class="interval">\1</span>', cell)


def _data(lines: Sequence[Sequence[Token]]) -> str:
    texts = [[" ".join(cell.content.split()) for cell in line] for line in lines]
    above: Sequence[str] = [""] * len(texts[0])
    parts = []
    for line in texts:
        pairs = zip(line, above, strict=True)
        parts.append("\t".join(_DITTO if cell == before and cell else cell for cell, before in pairs))
        above = line
    return "\n".join(parts)


def _html(content: str) -> Token:
    attributes: dict[str, Any] = {"content": content}
    return Token("html_block", "", 0, **attributes)
