"""A page of a report: what it shows, its plots, tables and failures, and how it was measured."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.report import text
from harness.report.charts import Chart

FIRST_PAGE = "report.md"
"""The file of the page that answers, beside the pages of the experiments."""
BROWSER_PAGE = "index.html"
"""The file of the page for browsers, which has all of them."""
HOW = "How it was measured"


class PageFinding(NamedTuple):
    """A number of checks, and how many of them ended well. ``section`` is the title of the part that has their rows.

    ``unknown`` of them have no verdict, because they could not be tried.
    """

    what: str
    number: int
    good: int
    verdict: str
    section: str = ""
    unknown: int = 0

    @property
    def wrong(self) -> int:
        """The number of those that did not end well."""
        return self.number - self.good - self.unknown

    def sentence(self, file: str = "") -> str:
        """Return the finding in a sentence, bold unless all ended well. ``file`` makes it a link to the rows."""
        if not self.number:
            return f"No {self.what} in this run."
        target = file + (f"#{anchor(self.section)}" if self.section else "")
        what = f"[{self.what}]({target})" if target else self.what
        unknown = f" ({text.exact(self.unknown)} without a verdict)" if self.unknown else ""
        sentence = f"{text.exact(self.good)} of {text.exact(self.number)} {what} {self.verdict}{unknown}."
        return sentence if self.good == self.number else f"**{sentence}**"


@dataclass(frozen=True)
class Page:
    """The page of an experiment in a report.

    It opens with three sentences: those of ``shows``, and then those of ``findings``. ``body`` has its tables and
    failures as parts in Markdown, with titles from the second level on. ``method`` says how it was measured. Where
    nothing was measured ``body`` is empty, and ``absent`` gives the reason; the page is then not written.
    """

    name: str
    title: str
    shows: Sequence[str]
    body: Sequence[str]
    method: str
    findings: Sequence[PageFinding] = ()
    plots: Sequence[Chart] = ()
    absent: str = text.NOT_MEASURED

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.name}.md"

    def markdown(self, origin: str, drawn: Collection[str]) -> str:
        """Return the page. ``origin`` says which run it is of; ``drawn`` are the files of plots beside it."""
        body = [part for part in self.body if part]
        folded = any(part.startswith("<details>") or "\n<details>" in part for part in body)
        note = f" Tables of more than {ROWS_SHOWN} rows are folded." if folded else ""
        return "\n".join(
            [
                f"# {self.title}\n",
                " ".join([*self.shows, *(finding.sentence() for finding in self.findings)]) + "\n",
                f"A page of [the report]({FIRST_PAGE}): {origin}{note}\n",
                *images(self.plots, drawn),
                *body,
                f"## {HOW}\n",
                self.method,
            ]
        )


def images(plots: Sequence[Chart], drawn: Collection[str]) -> list[str]:
    """Return the plots that were drawn, as Markdown."""
    return [f"![{plot.title}]({file})\n" for plot in plots for file in drawn if file.partition(".")[0] == plot.name]


def tables(*made: TextTable) -> list[str]:
    """Return tables as Markdown, the long ones folded; or a sentence if there are none."""
    return [table.folded() for table in made] or [f"{text.NOT_MEASURED.capitalize()}.\n"]


def anchor(title: str) -> str:
    """Return the anchor that code hosts derive from a title."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


ROWS_SHOWN = 24
"""A table with more rows is folded in a report."""


class TextTable(NamedTuple):
    """A table with its cells as text. Columns whose places are in ``right`` hold numbers.

    ``shown_once`` are the places of columns that a terminal need not show if all their cells are equal: the value then
    follows below the table. ``notable`` are the places of rows that stay visible when a long table is folded: those
    with something wrong.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()
    shown_once: Sequence[int] = ()
    notable: Sequence[int] = ()

    def markdown(self) -> str:
        """Return the caption and the table, or the caption with a text for an empty table."""
        if not self.rows:
            return f"{self.caption}: {text.NOT_MEASURED}.\n"
        return f"{self.caption}:\n\n{text.table(self.head, self.rows, self.right)}"

    def folded(self, rows_shown: int = ROWS_SHOWN) -> str:
        """Return the table as Markdown. One of more than ``rows_shown`` rows is folded below its notable rows."""
        if len(self.rows) <= rows_shown:
            return self.markdown()
        whole = text.table(self.head, self.rows, self.right)
        fold = f"<details>\n<summary>{_as_html(self.caption)}: {len(self.rows)} rows</summary>\n\n{whole}\n</details>\n"
        if not self.notable:
            return fold
        wrong = text.table(self.head, [self.rows[place] for place in self.notable], self.right)
        return f"{self.caption}. These rows are not as they should be:\n\n{wrong}\n{fold}"

    def plain(self) -> str:
        """Return the table for a terminal, without Markdown's marks."""
        if not self.rows:
            return f"{self.caption}: {text.NOT_MEASURED}."
        rows = [[_unmarked(cell) for cell in row] for row in self.rows]
        common = [place for place in self.shown_once if len(rows) > 1 and len({row[place] for row in rows}) == 1]
        places = [place for place in range(len(self.head)) if place not in common]
        lines = text.plain_table(
            [self.head[place] for place in places],
            [[row[place] for place in places] for row in rows],
            [number for number, place in enumerate(places) if place in self.right],
        )
        constants = [
            f"{self.head[place]}: {rows[0][place]}" for place in common if rows[0][place] not in ("", text.NONE)
        ]
        below = f"\nIn every line: {', '.join(constants)}." if constants else ""
        return f"{_unmarked(self.caption)}:\n{lines}{below}"


def _as_html(caption: str) -> str:
    # Markdown is not interpreted within an HTML tag.
    return re.sub("`([^`]*)`", r"<code>\1</code>", html.escape(caption, quote=False))


def _unmarked(cell: str) -> str:
    return cell.replace("`", "").replace("**", "")
