"""A table of a report, for Markdown and for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harness.report import text


class Table(NamedTuple):
    """Cells as text; columns whose places are in ``right`` hold numbers."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()

    def markdown(self) -> str:
        """The caption and the table, or the caption with what stands for an empty one."""
        if not self.rows:
            return f"{self.caption}: {text.NOT_MEASURED}.\n"
        return f"{self.caption}:\n\n{text.table(self.head, self.rows, self.right)}"

    def plain(self) -> str:
        """The same for a terminal."""
        if not self.rows:
            return f"{self.caption}: {text.NOT_MEASURED}."
        caption = self.caption.replace("`", "")
        return f"{caption}:\n{text.plain_table(self.head, self.rows, self.right)}"
