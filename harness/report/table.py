"""A table of a report, for Markdown and for a terminal."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import NamedTuple

from harness.report import text

ROWS_SHOWN = 24
"""A table with more rows is folded in a report."""


class Table(NamedTuple):
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
        shown = [place for place in range(len(self.head)) if place not in common]
        lines = text.plain_table(
            [self.head[place] for place in shown],
            [[row[place] for place in shown] for row in rows],
            [number for number, place in enumerate(shown) if place in self.right],
        )
        said = [f"{self.head[place]}: {rows[0][place]}" for place in common if rows[0][place] not in ("", text.NONE)]
        below = f"\nIn every line: {', '.join(said)}." if said else ""
        return f"{_unmarked(self.caption)}:\n{lines}{below}"


def _as_html(caption: str) -> str:
    # Markdown is not interpreted within an HTML tag.
    return re.sub("`([^`]*)`", r"<code>\1</code>", html.escape(caption, quote=False))


def _unmarked(cell: str) -> str:
    return cell.replace("`", "").replace("**", "")
