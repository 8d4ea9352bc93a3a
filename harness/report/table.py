"""A table of a report, for Markdown and for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harness.report import text


class Table(NamedTuple):
    """Cells as text; columns whose places are in ``right`` hold numbers.

    ``told_once`` are the places of columns that a terminal, which is narrow, need not show where every line has the
    same in them: that is told below the table.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()
    told_once: Sequence[int] = ()

    def markdown(self) -> str:
        """The caption and the table, or the caption with what stands for an empty one."""
        if not self.rows:
            return f"{self.caption}: {text.NOT_MEASURED}.\n"
        return f"{self.caption}:\n\n{text.table(self.head, self.rows, self.right)}"

    def plain(self) -> str:
        """The same for a terminal, without Markdown's marks."""
        if not self.rows:
            return f"{self.caption}: {text.NOT_MEASURED}."
        rows = [[_unmarked(cell) for cell in row] for row in self.rows]
        common = [place for place in self.told_once if len(rows) > 1 and len({row[place] for row in rows}) == 1]
        shown = [place for place in range(len(self.head)) if place not in common]
        lines = text.plain_table(
            [self.head[place] for place in shown],
            [[row[place] for place in shown] for row in rows],
            [number for number, place in enumerate(shown) if place in self.right],
        )
        said = [f"{self.head[place]}: {rows[0][place]}" for place in common if rows[0][place] not in ("", text.NONE)]
        below = f"\nIn every line: {', '.join(said)}." if said else ""
        return f"{_unmarked(self.caption)}:\n{lines}{below}"


def _unmarked(cell: str) -> str:
    return cell.replace("`", "").replace("**", "")
